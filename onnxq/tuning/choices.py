"""What may become of each part of a model: the choices a target leaves, and the wishes that stand for a combination."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from onnxq.encoding import groups
from onnxq.facts import Decision, Edge, Plan, Wish, Wishes
from onnxq.layers import Layer, read_layer
from onnxq.look import onnx_op
from onnxq.numerics.spec import Blocked, QType, TensorSpec
from onnxq.planfile import plan_json
from onnxq.planning import Planner
from onnxq.planning.emission import may_be_dynamic
from onnxq.targets import Target
from onnxq.tuning.search import Picks

BLOCK = 32
"""Values that share a scale in 4-bit weights."""
MOST_PARTS = 96
"""A model with more layers is searched in runs of neighbours of one op, so that the search stays short."""

FLOAT = "float"
LEFT = Decision("float", "tuned", "left float by the search: it costs more accuracy than it saves time or bytes")


@dataclass(frozen=True)
class Part:
    """Nodes that get the same choice.

    Attributes:
        nodes: One node, in large models a run of neighbours of the same op.
        choices: What each of them may become; the last one is ``float``.
    """

    nodes: tuple[ir.Node, ...]
    choices: tuple[str, ...]


@dataclass(frozen=True)
class Types:
    """The specs behind the names of choices; None for what the target does not take."""

    a8: TensorSpec
    a16: TensorSpec | None
    w8: TensorSpec
    w4: TensorSpec | None

    @classmethod
    def of(cls, target: Target, base: Wishes) -> Types:
        """The target's default types, unsigned activations of 16 bits, and weights of 4 bits in blocks."""
        a16 = target.activation_spec("uint16") if QType.named("uint16") in target.activations.types else None
        w4 = None
        if QType.named("int4") in target.weights.types and target.weights.blocked:
            w4 = target.weight_spec("int4").at(Blocked(BLOCK))
        pairs = {name: target.combinations.get(name) for name in ("int4", base.weight.qtype.name)}
        if pairs["int4"] is not None and w4 is not None:
            w4 = None  # only beside certain activations
        allowed = pairs[base.weight.qtype.name]
        if allowed is not None and a16 is not None and a16.qtype.name not in allowed:
            a16 = None
        return cls(base.activation, a16, base.weight, w4)

    def wish(self, choice: str) -> Wish | None:
        """What a choice asks of a node; None for float."""
        if choice in ("a8w8", "a8"):
            return Wish(self.a8, self.w8, dynamic="never")
        if choice == "dynamic":
            return Wish(self.a8, self.w8, dynamic="always")
        if choice in ("a16w8", "a16") and self.a16 is not None:
            return Wish(self.a16, self.w8)
        if choice == "w8":
            return Wish(None, self.w8)
        return Wish(None, self.w4) if choice == "w4" and self.w4 is not None else None


def parts_of(model: ir.Model, target: Target, static: Plan, types: Types) -> list[Part]:
    """The parts of a model in graph order.

    Args:
        model: The prepared float model.
        target: Rules of the runtime.
        static: A plan that quantizes all it can, nothing at run time.
        types: The types to choose from.
    """
    weights = Planner(target, replace(static.wishes, weight_only=True)).make(model)
    alone = {edge.node for edge in weights.weights if weights.decisions[edge.node].status == "weight-only"}
    out: list[Part] = []
    for node, decision in static.decisions.items():
        integer = decision.status == "integer" and decision.code not in ("part-of-layer", "already-quantized")
        choices = [*_integer(node, static, target, types)] if integer else []
        if node in alone and node not in static.wishes.banned:
            choices.append("w8")
            if types.w4 is not None and onnx_op(node, "MatMul", "Gemm"):
                choices.append("w4")
        if choices:
            out.append(Part((node,), (*choices, FLOAT)))
    return _merged(out)


def _integer(node: ir.Node, static: Plan, target: Target, types: Types) -> Iterator[str]:
    layer = read_layer(node, static.wishes.banned) if static.decisions[node].code == "layer" else None
    weights = isinstance(layer, Layer) and layer.weight is not None
    yield "a8w8" if weights else "a8"
    rule = target.integer_ops.get(node.op_type)
    if isinstance(layer, Layer) and rule is not None and may_be_dynamic(layer, rule) and not rule.needs_output_q:
        yield "dynamic"
    if types.a16 is not None:
        yield "a16w8" if weights else "a16"


def _merged(parts: Sequence[Part]) -> list[Part]:
    size = -(-len(parts) // MOST_PARTS)
    out: list[Part] = []
    for part in parts:
        last = out[-1] if out else None
        alike = last is not None and last.choices == part.choices and last.nodes[0].op_type == part.nodes[0].op_type
        if last is not None and alike and len(last.nodes) < size:
            out[-1] = Part((*last.nodes, *part.nodes), part.choices)
        else:
            out.append(part)
    return out


def links_of(parts: Sequence[Part], plan: Plan) -> Iterator[tuple[int, int]]:
    """Pairs of parts of which one makes what the other reads, data movement looked through."""
    number = {node: i for i, part in enumerate(parts) for node in part.nodes}
    group = {value: i for i, values in enumerate(groups(plan)) for value in values}
    makers: dict[int, int] = {}
    for value, i in group.items():
        node = value.producer()
        while node is not None and node not in number and plan.decisions[node].code == "part-of-layer":
            before = next((v for v in node.inputs if v is not None and v.producer() is not None), None)
            node = before.producer() if before is not None else None
        if node in number and node is not None:
            makers.setdefault(i, number[node])
    for edge, value in plan.readers.items():
        maker, reader = makers.get(group[value]), number.get(edge.node)
        if maker is not None and reader is not None and maker != reader:
            yield maker, reader


def wishes_for(picks: Picks, parts: Sequence[Part], types: Types, base: Wishes) -> Wishes:
    """The wishes of a combination."""
    nodes: dict[ir.Node, Wish] = dict(base.nodes)
    banned = dict(base.banned)
    for pick, part in zip(picks, parts, strict=True):
        wish = types.wish(part.choices[pick])
        for node in part.nodes:
            if wish is None:
                banned[node] = LEFT
            else:
                nodes[node] = wish
    return replace(base, nodes=nodes, banned=banned, dynamic=True)


def becomes(plan: Plan) -> dict[ir.Node, str]:
    """What became of each node, in words: types where integers are involved."""
    types = {name: entry.get("types") for name, entry in plan_json(plan)["nodes"].items()}
    out = {}
    for node, decision in plan.decisions.items():
        x = next(
            (spec for i in range(len(node.inputs)) if node.inputs[i] and (spec := plan.read_by(Edge(node, i)))), None
        )
        words = types.get(node.name or "") or (str(x.qtype) if x is not None else decision.status)
        out[node] = "float" if decision.status == "float" else words
    return out
