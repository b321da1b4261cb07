"""Group 0: the file, its names, and its data."""

from __future__ import annotations

import random

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
