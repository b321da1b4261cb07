"""ConvTranspose as Conv: the same numbers for every shape, stride, padding, dilation and group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from onnxq.edit import Namer, remove_dead
from onnxq.trainable.deconvolution import as_conv, obstacle, take_back
from tests.trainable.layers import finished, same_model


@st.composite
def nodes(draw: st.DrawFn) -> tuple[dict[str, Any], list[int], list[int]]:
    """Attributes, shape of x, shape of the weight."""
    rank, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    per = st.integers(1, 3)
    kernel = [draw(per) for _ in range(rank)]
    strides = [draw(per) for _ in range(rank)]
    dilations = [draw(st.integers(1, 2)) for _ in range(rank)]
    size = [draw(st.integers(2, 4)) for _ in range(rank)]
    more = [draw(st.integers(0, s - 1)) for s in strides]  # onnxruntime takes less than the stride
    lengths = zip(strides, size, dilations, kernel, more, strict=True)
    full = [s * (n - 1) + d * (k - 1) + 1 + o for s, n, d, k, o in lengths]
    pads = [draw(st.integers(0, min(3, (f - 1) // 2))) for _ in range(2) for f in full]
    attributes: dict[str, Any] = {"strides": strides, "dilations": dilations, "pads": pads, "group": group}
    if any(more):
        attributes["output_padding"] = more
    inputs, outputs = group * draw(st.integers(1, 2)), draw(st.integers(1, 2))
    return attributes, [2, inputs, *size], [inputs, outputs, *kernel]


@given(nodes())
@settings(max_examples=50, deadline=None, derandomize=True)
def test_the_same_numbers(run: Callable[..., Any], drawn: tuple[dict[str, Any], list[int], list[int]]) -> None:
    attributes, x, w = drawn
    rng = np.random.default_rng(0)
    channels = w[1] * attributes["group"]
    constants = {"w": rng.standard_normal(w).astype(np.float32), "b": rng.standard_normal(channels).astype(np.float32)}
    node = helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], "up", **attributes)
    before = finished([node], constants, x, list("abcde")[: len(x)], 17)  # type: ignore[arg-type]
    model = ir.from_proto(before)
    (found,) = model.graph
    assert obstacle(found) == ""
    as_conv(found, Namer(model))
    after = ir.to_proto(model)
    onnx.checker.check_model(after, full_check=True)
    feeds = {"x": rng.standard_normal(x).astype(np.float32)}
    a, b = (run(m, feeds)[0] for m in (before, after))
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert take_back(found)
    remove_dead(model)
    same_model(before, ir.to_proto(model))


@pytest.mark.parametrize("attributes", [{"auto_pad": "SAME_UPPER"}, {"output_shape": [8, 8]}])
def test_padding_that_depends_on_the_input_is_refused(attributes: dict[str, Any]) -> None:
    node = ir.node("ConvTranspose", [ir.Value(name="x"), ir.Value(name="w", shape=ir.Shape([1, 1, 3, 3]))], attributes)
    assert "depends on the shape" in obstacle(node)


def test_a_weight_of_unknown_shape_is_refused() -> None:
    assert "unknown" in obstacle(ir.node("ConvTranspose", [ir.Value(name="x"), ir.Value(name="w")]))
