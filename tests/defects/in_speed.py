"""Group 7: what onnxruntime runs slowly."""

from __future__ import annotations

import random

import numpy as np
from onnx import TensorProto

from onnxq.diagnostics import Place
from tests.defects.defect import defect
from tests.defects.draft import Draft, node
from tests.defects.layers import layers, pair_nodes

OPS = ("Conv", "Gemm", "MatMul", "ConvTranspose", "GemmT")


PRODUCTS = ("MatMul", "Gemm", "GemmT")


CPU = "ort-cpu"


INT8 = {"activation": "int8", "weight": "int8"}


@defect(
    "OQ701",
    "no-output-q",
    layers(3, op=["Conv", "Gemm", "GemmT"], bias="float", where=["main", "then", "function"]),
    target=CPU,
)
def no_output_q(draft: Draft, rng: random.Random) -> Place:
    """There is no pair behind a layer: it runs in float."""
    draft.drop("q_y", "dq_y")
    del draft.tensors["y_scale"], draft.tensors["y_zero"]
    draft.node("layer").output[0] = "y"
    return draft.at("layer")


@defect(
    "OQ702",
    "symmetric-before-relu",
    layers(4, op=["Conv", *PRODUCTS], relu=True, where=["main", "then", "function"], activation=["uint8", "int8"]),
    target=CPU,
)
def symmetric_before_relu(draft: Draft, rng: random.Random) -> Place:
    """The pair behind a Relu is symmetric, so that the Relu cannot be folded."""
    zero = draft.array("y_zero")
    draft.put("y_zero", np.array(128 if zero.dtype == np.uint8 else 0, zero.dtype))
    return draft.at("relu")


WEIGHT_ONLY = {"activation": "none", "bias": "none"}


@defect(
    "OQ703",
    "tied-weight",
    layers(
        3,
        op="MatMul",
        weight=["int4", "int8"],
        granularity=["block", "channel"],
        where=["main", "then", "function"],
        square=False,
        **WEIGHT_ONLY,
    ),
    target=CPU,
    alters=True,
)
def tied_weight(draft: Draft, rng: random.Random) -> Place:
    """Two layers read one weight: neither becomes MatMulNBits."""
    draft.node("layer").output[0] = "y_first"
    draft.nodes.append(node("Relu", ["x"], "x_other", "other"))
    draft.nodes.append(node("MatMul", ["x_other", "w_float"], "y_second", "second"))
    draft.nodes.append(node("Add", ["y_first", "y_second"], "y", "add"))
    return draft.at("dq_w")


@defect(
    "OQ704",
    "axis-from-the-end",
    layers(2, op="MatMul", weight=["int8", "int4"], where=["main", "then"], **WEIGHT_ONLY),
    target=CPU,
    alters=True,
)
def axis_from_the_end(draft: Draft, rng: random.Random) -> Place:
    """The axis of a weight-only MatMul is counted from the end: it does not become MatMulNBits."""
    draft.set("dq_w", "axis", -1)
    return draft.at("dq_w")


@defect(
    "OQ704",
    "turned-weight",
    layers(2, op="Gemm", weight=["int8", "int4"], where=["main", "function"], **WEIGHT_ONLY),
    target=CPU,
    alters=True,
)
def turned_weight(draft: Draft, rng: random.Random) -> Place:
    """A weight-only Gemm has transB=1: it does not become MatMulNBits."""
    draft.put("w", np.ascontiguousarray(draft.array("w").T))
    draft.set("dq_w", "axis", 0)
    draft.set("layer", "transB", 1)
    return draft.at("dq_w")


@defect(
    "OQ705",
    "whole-table",
    layers(
        3,
        op="MatMul",
        weight=["int8", "int4"],
        where=["main", "then", "function"],
        granularity=["tensor", "channel"],
        **WEIGHT_ONLY,
    ),
    target=CPU,
    alters=True,
)
def whole_table(draft: Draft, rng: random.Random) -> Place:
    """A table is dequantized as a whole for the few rows that a Gather takes."""
    rows = draft.tensors["w"].dims[1]
    draft.drop("layer")
    draft.inputs["x"], draft.types["x"] = [4], TensorProto.INT64
    draft.nodes.append(node("Gather", ["w_float", "x"], "y", "gather"))
    draft.outputs["y"] = [4, rows]
    if draft.node("dq_w").attribute:
        draft.set("dq_w", "axis", 1)
    return draft.at("gather")


@defect(
    "OQ706",
    "residual-matmul",
    layers(2, op="MatMul", square=True, bias="none", where=["main", "function"]),
    target=CPU,
    alters=True,
)
def residual_matmul(draft: Draft, rng: random.Random) -> Place:
    """A MatMul of rank 2 goes into a residual Add without a pair between: it runs in float."""
    draft.node("layer").output[0] = "product"
    draft.insert("q_y", node("Add", ["product", "x_float"], "y_real", "residual"))
    draft.outputs["y"] = list(draft.inputs["x"])
    return draft.at("layer")


@defect(
    "OQ707",
    "int8-fan-out",
    layers(3, op=["Conv", "MatMul"], bias="none", where=["main", "then", "function"], **INT8),
    target=CPU,
    also={"OQ701": "no pair follows the two layers", "OQ706": "no pair follows the two layers"},
    alters=True,
)
def int8_fan_out(draft: Draft, rng: random.Random) -> Place:
    """int8 activations are read by two layers: none of them is fused."""
    layer = draft.node("layer")
    second = node(layer.op_type, list(layer.input), "y_second", "second")
    second.attribute.extend(layer.attribute)
    layer.output[0] = "y_first"
    draft.insert("q_y", second, node("Add", ["y_first", "y_second"], "y_real", "add"))
    return draft.at("dq_x")


@defect("OQ708", "isolated-pair", layers(3, op=OPS, where=["main", "then", "function"]), target=CPU, alters=True)
def isolated_pair(draft: Draft, rng: random.Random) -> Place:
    """A pair stands between operators that run in float anyway."""
    draft.node("dq_y").output[0] = "y_before"
    draft.put("t_scale", np.float32(1 / 127))
    draft.put("t_zero", np.uint8(128))
    draft.nodes.append(node("Tanh", ["y_before"], "t_real", "tanh"))
    draft.nodes += pair_nodes("t_real", "t", "t_float")
    draft.nodes.append(node("Erf", ["t_float"], "y", "erf"))
    return draft.at("q_t")


@defect(
    "OQ709",
    "concat-ranges",
    layers(4, op=OPS, activation=["uint8", "int8"], where=["main", "then", "function"]),
    alters=True,
)
def concat_ranges(draft: Draft, rng: random.Random) -> Place:
    """A Concat joins values of very different ranges under one scale."""
    draft.put("big_scale", draft.array("y_scale") * np.float32(100))
    draft.put("big_zero", draft.array("y_zero"))
    draft.put("hundred", np.float32(100))
    draft.node("dq_y").output[0] = "y_small"
    draft.nodes.append(node("Mul", ["y_small", "hundred"], "big_real", "mul"))
    draft.nodes += pair_nodes("big_real", "big", "big_float")
    draft.put("j_scale", draft.array("big_scale"))
    draft.put("j_zero", draft.array("y_zero"))
    draft.nodes.append(node("Concat", ["y_small", "big_float"], "joined", "join", axis=0))
    draft.nodes += pair_nodes("joined", "j", "y")
    draft.outputs["y"][0] *= 2
    return draft.at("join")


@defect(
    "OQ710",
    "activations-rounded",
    layers(
        3,
        op=["MatMul", "Gemm"],
        activation=["uint16", "int16"],
        weight=["int8", "int4"],
        bias="none",
        where=["main", "then", "function"],
    ),
    target=CPU,
    alters=True,
)
def activations_rounded(draft: Draft, rng: random.Random) -> Place:
    """16-bit activations are rounded to 8 bits by MatMulNBits."""
    return draft.at("layer")


@defect(
    "OQ711",
    "half-pairs",
    layers(3, op=PRODUCTS, half=True, bias="none", where=["main", "then", "function"]),
    target=CPU,
    alters=True,
)
def half_pairs(draft: Draft, rng: random.Random) -> Place:
    """Pairs of float16: onnxruntime's CPU provider fuses none of them."""
    return draft.at("q_x")


@defect(
    "OQ712", "gemm-without-zero-point", layers(3, op=["Gemm", "GemmT"], where=["main", "then", "function"]), target=CPU
)
def gemm_without_zero_point(draft: Draft, rng: random.Random) -> Place:
    """The pair of a Gemm's weight has no zero point: it runs in float."""
    del draft.node("dq_w").input[2], draft.tensors["w_zero"]
    return draft.at("dq_w")


@defect(
    "OQ713",
    "weight-only-before-relu",
    layers(3, op=["MatMul", "Gemm"], weight=["int8", "int4"], where=["main", "then", "function"], **WEIGHT_ONLY),
    target=CPU,
    alters=True,
)
def weight_only_before_relu(draft: Draft, rng: random.Random) -> Place:
    """A Relu follows a weight-only product: it does not become MatMulNBits."""
    draft.node("layer").output[0] = "product"
    draft.nodes.append(node("Relu", ["product"], "y_relu", "relu"))
    draft.nodes.append(node("Tanh", ["y_relu"], "y", "tanh"))
    return draft.at("dq_w")
