"""The gradient graph: what goes in and out, what is refused, and pairs whose scale is learned."""

from __future__ import annotations

import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxq.errors import CapabilityError, OptionError, UnsupportedError
from onnxq.training.gradients import derivative
from onnxq.training.rules_table import SUPPORTED, table
from tests.training.surrogate import HIGH, LOW, Twin, assert_gradients, session


def two_layers(double: bool = True) -> Twin:
    """Two products with a fake-quantized activation between them."""
    twin = Twin(double)
    x = twin.operand("x", (3, 4))
    first = twin.node("MatMul", [x, twin.operand("w", (4, 5), per_axis=True)], "h")
    s = twin.constant("h.s", 0.3)
    twin.node("Add", [first, twin.constant("shift", 0.01)], "shifted")
    second = twin.node("MatMul", [twin.pair("shifted", s, (3, 5)), twin.operand("v", (5, 2))], "y")
    twin.weigh(second)
    return twin


def test_inputs_and_outputs() -> None:
    twin = two_layers()
    model = twin.proto()
    before = model.SerializeToString()
    result = derivative(model, ["w", "v"], "loss")
    assert model.SerializeToString() == before
    assert [v.name for v in result.graph.input] == ["x", "w", "v"]
    assert [v.name for v in result.graph.output] == ["loss", "grad.w", "grad.v"]
    dims = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in result.graph.output}
    assert dims["grad.w"] == [4, 5]
    assert {node.op_type for node in result.graph.node} >= {"Round", "MatMul"}
    assert derivative(model, ["w", "v"], "loss").SerializeToString() == result.SerializeToString()


def test_value_is_the_quantized_one() -> None:
    """In float32 the forward pass equals QuantizeLinear and DequantizeLinear bit for bit."""
    twin = Twin(double=False)
    x = twin.input("x", twin.rng.normal(0, 1, (64, 64)))
    y = twin.pair(x, twin.constant("s", np.float32(0.1)), (64, 64))
    twin.outputs.append(helper.make_tensor_value_info(y, TensorProto.FLOAT, [64, 64]))
    twin.weigh(y)
    found = session(derivative(twin.proto(), ["x"], "loss")).run([y], twin.feeds)[0]
    integers = np.clip(np.rint(twin.feeds["x"] / np.float32(0.1)), LOW, HIGH)
    np.testing.assert_array_equal(found, integers * np.float32(0.1))


def test_gradient_passes_where_nothing_is_clipped() -> None:
    """Bounds included: a weight calibrated by its maximum lies on one."""
    twin = Twin(double=False)
    x = twin.input("x", np.array([LOW - 0.1, LOW, 0, 0.4, HIGH, HIGH + 0.1]))
    twin.losses.append(twin.node("ReduceSum", [twin.pair(x, twin.constant("s", 1.0), (6,))], "sum", keepdims=0))
    found = session(derivative(twin.proto(), ["x"], "loss")).run(["grad.x"], twin.feeds)[0]
    np.testing.assert_array_equal(found, [0, 1, 1, 1, 1, 0])


@pytest.mark.parametrize("per_axis", [False, True])
def test_learned_scale(per_axis: bool) -> None:
    """The gradient of a scale is rint(c) - mask · u, summed over the values that share it."""
    twin = Twin(double=True)
    y = twin.operand("x", (3, 4), per_axis=per_axis, learned=True)
    twin.weigh(y)
    found = assert_gradients(twin)
    weights = onnx.numpy_helper.to_array(next(t for t in twin.constants if t.name == f"{y}.weights"))
    u = twin.feeds["x"] / twin.feeds["x.s"]
    c = np.clip(u, LOW, HIGH)
    each = weights * (np.rint(c) - (c == u) * u)
    np.testing.assert_allclose(found["x.s"], each.sum(1, keepdims=True) if per_axis else each.sum(), rtol=1e-12)


def test_blocked_learned_scale() -> None:
    """Scales of blocks, the last one partial, reach the values through a Gather."""
    twin = Twin(double=True)
    x = twin.input("x", twin.rng.uniform(-1, 1, (2, 5)) + 0.01)
    scales = twin.input("s", twin.rng.uniform(0.2, 0.4, (2, 3)))
    spread = twin.node("Gather", [scales, twin.constant("blocks", np.arange(5) // 2, np.int64)], "spread", axis=1)
    twin.weigh(twin.pair(x, spread, (2, 5)))
    assert_gradients(twin)


def test_one_quantized_value_read_twice() -> None:
    """Two DequantizeLinear behind one QuantizeLinear are one chain; with other readers, too, it is none."""
    twin = Twin(double=True)
    x = twin.input("x", twin.rng.uniform(-2, 2, (3, 4)) + 0.01)
    s = twin.constant("s", 0.3)
    y = twin.pair(x, s, (3, 4))
    again = twin.node("Mul", ["x.d", s], "again")
    twin.weigh(twin.node("Mul", [y, twin.node("Sigmoid", [again], "gate")], "gated"))
    twin.weigh(twin.node("Tanh", ["x.d"], "other"))
    assert_gradients(twin)


def test_two_layers() -> None:
    """Residues of an activation depend on the weights in front of it: checked against a chain written by hand."""
    twin = two_layers()
    found = session(derivative(twin.proto(), ["w", "v"], "loss")).run(["grad.w", "grad.v"], twin.feeds)
    constant = {t.name: onnx.numpy_helper.to_array(t) for t in twin.constants}

    def quantized(value: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        u = value / s
        return np.rint(np.clip(u, LOW, HIGH)) * s, (u >= LOW) & (u <= HIGH)

    x, w, v = (quantized(twin.feeds[n], constant[f"{n}.s"])[0] + constant[f"{n}.offset"] for n in ("x", "w", "v"))
    h, inside = quantized(x @ w + constant["shift"], constant["h.s"])
    g = constant["y.weights"]
    kept = {n: quantized(twin.feeds[n], constant[f"{n}.s"])[1] for n in ("w", "v")}
    np.testing.assert_allclose(found[1], h.T @ g * kept["v"], rtol=1e-12)
    np.testing.assert_allclose(found[0], x.T @ (g @ v.T * inside) * kept["w"], rtol=1e-12)


def test_a_parameter_that_does_not_reach_the_loss() -> None:
    twin = two_layers()
    twin.input("unused", np.ones((2, 3)))
    found = session(derivative(twin.proto(), ["unused"], "loss")).run(["grad.unused"], twin.feeds)[0]
    np.testing.assert_array_equal(found, np.zeros((2, 3)))


def test_only_the_nodes_between_are_needed() -> None:
    """A node that has no gradient is in nobody's way in front of the parameters or behind the loss."""
    twin = Twin(double=True)
    x = twin.node("Round", [twin.constant("number", 2.4)], "rounded")
    w = twin.operand("w", (2, 2))
    twin.weigh(twin.node("Mul", [w, x], "y"))
    assert_gradients(twin)


def test_every_refused_node_is_named() -> None:
    twin = Twin(double=False)
    w = twin.operand("w", (3, 4))
    a = twin.node("Hardmax", [w], "hard")
    b = twin.node("Pad", [a, twin.constant("pads", [0, 1, 0, 0], np.int64)], "padded", mode="reflect")
    c = twin.node("Relu", [b], "fine")
    kept = [twin.constant("scale", 0.1), twin.constant("zero", 0, np.int8)]
    d = twin.node("DequantizeLinear", [twin.node("QuantizeLinear", [c, *kept], "q"), *kept], "dq")
    twin.node("Fancy", [d], "fancy", domain="somewhere")
    twin.values.append(helper.make_tensor_value_info("fancy", TensorProto.FLOAT, [3, 5]))
    twin.losses.append(twin.node("ReduceSum", ["fancy"], "sum", keepdims=0))
    model = twin.proto()
    model.opset_import.append(helper.make_opsetid("somewhere", 1))
    with pytest.raises(UnsupportedError) as error:
        derivative(model, ["w"], "loss")
    text = str(error.value)
    assert text.startswith("4 node(s) between the parameters and the loss have no gradient")
    assert (
        "Hardmax 'hard'" in text
        and "QuantizeLinear 'q'" in text
        and "Pad 'padded'" in text
        and "Fancy 'fancy'" in text
        and "Relu" not in text
    )


def test_without_onnx_ad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx_ad", None)
    with pytest.raises(CapabilityError, match=r"pip install 'onnxq\[qat\]'"):
        derivative(two_layers().proto(), ["w"], "loss")


@pytest.mark.parametrize(("parameter", "loss"), [("nothing", "loss"), ("w", "y"), ("count", "loss")])
def test_wrong_names(parameter: str, loss: str) -> None:
    twin = two_layers()
    twin.inputs.append(helper.make_tensor_value_info("count", TensorProto.INT64, [1]))
    with pytest.raises(OptionError, match="is not"):
        derivative(twin.proto(), [parameter], loss)


def test_control_flow() -> None:
    """A parameter that the branches of an If read without being its input."""
    twin = Twin(double=True)
    w = twin.operand("w", (2, 3))
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node(op, [w], [f"{name}.out"])],
            name,
            [],
            [helper.make_tensor_value_info(f"{name}.out", twin.kind, [2, 3])],
        )
        for name, op in (("then", "Tanh"), ("else", "Exp"))
    }
    flag = twin.node("Greater", [twin.input("x", np.array(1.5)), twin.constant("limit", 1.0)], "flag")
    twin.weigh(twin.node("If", [flag], "y", **branches))
    del twin.feeds["x"]
    model = twin.proto()
    feeds = {**twin.feeds, "x": np.array(1.5)}
    found = session(derivative(model, ["w"], "loss")).run(["grad.w"], feeds)[0]
    constant = {t.name: onnx.numpy_helper.to_array(t) for t in twin.constants}
    u = twin.feeds["w"] / constant["w.s"]
    value = np.rint(np.clip(u, LOW, HIGH)) * constant["w.s"] + constant["w.offset"]
    expected = constant["y.weights"] * (1 - np.tanh(value) ** 2) * (np.clip(u, LOW, HIGH) == u)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_no_shape_is_changed_back_and_forth() -> None:
    """What onnx-ad does for its seed axis is gone: an elementwise chain is as many nodes as a hand would write."""
    twin = Twin(double=False)
    x = twin.input("x", np.ones((2, 3)))
    twin.weigh(twin.node("Tanh", [twin.node("Sigmoid", [x], "a")], "y"))
    ops = [node.op_type for node in derivative(twin.proto(), ["x"], "loss").graph.node]
    assert not {"Transpose", "Squeeze", "Unsqueeze", "Shape", "Concat"} & set(ops)
    assert ops.count("Sigmoid") == ops.count("Tanh") == 1


def test_table() -> None:
    text = table()
    assert all(op in text for op in SUPPORTED)
    assert "| Clip | bounds that depend on no parameter |" in text
