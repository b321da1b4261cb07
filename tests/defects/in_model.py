"""Group 0: the file, its names, its data, its declarations."""

from __future__ import annotations

import random

import numpy as np
from onnx import FunctionProto, GraphProto, ModelProto, TensorProto, external_data_helper, helper

from onnxq.diagnostics import Place
from tests.defects.defect import defect
from tests.defects.draft import Body, Draft, node
from tests.defects.layers import layers

WHERE = ("main", "then", "function", "loop", "nested")
GRAPHS = ("main", "then", "loop", "nested")
OPS = ("Conv", "Gemm", "MatMul", "ConvTranspose", "GemmT")
NOWHERE = Place()


@defect("OQ001", "truncated", layers(3, op=OPS))
def truncated(draft: Draft, rng: random.Random) -> Place:
    """The file ends in the middle."""
    draft.spoil = lambda data: data[: -rng.randrange(20, len(data) // 2)]
    return NOWHERE


@defect("OQ001", "not-onnx", layers(2))
def not_onnx(draft: Draft, rng: random.Random) -> Place:
    """The file is a text: what a server or a version control system gave in its place."""
    texts = [b"<!DOCTYPE html><html>not found</html>", b"version https://git-lfs.github.com/spec/v1\nsize 12\n"]
    draft.spoil = lambda _: rng.choice(texts)
    return NOWHERE


@defect("OQ001", "empty", layers(1))
def empty(draft: Draft, rng: random.Random) -> Place:
    """The file is empty."""
    draft.spoil = lambda _: b""
    return NOWHERE


@defect("OQ003", "no-ir-version", layers(2, op=OPS, where=["main", "function"]))
def no_ir_version(draft: Draft, rng: random.Random) -> Place:
    """There is no IR version."""
    draft.edits.append(lambda model, _: model.ClearField("ir_version"))
    return NOWHERE


@defect("OQ003", "no-opset", layers(2, op=OPS))
def no_opset(draft: Draft, rng: random.Random) -> Place:
    """There is no opset import."""
    draft.edits.append(lambda model, _: model.ClearField("opset_import"))
    return NOWHERE


@defect(
    "OQ003",
    "domain-not-imported",
    layers(5, op=OPS, where=WHERE, opset=[13, 19, 21]),
    also={"OQ604": "ai.onnx has the same operators"},
)
def domain_not_imported(draft: Draft, rng: random.Random) -> Place:
    """Operators of onnxruntime's domain without an import of it."""
    draft.node("q_y").domain = draft.node("dq_y").domain = "com.microsoft"
    return draft.at("q_y")


@defect("OQ004", "value-made-twice", layers(5, op=OPS, where=WHERE))
def value_made_twice(draft: Draft, rng: random.Random) -> Place:
    """Two nodes make the same value."""
    draft.insert("layer", node("Identity", [draft.node("layer").input[0]], "w_float", "again"))
    return draft.at("again")


@defect("OQ004", "initializer-twice", layers(3, op=OPS, where=GRAPHS))
def initializer_twice(draft: Draft, rng: random.Random) -> Place:
    """An initializer is there twice."""

    def edit(_: ModelProto, body: Body) -> None:
        assert isinstance(body, GraphProto)
        body.initializer.append(draft.tensors["w_scale"])

    draft.edits.append(edit)
    return draft.at(value="w_scale")


@defect("OQ004", "input-twice", layers(2, op=OPS))
def input_twice(draft: Draft, rng: random.Random) -> Place:
    """A graph input is there twice."""
    draft.edits.append(lambda model, _: model.graph.input.append(model.graph.input[0]))
    return Place(value="x")


@defect("OQ005", "same-node-name", layers(3, op=OPS, where=WHERE))
def same_node_name(draft: Draft, rng: random.Random) -> Place:
    """Two nodes have the same name."""
    draft.node("dq_y").name = "q_y"
    return draft.at("q_y")


@defect("OQ006", "unsorted", layers(5, op=OPS, where=WHERE))
def unsorted(draft: Draft, rng: random.Random) -> Place:
    """A node stands before the node whose value it reads."""
    first, second = (draft.nodes.index(draft.node(name)) for name in ("dq_w", "layer"))
    draft.nodes[first], draft.nodes[second] = draft.nodes[second], draft.nodes[first]
    return draft.at("layer")


@defect("OQ006", "captured-too-late", layers(2, op=OPS, where=["then", "loop"]))
def captured_too_late(draft: Draft, rng: random.Random) -> Place:
    """A body reads a value that its graph makes only behind it."""

    def edit(model: ModelProto, body: Body) -> None:
        for one in body.node:
            one.input[:] = ["x_late" if name == "x" else name for name in one.input]
        model.graph.node.append(node("Identity", ["x"], "x_late", "late"))

    draft.edits.append(edit)
    return Place("branch" if draft.where == "then" else "loop")


@defect("OQ007", "undefined-input", layers(5, op=OPS, where=WHERE))
def undefined_input(draft: Draft, rng: random.Random) -> Place:
    """A node reads a value that nothing defines."""
    one = draft.node(rng.choice(["q_y", "dq_w"]))
    one.input[1] = "gone"
    del draft.tensors["w_scale" if one.name == "dq_w" else "x_scale"]
    if one.name == "q_y":
        for name in ("q_x", "dq_x"):
            draft.node(name).input[1] = "y_scale"
    return draft.at(one.name, "gone")


@defect("OQ007", "undefined-output", layers(3, op=OPS, where=["main", "function", "then"]))
def undefined_output(draft: Draft, rng: random.Random) -> Place:
    """A graph gives out a value that nothing defines."""

    def edit(_: ModelProto, body: Body) -> None:
        if isinstance(body, FunctionProto):
            body.output[0] = "gone"
        else:
            body.output[0].name = "gone"

    draft.edits.append(edit)
    return draft.at(value="gone")


@defect("OQ008", "data-short", layers(5, op=OPS, weight=["int8", "uint8", "int16"], where=WHERE))
def data_short(draft: Draft, rng: random.Random) -> Place:
    """A tensor has fewer bytes than its shape needs."""
    name = rng.choice(["w", "w_scale", "b"])
    draft.tensors[name].raw_data = draft.tensors[name].raw_data[: -rng.randrange(1, 8)]
    return draft.at_tensor(name)


@defect("OQ008", "data-long", layers(5, op=OPS, weight=["int8", "uint8", "int16"], where=WHERE))
def data_long(draft: Draft, rng: random.Random) -> Place:
    """A tensor has more bytes than its shape needs."""
    name = rng.choice(["w", "w_zero", "b_scale"])
    draft.tensors[name].raw_data += bytes(rng.randrange(1, 8))
    return draft.at_tensor(name)


@defect(
    "OQ008",
    "packed-short",
    layers(
        3,
        op=["MatMul", "Gemm"],
        activation="none",
        weight=["int4", "uint4"],
        granularity="block",
        bias="none",
        where=WHERE,
    ),
)
def packed_short(draft: Draft, rng: random.Random) -> Place:
    """A 4-bit tensor has fewer bytes than its values need."""
    draft.tensors["w"].raw_data = draft.tensors["w"].raw_data[:-1]
    return draft.at_tensor("w")


@defect("OQ008", "no-data", layers(3, op=OPS, where=WHERE))
def no_data(draft: Draft, rng: random.Random) -> Place:
    """A zero point has no data."""
    draft.tensors["w_zero"].ClearField("raw_data")
    return draft.at_tensor("w_zero")


@defect("OQ008", "typed-fields-short", layers(2, op=OPS, where=WHERE))
def typed_fields_short(draft: Draft, rng: random.Random) -> Place:
    """A tensor has fewer entries in its typed field than its shape needs."""
    scale = draft.array("w_scale")
    draft.tensors["w_scale"] = helper.make_tensor("w_scale", TensorProto.FLOAT, scale.shape, scale.tolist())
    del draft.tensors["w_scale"].float_data[-1]
    return draft.at_tensor("w_scale")


@defect("OQ009", "external-missing", layers(3, op=OPS, where=GRAPHS))
def external_missing(draft: Draft, rng: random.Random) -> Place:
    """The file of external data is not there."""
    _outside(draft, "w.bin")
    draft.files = {}
    return draft.at_tensor("w")


@defect("OQ009", "external-outside", layers(3, op=OPS, where=GRAPHS))
def external_outside(draft: Draft, rng: random.Random) -> Place:
    """External data lie outside the folder of the model."""
    _outside(draft, rng.choice(["../w.bin", "/tmp/w.bin", "a/../../w.bin"]))
    draft.files = {}
    return draft.at_tensor("w")


@defect("OQ009", "external-short", layers(3, op=OPS, where=GRAPHS))
def external_short(draft: Draft, rng: random.Random) -> Place:
    """The file of external data ends before the tensor does."""
    data = _outside(draft, "w.bin")
    draft.files = {"w.bin": data[: -rng.randrange(1, 40)]}
    return draft.at_tensor("w")


@defect("OQ009", "external-wrong-length", layers(2, op=OPS, where=GRAPHS))
def external_wrong_length(draft: Draft, rng: random.Random) -> Place:
    """The length that is given for external data is not that of the tensor."""
    data = _outside(draft, "w.bin", 7)
    draft.files = {"w.bin": data + bytes(7)}
    return draft.at_tensor("w")


def _outside(draft: Draft, location: str, more: int = 0) -> bytes:
    tensor = draft.tensors["w"]
    data = tensor.raw_data
    external_data_helper.set_external_data(tensor, location, offset=0, length=len(data) + more)
    tensor.ClearField("raw_data")
    return data


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
