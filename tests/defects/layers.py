"""Small healthy quantized layers, of which defects make broken models: op, types, granularity, opset, place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto, helper

from tests.defects.draft import Array, Draft, node

TYPES: dict[str, Any] = {
    "int8": np.int8,
    "uint8": np.uint8,
    "int16": np.int16,
    "uint16": np.uint16,
    "int4": ml_dtypes.int4,
    "uint4": ml_dtypes.uint4,
    "int2": ml_dtypes.int2,
    "uint2": ml_dtypes.uint2,
}
AXES = {"Conv": 0, "ConvTranspose": 1, "Gemm": 1, "GemmT": 0, "MatMul": 1}
"""Axis of the output channels in the weight of each op; GemmT is a Gemm with transB=1."""

BLOCK, CHANNELS = 16, 8
_STEP = 0.03  # of activations, which are normal: plus and minus 3.8


@dataclass(frozen=True)
class Layer:
    """``x -> Q -> DQ -> op(DQ(w), bias) -> Q -> DQ -> y``.

    Attributes:
        op: A key of `AXES`.
        activation: Type of the activations' integers, ``none`` for a float input and output.
        weight: Type of the weight's integers.
        granularity: ``tensor``, ``channel``, or ``block`` (along the axis that is summed over, by `BLOCK`).
        opset: Of ai.onnx.
        where: A key of `tests.defects.draft.PATHS`.
        bias: ``int32`` behind a DequantizeLinear, ``float``, or ``none``. That of a MatMul is an Add.
        square: Whether the weight has as many output channels as input channels.
        relu: Whether a Relu follows the op, whose output has the zero point of the least integer.
        half: Whether input, output and scales are float16.
    """

    op: str = "Conv"
    activation: str = "uint8"
    weight: str = "int8"
    granularity: str = "channel"
    opset: int = 21
    where: str = "main"
    bias: str = "int32"
    square: bool = False
    relu: bool = False
    half: bool = False

    def __str__(self) -> str:
        extra = [name for name in ("square", "relu", "half") if getattr(self, name)]
        parts = [self.op, self.activation, self.weight, self.granularity, str(self.opset), self.bias, *extra]
        return "-".join([*parts, self.where])

    @property
    def axis(self) -> int:
        """Axis of the output channels in the weight."""
        return AXES[self.op]

    def draft(self) -> Draft:
        """A new draft of the layer, which a defect may change."""
        return _draft(self).copy()


def layers(count: int, **axes: Any) -> tuple[Layer, ...]:
    """Layers that differ: each option takes its values in turn; a single value stands for all."""
    return tuple(islice(_turns(axes), count))


def _turns(axes: dict[str, Any]) -> Iterator[Layer]:
    rows = {name: list(values) if isinstance(values, (list, tuple)) else [values] for name, values in axes.items()}
    at = 0
    while True:
        yield replace(Layer(), **{name: values[at % len(values)] for name, values in rows.items()})
        at += 1


@cache
def _draft(layer: Layer) -> Draft:
    rng = np.random.default_rng(7)
    real = np.float16 if layer.half else np.float32
    shapes = _shapes(layer)
    draft = Draft(layer.opset, layer.where, TensorProto.FLOAT16 if layer.half else TensorProto.FLOAT)
    draft.inputs["x"], draft.outputs["y"] = shapes["x"], shapes["y"]
    value, quantized = "x", layer.activation != "none"
    if quantized:
        value = _pair(draft, "x", "x", layer.activation, real)
    _weight(draft, layer, rng.normal(size=shapes["w"]) / np.sqrt(np.prod(shapes["w"]) / CHANNELS), real)
    inputs = [value, "w_float"]
    if layer.bias != "none":
        _bias(draft, layer, rng.normal(size=shapes["y"][1]) / 4, real)
    if layer.bias != "none" and layer.op != "MatMul":
        inputs.append("b_float")
    last = "relu" if layer.relu else "bias" if layer.op == "MatMul" and layer.bias != "none" else "layer"
    names = {"layer": "layer_out", "bias": "bias_out", "relu": "relu_out"}
    names[last] = "y_real" if quantized else "y"
    attributes = {"transB": 1} if layer.op == "GemmT" else {}
    draft.nodes.append(node(layer.op.removesuffix("T"), inputs, names["layer"], "layer", **attributes))
    if layer.op == "MatMul" and layer.bias != "none":
        draft.nodes.append(node("Add", [names["layer"], "b_float"], names["bias"], "bias"))
    if layer.relu:
        before = names["bias"] if layer.op == "MatMul" and layer.bias != "none" else names["layer"]
        draft.nodes.append(node("Relu", [before], names["relu"], "relu"))
    if quantized:
        _pair(draft, "y_real", "y", layer.activation, real, low=layer.relu)
    return draft


def _shapes(layer: Layer) -> dict[str, list[int]]:
    n = CHANNELS
    if layer.op in ("Conv", "ConvTranspose"):
        k = n if layer.square else 6
        w = [n, k, 3, 3] if layer.op == "Conv" else [k, n, 3, 3]
        size = 4 if layer.op == "Conv" else 8
        return {"x": [1, k, 6, 6], "w": w, "y": [1, n, size, size]}
    k = n if layer.square else 2 * BLOCK
    return {"x": [4, k], "w": [n, k] if layer.op == "GemmT" else [k, n], "y": [4, n]}


def _pair(draft: Draft, value: str, name: str, kind: str, real: Any, low: bool = False) -> str:
    """A QuantizeLinear and a DequantizeLinear behind a value; ``y`` is the name of the last one's output."""
    least, most = limits(kind)
    middle = least if low else 0 if least < 0 else (most + 1) // 2
    draft.put(f"{name}_scale", np.array(_STEP * 255 / (most - least), real))
    draft.put(f"{name}_zero", np.array(middle).astype(TYPES[kind]))
    out = "y" if name == "y" else f"{name}_float"
    draft.nodes += pair_nodes(value, name, out)
    return out


def pair_nodes(value: str, name: str, out: str) -> list[Any]:
    """Both nodes of a pair, with ``name_scale`` and ``name_zero``."""
    return [
        node("QuantizeLinear", [value, f"{name}_scale", f"{name}_zero"], f"{name}_integers", f"q_{name}"),
        node("DequantizeLinear", [f"{name}_integers", f"{name}_scale", f"{name}_zero"], out, f"dq_{name}"),
    ]


def _weight(draft: Draft, layer: Layer, w: Array, real: Any) -> None:
    least, most = limits(layer.weight)
    attributes: dict[str, int] = {}
    spread = np.abs(w)
    if layer.granularity == "tensor":
        largest = spread.max()
    elif layer.granularity == "channel":
        attributes["axis"] = layer.axis
        largest = spread.max(tuple(i for i in range(w.ndim) if i != layer.axis))
    else:
        attributes = {"axis": 1 - layer.axis, "block_size": BLOCK}
        blocks = [w.shape[0], -1, BLOCK] if layer.axis == 0 else [-1, BLOCK, w.shape[1]]
        largest = spread.reshape(blocks).max(2 - layer.axis)
    scale = np.asarray(largest / ((most - least) // 2), real)
    full = scale.astype(np.float64)
    if layer.granularity == "channel":
        full = full.reshape([-1 if i == layer.axis else 1 for i in range(w.ndim)])
    elif layer.granularity == "block":
        full = np.repeat(full, BLOCK, 1 - layer.axis)
    zero = 0 if least < 0 else (most + 1) // 2
    draft.put("w", np.clip(np.rint(w / full) + zero, least, most).astype(TYPES[layer.weight]))
    draft.put("w_scale", scale)
    draft.put("w_zero", np.full(scale.shape, zero).astype(TYPES[layer.weight]))
    draft.nodes.append(node("DequantizeLinear", ["w", "w_scale", "w_zero"], "w_float", "dq_w", **attributes))


def _bias(draft: Draft, layer: Layer, b: Array, real: Any) -> None:
    if layer.bias == "float":
        draft.put("b_float", b.astype(real))
        return
    scale = np.asarray(draft.array("x_scale") * draft.array("w_scale"), np.float32)
    draft.put("b", np.rint(b / scale.astype(np.float64)).astype(np.int32))
    draft.put("b_scale", scale)
    attributes = {"axis": 0} if scale.ndim else {}
    draft.nodes.append(node("DequantizeLinear", ["b", "b_scale"], "b_float", "dq_b", **attributes))


def limits(kind: str) -> tuple[int, int]:
    """Least and greatest integer of a type."""
    bits = int(kind.lstrip("uint"))
    return (0, 2**bits - 1) if kind.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def array_type(tensor: TensorProto) -> str:
    """Name of an element type, as in `TYPES`."""
    return str(helper.tensor_dtype_to_string(tensor.data_type)).removeprefix("TensorProto.").lower()
