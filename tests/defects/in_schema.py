"""Group 0: declarations, operators, versions, and what is left over."""

from __future__ import annotations

import random

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, helper

from onnxq.diagnostics import Place
from tests.defects.defect import defect
from tests.defects.draft import Body, Draft, node
from tests.defects.layers import layers

WHERE = ("main", "then", "function", "loop", "nested")


GRAPHS = ("main", "then", "loop", "nested")


OPS = ("Conv", "Gemm", "MatMul", "ConvTranspose", "GemmT")


NOWHERE = Place()


@defect(
    "OQ010", "stale-type", layers(5, op=OPS, where=WHERE), also={"OQ206": "the zero point is not of the declared type"}
)
def stale_type(draft: Draft, rng: random.Random) -> Place:
    """A value is declared with another element type than its node makes."""
    name, kind = rng.choice([("x_integers", TensorProto.INT8), ("x_float", TensorProto.FLOAT16)])
    draft.infos.append(helper.make_tensor_value_info(name, kind, draft.inputs["x"]))
    return draft.at(value=name)


@defect("OQ010", "stale-shape", layers(5, op=OPS, where=WHERE))
def stale_shape(draft: Draft, rng: random.Random) -> Place:
    """A value is declared with another shape than its node makes."""
    shape = list(draft.inputs["x"])
    at = rng.randrange(len(shape))
    shape[at] += 1
    draft.infos.append(helper.make_tensor_value_info("x_float", TensorProto.FLOAT, shape))
    return draft.at(value="x_float")


@defect("OQ022", "declared-but-gone", layers(3, op=OPS, where=WHERE))
def declared_but_gone(draft: Draft, rng: random.Random) -> Place:
    """The file declares a value that is not there."""
    draft.infos.append(helper.make_tensor_value_info("conv_quantized", TensorProto.UINT8, [1, 8]))
    return draft.at(value="conv_quantized")


@defect("OQ011", "unused-import", layers(3, op=OPS, where=WHERE))
def unused_import(draft: Draft, rng: random.Random) -> Place:
    """A domain is imported that no node is of."""
    draft.edits.append(lambda model, _: model.opset_import.append(helper.make_opsetid("com.microsoft.nchwc", 1)))
    return NOWHERE


@defect("OQ011", "import-twice", layers(2, op=OPS, opset=[13, 21]))
def import_twice(draft: Draft, rng: random.Random) -> Place:
    """A domain is imported at two versions."""
    draft.edits.append(lambda model, _: model.opset_import.append(helper.make_opsetid("ai.onnx", 17)))
    return NOWHERE


@defect("OQ012", "unused-constant", layers(4, op=OPS, where=GRAPHS))
def unused_constant(draft: Draft, rng: random.Random) -> Place:
    """An initializer that nothing reads."""
    draft.put("w_before", np.zeros((8, 8), np.float32))
    return draft.at(value="w_before")


@defect("OQ013", "attribute-twice", layers(4, op=OPS, where=WHERE))
def attribute_twice(draft: Draft, rng: random.Random) -> Place:
    """A node has an attribute twice, with two values."""
    axis = draft.node("dq_w").attribute[0].i
    draft.node("dq_w").attribute.append(helper.make_attribute("axis", axis + 1))
    return draft.at("dq_w")


@defect("OQ013", "function-twice", layers(1, where="function"))
def function_twice(draft: Draft, rng: random.Random) -> Place:
    """A local function is there twice."""
    draft.edits.append(lambda model, _: model.functions.append(model.functions[0]))
    return NOWHERE


@defect("OQ014", "sparse-initializer", layers(2, op=["MatMul", "Gemm"], where=["main", "then"]), alters=True)
def sparse_initializer(draft: Draft, rng: random.Random) -> Place:
    """A weight is a sparse initializer, which most tools drop."""

    def edit(_: ModelProto, body: Body) -> None:
        assert isinstance(body, GraphProto)
        sparse = body.sparse_initializer.add(dims=draft.outputs["y"])
        sparse.values.CopyFrom(helper.make_tensor("offset", TensorProto.FLOAT, [1], [2.0]))
        sparse.indices.CopyFrom(helper.make_tensor("", TensorProto.INT64, [1], [1]))

    draft.edits.append(edit)
    draft.nodes.append(node("Add", ["y_more", "offset"], "y", "add"))
    draft.node("dq_y").output[0] = "y_more"
    return draft.at(value="offset")


@defect("OQ014", "training-graph", layers(1))
def training_graph(draft: Draft, rng: random.Random) -> Place:
    """The file holds a training graph."""
    draft.edits.append(lambda model, _: model.training_info.add().algorithm.node.add(op_type="Identity"))
    return NOWHERE


@defect(
    "OQ015",
    "misspelt-op",
    layers(4, op=OPS, where=WHERE),
    also={"OQ107": "an operator that no one knows reads integers"},
)
def misspelt_op(draft: Draft, rng: random.Random) -> Place:
    """No opset has the operator."""
    draft.node("dq_y").op_type = "DequantiseLinear"
    return draft.at("dq_y")


@defect("OQ015", "op-too-new", layers(3, op=OPS, opset=[13, 19], where=WHERE))
def op_too_new(draft: Draft, rng: random.Random) -> Place:
    """The operator came with a later opset."""
    draft.insert("q_y", node("Gelu", ["y_real"], "y_gelu", "gelu"))
    draft.node("q_y").input[0] = "y_gelu"
    return draft.at("gelu")


@defect("OQ015", "op-taken-out", layers(2, op=["Conv", "ConvTranspose"], opset=[13, 21]))
def op_taken_out(draft: Draft, rng: random.Random) -> Place:
    """The operator was taken out of the opset."""
    draft.put("sizes", np.ones(4, np.float32))
    draft.insert("q_y", node("Upsample", ["y_real", "sizes"], "y_up", "up"))
    draft.node("q_y").input[0] = "y_up"
    return draft.at("up")


@defect("OQ016", "attribute-missing", layers(3, op=OPS, where=WHERE))
def attribute_missing(draft: Draft, rng: random.Random) -> Place:
    """A node lacks an attribute that its operator needs."""
    draft.insert("q_y", node("Concat", ["y_real"], "y_joined", "join"))
    draft.node("q_y").input[0] = "y_joined"
    return draft.at("join")


@defect("OQ016", "attribute-unknown", layers(4, op=OPS, where=WHERE, opset=[13, 21]))
def attribute_unknown(draft: Draft, rng: random.Random) -> Place:
    """A node has an attribute that its operator does not have."""
    draft.set("layer", "activation", "Relu")
    return draft.at("layer")


@defect("OQ016", "input-too-many", layers(3, op=OPS, where=WHERE))
def input_too_many(draft: Draft, rng: random.Random) -> Place:
    """A node has more inputs than its operator takes."""
    draft.node("dq_x").input.append("x_scale")
    return draft.at("dq_x")


@defect("OQ017", "weight-is-input", layers(3, op=OPS))
def weight_is_input(draft: Draft, rng: random.Random) -> Place:
    """A weight is listed among the inputs."""
    tensor = draft.tensors["w"]
    draft.inputs["w"], draft.types["w"] = list(tensor.dims), tensor.data_type
    return draft.at(value="w")


@defect("OQ018", "dead-node", layers(3, op=OPS, where=WHERE))
def dead_node(draft: Draft, rng: random.Random) -> Place:
    """Nothing reads what a node makes."""
    draft.insert("layer", node("Relu", ["x_float"], "nobody", "dead"))
    return draft.at("dead")


@defect(
    "OQ020",
    "ir-version-too-old",
    layers(
        4,
        op=["MatMul", "Gemm", "Conv"],
        activation="none",
        bias="none",
        weight=["int4", "uint4", "int2"],
        opset=[21, 21, 25],
        where=WHERE,
    ),
)
def ir_version_too_old(draft: Draft, rng: random.Random) -> Place:
    """The IR version does not have the element type of a tensor."""
    draft.ir_version = 9
    return draft.at_tensor("w")


@defect("OQ021", "shadowed-name", layers(3, op=OPS, where=["then", "loop", "nested"]))
def shadowed_name(draft: Draft, rng: random.Random) -> Place:
    """A body defines a name that a graph around it defines, too."""

    def edit(model: ModelProto, _: Body) -> None:
        shadow = helper.make_tensor("w_scale", TensorProto.FLOAT, [1], [1.0])
        model.graph.initializer.append(shadow)
        model.graph.output.append(helper.make_tensor_value_info("w_scale", TensorProto.FLOAT, [1]))

    draft.edits.append(edit)
    return draft.at(value="w_scale")
