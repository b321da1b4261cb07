"""A plan as a file a person can read, edit and give back: one entry a node, one a value, one a weight.

What comes back is the status of each node (``float`` there means float here, any other is met where the graph allows
it), the spec of each tensor, and ranges and methods that an entry names; what the file does not name follows from the
options. What cannot be as the file says is told.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import onnx_ir as ir

from onnxq.calibration.observers import Method
from onnxq.errors import OptionError, near
from onnxq.facts import Decision, Edge, Ends, Plan, values_by_name
from onnxq.layers import Layer, read_weights
from onnxq.look import all_nodes, onnx_op
from onnxq.numerics.spec import Blocked, PerTensor, TensorSpec
from onnxq.planning.checks import check_installed
from onnxq.planning.review import input_spec
from onnxq.targets import Target

FORMAT = "onnxq-plan-1"
STATUSES = ("integer", "dynamic", "moves", "weight-only", "float")


def plan_json(plan: Plan) -> dict[str, Any]:
    """The plan as JSON-able data, in node order.

    ``layer`` marks the nodes that carry constant weights, ``types`` is what such a node reads and its weights become;
    ``reads`` are the uses that read their value at another spec than the value's own.
    """
    weights: dict[ir.Node, TensorSpec] = {}
    for edge, spec in plan.weights.items():
        weights.setdefault(edge.node, spec)
    return {
        "format": FORMAT,
        "nodes": {
            node.name or "": {
                "op": node.op_type,
                **({"layer": True} if _is_layer(node, d) else {}),
                "status": d.status,
                **({"types": _types(node, plan, weights[node])} if node in weights else {}),
                "code": d.code,
                "reason": d.reason,
            }
            for node, d in plan.decisions.items()
        },
        "activations": {
            value.name or "": {
                **spec.to_json(),
                **({"range": list(plan.fixed[value])} if value in plan.fixed else {}),
                **({"method": plan.methods[value]} if value in plan.methods else {}),
            }
            for value, spec in plan.activations.items()
        },
        "reads": _uses(plan.bridges),
        "weights": _uses(plan.weights),
        "shared": [[v.name for v in group] for group in plan.shared],
    }


def _uses(specs: Mapping[Edge, TensorSpec]) -> dict[str, dict[str, Any]]:
    return {_key(e): {"value": e.value.name, **spec.to_json()} for e, spec in specs.items()}


def _key(edge: Edge) -> str:
    return f"{edge.node.name}:{edge.index}"


def _types(node: ir.Node, plan: Plan, weight: TensorSpec) -> str:
    if plan.decisions[node].status == "dynamic":
        return f"dynamic uint8 x {weight.qtype}"
    x = input_spec(node, plan)
    return f"{x.qtype if x is not None else 'float'} x {weight.qtype}"


def _is_layer(node: ir.Node, decision: Decision) -> bool:
    """Whether a node carries constant float weights; a Gather does where its table is quantized as weights are."""
    if onnx_op(node, "Gather"):
        return decision.status == "weight-only"
    layer = read_weights(node)
    return isinstance(layer, Layer) and layer.weight is not None


@dataclass(frozen=True)
class Filed:
    """What a plan file says.

    Attributes:
        decisions: Of each node it names, in the order of the file.
        activations: Specs of values.
        reads: Specs at which uses read their values.
        weights: Specs of uses of weights.
        ranges: Ranges of values.
        methods: Calibration methods of values.
    """

    decisions: dict[ir.Node, Decision] = field(default_factory=dict)
    activations: dict[ir.Value, TensorSpec] = field(default_factory=dict)
    reads: dict[Edge, TensorSpec] = field(default_factory=dict)
    weights: dict[Edge, TensorSpec] = field(default_factory=dict)
    ranges: dict[ir.Value, Ends] = field(default_factory=dict)
    methods: dict[ir.Value, str] = field(default_factory=dict)

    def check(self, target: Target) -> None:
        """Refuse types that the target does not take.

        Raises:
            OptionError: Names tensor or use, and the nearest type.
            CapabilityError: A type the installed onnx does not have.
        """
        activations = [(f"'{v.name}'", spec) for v, spec in self.activations.items()]
        activations += [(f"'{_key(e)}'", spec) for e, spec in self.reads.items()]
        weights = [(f"'{_key(e)}'", spec) for e, spec in self.weights.items()]
        for entries, known in ((activations, target.activation_spec), (weights, target.weight_spec)):
            for name, spec in entries:
                try:
                    known(spec.qtype.name)
                except OptionError as error:
                    raise OptionError(f"the plan file asks for {spec.qtype} at {name}: {error}") from None
                check_installed(spec.qtype)
                if entries is activations and not isinstance(spec.granularity, PerTensor):
                    raise OptionError(f"the plan file asks for {spec} at {name}: activations are quantized per tensor")
                if isinstance(spec.granularity, Blocked) and not target.weights.blocked:
                    raise OptionError(f"the plan file asks for {spec} at {name}: {target.name} takes no blocks")

    def differences(self, plan: Plan) -> Iterator[tuple[ir.Node | ir.Value, str]]:
        """Each node and tensor of a plan that is not as the file says, and how so."""
        for node, made in plan.decisions.items():
            said = self.decisions.get(node)
            if said is not None and said.status not in ("float", made.status):
                yield node, f"the plan file says {said.status}, it becomes {made.status}: {made.reason}"
        for value, spec in plan.activations.items():
            wanted = plan.wishes.values.get(value, spec)
            if value in self.activations and wanted == self.activations[value] != spec:
                why = "it holds the data of another tensor and shares its encoding"
                yield value, f"the plan file says {wanted}, it becomes {spec}: {why}"


def read_plan(file: str | Path, model: ir.Model) -> Filed:
    """Read a plan file.

    Raises:
        OptionError: Not a plan file, an unknown status, type or method, or a node or tensor this model does not have.
    """
    try:
        data = json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise OptionError(f"cannot read the plan {file}: {why}") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT or not isinstance(data.get("nodes"), dict):
        raise OptionError(
            f"{file} is not a plan: expected 'format': '{FORMAT}' and 'nodes' (write one with onnxq plan)"
        )
    return _Reader(file, data, model).read()


class _Reader:
    """Finds what the entries of a file mean in a model."""

    def __init__(self, file: str | Path, data: dict[str, Any], model: ir.Model) -> None:
        self._file, self._data = file, data
        self._nodes = {node.name or "": node for node in all_nodes(model)}
        self._values = values_by_name(model)

    def read(self) -> Filed:
        out = Filed(reads=self._edges("reads"), weights=self._edges("weights"))
        for name, entry in self._data["nodes"].items():
            node = self._find(name, self._nodes, "node")
            status = entry.get("status") if isinstance(entry, dict) else None
            if status not in STATUSES:
                hint = near(str(status), STATUSES)
                raise self._error(f"node '{name}' has the unknown status {status!r}{hint}")
            code, reason = str(entry.get("code", "by-plan")), str(entry.get("reason", "by the plan file"))
            out.decisions[node] = Decision(status, code, reason)
        for name, entry in self._entries("activations").items():
            value = self._find(name, self._values, "tensor")
            out.activations[value] = self._spec(entry, name, "activations")
            if "range" in entry:
                out.ranges[value] = self._range(entry["range"], name)
            if "method" in entry:
                if entry["method"] not in get_args(Method):
                    hint = near(str(entry["method"]), get_args(Method))
                    raise self._error(f"'{name}' has the unknown method {entry['method']!r}{hint}")
                out.methods[value] = entry["method"]
        return out

    def _edges(self, section: str) -> dict[Edge, TensorSpec]:
        out = {}
        for key, entry in self._entries(section).items():
            name, _, index = key.rpartition(":")
            node = self._find(name, self._nodes, "node")
            if not index.isdigit() or int(index) >= len(node.inputs) or node.inputs[int(index)] is None:
                raise self._error(f"'{key}' in '{section}': node '{name}' has no such input")
            out[Edge(node, int(index))] = self._spec(entry, key, section)
        return out

    def _entries(self, section: str) -> dict[str, Any]:
        entries = self._data.get(section, {})
        if not isinstance(entries, dict):
            raise self._error(f"'{section}' must be a mapping, got {entries!r}")
        return entries

    def _spec(self, entry: Any, name: str, section: str) -> TensorSpec:
        try:
            return TensorSpec.from_json(entry)
        except OptionError as error:
            raise self._error(f"'{name}' in '{section}': {error}") from None

    def _range(self, ends: Any, name: str) -> Ends:
        numbers = isinstance(ends, list) and len(ends) == 2 and all(isinstance(x, int | float) for x in ends)
        if not numbers or not ends[0] <= ends[1]:
            raise self._error(f"the range of '{name}' must be [low, high], got {ends!r}")
        return float(ends[0]), float(ends[1])

    def _find(self, name: str, known: Mapping[str, Any], what: str) -> Any:
        if name not in known:
            raise OptionError(
                f"the plan {self._file} names {what} '{name}', which this model does not have{near(name, known)}"
            )
        return known[name]

    def _error(self, why: str) -> OptionError:
        return OptionError(f"the plan {self._file}: {why}")
