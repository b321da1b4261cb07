"""Conv and ConvTranspose: gradients of input, weight and bias for drawn groups, strides, dilations, pads and ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxq.training.gradients import derivative
from onnxq.training.rules_blocked import DOMAIN
from tests.training.surrogate import Twin, assert_gradients, session


@st.composite
def geometries(draw: st.DrawFn) -> dict[str, Any]:
    """Shapes and attributes; depthwise, pointwise, grouped and plain ones."""
    n = draw(st.sampled_from([1, 1, 2, 2, 2, 3]))
    kernel = draw(st.sampled_from([[1] * n, [2, 3, 1][:n], [3, 1, 2][:n]]))
    group = draw(st.sampled_from([1, 1, 2, 3]))
    inner, outer = draw(st.sampled_from([1, 1, 2])), draw(st.sampled_from([1, 1, 2]))
    strides = [draw(st.integers(1, 3)) for _ in range(n)]
    dilations = [draw(st.integers(1, 2)) for _ in range(n)]
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    size = [e + draw(st.integers(0, 2)) for e in extents]
    pads = [draw(st.integers(0, min(e - 1, 2))) for e in extents * 2]
    placed = draw(st.sampled_from(["pads", "pads", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    attributes: dict[str, Any] = {"strides": strides, "dilations": dilations, "group": group}
    attributes |= {"pads": pads} if placed == "pads" else {"auto_pad": placed}
    return {"kernel": kernel, "inner": inner, "outer": outer, "size": size, "attributes": attributes}


def convolution(op_type: str, found: dict[str, Any], bias: bool) -> Twin:
    twin, group = Twin(double=False), found["attributes"]["group"]
    first, second = (found["inner"], found["outer"]) if op_type == "ConvTranspose" else (found["outer"], found["inner"])
    batch = 2 if len(found["kernel"]) < 3 else 1
    x = twin.operand("x", (batch, group * found["inner"], *found["size"]))
    w = twin.operand("w", (group * first, second, *found["kernel"]), per_axis=True)
    b = [twin.operand("b", (group * found["outer"],))] if bias else []
    twin.weigh(twin.node(op_type, [x, w, *b], "y", **found["attributes"]))
    return twin


@settings(max_examples=30, deadline=None, derandomize=True)
@given(geometries(), st.booleans())
def test_conv(found: dict[str, Any], bias: bool) -> None:
    if any(d > 1 for d in found["attributes"]["dilations"]) and "auto_pad" in found["attributes"]:
        found["attributes"]["dilations"] = [1] * len(found["kernel"])
    assert_gradients(convolution("Conv", found, bias))


@settings(max_examples=20, deadline=None, derandomize=True)
@given(geometries(), st.booleans(), st.data())
def test_conv_transpose(found: dict[str, Any], bias: bool, data: st.DataObject) -> None:
    attributes = found["attributes"]
    if "pads" in attributes and data.draw(st.booleans()):
        attributes["output_padding"] = [data.draw(st.integers(0, s - 1)) for s in attributes["strides"]]
    assert_gradients(convolution("ConvTranspose", found, bias))


@pytest.mark.parametrize(("op_type", "strides"), [("Conv", 1), ("Conv", 2), ("ConvTranspose", 2)])
def test_blocked_form(op_type: str, strides: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With whole blocks of channels depthwise gradients use onnxruntime's layout, to the result of the plain form."""
    twin = Twin(double=False)
    x, w = twin.operand("x", (2, 32, 7, 6)), twin.operand("w", (32, 1, 3, 2), per_axis=True)
    pads = [1, 0, 1, 1]
    twin.weigh(twin.node(op_type, [x, w], "y", group=32, pads=pads, strides=[strides] * 2, dilations=[1, 2]))
    blocked = derivative(twin.proto(), ["x", "w"], "loss")
    monkeypatch.setattr("onnxq.training.rules_blocked.available", lambda: False)
    plain = derivative(twin.proto(), ["x", "w"], "loss")
    assert DOMAIN in {o.domain for o in blocked.opset_import} and DOMAIN not in {o.domain for o in plain.opset_import}
    names = ["grad.x", "grad.w"]
    found, expected = (session(model).run(names, twin.feeds) for model in (blocked, plain))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


@pytest.mark.parametrize("auto", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
def test_output_shape_sets_the_pads(auto: str) -> None:
    twin = Twin(double=False)
    x, w = twin.operand("x", (1, 2, 3, 3)), twin.operand("w", (2, 1, 3, 3))
    attributes = {"strides": [2, 2], "output_shape": [6, 5], "auto_pad": auto}
    twin.weigh(twin.node("ConvTranspose", [x, w], "y", **attributes))
    assert_gradients(twin)


@pytest.mark.parametrize(
    ("kernel", "group", "ops"),
    [((1, 1), 1, {"Conv", "MatMul"}), ((3, 3), 4, {"Conv"}), ((3, 3), 1, {"Conv", "ConvTranspose"})],
)
def test_forms(kernel: tuple[int, int], group: int, ops: set[str]) -> None:
    """Which ops a gradient is made of is what makes it fast."""
    twin = Twin(double=False)
    x = twin.input("x", np.zeros((2, 4, 5, 5)))
    w = twin.input("w", np.zeros((4, 4 // group, *kernel)))
    twin.weigh(twin.node("Conv", [x, w], "y", group=group, pads=[k // 2 for k in kernel * 2]))
    result = derivative(twin.proto(), ["x", "w"], "loss")
    kinds = {"Conv", "ConvTranspose", "MatMul"}
    assert {node.op_type for node in result.graph.node} & kinds == ops
    assert isinstance(result, onnx.ModelProto)
