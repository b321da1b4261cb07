"""QAttention with every mask, past and direction against the standard operators it becomes, in onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxq.passes.qoperator_to_qdq import QoperatorToQdq

Array = np.ndarray[Any, Any]

B, S, D, H, P = 2, 5, 16, 4, 3
RNG = np.random.default_rng(0)
PAST = RNG.standard_normal((2, B, H, P, D // H)).astype(np.float32)


def bits(*shape: int) -> Array:
    drawn = (np.random.default_rng(1).random(shape) > 0.4).astype(np.int32)
    drawn[..., 0] = 1
    return drawn


def attention(
    feeds: dict[str, Array], *, columns: bool = False, opset: int = 17, symbolic: bool = False, **attributes: Any
) -> onnx.ModelProto:
    """One QAttention; x, m and p among the feeds are input, mask and past."""
    scale = np.exp(RNG.standard_normal(3 * D)).astype(np.float32) * 0.004 if columns else np.float32(0.004)
    constants = {
        "w": RNG.integers(-128, 128, (D, 3 * D)).astype(np.int8),
        "b": RNG.standard_normal(3 * D).astype(np.float32),
        "sx": np.float32(0.02),
        "sw": scale,
        "zx": np.uint8(120),
        "zw": np.full(np.shape(scale), 5, np.int8),
    }
    inputs = ["x", "w", "b", "sx", "sw", "m" if "m" in feeds else "", "zx", "zw", *(["p"] if "p" in feeds else [])]
    outputs = ["y", *(["now"] if "p" in feeds else [])]
    node = helper.make_node("QAttention", inputs, outputs, "att", domain="com.microsoft", num_heads=H, **attributes)
    kinds = {k: helper.np_dtype_to_tensor_dtype(v.dtype) for k, v in feeds.items()}

    def dims(name: str, array: Array) -> list[Any]:
        batch = ["batch"] if symbolic else [array.shape[0]]
        return list(array.shape) if name == "p" else [*batch, *array.shape[1:]]

    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(k, kinds[k], dims(k, v)) for k, v in feeds.items()],
        [helper.make_tensor_value_info(o, TensorProto.FLOAT, list("abcde"[: 3 if o == "y" else 5])) for o in outputs],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


CASES: list[tuple[dict[str, Array], dict[str, Any]]] = [
    ({}, {}),
    ({}, {"columns": True}),
    ({}, {"opset": 12, "unidirectional": 1}),
    ({}, {"scale": 0.3}),
    ({"m": np.int32([3, 5])}, {}),
    ({"m": np.int32([3, 5])}, {"symbolic": True, "unidirectional": 1}),
    ({"m": bits(B, S)}, {}),
    ({"m": bits(B, S)}, {"unidirectional": 1, "mask_filter_value": -3.0}),
    ({"m": bits(B, S, S)}, {"opset": 12}),
    ({"m": bits(1, 1)}, {}),
    ({"p": PAST}, {}),
    ({"p": PAST}, {"unidirectional": 1}),
    ({"p": PAST, "m": bits(B, S + P)}, {"unidirectional": 1}),
    ({"p": PAST, "m": bits(B, S, S + P)}, {}),
    ({"p": PAST, "m": np.int32([6, 8])}, {"unidirectional": 1}),
]


@pytest.mark.parametrize(("parts", "options"), CASES)
def test_masks_past_and_direction(
    parts: dict[str, Array],
    options: dict[str, Any],
    run_passes: Callable[..., Any],
    run_model: Callable[..., list[Any]],
) -> None:
    feeds = {"x": RNG.integers(0, 256, (B, S, D)).astype(np.uint8), **parts}
    before = attention(feeds, **options)
    made = run_passes(before, QoperatorToQdq())
    onnx.checker.check_model(made.proto, full_check=True)
    assert all(node.domain == "" for node in made.proto.graph.node) and made.codes() == ["raised"]
    assert made.ops().count("DequantizeLinear") == 2 and "att" in {n.name for n in made.proto.graph.node}
    wanted = run_model(before, feeds)
    for session in ({"true": True}, {}):
        for a, b in zip(wanted, run_model(made.proto, feeds, **session), strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-4, atol=2e-5 * np.abs(a).max())


STAYS = [
    ({"m": bits(B, 1, S, S)}, {}, "4 axes"),
    ({"m": np.int32([5, 4, 0, 1])}, {}, "one number of positions for each sequence"),
    ({}, {"do_rotary": 1}, "rotary"),
    ({}, {"opset": 10, "unidirectional": 1}, "needs Range"),
]


@pytest.mark.parametrize(("parts", "options", "why"), STAYS)
def test_stays(parts: dict[str, Array], options: dict[str, Any], why: str, run_passes: Callable[..., Any]) -> None:
    """What is refused halfway leaves nothing behind."""
    before = attention({"x": np.zeros((B, S, D), np.uint8), **parts}, **options)
    made = run_passes(before, QoperatorToQdq())
    (note,) = made.ctx.report.of("not-raised")
    assert why in note.message and not made.changed
    assert made.ops() == ["QAttention"] and len(made.proto.graph.initializer) == 6
