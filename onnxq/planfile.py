"""A plan as a file a person can read, edit and give back: one entry a node, one a value.

What is obeyed is the status of each node: ``float`` there means float here, and any other status is met where the graph
allows it. All else follows from the graph and the options, so an edited plan can never be inconsistent; a tensor that
the file wants otherwise than it becomes is told.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnxq.errors import OptionError, near
from onnxq.facts import Decision, Plan
from onnxq.layers import Layer, read_weights
from onnxq.look import all_nodes, onnx_op
from onnxq.numerics.spec import TensorSpec

FORMAT = "onnxq-plan-1"
STATUSES = ("integer", "dynamic", "moves", "weight-only", "float")


def plan_json(plan: Plan) -> dict[str, Any]:
    """The plan as JSON-able data, in node order; ``layer`` marks the nodes that carry constant weights."""
    return {
        "format": FORMAT,
        "nodes": {
            node.name or "": {
                "op": node.op_type,
                **({"layer": True} if _is_layer(node, d) else {}),
                "status": d.status,
                "code": d.code,
                "reason": d.reason,
            }
            for node, d in plan.decisions.items()
        },
        "activations": {value.name or "": spec.to_json() for value, spec in plan.activations.items()},
        "weights": {
            f"{e.node.name}:{e.index}": {"value": e.value.name, **spec.to_json()} for e, spec in plan.weights.items()
        },
        "shared": [[v.name for v in group] for group in plan.shared],
    }


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
        activations: Of values, by name.
        weights: Of uses of weights, by ``node:input``.
    """

    decisions: dict[ir.Node, Decision] = field(default_factory=dict)
    activations: dict[str, TensorSpec] = field(default_factory=dict)
    weights: dict[str, TensorSpec] = field(default_factory=dict)

    def differences(self, plan: Plan) -> Iterator[tuple[ir.Node | ir.Value, str]]:
        """Each node and tensor of a plan that is not as the file says, and how so."""
        for node, made in plan.decisions.items():
            said = self.decisions.get(node)
            if said is not None and said.status not in ("float", made.status):
                yield node, f"the plan file says {said.status}, it becomes {made.status}: {made.reason}"
        for value, spec in plan.activations.items():
            wanted = self.activations.get(value.name or "", spec)
            if wanted != spec:
                yield value, f"the plan file says {wanted}, it becomes {spec}: {_TYPES_FROM}"
        for edge, spec in plan.weights.items():
            wanted = self.weights.get(f"{edge.node.name}:{edge.index}", spec)
            if wanted != spec:
                why = f"the plan file says {wanted} for weight '{edge.value.name}', it becomes {spec}: {_TYPES_FROM}"
                yield edge.node, why


_TYPES_FROM = "only the status of nodes is taken from the file, types and granularity come from the options"


def read_plan(file: str | Path, model: ir.Model) -> Filed:
    """Read a plan file.

    Raises:
        OptionError: Not a plan file, an unknown status or type, or a node this model does not have.
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
    names = {node.name or "": node for node in all_nodes(model)}
    out = Filed(activations=_specs(data, "activations", file), weights=_specs(data, "weights", file))
    for name, entry in data["nodes"].items():
        if name not in names:
            raise OptionError(f"the plan {file} names node '{name}', which this model does not have{near(name, names)}")
        status = entry.get("status") if isinstance(entry, dict) else None
        if status not in STATUSES:
            hint = near(str(status), STATUSES)
            raise OptionError(f"the plan {file}: node '{name}' has the unknown status {status!r}{hint}")
        code, reason = str(entry.get("code", "by-plan")), str(entry.get("reason", "by the plan file"))
        out.decisions[names[name]] = Decision(status, code, reason)
    return out


def _specs(data: dict[str, Any], section: str, file: str | Path) -> dict[str, TensorSpec]:
    entries = data.get(section, {})
    if not isinstance(entries, dict):
        raise OptionError(f"the plan {file}: '{section}' must be a mapping, got {entries!r}")
    out = {}
    for name, entry in entries.items():
        try:
            out[name] = TensorSpec.from_json(entry)
        except OptionError as error:
            raise OptionError(f"the plan {file}: '{name}' in '{section}': {error}") from None
    return out
