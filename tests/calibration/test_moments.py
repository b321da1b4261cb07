"""Second moments of layer inputs against sums over patches that are cut out one by one."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from onnxq.calibration.moments import Moments
from onnxq.calibration.patches import ROWS
from onnxq.facts import Edge
from onnxq.numerics.affine import fake_quantize
from onnxq.numerics.encodings import from_range
from onnxq.numerics.spec import QTYPES, TensorSpec
from onnxq.rounding.products import Product, read_product

Array = np.ndarray[Any, Any]


def moments(node: ir.Node, dims: tuple[int, ...], index: int = 1) -> Moments:
    """For a weight of shape ``dims``."""
    found = read_product(Edge(node, index), dims)
    assert isinstance(found, Product)
    return Moments(found)


def conv(dims: tuple[int, ...], kernel: tuple[int, ...], group: int = 1, **attributes: Any) -> ir.Node:
    x, w, y = (ir.Value(name=n) for n in "xwy")
    return ir.node("Conv", [x, w], {"group": group, **attributes}, outputs=[y])


def conv_moments(x: Array, kernel: tuple[int, ...], group: int, **attributes: Any) -> Array:
    found = moments(conv(x.shape, kernel, group, **attributes), (group, x.shape[1] // group, *kernel))
    found.add(x, float(x.min()), float(x.max()))
    return found.hessian


def columns(x: Array, kernel: tuple[int, ...], group: int, attributes: dict[str, Any]) -> Array:
    """Input vectors by group, [groups, rows, inputs], as onnxruntime's Conv sees them: one-hot weights pick each."""
    channels = x.shape[1] // group
    places = list(product(range(channels), *map(range, kernel)))
    weight = np.zeros((group * len(places), channels, *kernel), np.float32)
    for g, (i, place) in product(range(group), enumerate(places)):
        weight[(g * len(places) + i, *place)] = 1
    node = helper.make_node("Conv", ["x", "w"], ["y"], group=group, **attributes)
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in (("x", x), ("w", weight))]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    proto = helper.make_model(
        helper.make_graph([node], "g", info, [out]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": x, "w": weight})
    return (
        np.moveaxis(y.reshape(len(x), group, len(places), -1), 0, 1)
        .transpose(0, 1, 3, 2)
        .reshape(group, -1, len(places))
    )


@pytest.mark.parametrize(
    ("dims", "kernel", "group", "attributes"),
    [
        ((2, 3, 9), (3,), 1, {}),
        ((1, 4, 11), (4,), 2, {"strides": [3], "dilations": [2], "pads": [1, 4]}),
        ((2, 3, 7, 8), (3, 3), 1, {"pads": [1, 1, 1, 1]}),
        ((1, 3, 9, 7), (3, 2), 1, {"strides": [2, 3], "pads": [0, 1, 2, 0]}),
        ((1, 2, 9, 9), (3, 3), 1, {"dilations": [2, 3], "pads": [2, 3, 2, 3]}),
        ((2, 6, 6, 6), (3, 3), 6, {"pads": [1, 1, 1, 1]}),
        ((1, 6, 6, 6), (2, 2), 3, {"strides": [2, 2]}),
        ((1, 3, 5, 5), (1, 1), 1, {}),
        ((1, 3, 7, 8), (3, 4), 1, {"auto_pad": "SAME_UPPER", "strides": [2, 3]}),
        ((1, 3, 7, 8), (3, 4), 1, {"auto_pad": "SAME_LOWER", "strides": [2, 3]}),
        ((1, 3, 7, 8), (2, 2), 1, {"auto_pad": "SAME_LOWER"}),
        ((1, 3, 6, 6), (2, 2), 1, {"auto_pad": "SAME_UPPER", "strides": [3, 3]}),
        ((1, 3, 7, 8), (3, 3), 1, {"auto_pad": "VALID", "strides": [2, 2]}),
        ((1, 2, 4, 5, 6), (2, 3, 2), 1, {"pads": [1, 0, 1, 0, 1, 1], "strides": [1, 2, 2]}),
        ((1, 2, 5, 5, 5), (2, 2, 2), 2, {"dilations": [2, 1, 2]}),
    ],
)
def test_conv(dims: tuple[int, ...], kernel: tuple[int, ...], group: int, attributes: dict[str, Any]) -> None:
    x = np.random.default_rng(0).standard_normal(dims).astype(np.float32)
    vectors = columns(x, kernel, group, attributes).astype(np.float64)
    found = conv_moments(x, kernel, group, **attributes)
    np.testing.assert_allclose(found, np.einsum("gni,gnj->gij", vectors, vectors), rtol=1e-4, atol=1e-4)


def test_same_pads_with_dilation() -> None:
    """onnxruntime's own padding has its limits there; the operator text gives ceil(5 / 2) = 3 places."""
    x = np.arange(5, dtype=np.float32).reshape(1, 1, 5)
    found = conv_moments(x, (2,), 1, auto_pad="SAME_UPPER", strides=[2], dilations=[2])
    # Total padding (3 - 1) * 2 + 3 - 5 = 2: one on each side.
    vectors = np.array([[0, 1], [1, 3], [3, 0]], np.float64)
    np.testing.assert_allclose(found[0], vectors.T @ vectors)


def layer(op: str, **attributes: Any) -> ir.Node:
    return ir.node(op, [ir.Value(name="x"), ir.Value(name="w")], attributes)


@pytest.mark.parametrize(
    ("node", "dims"),
    [
        (layer("Gemm"), (7, 5)),
        (layer("Gemm", transB=1), (7, 5)),
        (layer("Gemm", transA=1), (5, 7)),
        (layer("MatMul"), (7, 5)),
        (layer("MatMul"), (2, 3, 5)),
        (layer("MatMul"), (2, 2, 3, 5)),
        (layer("MatMul"), (5,)),
    ],
    ids=lambda v: f"{v.op_type}{list(v.attributes)}" if isinstance(v, ir.Node) else str(v),
)
def test_products(node: ir.Node, dims: tuple[int, ...]) -> None:
    x = np.random.default_rng(1).standard_normal(dims).astype(np.float32)
    rows = x.T if "transA" in node.attributes else x.reshape(-1, 5)
    wanted = sum(np.outer(r, r) for r in rows.astype(np.float64))
    found = moments(node, (9, 5) if "transB" in node.attributes else (5, 9))
    found.add(x, -1, 1)
    np.testing.assert_allclose(found.hessian[0], wanted, rtol=1e-5, atol=1e-5)
    assert found.rows == len(rows)


def test_samples_add_up_in_float64() -> None:
    found = moments(layer("MatMul"), (2, 9))
    for _ in range(3):
        found.add(np.array([[1, 2]], np.float32), 1, 2)
    np.testing.assert_array_equal(found.hessian[0], 3 * np.array([[1, 2], [2, 4]]))
    assert found.hessian.dtype == np.float64 and found.rows == 3


def test_float16_does_not_overflow() -> None:
    found = moments(layer("MatMul"), (2, 9))
    found.add(np.full((4, 2), 3e4, np.float16), 3e4, 3e4)
    np.testing.assert_allclose(found.hessian[0], 4 * np.float64(np.float16(3e4)) ** 2)


@pytest.mark.parametrize("shape", [(ROWS * 10 + 7, 3), (4, ROWS, 3)])
def test_a_large_sample_is_thinned_evenly(shape: tuple[int, ...]) -> None:
    x = np.arange(np.prod(shape[:-1]), dtype=np.float32).reshape(*shape[:-1], 1) * np.ones(3, np.float32)
    found = moments(layer("MatMul"), (3, 9))
    found.add(x, 0, 1)
    assert ROWS / 2 <= found.rows <= ROWS
    mean = found.hessian[0, 0, 0] / found.rows
    assert mean == pytest.approx((x[..., 0].astype(np.float64) ** 2).mean(), rel=0.02)


def test_a_large_convolution_is_thinned_evenly() -> None:
    x = np.random.default_rng(2).standard_normal((1, 2, 100, 100)).astype(np.float32)
    found = moments(conv(x.shape, (3, 3), pads=[1, 1, 1, 1]), (1, 2, 3, 3))
    found.add(x, -1, 1)
    assert ROWS / 2 <= found.rows <= 2 * ROWS
    np.testing.assert_allclose(np.diag(found.hessian[0]) / found.rows, 1, atol=0.25)


def recurrent(op: str, states: bool = True, **attributes: Any) -> ir.Node:
    inputs = [ir.Value(name=n) for n in ("x", "w", "r")]
    return ir.node(op, inputs, {"hidden_size": 3, **attributes}, outputs=[ir.Value(name="y" if states else "")])


@pytest.mark.parametrize("layout", [0, 1])
def test_recurrent_input(layout: int) -> None:
    """Both directions see every step's input."""
    x = np.random.default_rng(3).standard_normal((4, 2, 5)).astype(np.float32)
    found = moments(recurrent("LSTM", layout=layout), (2, 12, 5))
    found.add(x, -1, 1)
    rows = x.reshape(-1, 5).astype(np.float64)
    np.testing.assert_allclose(found.hessian, (rows.T @ rows)[None], rtol=1e-5)
    np.testing.assert_allclose(found.total, rows.sum(axis=0)[None], rtol=1e-5)


@pytest.mark.parametrize("layout", [0, 1])
def test_states(layout: int) -> None:
    """The recurrence weight of each direction sees that direction's states."""
    y = np.random.default_rng(4).standard_normal((4, 2, 5, 3)).astype(np.float32)  # steps, directions, batch, state
    found = moments(recurrent("LSTM", layout=layout), (2, 12, 3), index=2)
    found.add(y if layout == 0 else y.transpose(2, 0, 1, 3), -1, 1)
    for d in range(2):
        rows = y[:, d].reshape(-1, 3).astype(np.float64)
        np.testing.assert_allclose(found.hessian[d], rows.T @ rows, rtol=1e-5)


def test_a_constant_first_operand_sees_columns() -> None:
    x = np.random.default_rng(5).standard_normal((2, 5, 7)).astype(np.float32)
    found = moments(layer("MatMul"), (9, 5), index=0)
    found.add(x, -1, 1)
    np.testing.assert_allclose(found.hessian[0], np.einsum("bkn,bln->kl", x, x), rtol=1e-4, atol=1e-5)


def test_quantized_inputs() -> None:
    """What the layer will see: clipped and rounded."""
    x = np.random.default_rng(6).standard_normal((40, 5)).astype(np.float32)
    product = read_product(Edge(layer("MatMul"), 1), (5, 9))
    assert isinstance(product, Product)
    encoding = from_range(-1.0, 1.0, TensorSpec(QTYPES["uint8"]))
    found = Moments(product, encoding)
    found.add(x, -1, 1)
    seen = fake_quantize(x, encoding).astype(np.float64)
    np.testing.assert_allclose(found.hessian[0], seen.T @ seen, rtol=1e-5)


@pytest.mark.parametrize(
    ("node", "index", "dims", "why"),
    [
        (layer("ConvTranspose"), 1, (4, 4, 3), "not collected for ConvTranspose"),
        (layer("MatMul"), 1, (2, 5, 9), "rank 3 is not one matrix"),
        (recurrent("GRU"), 2, (1, 9, 3), "linear_before_reset=0"),
        (recurrent("LSTM", states=False), 2, (1, 12, 3), "no output"),
    ],
)
def test_what_is_no_product(node: ir.Node, index: int, dims: tuple[int, ...], why: str) -> None:
    found = read_product(Edge(node, index), dims)
    assert isinstance(found, str) and why in found
