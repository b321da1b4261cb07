"""Overrides: other types, granularity, ranges or float for single nodes and tensors, chosen by selectors.

In one list the later override wins, key by key: ``op:Conv`` may say the type of all convolutions and a name behind it
the range of one of them.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import onnx_ir as ir

from onnxq import ops
from onnxq.calibration.observers import Method
from onnxq.errors import OptionError, near
from onnxq.facts import Decision, Ends, Plan, Wish, values_by_name
from onnxq.layers import Layer, folded_behind, read_layer
from onnxq.numerics.spec import TensorSpec
from onnxq.planning.checks import GranularityName, Request, SymmetryName
from onnxq.selectors import resolve_each
from onnxq.targets import Target

TENSOR = "tensor:"
_HUGE = 3.4e38  # about the largest float32
_NODE_ONLY = ("weights", "granularity", "block_size", "symmetric", "float")
_SPEC = ("activations", "activations_symmetric", "weights", "granularity", "block_size", "symmetric")


@dataclass(frozen=True, kw_only=True)
class Override:
    """What is wanted otherwise of the nodes that a selector means, or of the tensor ``tensor:NAME``.

    Attributes:
        select: Selector of nodes, or ``tensor:`` and the name of a value.
        activations: Type of what the nodes read and make; ``float`` leaves activations float and quantizes weights.
        activations_symmetric: Zero points of activations at the middle of their type: yes, no, auto (as the target).
        weights: Type of weights.
        granularity: Of weights: per-tensor, per-channel, blocked.
        block_size: Values of a weight that share a scale.
        symmetric: Zero points of weights at the middle of their type: yes, no, auto (as the target).
        range: Ends of the range of what the nodes make, in the values' units, instead of the calibrated one.
        method: Calibration method for what the nodes make.
        float: Whether the nodes stay float.
    """

    select: str
    activations: str | None = None
    activations_symmetric: SymmetryName | None = None
    weights: str | None = None
    granularity: GranularityName | None = None
    block_size: int | None = None
    symmetric: SymmetryName | None = None
    range: Ends | None = None
    method: Method | None = None
    float: bool = False

    def specs(self, target: Target, base: Request) -> tuple[TensorSpec | None, TensorSpec]:
        """Specs of activations (None: they stay float) and weights.

        Raises:
            OptionError: Something the target does not take; names the selector.
            CapabilityError: A type the installed onnx does not have.
        """
        given = {name: getattr(self, name) for name in _SPEC if getattr(self, name) is not None}
        if "granularity" in given:
            given.setdefault("block_size", 0)
        elif "block_size" in given:
            given["granularity"] = ""
        try:
            if base.weight_only and given.get("activations", "float") != "float":
                raise OptionError("activations stay float in a weight-only plan")
            only_weights = base.weight_only or given.get("activations") == "float"
            if given.get("activations") == "float":
                given["activations"] = ""
            if only_weights:
                given |= {"activations": "", "weight_only": True}
            request = replace(base, **given)
            if self.tensor:  # of any layers or of none: their weights are looked at once there is a plan
                activation, weight = request.activation(target), base.specs(target)[1]
            else:
                activation, weight = request.specs(target)
            if self.range is not None and not -_HUGE < self.range[0] <= self.range[1] < _HUGE:
                raise OptionError(f"a range is finite and ordered, got {list(self.range)}")
        except OptionError as error:
            raise OptionError(f"override of '{self.select}': {error}") from None
        return None if only_weights else activation, weight

    @property
    def tensor(self) -> str:
        """The name of the value it is about; empty where it is about nodes."""
        return self.select.removeprefix(TENSOR) if self.select.startswith(TENSOR) else ""


@dataclass
class Found:
    """What a list of overrides means in one model.

    Attributes:
        nodes: Wishes of nodes.
        activations: Nodes of whose activations an override says something.
        weights: Nodes of whose weights an override says something.
        values: Specs of tensors.
        ranges: Ranges of tensors.
        methods: Calibration methods of tensors.
        banned: Nodes that stay float.
        met: The nodes or the value of each override.
    """

    nodes: dict[ir.Node, Wish] = field(default_factory=dict)
    activations: set[ir.Node] = field(default_factory=set)
    weights: set[ir.Node] = field(default_factory=set)
    values: dict[ir.Value, TensorSpec] = field(default_factory=dict)
    ranges: dict[ir.Value, Ends] = field(default_factory=dict)
    methods: dict[ir.Value, str] = field(default_factory=dict)
    banned: dict[ir.Node, Decision] = field(default_factory=dict)
    met: list[tuple[Override, list[ir.Node] | ir.Value]] = field(default_factory=list)

    def unmet(self, plan: Plan) -> Iterator[tuple[ir.Node | ir.Value, str]]:
        """Overrides without any effect on a plan: the first node or the value, and why."""
        for override, where in self.met:
            if isinstance(where, ir.Value):
                if where not in plan.activations:
                    yield where, f"override of '{override.select}': the tensor stays float"
                continue
            if override.float:
                continue
            first = plan.decisions[where[0]]
            if all(plan.decisions[node].status == "float" for node in where):
                others = f" (and {len(where) - 1} more)" if len(where) > 1 else ""
                yield where[0], f"override of '{override.select}': it stays float{others}: {first.reason}"
            elif override.activations and all(plan.decisions[node].status in ("float", "moves") for node in where):
                yield where[0], f"override of '{override.select}': it moves data, which keep the type they come with"
            elif (override.range or override.method) and not any(
                value in plan.activations for node in where for value in handed_on(node, plan.wishes.banned)
            ):
                yield where[0], f"override of '{override.select}': nothing quantizes what it makes"


def find(overrides: Sequence[Override], model: ir.Model, target: Target, base: Request) -> Found:
    """Look overrides up in a model.

    Raises:
        OptionError: A selector that matches nothing, or something the target does not take.
        CapabilityError: A type the installed onnx does not have.
    """
    out = Found()
    nodes = iter(resolve_each([o.select for o in overrides if not o.tensor], model))
    values = values_by_name(model) if any(o.tensor for o in overrides) else {}
    chains: dict[ir.Node, tuple[Override, ...]] = {}
    for override in overrides:
        if override.tensor:
            out.met.append((override, _tensor(override, values, target, base, out)))
            continue
        found = next(nodes)
        out.met.append((override, found))
        for node in found:
            chains[node] = (*chains.get(node, ()), override)
    made: dict[tuple[Override, ...], Override] = {}
    wishes: dict[tuple[Override, ...], Wish] = {}
    for node, chain in chains.items():
        if chain not in made:
            made[chain] = _merged(chain)
            wishes[chain] = Wish(*made[chain].specs(target, base), made[chain].range, made[chain].method or "")
        out.nodes[node] = wishes[chain]
        for names, said in ((_SPEC[:2], out.activations), (_SPEC[2:], out.weights)):
            if any(getattr(made[chain], name) is not None for name in names):
                said.add(node)
        if made[chain].float:
            out.banned[node] = Decision("float", "excluded", f"left float by the override of '{made[chain].select}'")
    return out


def _tensor(override: Override, values: Mapping[str, ir.Value], target: Target, base: Request, out: Found) -> ir.Value:
    if override.tensor not in values:
        hint = near(override.tensor, values)
        raise OptionError(f"override of '{override.select}': the model has no such tensor{hint}")
    given = [f.name for f in fields(override) if f.name in _NODE_ONLY and getattr(override, f.name)]
    if given or override.activations == "float":
        what = given[0].replace("_", "-") if given else "activations: float"
        raise OptionError(f"override of '{override.select}': {what} goes with nodes, not with tensors")
    value = values[override.tensor]
    spec, _ = override.specs(target, base)
    if spec is not None and (override.activations or override.activations_symmetric):
        out.values[value] = spec
    if override.range is not None:
        out.ranges[value] = override.range
    if override.method is not None:
        out.methods[value] = override.method
    return value


def _merged(chain: Sequence[Override]) -> Override:
    out = chain[0]
    for later in chain[1:]:
        given = {f.name: getattr(later, f.name) for f in fields(later) if getattr(later, f.name) not in (None, False)}
        if "granularity" in given:
            given.setdefault("block_size", None)
        elif given.get("block_size"):
            given.setdefault("granularity", None)
        out = replace(out, **given)
    return out


def handed_on(node: ir.Node, apart: Container[ir.Node]) -> list[ir.Value]:
    """What a node hands on: itself, or through the Add and Relu of its layer.

    Args:
        node: The node.
        apart: Nodes that are part of no layer.
    """
    layer = read_layer(node, apart) if ops.info(node) is not None else None
    if isinstance(layer, Layer):
        return [layer.tail]
    folded = folded_behind(node.outputs[0], apart)
    return [*node.outputs, *(folded.outputs if folded is not None else ())]
