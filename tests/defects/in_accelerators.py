"""Group 6: what the training build, TensorRT, QNN and Ascend do not take."""

from __future__ import annotations

import random

import ml_dtypes
import numpy as np
from onnx import ModelProto

from onnxq.diagnostics import Place
from tests.defects.defect import defect
from tests.defects.draft import Body, Draft, node
from tests.defects.in_axes import channels_of_activation
from tests.defects.in_integers import computed_scale
from tests.defects.in_opsets import integer_operator
from tests.defects.in_packing import odd_values
from tests.defects.in_pairs import shared_q
from tests.defects.in_speed import turned_weight
from tests.defects.layers import Layer, layers

WHERE = ("main", "then", "function")
TRAINING, TENSORRT, QNN, ASCEND = "ort-training", "tensorrt", "qnn", "ascend"


def _tensorrt(count: int, **axes: object) -> tuple[Layer, ...]:
    return layers(count, **{"activation": "int8", "weight": "int8", "bias": "none", "where": WHERE, **axes})


def _qnn(count: int, **axes: object) -> tuple[Layer, ...]:
    return layers(count, **{"op": "Conv", **axes})


def _ascend(count: int, **axes: object) -> tuple[Layer, ...]:
    return layers(count, **{"activation": "int8", "weight": "int4", "bias": "none", "where": WHERE, **axes})


def _training(count: int, **axes: object) -> tuple[Layer, ...]:
    return layers(count, **{"op": ["Conv", "MatMul", "Gemm"], "opset": 13, **axes})


@defect("OQ606", "unsigned-for-tensorrt", _tensorrt(3, op=["Conv", "MatMul", "Gemm"]), target=TENSORRT)
def unsigned_for_tensorrt(draft: Draft, rng: random.Random) -> Place:
    """Activations are uint8, which TensorRT does not take."""
    draft.put("x_zero", np.uint8(128))
    return draft.at("q_x")


@defect(
    "OQ606",
    "unsigned-for-ascend",
    _ascend(2, op=["Conv", "MatMul"]),
    target=ASCEND,
    also={"OQ609": "nor with int4 weights"},
)
def unsigned_for_ascend(draft: Draft, rng: random.Random) -> Place:
    """Activations are uint8, which Ascend does not take."""
    return unsigned_for_tensorrt(draft, rng)


@defect("OQ606", "integer-bias-for-tensorrt", _tensorrt(2, op=["Conv", "Gemm"], bias="int32"), target=TENSORRT)
def integer_bias_for_tensorrt(draft: Draft, rng: random.Random) -> Place:
    """A bias is int32, which TensorRT does not take."""
    return draft.at("dq_b")


@defect("OQ607", "shifted-for-tensorrt", _tensorrt(3, op=["Conv", "MatMul", "Gemm"]), target=TENSORRT)
def shifted_for_tensorrt(draft: Draft, rng: random.Random) -> Place:
    """Activations have a zero point, which TensorRT does not take."""
    draft.put("x_zero", np.int8(rng.choice([-3, 40])))
    return draft.at("q_x")


@defect(
    "OQ608",
    "channels-for-tensorrt",
    _tensorrt(2, op=["Conv", "MatMul"]),
    target=TENSORRT,
    also={"OQ304": "activations per channel"},
)
def channels_for_tensorrt(draft: Draft, rng: random.Random) -> Place:
    """Activations have a scale a channel, which TensorRT does not take."""
    return channels_of_activation(draft, rng)


@defect(
    "OQ608", "channels-of-matmul-for-qnn", _qnn(2, op="MatMul", weight="uint8", where=["main", "function"]), target=QNN
)
def channels_of_matmul_for_qnn(draft: Draft, rng: random.Random) -> Place:
    """The weight of a MatMul has a scale a channel, which QNN takes of convolutions."""
    return draft.at("dq_w")


@defect(
    "OQ609", "four-bits-beside-eight-for-tensorrt", _tensorrt(2, op=["MatMul", "Gemm"]), target=TENSORRT, alters=True
)
def four_bits_beside_eight_for_tensorrt(draft: Draft, rng: random.Random) -> Place:
    """4-bit weights stand beside quantized activations, which TensorRT does not pair."""
    draft.put("w", (draft.array("w") >> 4).astype(ml_dtypes.int4))
    draft.put("w_zero", np.zeros(8, ml_dtypes.int4))
    return draft.at("dq_w")


@defect("OQ610", "factor-for-ascend", _ascend(2, op="Gemm", where=["main", "then"]), target=ASCEND, alters=True)
def factor_for_ascend(draft: Draft, rng: random.Random) -> Place:
    """A Gemm has a factor, and Ascend no integer kernel for that."""
    draft.set("layer", "alpha", 2.0)
    return draft.at("layer")


@defect("OQ621", "opset-for-training", layers(2, op=["Conv", "MatMul"], opset=[21, 23]), target=TRAINING)
def opset_for_training(draft: Draft, rng: random.Random) -> Place:
    """The opset is above what the training build has pairs of."""
    return Place()


@defect("OQ622", "channels-for-training", _training(2), target=TRAINING, also={"OQ304": "activations per channel"})
def channels_for_training(draft: Draft, rng: random.Random) -> Place:
    """A pair has several scales, which stops training in the first step."""
    for name in ("b", "b_scale"):
        del draft.tensors[name]
    draft.drop("dq_b")
    reader = next(n for n in draft.nodes if "b_float" in n.input)
    draft.put("b_float", np.zeros(8, np.float32))
    assert reader.name in ("layer", "bias")
    return channels_of_activation(draft, rng)


@defect("OQ623", "raw-zero-point-for-training", _training(2), target=TRAINING)
def raw_zero_point_for_training(draft: Draft, rng: random.Random) -> Place:
    """A zero point is stored as raw bytes, which the training build takes to be 0."""
    return draft.at("q_x")


@defect("OQ624", "shared-q-for-training", _training(2), target=TRAINING, alters=True)
def shared_q_for_training(draft: Draft, rng: random.Random) -> Place:
    """Two DequantizeLinear read one QuantizeLinear, of which the training build makes no artifacts."""
    return shared_q(draft, rng)


@defect(
    "OQ625",
    "sixteen-bits-for-training",
    layers(2, op=["Conv", "MatMul"], activation=["uint16", "int16"]),
    target=TRAINING,
)
def sixteen_bits_for_training(draft: Draft, rng: random.Random) -> Place:
    """A pair has 16 bits, and the training build computes with 8."""
    return draft.at("q_x")


@defect("OQ626", "body-for-training", _training(3, where=["then", "loop", "function"]), target=TRAINING)
def body_for_training(draft: Draft, rng: random.Random) -> Place:
    """A pair stands in a body or function, where the training build has no gradient."""
    return draft.at("q_x")


@defect(
    "OQ627",
    "integer-operator-for-training",
    _training(2, op=["Conv", "MatMul"], granularity="tensor", bias="none"),
    target=TRAINING,
    also={"OQ605": "an operator on integers", "OQ624": "its QuantizeLinear has no DequantizeLinear"},
)
def integer_operator_for_training(draft: Draft, rng: random.Random) -> Place:
    """An operator computes on integers, which has no gradient."""
    return integer_operator(draft, rng)


@defect("OQ628", "transposed-convolution-for-training", _training(1, op="ConvTranspose"), target=TRAINING)
def transposed_convolution_for_training(draft: Draft, rng: random.Random) -> Place:
    """A ConvTranspose, whose gradient the training build does not have."""
    return draft.at("layer")


@defect("OQ629", "frozen-weight-for-training", _training(2), target=TRAINING)
def frozen_weight_for_training(draft: Draft, rng: random.Random) -> Place:
    """A weight is stored as integers and is not trained."""
    return draft.at("dq_w")


@defect(
    "OQ631",
    "computed-scale-for-tensorrt",
    _tensorrt(2, op=["Conv", "MatMul"]),
    target=TENSORRT,
    alters=True,
    also={"OQ112": "a scale that is computed", "OQ607": "the zero point"},
)
def computed_scale_for_tensorrt(draft: Draft, rng: random.Random) -> Place:
    """A scale is computed at run time, of which TensorRT builds no engine."""
    return computed_scale(draft, rng)


@defect(
    "OQ632",
    "integer-operator-for-tensorrt",
    _tensorrt(2, op=["Conv", "MatMul"], granularity="tensor"),
    target=TENSORRT,
    also={"OQ605": "an operator on integers"},
)
def integer_operator_for_tensorrt(draft: Draft, rng: random.Random) -> Place:
    """An operator computes on integers, which TensorRT does not import."""
    return integer_operator(draft, rng)


@defect(
    "OQ633",
    "odd-int4-for-tensorrt",
    _tensorrt(2, op=["MatMul", "Gemm"], activation="none", weight="int4", granularity="tensor"),
    target=TENSORRT,
    alters=True,
)
def odd_int4_for_tensorrt(draft: Draft, rng: random.Random) -> Place:
    """A 4-bit tensor has an odd number of values, which TensorRT does not import."""
    odd_values(draft)
    return draft.at("dq_w")


@defect("OQ641", "signed-for-qnn", _qnn(2, where=["main", "function"], bias="none"), target=QNN)
def signed_for_qnn(draft: Draft, rng: random.Random) -> Place:
    """Activations are signed, which few operators of QNN take."""
    draft.put("x_zero", np.int8(0))
    return draft.at("q_x")


@defect("OQ642", "free-dimension-for-qnn", _qnn(2, where=["main", "function"]), target=QNN)
def free_dimension_for_qnn(draft: Draft, rng: random.Random) -> Place:
    """An input has a free dimension, and QNN takes none."""

    def edit(model: ModelProto, _: Body) -> None:
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"

    draft.edits.append(edit)
    return Place(value="x")


@defect("OQ643", "branch-for-qnn", _qnn(2, where=["then", "nested"]), target=QNN)
def branch_for_qnn(draft: Draft, rng: random.Random) -> Place:
    """The model has an If or Loop, and QNN has none."""
    return Place("branch" if draft.where == "then" else "loop")


@defect("OQ644", "sigmoid-for-qnn", _qnn(3, activation="uint16", where=WHERE, bias="none"), target=QNN, alters=True)
def sigmoid_for_qnn(draft: Draft, rng: random.Random) -> Place:
    """The 16-bit output of a Sigmoid has another scale than QNN takes."""
    draft.insert("q_y", node("Sigmoid", ["y_real"], "y_sigmoid", "sigmoid"))
    draft.node("q_y").input[0] = "y_sigmoid"
    return draft.at("q_y")


@defect(
    "OQ645",
    "wide-matmul-for-qnn",
    _qnn(
        2,
        op="MatMul",
        activation="uint16",
        weight="uint16",
        bias="none",
        granularity="tensor",
        where=["main", "function"],
    ),
    target=QNN,
)
def wide_matmul_for_qnn(draft: Draft, rng: random.Random) -> Place:
    """Both operands of a MatMul have 16 bits, which QNN does not take."""
    return draft.at("layer")


@defect("OQ651", "turned-weight-for-ascend", _ascend(2, op="Gemm", weight=["int8", "int4"]), target=ASCEND)
def turned_weight_for_ascend(draft: Draft, rng: random.Random) -> Place:
    """A Gemm reads its weight transposed, which Ascend packs along the wrong axis."""
    turned_weight(draft, rng)
    return draft.at("layer")


@defect("OQ652", "turned-input-for-ascend", _ascend(2, op="Gemm"), target=ASCEND)
def turned_input_for_ascend(draft: Draft, rng: random.Random) -> Place:
    """A Gemm reads its input transposed, which Ascend does not quantize."""
    draft.inputs["x"].reverse()
    draft.set("layer", "transA", 1)
    return draft.at("layer")


@defect("OQ653", "opset-for-ascend", _ascend(2, op=["Conv", "MatMul"], opset=[23, 25]), target=ASCEND)
def opset_for_ascend(draft: Draft, rng: random.Random) -> Place:
    """4-bit weights are in a model of another opset than 21, which Ascend's toolkit refuses."""
    return draft.at("dq_w")


@defect("OQ654", "float-input-for-ascend", _ascend(2, op=["Conv", "MatMul"], weight="int8"), target=ASCEND)
def float_input_for_ascend(draft: Draft, rng: random.Random) -> Place:
    """A weight has 8 bits and the input is float, for which Ascend has no kernel."""
    draft.drop("q_x", "dq_x")
    del draft.tensors["x_scale"], draft.tensors["x_zero"]
    draft.node("layer").input[0] = "x"
    return draft.at("layer")
