"""Group 6: what an opset does not have, or a runtime no implementation of."""

from __future__ import annotations

import random

import ml_dtypes
import numpy as np
from onnx import TensorProto

from onnxq.diagnostics import Place
from tests.defects.defect import defect
from tests.defects.draft import IR_VERSIONS, Draft, node
from tests.defects.layers import layers, pair_nodes

WHERE = ("main", "then", "function", "loop", "nested")


OPS = ("Conv", "Gemm", "MatMul", "ConvTranspose", "GemmT")


PRODUCTS = ("MatMul", "Gemm", "GemmT")


CPU = "ort-cpu"


def _older(draft: Draft, opset: int) -> None:
    """An older opset, and the IR version as it was."""
    draft.ir_version = IR_VERSIONS[draft.opset]
    draft.opset = opset


@defect("OQ601", "sixteen-bits-too-new", layers(5, op=OPS, activation=["int16", "uint16"], where=WHERE))
def sixteen_bits_too_new(draft: Draft, rng: random.Random) -> Place:
    """Activations of 16 bits before opset 21."""
    _older(draft, rng.choice([13, 19]))
    return draft.at("q_x")


@defect("OQ601", "four-bits-too-new", layers(5, op=OPS, weight=["int4", "uint4"], where=WHERE))
def four_bits_too_new(draft: Draft, rng: random.Random) -> Place:
    """Weights of 4 bits before opset 21."""
    _older(draft, 19)
    return draft.at("dq_w")


@defect(
    "OQ601",
    "two-bits-too-new",
    layers(3, op=PRODUCTS, activation="none", weight=["int2", "uint2"], opset=25, bias="none", where=WHERE),
)
def two_bits_too_new(draft: Draft, rng: random.Random) -> Place:
    """Weights of 2 bits before opset 25."""
    _older(draft, rng.choice([21, 23]))
    return draft.at("dq_w")


@defect("OQ601", "float8-too-new", layers(2, op=OPS, opset=19, where=WHERE))
def float8_too_new(draft: Draft, rng: random.Random) -> Place:
    """8-bit floats before opset 19."""
    _float8(draft)
    _older(draft, 13)
    return draft.at("q_x")


def _float8(draft: Draft) -> None:
    draft.put("x_zero", np.zeros((), ml_dtypes.float8_e4m3fn))


@defect("OQ602", "bfloat16-pair", layers(3, op=OPS, opset=[21, 23, 25], where=WHERE), target=CPU)
def bfloat16_pair(draft: Draft, rng: random.Random) -> Place:
    """A pair of bfloat16 numbers, for which onnxruntime's CPU provider has no kernel."""
    _extra_pair(draft, TensorProto.BFLOAT16, ml_dtypes.bfloat16)
    return draft.at("q_h")


@defect("OQ602", "int32-pair", layers(2, op=OPS, opset=[13, 25], where=WHERE), target=CPU)
def int32_pair(draft: Draft, rng: random.Random) -> Place:
    """A QuantizeLinear of int32, for which onnxruntime's CPU provider has no kernel."""
    _extra_pair(draft, TensorProto.INT32, np.float32)
    return draft.at("q_h")


@defect(
    "OQ602",
    "four-bit-floats",
    layers(2, op=["MatMul", "Gemm"], opset=[23, 25], activation="none", bias="none", where=["main", "function"]),
    target=CPU,
)
def four_bit_floats(draft: Draft, rng: random.Random) -> Place:
    """A weight of 4-bit floats, for which onnxruntime's CPU provider has no kernel."""
    draft.put("w", draft.array("w").astype(np.float32).clip(-6, 6).astype(ml_dtypes.float4_e2m1fn))
    draft.put("w_zero", np.zeros(8, ml_dtypes.float4_e2m1fn))
    return draft.at("dq_w")


def _extra_pair(draft: Draft, kind: int, real: type) -> None:
    """A pair of another type in front of the layer's own."""
    draft.put("h_scale", np.array(0.03, real))
    draft.put("h_zero", np.uint8(128))
    back = node("Cast", ["h_back"], "h_float", "h_to_float", to=TensorProto.FLOAT)
    draft.insert("q_x", node("Cast", ["x"], "h", "h_cast", to=kind), *pair_nodes("h", "h", "h_back"), back)
    draft.node("q_x").input[0] = "h_float"


@defect("OQ603", "opset-above-runtime", layers(3, op=OPS, where=WHERE), target=CPU)
def opset_above_runtime(draft: Draft, rng: random.Random) -> Place:
    """The opset is above what the runtime has pairs of."""
    draft.opset = 28
    return draft.at("q_x")


@defect("OQ604", "contrib-pair", layers(4, op=OPS, activation=["uint8", "uint16"], opset=21, where=WHERE))
def contrib_pair(draft: Draft, rng: random.Random) -> Place:
    """A pair is onnxruntime's own, and ai.onnx has the same one."""
    draft.imports["com.microsoft"] = 1
    draft.node("q_y").domain = draft.node("dq_y").domain = "com.microsoft"
    return draft.at("q_y")


@defect("OQ605", "integer-operator", layers(3, op=["Conv", "MatMul"], granularity="tensor", bias="none", where=WHERE))
def integer_operator(draft: Draft, rng: random.Random) -> Place:
    """An operator computes on integers itself."""
    names = {"Conv": "QLinearConv", "MatMul": "QLinearMatMul"}
    inputs = ["x_integers", "x_scale", "x_zero", "w", "w_scale", "w_zero", "y_scale", "y_zero"]
    draft.insert("dq_y", node(names[draft.node("layer").op_type], inputs, "y_integers", "integer"))
    draft.drop("dq_x", "dq_w", "q_y", "layer")
    return draft.at("integer")
