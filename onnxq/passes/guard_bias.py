"""`guard-bias`: int32 biases at exactly input scale x weight scale, that never overflow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from onnxq import ops
from onnxq.errors import DataError
from onnxq.facts import Edge, Encodings, Fact, Plan
from onnxq.layers import Layer, read_layer
from onnxq.look import constant
from onnxq.numerics.spec import Encoding, PerAxis, PerTensor, TensorSpec
from onnxq.passbase import Context, Pass
from onnxq.rounding import requantized
from onnxq.wording import plural

# Room of 256 below the largest int32, so that the float32 rounding of the scale cannot push a bias over it.
LARGEST = 2**31 - 1 - 256
TINY = float(np.finfo(np.float32).smallest_normal)

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class GuardBias(Pass):
    """`Encodings` -> `Encodings` with biases: ``b_q = rint(b / s_b)``, ``s_b = float32(s_x * s_w)``, zero point 0.

    Where ``|b| / s_b`` does not fit int32, that channel's weight scale is raised until it does: the integer kernels
    take ``s_x * s_w`` whatever the bias says, so the product must be right. With 8 bits the kernels also add the
    products to the bias in int32 and wrap around, so the sum must fit. The channel's weights get coarser by at most
    ``K |b| (2^a - 1) / 2^32`` in the output (a: activation bits). An all-zero channel is nothing but its bias: its
    scale, free to choose, is the smallest one that holds it. Notes name each adjusted layer with its channels; integers
    chosen before (by `gptq`) become the nearest ones in these channels.
    """

    name: ClassVar[str] = "guard-bias"
    reads: ClassVar[frozenset[type[Fact]]] = frozenset({Plan, Encodings})
    writes: ClassVar[frozenset[type[Fact]]] = frozenset({Encodings})

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Adjust weight scales where needed, then encode every planned bias; the graph stays as it is."""
        plan, old = ctx.get(Plan), ctx.get(Encodings)
        out = replace(old, weights=dict(old.weights), biases={})
        layers = [layer for layer in map(read_layer, _layer_nodes(plan)) if isinstance(layer, Layer)]
        layers = [layer for layer in layers if layer.bias in plan.biases]
        needed: dict[int, tuple[Encoding, Array]] = {}
        for layer in layers:
            encoding, least = self._least_scale(layer, out)
            known = needed.get(id(encoding))
            needed[id(encoding)] = (encoding, least if known is None else np.maximum(known[1], least))
        adjusted = {key: _adjust(encoding, least) for key, (encoding, least) in needed.items()}
        for edge, encoding in old.weights.items():
            if id(encoding) in adjusted:
                if adjusted[id(encoding)].integers is encoding.integers:
                    adjusted[id(encoding)] = requantized(edge, encoding, adjusted[id(encoding)])
                out.weights[edge] = adjusted[id(encoding)]
                _note(edge, encoding, adjusted[id(encoding)], ctx)
        for layer in layers:
            assert layer.bias is not None and layer.weight is not None
            out.biases[layer.bias] = _encode(layer, plan, out)
        ctx.put(out)
        return False

    def _least_scale(self, layer: Layer, encodings: Encodings) -> tuple[Encoding, Array]:
        """The layer's weight encoding and the smallest weight scale, per entry, at which its bias fits.

        Raises:
            DataError: The bias holds NaN or infinity.
        """
        assert layer.bias is not None and layer.weight is not None
        encoding = encodings.weights[layer.weight]
        x = encodings.read_by(layer.inputs[0])
        assert x is not None
        bias, s_x, empty = np.abs(channel_bias(layer)), float(x.scale), _empty(encoding)
        if not np.isfinite(bias).all():
            where = int(np.argmin(np.isfinite(bias)))
            name = f"{layer.node.name} ({layer.node.op_type}), bias '{layer.bias.value.name}'"
            raise DataError(f"{name}: channel {where} is not finite")
        # The groups of a ConvTranspose share their scales: the largest of the biases behind one decides.
        size = bias.reshape(ops.scale_tiles(layer.node), -1).max(axis=0) if encoding.scale.ndim else bias.max(initial=0)
        products, rounding = _largest_sum(x.spec, encoding.spec, layer.terms)
        s_w = np.where(empty, 0.0, encoding.scale.astype(np.float64))
        fits = np.where(size > 0, (size / s_x + products * s_w) / (LARGEST - rounding), 0.0)
        # Scale and product must both be normal numbers; 1 + 2^-20 covers the float32 rounding of the product.
        floor = max(TINY / s_x, float(np.finfo(encoding.scale.dtype).smallest_normal))
        least = np.maximum(fits, floor) * (1 + 2.0**-20)
        return encoding, np.asarray(np.where(empty & (size == 0), 0.0, least))


def channel_bias(layer: Layer) -> Array:
    """The layer's bias as float64 of shape [channels]; one element is repeated."""
    assert layer.bias is not None
    bias = constant(layer.bias.value)
    assert bias is not None and layer.channels is not None
    return np.broadcast_to(bias.astype(np.float64).reshape(-1), (layer.channels,))


def _layer_nodes(plan: Plan) -> list[ir.Node]:
    return list(dict.fromkeys(edge.node for edge in plan.weights))


def _largest_sum(x: TensorSpec, w: TensorSpec, terms: int) -> tuple[int, float]:
    """How large the sum of products can get that a kernel adds to the bias, and by how much more after a raise.

    The second number is what rounding the coarser weights can add. Products of 16 bits and
    of floats are not summed in int32.
    """
    if max(x.qtype.bits, w.qtype.bits) > 8 or x.qtype.is_float or w.qtype.is_float:
        return 0, 0.0
    x_span, w_span = (t.qmax - t.qmin for t in (x.qtype, w.qtype))
    return terms * x_span * ((w_span + 1) // 2 if w.symmetric else w_span), terms * x_span / 2


def _empty(encoding: Encoding) -> Array:
    """Which entries of the scale stand for nothing but zeros; see `from_range`."""
    dead = np.zeros(encoding.scale.size, bool)
    dead[list(encoding.dead)] = True
    return np.asarray(dead.reshape(encoding.scale.shape) & (encoding.scale == 1))


def _adjust(encoding: Encoding, least: Array) -> Encoding:
    scale = encoding.scale.astype(np.float64)
    scale = np.where(_empty(encoding) & (least > 0), least, np.maximum(scale, least))
    stored = scale.astype(encoding.scale.dtype)
    stored = np.where(stored < scale, np.nextafter(stored, np.asarray(np.inf, stored.dtype)), stored)
    return encoding if np.array_equal(stored, encoding.scale) else replace(encoding, scale=np.asarray(stored))


def _note(edge: Edge, before: Encoding, after: Encoding, ctx: Context) -> None:
    if after is before:
        return
    old, new = np.atleast_1d(before.scale.astype(np.float64)), np.atleast_1d(after.scale.astype(np.float64))
    raised, lowered = np.flatnonzero(new > old), np.flatnonzero(new < old)
    worst = float((new / old).max())
    if raised.size:
        why = (
            f"the int32 bias would overflow in {len(raised)} of {plural(old.size, 'channel')}: their weight scale is "
            f"raised, at most {worst:.3g} times, and their weights are requantized"
        )
        ctx.note("raised-weight-scale", edge.node, why, **_numbers(raised, new), ratio=worst)
    if lowered.size:
        channels = plural(old.size, "channel")
        why = f"zero weights in {len(lowered)} of {channels}: their scale is the one that suits the bias"
        ctx.note("empty-weight-scale", edge.node, why, **_numbers(lowered, new))


def _numbers(channels: Array, scale: Array) -> dict[str, Any]:
    some = channels[:64]
    return {"channels": some.tolist(), "count": len(channels), "scale": scale[some].tolist()}


def _encode(layer: Layer, plan: Plan, encodings: Encodings) -> Encoding:
    assert layer.bias is not None and layer.weight is not None
    x = encodings.read_by(layer.inputs[0])
    assert x is not None
    s_x = x.scale.astype(np.float64)
    s_w = encodings.weights[layer.weight].scale.astype(np.float64)
    if s_w.ndim:
        s_w = np.tile(s_w, ops.scale_tiles(layer.node))
    scale = np.asarray(s_x * s_w, np.float32)
    spec = plan.biases[layer.bias].at(PerAxis(0) if scale.ndim else PerTensor())
    return Encoding(spec, scale, np.zeros(scale.shape, np.int32))
