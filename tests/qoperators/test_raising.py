"""What rewrites are built of: one DequantizeLinear a tensor, parameters in the shapes that pairs take, taking back."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser

from onnxq.edit import Namer
from onnxq.passbase import Context
from onnxq.qoperators.biases import dequantized_bias
from onnxq.qoperators.raising import Raiser, Refused

TEXT = """<ir_version: 8, opset_import: ["": 13, "com.microsoft": 1]> g (uint8[2,3] x, float t) => (uint8[2,3] y)
<float s = {0.5}, float[1] one = {0.5}, float[3] many = {1, 2, 4}, uint8 z = {7}, uint8[3] zs = {1, 2, 3},
 int8[2,3] w = {1, 2, 3, 4, 5, 6}, int32[3] b = {1, 2, 3}>
{ [node] y = com.microsoft.QLinearThing(x, s, z) }"""


def start(opset: int = 13) -> tuple[ir.Model, ir.Node, Raiser, dict[str, ir.Value]]:
    model = ir.from_proto(parser.parse_model(TEXT.replace("13", str(opset))))
    raiser = Raiser(model, Context(), Namer(model), "test", model.opset_imports)
    values = {value.name or "": value for value in (*model.graph.inputs, *model.graph.initializers.values())}
    return model, model.graph[0], raiser, values


def stored(value: ir.Value | None) -> Any:
    assert value is not None and value.const_value is not None
    return value.const_value.numpy()


def test_one_dequantize_a_tensor_and_parameters() -> None:
    model, node, raiser, v = start()
    first = raiser.dequantized(node, v["x"], v["s"], v["z"])
    assert raiser.dequantized(node, v["x"], v["s"], v["z"]) is first
    assert raiser.dequantized(node, v["x"], v["one"], v["z"]) is first  # the same number
    assert raiser.dequantized(node, v["x"], v["s"], None) is not first
    assert first.dtype == ir.DataType.FLOAT and first.shape == v["x"].shape
    assert [n.op_type for n in model.graph] == ["DequantizeLinear", "DequantizeLinear", "QLinearThing"]


def test_parameters_take_the_shape_of_their_partner() -> None:
    _, node, raiser, v = start()

    def made(*given: Any) -> list[Any]:
        maker = raiser.dequantized(node, *given).producer()
        assert maker is not None
        return [stored(value) for value in maker.inputs[1:]] + [
            maker.attributes["axis"].as_int() if "axis" in maker.attributes else None
        ]

    scale, zero, axis = made(v["x"], v["s"], v["zs"], 1)
    assert scale.tolist() == [0.5] * 3 and zero.tolist() == [1, 2, 3] and axis == 1
    scale, zero, axis = made(v["x"], v["many"], v["z"], 1)
    assert scale.tolist() == [1, 2, 4] and zero.tolist() == [7] * 3 and axis == 1
    scale, zero, axis = made(v["x"], v["one"], None, 1)
    assert scale.shape == zero.shape == () and zero.dtype == np.uint8 and axis is None
    with pytest.raises(Refused, match=r"\[3\]"):
        made(v["x"], v["many"], None)


def test_a_constant_with_other_scales_is_copied() -> None:
    _, node, raiser, v = start()
    first = raiser.dequantized(node, v["w"], v["s"], None)
    other = raiser.dequantized(node, v["w"], v["many"], None, 1)
    sources = [value.producer().inputs[0] for value in (first, other)]  # type: ignore[union-attr]
    assert sources[0] is v["w"] and sources[1] is not v["w"]
    np.testing.assert_array_equal(stored(sources[1]), stored(v["w"]))
    assert [n.code for n in raiser.ctx.report.notes] == ["weight-copied"]


def test_bias_scale_is_the_product() -> None:
    _, node, raiser, v = start()
    bias = dequantized_bias(raiser, node, v["b"], [v["one"], v["many"]], factor=3.0).producer()
    assert bias is not None
    assert stored(bias.inputs[1]).tolist() == [1.5, 3, 6] and stored(bias.inputs[2]).dtype == np.int32
    assert bias.attributes["axis"].as_int() == 0
    computed = dequantized_bias(raiser, node, v["b"], [v["t"], v["many"]], factor=3.0).producer()
    assert computed is not None and computed.inputs[1] is not None
    assert computed.inputs[1].producer().op_type == "Mul" and computed.inputs[1].shape == ir.Shape([3])  # type: ignore[union-attr]


def test_older_opsets_use_the_other_domain_or_refuse() -> None:
    _, node, raiser, v = start(12)
    domains = [
        value.producer().domain  # type: ignore[union-attr]
        for value in (
            raiser.dequantized(node, v["x"], v["s"], None),
            raiser.dequantized(node, v["x"], v["many"], None, 1),
            raiser.dequantized(node, v["b"], v["s"], None),
        )
    ]
    assert domains == ["", "com.microsoft", ""] and raiser.contrib == 1
    with pytest.raises(Refused, match="opset 21"):
        raiser.dequantized(node, v["w"], v["many"], None, 0, 2)


def test_output_keeps_its_name_and_metadata() -> None:
    model, node, raiser, v = start()
    node.outputs[0].metadata_props["kept"] = "yes"
    node.metadata_props["also"] = "yes"

    def form(node: ir.Node, raiser: Raiser) -> str:
        read = raiser.dequantized(node, v["x"], v["s"], v["z"])
        raiser.quantized_output(node, raiser.float_op(node, "Neg", [read]), v["s"], None)
        return ""

    assert raiser.rewrite(node, form) == "" and node.graph is None
    (out,) = model.graph.outputs
    assert out.name == "y" and out.metadata_props["kept"] == "yes" and out.dtype == ir.DataType.UINT8
    assert [n.op_type for n in model.graph] == ["DequantizeLinear", "Neg", "QuantizeLinear"]
    assert model.graph[1].name == "node" and all(n.metadata_props["also"] == "yes" for n in model.graph)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


@pytest.mark.parametrize("raises", [False, True])
def test_what_a_refusing_form_made_is_taken_back(raises: bool) -> None:
    model, node, raiser, v = start()
    before = ir.to_proto(model).SerializeToString(deterministic=True)

    def form(node: ir.Node, raiser: Raiser) -> str:
        raiser.float_op(node, "Neg", [raiser.dequantized(node, v["x"], v["s"], None)])
        raiser.dynamically_quantized(node, v["t"])
        if raises:
            raise Refused("no")
        return "no"

    assert raiser.rewrite(node, form) == "no"
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before
    assert raiser.dequantized(node, v["x"], v["s"], None).producer() in list(model.graph)


def test_functions_get_constant_nodes() -> None:
    _, node, raiser, _ = start()
    raiser.function = True
    one = raiser.constant(node, "one", np.float32(1))
    assert raiser.constant(node, "one", np.float32(1)) is one
    assert one.producer() is not None and one.producer().op_type == "Constant"  # type: ignore[union-attr]
