"""Groups 6 and 7: what an opset or a runtime does not have, and what it makes slow."""

from __future__ import annotations

import random

import ml_dtypes
import numpy as np
from onnx import ModelProto, TensorProto

from onnxq.diagnostics import Place
from tests.defects.defect import defect
from tests.defects.draft import IR_VERSIONS, Body, Draft, node
from tests.defects.layers import layers, pair_nodes

WHERE = ("main", "then", "function", "loop", "nested")
OPS = ("Conv", "Gemm", "MatMul", "ConvTranspose", "GemmT")
PRODUCTS = ("MatMul", "Gemm", "GemmT")
CPU, TRAINING = "ort-cpu", "ort-training"


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


INT8 = {"activation": "int8", "weight": "int8"}


@defect(
    "OQ611",
    "int8-behind-pool",
    layers(3, op="Conv", opset=[21, 23, 25], where=["main", "then", "function"], **INT8),
    target=CPU,
)
def int8_behind_pool(draft: Draft, rng: random.Random) -> Place:
    """int8 activations go through a MaxPool into a Conv: the default session does not load it."""
    same = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    draft.insert("layer", node("MaxPool", ["x_float"], "x_pooled", "pool", **same))
    draft.node("layer").input[0] = "x_pooled"
    return draft.at("dq_x")


@defect(
    "OQ611", "int8-behind-transpose", layers(2, op="MatMul", bias="none", where=["main", "then"], **INT8), target=CPU
)
def int8_behind_transpose(draft: Draft, rng: random.Random) -> Place:
    """int8 activations go through a Transpose into a MatMul: the default session does not load it."""
    draft.inputs["x"].reverse()
    draft.insert("layer", node("Transpose", ["x_float"], "x_turned", "turn", perm=[1, 0]))
    draft.node("layer").input[0] = "x_turned"
    return draft.at("dq_x")


@defect("OQ611", "int8-rank-three", layers(2, op="MatMul", bias="float", where=["main", "then"], **INT8), target=CPU)
def int8_rank_three(draft: Draft, rng: random.Random) -> Place:
    """int8 activations of rank 3 and an Add behind the MatMul: the default session does not load it."""
    draft.inputs["x"].insert(0, 2)
    draft.outputs["y"].insert(0, 2)
    return draft.at("layer")


@defect(
    "OQ612", "output-type-beside-zero-point", layers(3, op=OPS, where=["main", "then", "function"], **INT8), target=CPU
)
def output_type_beside_zero_point(draft: Draft, rng: random.Random) -> Place:
    """A QuantizeLinear says int8 twice, by attribute and zero point: valid, and default sessions refuse it."""
    draft.set("q_x", "output_dtype", int(TensorProto.INT8))
    return draft.at("q_x")


@defect(
    "OQ613",
    "half-concat",
    layers(3, op=PRODUCTS, half=True, activation="uint8", bias="none", where=["main", "then", "function"]),
    target=CPU,
    also={"OQ711": "pairs of float16 are never fused"},
)
def half_concat(draft: Draft, rng: random.Random) -> Place:
    """A Concat between pairs of float16: the default session does not load it."""
    draft.node("dq_y").output[0] = "y_half"
    join = node("Concat", ["y_half", "y_half"], "joined", "join", axis=0)
    draft.put("j_scale", draft.array("y_scale"))
    draft.put("j_zero", draft.array("y_zero"))
    draft.nodes += [join, *pair_nodes("joined", "j", "y")]
    draft.outputs["y"][0] *= 2
    return draft.at("join")


@defect(
    "OQ614",
    "two-bits-and-eight",
    layers(
        4,
        op=["MatMul", "Gemm", "Conv"],
        weight=["int2", "uint2"],
        opset=25,
        activation=["uint8", "int8"],
        bias="none",
        where=["main", "then", "function"],
    ),
    target=CPU,
    alters=True,
)
def two_bits_and_eight(draft: Draft, rng: random.Random) -> Place:
    """2-bit weights with 8-bit activations: the default session does not load it."""
    return draft.at("dq_w")


@defect("OQ615", "batched-weight", layers(3, op="MatMul", bias="none", where=["main", "then", "function"]), target=CPU)
def batched_weight(draft: Draft, rng: random.Random) -> Place:
    """A stored weight of rank 3 per channel without a Q behind the MatMul: the default session stops when it runs."""
    draft.put("w", np.stack([draft.array("w")] * 2))
    draft.set("dq_w", "axis", 2)
    draft.inputs["x"].insert(0, 2)
    draft.outputs["y"].insert(0, 2)
    draft.drop("q_y", "dq_y")
    del draft.tensors["y_scale"], draft.tensors["y_zero"]
    draft.node("layer").output[0] = "y"
    return draft.at("dq_w")


@defect(
    "OQ616",
    "weight-around-branch",
    layers(3, op=["MatMul", "Gemm"], activation="none", bias="none", where=["loop", "nested"]),
    target=CPU,
)
def weight_around_branch(draft: Draft, rng: random.Random) -> Place:
    """The weight of a weight-only product in a body lies in the graph around it."""
    _lift(draft, "w", "w_scale", "w_zero")
    return draft.at("dq_w")


def _lift(draft: Draft, *names: str) -> None:
    """Move constants into the main graph."""
    tensors = [draft.tensors.pop(name) for name in names]

    def edit(model: ModelProto, _: Body) -> None:
        model.graph.initializer.extend(tensors)

    draft.edits.append(edit)


@defect("OQ617", "float-conv-beside-pairs", layers(2, op="Conv", bias="none", where=["main", "then"]), target=CPU)
def float_conv_beside_pairs(draft: Draft, rng: random.Random) -> Place:
    """A Conv with a float weight between pairs: its weight is rounded per tensor when the model is loaded."""
    scale = draft.array("w_scale").reshape(-1, 1, 1, 1)
    draft.put("w_float", draft.array("w") * scale)
    draft.drop("dq_w")
    for name in ("w", "w_scale", "w_zero"):
        del draft.tensors[name]
    return draft.at("layer")


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
