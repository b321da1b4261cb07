"""Group 6: what onnxruntime's default session does not load, or computes otherwise."""

from __future__ import annotations

import random

import numpy as np
from onnx import ModelProto, TensorProto

from onnxq.diagnostics import Place
from tests.defects.defect import defect
from tests.defects.draft import Body, Draft, node
from tests.defects.layers import layers, pair_nodes

OPS = ("Conv", "Gemm", "MatMul", "ConvTranspose", "GemmT")


PRODUCTS = ("MatMul", "Gemm", "GemmT")


CPU = "ort-cpu"


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
