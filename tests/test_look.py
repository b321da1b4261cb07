"""Reading a graph: what counts as a constant, its bytes, the graph of a value."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from onnx import parser

from onnxq import look


def constant_node(attributes: str) -> ir.Node:
    text = f'<ir_version: 8, opset_import: ["" : 17]> g () => (float y) {{ y = Constant<{attributes}>() }}'
    return ir.from_proto(parser.parse_model(text)).graph[0]


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ("value = float[2] {1.0, 2.0}", np.array([1, 2], np.float32)),
        ("value_float = 2.5", np.float32(2.5)),
        ("value_ints = [1, 2]", np.array([1, 2], np.int64)),
        ('value_string = "ab"', np.array(b"ab", object)),
        ('value_strings = ["a", "bc"]', np.array([b"a", b"bc"], object)),
    ],
)
def test_constants(attributes: str, expected: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> None:
    tensor = look.tensor_of_constant(constant_node(attributes))
    assert tensor is not None
    np.testing.assert_array_equal(tensor.numpy(), expected)
    assert tensor.numpy().dtype == expected.dtype


def test_what_is_no_constant() -> None:
    node = constant_node("value_float = 1.0")
    node.attributes.clear()
    assert look.tensor_of_constant(node) is None
    node.attributes["value_float"] = ir.RefAttr("value_float", "k", ir.AttributeType.FLOAT)
    assert look.tensor_of_constant(node) is None
    node.attributes.clear()
    node.attributes["sparse_value"] = ir.AttrInt64("sparse_value", 1)
    assert look.tensor_of_constant(node) is None and look.constant_tensor(None) is None


@pytest.mark.parametrize(
    ("tensor", "size"),
    [
        (ir.tensor(np.zeros((3, 5), np.float32)), 60),
        (ir.Tensor(np.zeros((3, 5), ml_dtypes.int4)), 8),
        (ir.Tensor(np.zeros((), np.float16)), 2),
        (ir.StringTensor(np.array([b"ab", b"", b"cde"], object)), 5),
    ],
)
def test_bytes(tensor: ir.TensorProtocol, size: int) -> None:
    assert look.nbytes(tensor) == size


def test_a_value_of_no_graph() -> None:
    with pytest.raises(ValueError, match="value 'lost' belongs to no graph"):
        look.graph_of(ir.Value(name="lost"))
