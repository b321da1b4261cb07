"""`skip-odd-pack-axis`: a layer whose low-bit weight the target cannot pack stays float as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import onnx_ir as ir

from onnxq.diagnostics import Severity
from onnxq.edit import Namer, remove_dead
from onnxq.errors import OptionError
from onnxq.facts import Decision, Edge, Fact, Goal, Plan, Skips
from onnxq.look import attr_int
from onnxq.numerics.spec import QType
from onnxq.padding import PAD_SINCE, Growth, Widener
from onnxq.passbase import Context, Pass
from onnxq.planning import Planner
from onnxq.targets.target import PackAxis
from onnxq.weights import weight_tensor
from onnxq.wording import plural

REMEDY = "on-odd: pad widens it, or choose another pack-axis"


@dataclass(frozen=True, kw_only=True)
class SkipOddPackAxis(Pass):
    """`Plan` -> `Plan`, `Skips`: layers with 4-bit weights that are odd along the pack axis stay float.

    A packer that puts two values in a byte along one axis needs an even length there (four 2-bit values: a multiple of
    four). The axis is judged on the weight as it is deployed:

    - ``flat``: values are packed over the whole tensor (ONNX itself, onnxruntime); every length fits.
    - ``ascend``: the last axis; axis 0 of a Gemm with transB=1, which is deployed with transB=0. `untranspose-gemm`
      makes no difference to the verdict. LSTM, GRU and RNN are judged on input and recurrence weight. Groups and the
      number of input channels do not matter.
    - ``input-channel`` (older Ascend deploy): the axis that is summed over; of a Conv its axis 1.

    The whole layer stays float: it is planned again without it, so that its activation loses its pair where nobody else
    needs one, and it never falls back to 8 bits. Each such layer gets a note.

    ``pad`` widens the weight by zeros instead, so that the model computes the same for all finite inputs. A Conv or
    ConvTranspose gets a longer kernel and more padding at its end. A Gemm or MatMul gets another output (and bias), and
    a Slice behind the layer. Where the axis is summed over, the activation is padded, too. A recurrence weight, whose
    length is the size of the state, a padding that depends on sizes nobody knows, and groups along their own axis are
    refused: such a layer stays float, with the reason.

    Attributes:
        pack_axis: The rule; ``target`` is what the target says.
        on_odd: ``skip`` leaves the layer float, ``error`` stops and lists all such layers, ``pad`` widens the weight.
    """

    name: ClassVar[str] = "skip-odd-pack-axis"
    reads: ClassVar[frozenset[type[Fact]]] = frozenset({Plan, Goal})
    writes: ClassVar[frozenset[type[Fact]]] = frozenset({Plan, Skips})

    pack_axis: Literal["target", "flat", "ascend", "input-channel"] = "target"
    on_odd: Literal["skip", "error", "pad"] = "skip"

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Plan again without the odd layers; the graph changes where layers are padded.

        Raises:
            OptionError: ``on-odd: error`` and there are odd layers, or ``pad`` and an opset below 18.
        """
        plan, goal, skips = ctx.get(Plan), ctx.get(Goal), Skips()
        rule = goal.target.pack_axis if self.pack_axis == "target" else self.pack_axis
        banned, widener, changed = dict(plan.wishes.banned), Widener(Namer(model), self.name), False
        while found := _odd_layers(plan, rule):
            if self.on_odd == "error":
                raise OptionError(_all(found))
            for node, odd in found.items():
                why = _pad(model, node, odd, banned, widener) if self.on_odd == "pad" else REMEDY
                text, numbers = "; ".join(map(str, odd)), [each.to_json() for each in odd]
                if why:
                    reason = f"{text}: the layer stays float ({why})"
                    banned[node] = Decision("float", "odd-pack-axis", reason)
                    skips.nodes[node] = reason
                    ctx.note("odd-pack-axis", node, reason, Severity.WARNING, weights=numbers)
                else:
                    changed = True
                    ctx.note("pack-axis-padded", node, f"{text}: zeros make it fit", weights=numbers)
            plan = Planner(goal.target, replace(plan.wishes, banned=banned)).make(model)
        if changed:
            remove_dead(model)
        ctx.put(plan, skips)
        return changed


@dataclass(frozen=True)
class OddAxis:
    """One weight that does not fit.

    Attributes:
        edge: Its use.
        shape: Its shape, as the use reads it.
        axis: The pack axis as the rule says it, so -1 for the last one.
        per_byte: How many values share a byte.
    """

    edge: Edge
    shape: tuple[int, ...]
    axis: int
    per_byte: int

    @property
    def length(self) -> int:
        """Length of the pack axis."""
        return self.shape[self.axis]

    def __str__(self) -> str:
        return f"weight '{self.edge.value.name}' {_why(self.shape, self.axis, self.per_byte)}"

    def to_json(self) -> dict[str, object]:
        """The numbers for a note."""
        shape = list(self.shape)
        return {"weight": self.edge.value.name, "shape": shape, "axis": self.axis, "length": self.length}


def check_layer(
    op: ir.Node | str,
    weight_shape: Sequence[int],
    *,
    trans_b: bool = False,
    pack_axis: PackAxis = "ascend",
    qtype: str = "int4",
) -> None:
    """Check whether the weight of a single layer can be packed.

    Args:
        op: The node, or its op type.
        weight_shape: Shape of its weight in the layout of ONNX; of an LSTM, GRU or RNN ask for both weights.
        trans_b: Whether a Gemm given by its op type has ``transB=1``; a node knows that itself.
        pack_axis: The rule, see `SkipOddPackAxis`.
        qtype: Integer type of the weight; 8 bits and more always fit.

    Raises:
        OptionError: (a ``ValueError``) The length of the pack axis is no multiple of the values in a byte.
    """
    op_type = op if isinstance(op, str) else op.op_type
    transposed = trans_b if isinstance(op, str) else bool(attr_int(op, "transB", 0))
    shape, per_byte = tuple(weight_shape), _per_byte(QType.named(qtype))
    axis = pack_axis_of(op_type, len(shape), pack_axis, trans_b=transposed)
    if axis is not None and shape[axis] % per_byte:
        name = op_type if isinstance(op, str) else f"{op.name} ({op_type})"
        raise OptionError(f"{name}: {qtype} weight {_why(shape, axis, per_byte)}")


def pack_axis_of(op_type: str, rank: int, rule: PackAxis, *, trans_b: bool = False) -> int | None:
    """The axis along which a weight is packed, as the rule says it (negative from the end); None if every length fits.

    Args:
        op_type: Op that reads the weight as its second (recurrent ops: or third) input.
        rank: Rank of the weight.
        rule: See `SkipOddPackAxis`.
        trans_b: Whether it is a Gemm with ``transB=1``.
    """
    if rule == "flat" or rank == 0:
        return None
    if rule == "ascend":
        return 0 if op_type == "Gemm" and trans_b else -1
    if op_type == "Gemm":
        return 1 if trans_b else 0
    return {"Conv": 1, "ConvTranspose": 0, "MatMul": -2 if rank > 1 else -1}.get(op_type, -1)


def _per_byte(qtype: QType) -> int:
    return max(8 // qtype.bits, 1)


def _why(shape: Sequence[int], axis: int, per_byte: int) -> str:
    needed = "has to be even" if per_byte == 2 else f"has to be a multiple of {per_byte}"
    return f"of shape {list(shape)} is {shape[axis]} long on pack axis {axis}, which {needed}"


def _odd_layers(plan: Plan, rule: PackAxis) -> dict[ir.Node, list[OddAxis]]:
    """The planned layers that do not fit, in the order of the plan."""
    out: dict[ir.Node, list[OddAxis]] = {}
    for edge, spec in plan.weights.items():
        per_byte = _per_byte(spec.qtype)
        tensor = weight_tensor(edge.value) if per_byte > 1 else None
        if tensor is None:
            continue
        shape = tuple(int(d) for d in tensor.shape.numpy())
        axis = pack_axis_of(edge.node.op_type, len(shape), rule, trans_b=bool(attr_int(edge.node, "transB", 0)))
        if axis is not None and shape[axis] % per_byte:
            out.setdefault(edge.node, []).append(OddAxis(edge, shape, axis, per_byte))
    return out


def _pad(
    model: ir.Model, node: ir.Node, odd: Sequence[OddAxis], apart: Mapping[ir.Node, Decision], widener: Widener
) -> str:
    """Widen the weights of a layer; why that is not possible, or ``""``."""
    opset = model.opset_imports.get("", 0)
    if opset < PAD_SINCE:
        raise OptionError(f"on-odd: pad needs opset {PAD_SINCE}, the model has {opset}: run upgrade-opset first")
    growths = [Growth(o.edge, o.axis % len(o.shape), -o.length % o.per_byte) for o in odd]
    why = widener.widen(node, growths, apart)
    return f"zeros cannot be added: {why}" if why else ""


def _all(found: Mapping[ir.Node, Sequence[OddAxis]]) -> str:
    layers = [f"{node.name} ({node.op_type}): {'; '.join(map(str, odd))}" for node, odd in found.items()]
    return f"{plural(len(layers), 'layer')} cannot be packed ({REMEDY}):\n  " + "\n  ".join(layers)
