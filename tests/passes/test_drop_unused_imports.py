"""drop-unused-imports: only what no node and no function needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onnxq.passes.drop_unused_imports import DropUnusedImports

Run = Callable[..., Any]
HEAD = '<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3, "com.microsoft" : 1, "local" : 1]>'


def imports(out: Any) -> set[str]:
    return {entry.domain for entry in out.proto.opset_import}


def test_unused_domains_go(run_passes: Run) -> None:
    out = run_passes(f"{HEAD} g (float[2] x) => (float[2] y) {{ y = com.microsoft.Gelu(x) }}", DropUnusedImports())
    assert imports(out) == {"", "com.microsoft"} and out.codes() == ["imports-removed"]


def test_functions_and_bodies_count(run_passes: Run) -> None:
    text = f"""{HEAD} g (float[2] x, bool c) => (float[2] y) {{
        y = If (c) <then_branch = a () => (float[2] t) {{ t = com.microsoft.Gelu(x) }},
                    else_branch = b () => (float[2] u) {{ u = Neg(x) }}> }}
        <domain: "local", opset_import: ["" : 17]> f (v) => (w) {{ w = Abs(v) }}"""
    assert imports(run_passes(text, DropUnusedImports())) == {"", "com.microsoft", "local"}


def test_nothing_to_do(run_passes: Run) -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Neg(x) }'
    assert not run_passes(text, DropUnusedImports()).changed
