"""Every corner of the protobuf schema that is carried: the same message comes out, but for the documented changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from onnxq import border

NormalForm = Callable[[ModelProto], ModelProto]
FLOAT = TensorProto.FLOAT
SPARSE = onnx.TypeProto(sparse_tensor_type=onnx.TypeProto.SparseTensor(elem_type=FLOAT))
DIMS: list[dict[str, Any]] = [{}, {"dim_value": -1}, {"dim_param": "N+1 * b  - 2"}, {"dim_param": ""}, {"dim_value": 0}]


def training(b: Any, m: ModelProto) -> None:
    info = m.training_info.add()
    info.algorithm.node.append(helper.make_node("Relu", ["w"], ["w_new"]))
    info.update_binding.extend(b.entries(w="w_new"))


def metadata(b: Any, m: ModelProto) -> None:
    m.functions.append(b.function())
    graph = m.graph
    for owner in (m, graph, graph.node[0], graph.input[0], graph.output[0], graph.initializer[0], m.functions[0]):
        owner.metadata_props.extend(b.entries(b="1", a="2"))
        owner.doc_string = "why"


def devices(_: Any, m: ModelProto) -> None:
    m.configuration.add(name="c", num_devices=2, device=["p", "q"])
    device = m.graph.node[0].device_configurations.add(configuration_id="c", pipeline_stage=1)
    spec = device.sharding_spec.add(tensor_name="x", device=[0, 1])
    spec.sharded_dim.add(axis=0).simple_sharding.add(dim_value=4, num_shards=2)


def header(_: Any, m: ModelProto) -> None:
    m.producer_name, m.producer_version, m.domain, m.model_version, m.doc_string = "p", "1", "d", 3, "doc"


def aliases(_: Any, m: ModelProto) -> None:
    m.graph.node[0].domain = m.opset_import[0].domain = "ai.onnx"


def denotations(b: Any, m: ModelProto) -> None:
    m.graph.input[0].type.denotation = "IMAGE"
    m.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    m.graph.node.add(op_type="Neg", input=["h"], output=["i"])
    m.graph.node.add(op_type="Neg", input=["h"], output=["j"])
    m.graph.value_info.extend([b.info("h", 1, 3), b.info("i", 1, 3), b.info("j", 1, 3)])
    m.graph.value_info[1].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    m.graph.value_info[2].type.denotation = "IMAGE"


def functions(b: Any, m: ModelProto) -> None:
    m.functions.append(
        b.function(
            attribute=["alpha"],
            attribute_proto=[helper.make_attribute("beta", 2.0), helper.make_attribute("t", b.three("d"))],
            value_info=[b.info("t", "N")],
            metadata_props=b.entries(k="v"),
            doc_string="d",
            overload="v2",
        )
    )
    reference = m.functions[0].node[0].attribute.add(name="alpha", type=AttributeProto.FLOAT)
    reference.ref_attr_name = "alpha"


def old_functions(b: Any, m: ModelProto) -> None:
    m.ir_version = 9
    m.functions.append(b.function())
    m.graph.value_info.append(b.info("loc::F/t", "N"))


def annotate(*names: str, **parameters: str) -> Callable[[Any, ModelProto], None]:
    def change(b: Any, m: ModelProto) -> None:
        for name in names:
            annotation = m.graph.quantization_annotation.add(tensor_name=name)
            annotation.quant_parameter_tensor_names.extend(b.entries(**parameters))

    return change


# What is done to `Build.model()`.
CHANGES: dict[str, Callable[[Any, ModelProto], Any]] = {
    "nothing": lambda b, m: None,
    "header": header,
    "metadata and docs everywhere": metadata,
    "training info": training,
    "sparse initializer": lambda b, m: m.graph.sparse_initializer.append(b.sparse("s")),
    "annotations": annotate("h", "w", "x", "y", "nothing", ZERO_POINT_TENSOR="z", SCALE_TENSOR="s"),
    "annotations that say nothing": annotate("h", "nothing"),
    "devices": devices,
    "value_info": lambda b, m: m.graph.value_info.append(b.info("h", "N", 3)),
    "value_info of an initializer": lambda b, m: m.graph.value_info.append(b.info("w", "N")),
    "value_info of nothing": lambda b, m: m.graph.value_info.append(b.info("nothing", 1)),
    "value_info of an output": lambda b, m: m.graph.value_info.append(b.info("y", 7)),
    "value_info twice": lambda b, m: m.graph.value_info.extend([b.info("h", 7), b.info("h", 8)]),
    "initializer is an input": lambda b, m: m.graph.input.append(b.info("w", 3)),
    "initializer is an output": lambda b, m: m.graph.output.append(b.info("w", 3)),
    "input is an output": lambda b, m: m.graph.output.append(m.graph.input[0]),
    "input is an output of another type": lambda b, m: m.graph.output.append(b.info("x", "N", "M")),
    "output twice": lambda b, m: m.graph.output.append(m.graph.output[0]),
    "initializers out of order": lambda b, m: m.graph.initializer.extend([b.three("z"), b.three("a"), b.three("k")]),
    "overload": lambda b, m: setattr(m.graph.node[0], "overload", "v2"),
    "domain ai.onnx": aliases,
    "another import": lambda b, m: m.opset_import.append(helper.make_opsetid("c", 1)),
    "no imports": lambda b, m: m.ClearField("opset_import"),
    "no graph name": lambda b, m: m.graph.ClearField("name"),
    "no nodes": lambda b, m: (m.graph.ClearField("node"), m.graph.ClearField("output")),
    "local function": functions,
    "overloads": lambda b, m: m.functions.extend([b.function(overload="p"), b.function(overload="q")]),
    "function types of IR 9": old_functions,
    "denotations": denotations,
    "dimensions": lambda b, m: [m.graph.input[0].type.tensor_type.shape.dim.add(**d) for d in DIMS],
    "no shape": lambda b, m: m.graph.input[0].type.tensor_type.ClearField("shape"),
    "no type": lambda b, m: m.graph.output[0].ClearField("type"),
    "no element type": lambda b, m: m.graph.output[0].type.tensor_type.ClearField("elem_type"),
    "nested types": lambda b, m: m.graph.input.add(name="i").type.CopyFrom(b.nested_type),
    "sparse type": lambda b, m: m.graph.input.add(name="i").type.CopyFrom(SPARSE),
}

# The nodes of the model.
NODES: dict[str, Callable[[Any], list[NodeProto]]] = {
    "out of order": lambda b: [helper.make_node("Neg", ["h"], ["y"]), helper.make_node("Relu", ["x"], ["h"])],
    "undefined input": lambda b: [helper.make_node("Add", ["x", "ghost"], ["y"])],
    "empty inputs": lambda b: [helper.make_node("Clip", ["x", "", ""], ["y"])],
    "empty outputs": lambda b: [helper.make_node("LSTM", ["x", "w", "r"], ["", "y", ""])],
    "no outputs": lambda b: [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Print", ["x"], [], domain="c")],
    "one name twice": lambda b: [
        helper.make_node("Relu", ["x"], ["h"], name="n"),
        helper.make_node("Neg", ["h"], ["y"], name="n"),
    ],
    "numbers and texts": lambda b: [b.foo(z=1.5, a=3, s="é", fs=[1.0, 2.0], ns=[1, 2], ss=["p", "q"])],
    "bytes in a string": lambda b: [b.foo(s=b"\xff\xfe\x00")],
    "tensors": lambda b: [b.foo(t=b.three(), ts=[b.three(), b.three("")])],
    "graphs": lambda b: [b.typed(AttributeProto.GRAPHS, "graphs", b.branch("p", b.three("q")), b.branch("r"))],
    "types": lambda b: [b.typed(AttributeProto.TYPE_PROTOS, "type_protos", b.nested_type, b.tensor_type)],
    "a type": lambda b: [b.foo(tp=b.nested_type)],
    "empty list": lambda b: [b.typed(AttributeProto.INTS, "ints")],
    "branches": lambda b: [b.branches(b.three("v"), b.external())],
    "external constant": lambda b: [helper.make_node("Constant", [], ["y"], value=b.external(checksum="abcd"))],
}

# One more initializer.
TENSORS: dict[str, Callable[[Any], TensorProto]] = {
    "dirty padding": lambda b: b.raw(TensorProto.INT4, [3], b"\x21\xf3"),
    "packed int32_data": lambda b: TensorProto(name="t", data_type=TensorProto.UINT4, dims=[3], int32_data=[33, 3]),
    "bools that are 2": lambda b: b.raw(TensorProto.BOOL, [3], b"\x00\x01\x02"),
    "NaN payload": lambda b: b.raw(FLOAT, [2], bytes.fromhex("0100a07fdeadc0ff")),
    "no values, raw": lambda b: b.raw(FLOAT, [0, 3], b""),
    "no values": lambda b: TensorProto(name="t", data_type=FLOAT, dims=[0]),
    "wrong size": lambda b: b.raw(FLOAT, [3], b"\0" * 8),
    "raw and typed": lambda b: TensorProto(name="t", data_type=FLOAT, dims=[1], raw_data=b"\0" * 4, float_data=[0]),
    "segment": lambda b: TensorProto(name="t", data_type=FLOAT, float_data=[1], segment=TensorProto.Segment(end=1)),
    "explicit location": lambda b: TensorProto(name="t", data_type=FLOAT, float_data=[1], data_location=0),
    "external": lambda b: b.external(offset="4", length="12", checksum="abcd"),
    "external, no length": lambda b: b.external(),
    "large and raw": lambda b: numpy_helper.from_array(np.arange(5000, dtype=np.int16), "t"),
    "large and typed": lambda b: helper.make_tensor("t", FLOAT, [5000], list(range(5000))),
    "large strings": lambda b: helper.make_tensor("t", TensorProto.STRING, [5000], [b"\xff"] * 5000),
}
KINDS = {name: number for name, number in TensorProto.DataType.items() if number}


def check(source: ModelProto, normal_form: NormalForm) -> None:
    before = source.SerializeToString(deterministic=True)
    proto = border.open_model(source).give_back()
    data = border.open_model(before).give_back()
    assert isinstance(proto, ModelProto)
    assert source.SerializeToString(deterministic=True) == before
    assert normal_form(proto) == normal_form(source)
    assert data == proto.SerializeToString(deterministic=True)
    assert border.open_model(data).give_back() == data  # nothing is added a second time


@pytest.mark.parametrize("name", CHANGES)
def test_model(name: str, build: Any, normal_form: NormalForm) -> None:
    model = build.model()
    CHANGES[name](build, model)
    check(model, normal_form)


@pytest.mark.parametrize("name", NODES)
def test_nodes(name: str, build: Any, normal_form: NormalForm) -> None:
    check(build.model(*NODES[name](build)), normal_form)


@pytest.mark.parametrize("name", TENSORS)
def test_tensor(name: str, build: Any, normal_form: NormalForm) -> None:
    model = build.model()
    model.graph.initializer.append(TENSORS[name](build))
    check(model, normal_form)


@pytest.mark.parametrize("name", KINDS)
def test_element_type(name: str, build: Any, normal_form: NormalForm) -> None:
    model = build.model()
    values = [b"a", b"b\xff", b""] if name == "STRING" else [1, 0, 1]
    model.graph.initializer.append(helper.make_tensor("typed", KINDS[name], [3], values))
    if name != "STRING":
        # Eight values fill whole bytes in every type.
        raw = build.raw(KINDS[name], [8], bytes(range(helper.tensor_dtype_to_np_dtype(KINDS[name]).itemsize * 8)))
        model.graph.initializer.append(raw)
    check(model, normal_form)


def test_branches_carry_sparse_initializers_and_annotations(build: Any, normal_form: NormalForm) -> None:
    model = build.model(build.branches(build.three("v")))
    inner = model.graph.node[0].attribute[0].g
    inner.sparse_initializer.append(build.sparse("s"))
    inner.quantization_annotation.add(tensor_name="x").quant_parameter_tensor_names.extend(build.entries(S="s"))
    inner.value_info.append(build.info("v", 3))
    check(model, normal_form)


def test_sparse_initializers_are_dense_inside(build: Any) -> None:
    model = build.model(helper.make_node("Add", ["x", "s"], ["y"]))
    values, at = np.array([5, 7], np.float32), np.array([[0, 2], [1, 0]], np.int64)
    grid = helper.make_sparse_tensor(numpy_helper.from_array(values, "grid"), numpy_helper.from_array(at, "at"), [2, 3])
    model.graph.sparse_initializer.extend([build.sparse("s"), grid])
    inside = {k: v.const_value for k, v in border.open_model(model).model.graph.initializers.items()}
    np.testing.assert_array_equal(inside["s"].numpy(), [2, 0, 4])
    np.testing.assert_array_equal(inside["grid"].numpy(), [[0, 0, 5], [7, 0, 0]])
    assert np.frombuffer(inside["s"].tobytes(), np.float32).tolist() == [2, 0, 4]


def test_stale_value_info_of_an_initializer_is_corrected_with_a_note(build: Any) -> None:
    model = build.model()
    model.graph.value_info.append(helper.make_tensor_value_info("w", TensorProto.INT8, [9]))
    crossing = border.open_model(model)
    assert crossing.model.graph.initializers["w"].dtype == FLOAT
    assert list(crossing.to_proto().graph.value_info) == [build.info("w", 3)]
    (note,) = crossing.notes
    assert (note.code, note.place.value) == ("stale-value-info", "w")
