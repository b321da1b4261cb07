"""After passes have edited the model: nothing stale goes out, and nothing reaches the caller's message."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxq import border
from onnxq.errors import InputError


def quantize_weight(model: ir.Model, name: str) -> None:
    """What a weight-only pass does: another tensor in the same initializer, and a DequantizeLinear behind it."""
    weight = model.graph.initializers[name]
    source = weight.const_value
    assert source is not None
    (node,) = weight.consumers()
    scale = ir.Value(name=f"{name}_scale", const_value=ir.tensor(np.float32(0.01), name=f"{name}_scale"))
    zero = ir.Value(name=f"{name}_zero", const_value=ir.tensor(np.int8(0), name=f"{name}_zero"))
    model.graph.register_initializer(scale)
    model.graph.register_initializer(zero)

    def quantized() -> ir.TensorProtocol:
        return ir.tensor(np.clip(np.rint(source.numpy() / np.float32(0.01)), -128, 127).astype(np.int8))

    weight.const_value = ir.LazyTensor(quantized, ir.DataType.INT8, source.shape, name=name)
    dequantize = ir.node("DequantizeLinear", [weight, scale, zero])
    dequantize.outputs[0].name = f"{name}_dq"
    model.graph.insert_before(node, dequantize)
    node.replace_input_with(1, dequantize.outputs[0])


@pytest.mark.parametrize("width", [8, 64])  # small weights are copied, large ones stay in the message
@pytest.mark.parametrize("typed", [False, True])
def test_a_weight_of_another_type_leaves_no_stale_value_info(width: int, typed: bool, build: Any) -> None:
    source = build.mlp(2, width)
    if typed:
        for tensor in source.graph.initializer:
            values = numpy_helper.to_array(tensor).ravel().tolist()
            tensor.CopyFrom(helper.make_tensor(tensor.name, TensorProto.FLOAT, tensor.dims, values))
    source.graph.value_info.append(build.info("w1", width, width))
    before = source.SerializeToString()
    crossing = border.open_model(source)
    quantize_weight(crossing.model, "w0")
    quantize_weight(crossing.model, "w1")
    result = crossing.to_proto()
    onnx.checker.check_model(result, full_check=True)
    assert source.SerializeToString() == before
    (info,) = result.graph.value_info
    assert (info.name, info.type.tensor_type.elem_type) == ("w1", TensorProto.INT8)
    for old, new in zip(source.graph.initializer, result.graph.initializer, strict=False):
        expected = np.clip(np.rint(numpy_helper.to_array(old) / np.float32(0.01)), -128, 127)
        np.testing.assert_array_equal(numpy_helper.to_array(new), expected)


@pytest.mark.parametrize("width", [8, 64])
def test_renames_and_metadata_do_not_reach_the_message(width: int, build: Any) -> None:
    source = build.mlp(1, width)
    before = source.SerializeToString()
    crossing = border.open_model(source)
    weight = crossing.model.graph.initializers["w0"]
    weight.name = "renamed"
    assert weight.const_value is not None
    weight.const_value.doc_string = "doc"
    weight.const_value.metadata_props["k"] = "v"
    crossing.model.graph.inputs[0].name = "input"
    with pytest.raises(ValueError, match="read-only"):
        weight.const_value.numpy()[0, 0] = 1
    (tensor,) = crossing.to_proto().graph.initializer
    assert source.SerializeToString() == before
    assert (tensor.name, tensor.doc_string, tensor.metadata_props[0].value) == ("renamed", "doc", "v")
    assert tensor.raw_data == source.graph.initializer[0].raw_data


def test_one_tensor_under_two_names(build: Any) -> None:
    crossing = border.open_model(build.mlp(1))
    first = crossing.model.graph.initializers["w0"]
    assert first.const_value is not None
    crossing.model.graph.register_initializer(ir.Value(name="twin", const_value=first.const_value))
    names = [t.name for t in crossing.to_proto().graph.initializer]
    assert names == ["w0", "twin"]


def test_export_leaves_the_model_as_it_is_and_evaluates_lazy_tensors_once(build: Any) -> None:
    crossing = border.open_model(build.mlp(1))
    calls = []

    def values() -> ir.TensorProtocol:
        calls.append(1)
        return ir.tensor(np.zeros((64, 64), np.float32))

    weight = crossing.model.graph.initializers["w0"]
    lazy = ir.LazyTensor(values, ir.DataType.FLOAT, ir.Shape([64, 64]))
    weight.const_value = lazy
    first = crossing.to_bytes()
    assert len(calls) == 1
    assert first == crossing.to_bytes() == crossing.to_proto().SerializeToString(deterministic=True)
    assert weight.const_value is lazy
    assert lazy.name is None


def test_a_lazy_tensor_that_lies_about_its_size_is_an_error(build: Any) -> None:
    crossing = border.open_model(build.mlp(1))
    crossing.model.graph.initializers["w0"].const_value = ir.LazyTensor(
        lambda: ir.tensor(np.zeros(3, np.float32)), ir.DataType.FLOAT, ir.Shape([64, 64]), name="w0"
    )
    with pytest.raises(InputError, match="'w0' has 12 bytes, and its type and shape need 16384"):
        crossing.to_bytes()
    with pytest.raises(InputError, match="'w0' has 12 bytes"):
        crossing.to_proto()


def sources(build: Any) -> ModelProto:
    model: ModelProto = build.model(helper.make_node("Add", ["x", "s"], ["y"]))
    model.graph.sparse_initializer.append(build.sparse("s"))
    info = model.training_info.add()
    info.algorithm.node.append(helper.make_node("Relu", ["w"], ["w_new"]))
    info.update_binding.extend(build.entries(w="w_new"))
    model.graph.quantization_annotation.add(tensor_name="w").quant_parameter_tensor_names.extend(build.entries(S="s"))
    return model


def test_what_the_ir_has_no_place_for_survives_unrelated_edits(build: Any) -> None:
    source = sources(build)
    crossing = border.open_model(source)
    crossing.model.graph.node(0).name = "renamed"
    crossing.model.graph = crossing.model.graph.clone()
    result = crossing.to_proto()
    assert result.training_info == source.training_info
    assert result.graph.sparse_initializer == source.graph.sparse_initializer
    assert result.graph.quantization_annotation == source.graph.quantization_annotation
    assert border.to_proto(crossing.model) == result
    assert not crossing.notes


def test_a_step_that_brings_another_graph_decides_what_is_kept(build: Any) -> None:
    crossing = border.open_model(sources(build))
    message = crossing.to_proto()
    message.ClearField("training_info")
    message.graph.value_info.add(name="w").type.tensor_type.elem_type = TensorProto.INT8
    crossing.model.graph = border.open_model(message).model.graph
    assert not crossing.to_proto().training_info
    assert [note.code for note in crossing.notes] == ["stale-value-info"]


def test_sparse_initializers_follow_their_value(build: Any) -> None:
    crossing = border.open_model(sources(build))
    inside = crossing.model.graph.initializers
    inside["s"].name = "t"
    assert [s.values.name for s in crossing.to_proto().graph.sparse_initializer] == ["t"]
    inside["t"].const_value = ir.tensor(np.ones(3, np.float32))
    result = crossing.to_proto().graph
    assert [t.name for t in result.initializer] == ["w", "t"]
    assert not result.sparse_initializer


def test_training_info_of_a_weight_that_is_gone_is_dropped_with_a_note(build: Any) -> None:
    crossing = border.open_model(sources(build))
    crossing.model.graph.initializers["w"].name = "other"
    assert not crossing.to_proto().training_info
    assert not crossing.to_proto().training_info
    (note,) = crossing.notes
    assert (note.code, note.place.value) == ("training-info-dropped", "w")


def test_annotations_go_with_their_value(build: Any) -> None:
    crossing = border.open_model(sources(build))
    del crossing.model.graph.initializers["w"]
    assert not crossing.to_proto().graph.quantization_annotation


def test_a_model_made_inside(build: Any) -> None:
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2]))
    weight = ir.Value(name="w", const_value=ir.tensor(np.ones(2, np.float32), name="w"))
    node = ir.node("Add", [x, weight])
    node.outputs[0].name = "y"
    graph = ir.Graph([x], node.outputs, nodes=[node], initializers=[weight], opset_imports={"": 21}, name="g")
    proto = border.to_proto(ir.Model(graph, ir_version=10))
    assert [t.name for t in proto.graph.initializer] == ["w"]
    assert not proto.graph.value_info
    np.testing.assert_array_equal(numpy_helper.to_array(proto.graph.initializer[0]), [1, 1])


def test_a_changed_type_of_an_input_that_is_an_output(build: Any) -> None:
    source = build.model()
    source.graph.output.append(build.info("x", "N", "M"))
    crossing = border.open_model(source)
    crossing.model.graph.inputs[0].dtype = ir.DataType.FLOAT16
    graph = crossing.to_proto().graph
    kinds = [v.type.tensor_type.elem_type for v in (graph.input[0], graph.output[1])]
    assert kinds == [TensorProto.FLOAT16] * 2
