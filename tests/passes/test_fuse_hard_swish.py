"""fuse-hard-swish: every spelling, and nothing that only looks like it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from onnxq.passes.fuse_hard_swish import FuseHardSwish

CONSTANTS = "<float three = {3}, float zero = {0}, float six = {6}, float sixth = {0.16666667}, float seven = {7}>"


def graph(body: str, opset: int = 17, dtype: str = "float") -> str:
    text = f'<ir_version: 8, opset_import: ["" : {opset}]> g (float[2,3,4] x) => (float[2,3,4] y) {CONSTANTS}'
    return f"{text} {{ {body} }}".replace("float", dtype)


CLIP = "a = Add(x, three) c = Clip(a, zero, six)"


@pytest.mark.parametrize(
    "body",
    [
        f"{CLIP} m = Mul(x, c) y = Div(m, six)",
        f"{CLIP} m = Mul(c, x) y = Mul(m, sixth)",
        f"{CLIP} d = Div(c, six) y = Mul(x, d)",
        f"{CLIP} d = Mul(sixth, c) y = Mul(d, x)",
        "a = Add(three, x) c = Clip(a, zero, six) m = Mul(x, c) y = Div(m, six)",
    ],
)
def test_spellings(body: str, run_passes: Callable[..., Any], same_numbers: Callable[..., None]) -> None:
    out = run_passes(graph(body), FuseHardSwish())
    assert out.ops() == ["HardSwish"] and list(out.proto.graph.node[0].output) == ["y"]
    assert not out.initializers() and out.codes() == ["hard-swish-fused"]
    same_numbers(graph(body), out.proto, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "body",
    [
        f"{CLIP} m = Mul(x, c) y = Div(m, seven)",
        "a = Add(x, three) c = Clip(a, zero, seven) m = Mul(x, c) y = Div(m, six)",
        "a = Add(x, three) c = Clip(a, zero) m = Mul(x, c) y = Div(m, six)",
        "a = Add(x, six) c = Clip(a, zero, six) m = Mul(x, c) y = Div(m, six)",
        f"{CLIP} n = Neg(x) m = Mul(n, c) y = Div(m, six)",
        f"{CLIP} m = Mul(x, c) d = Div(m, six) y = Add(d, c)",
        f"{CLIP} m = Mul(x, c) y = Div(six, m)",
    ],
)
def test_look_alikes_stay(body: str, run_passes: Callable[..., Any]) -> None:
    assert not run_passes(graph(body), FuseHardSwish()).changed


def test_only_where_the_op_exists(run_passes: Callable[..., Any]) -> None:
    body = f"{CLIP} m = Mul(x, c) y = Div(m, six)"
    assert not run_passes(graph(body, opset=13), FuseHardSwish()).changed
    assert not run_passes(graph(body, dtype="double"), FuseHardSwish()).changed
