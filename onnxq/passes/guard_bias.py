"""`guard-bias`: int32 biases at exactly input scale x weight scale, that never overflow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from onnxq.facts import Edge, Encodings, Fact, Plan
from onnxq.layers import Layer, read_layer
from onnxq.look import constant
from onnxq.numerics.spec import Encoding, PerAxis, PerTensor
from onnxq.passbase import Context, Pass

# Room of 256 below the largest int32, so that the float32 rounding of the scale cannot push a bias over it.
LARGEST = 2**31 - 1 - 256
TINY = float(np.finfo(np.float32).smallest_normal)

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class GuardBias(Pass):
    """`Encodings` -> `Encodings` with biases: ``b_q = rint(b / s_b)``, ``s_b = float32(s_x * s_w)``, zero point 0.

    Where ``|b| / s_b`` does not fit int32, that channel's weight scale is raised until it does: the integer kernels
    take ``s_x * s_w`` whatever the bias says, so the product must be right. The channel's weights get coarser by at
    most ``K |b| (2^a - 1) / 2^32`` in the output (a: activation bits). One note names each adjusted layer with its
    channels.
    """

    name: ClassVar[str] = "guard-bias"
    reads: ClassVar[frozenset[type[Fact]]] = frozenset({Plan, Encodings})
    writes: ClassVar[frozenset[type[Fact]]] = frozenset({Encodings})

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Raise weight scales where needed, then encode every planned bias; the graph stays as it is."""
        plan, old = ctx.get(Plan), ctx.get(Encodings)
        out = Encodings(dict(old.activations), dict(old.weights), {})
        layers = [layer for layer in map(read_layer, _layer_nodes(plan)) if isinstance(layer, Layer)]
        layers = [layer for layer in layers if layer.bias in plan.biases]
        needed: dict[int, tuple[Encoding, Array]] = {}
        for layer in layers:
            encoding, least = self._least_scale(layer, out)
            known = needed.get(id(encoding))
            needed[id(encoding)] = (encoding, least if known is None else np.maximum(known[1], least))
        raised = {key: _raise(encoding, least) for key, (encoding, least) in needed.items()}
        for edge, encoding in old.weights.items():
            if id(encoding) in raised:
                out.weights[edge] = raised[id(encoding)]
                _note(edge, encoding, raised[id(encoding)], ctx)
        for layer in layers:
            assert layer.bias is not None and layer.weight is not None
            out.biases[layer.bias] = _encode(layer, plan, out)
        ctx.put(out)
        return False

    def _least_scale(self, layer: Layer, encodings: Encodings) -> tuple[Encoding, Array]:
        """The layer's weight encoding and the smallest weight scale, per entry, at which its bias fits."""
        assert layer.bias is not None and layer.weight is not None
        encoding = encodings.weights[layer.weight]
        bias = channel_bias(layer)
        s_x = float(encodings.activations[layer.inputs[0].value].scale)
        size = np.abs(bias) if encoding.scale.ndim else np.abs(bias).max(initial=0.0)
        # 1 + 2^-20 covers the float32 rounding of the product; the second term keeps the product itself normal.
        least = np.maximum(size / (LARGEST * s_x), TINY / s_x) * (1 + 2.0**-20)
        return encoding, np.asarray(least, np.float64)


def channel_bias(layer: Layer) -> Array:
    """The layer's bias as float64 of shape [channels]; one element is repeated."""
    assert layer.bias is not None
    bias = constant(layer.bias.value)
    assert bias is not None and layer.channels is not None
    return np.broadcast_to(bias.astype(np.float64).reshape(-1), (layer.channels,))


def _layer_nodes(plan: Plan) -> list[ir.Node]:
    return list(dict.fromkeys(edge.node for edge in plan.weights))


def _raise(encoding: Encoding, least: Array) -> Encoding:
    if np.all(encoding.scale >= least):
        return encoding
    scale = np.maximum(encoding.scale.astype(np.float64), least)
    stored = scale.astype(encoding.scale.dtype)
    up = np.nextafter(stored, np.asarray(np.inf, stored.dtype))
    return replace(encoding, scale=np.asarray(np.where(stored < scale, up, stored)))


def _note(edge: Edge, before: Encoding, after: Encoding, ctx: Context) -> None:
    if after is before:
        return
    channels = np.flatnonzero(after.scale != before.scale)
    ratio = np.atleast_1d(after.scale / before.scale)
    worst = float(ratio.max())
    why = (
        f"the int32 bias would overflow in {len(channels)} of {before.scale.size} channels: their weight scale is "
        f"raised, at most {worst:.3g} times, and their weights are requantized"
    )
    ctx.note(
        "raised-weight-scale", edge.node, why, channels=channels[:64].tolist(), count=len(channels), ratio=worst,
        scale=np.atleast_1d(after.scale)[channels[:64]].tolist(),
    )  # fmt: skip


def _encode(layer: Layer, plan: Plan, encodings: Encodings) -> Encoding:
    assert layer.bias is not None and layer.weight is not None
    s_x = encodings.activations[layer.inputs[0].value].scale.astype(np.float64)
    s_w = encodings.weights[layer.weight].scale.astype(np.float64)
    scale = np.asarray(s_x * s_w, np.float32)
    spec = plan.biases[layer.bias].at(PerAxis(0) if scale.ndim else PerTensor())
    return Encoding(spec, scale, np.zeros(scale.shape, np.int32))
