"""sort-nodes: captures count, order that is right stays, circles are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxq.errors import UnsupportedError
from onnxq.passes.sort_nodes import SortNodes

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
g (bool c, float[2] x) => (float[2] y) {
  a = Relu(x)
  b = Neg(x)
  z = Exp(a)
  y = If(c) <then_branch = t () => (float[2] p) { r = Add(a, b) p = Add(r, z) },
             else_branch = e () => (float[2] q) { q = Identity(b) }>
}
"""


def test_order_that_is_right_stays(run_passes: Callable[..., Any]) -> None:
    assert not run_passes(TEXT, SortNodes()).changed


def test_captured_values_are_made_first(run_passes: Callable[..., Any], same_numbers: Callable[..., None]) -> None:
    proto = parser.parse_model(TEXT)
    nodes = list(proto.graph.node)
    branch = nodes[3].attribute[0].g
    inner = list(branch.node)
    del branch.node[:], proto.graph.node[:]
    branch.node.extend(reversed(inner))
    proto.graph.node.extend(reversed(nodes))
    out = run_passes(proto, SortNodes())
    assert set(out.ops()[:3]) == {"Relu", "Neg", "Exp"} and out.ops()[3] == "If" and out.codes() == ["nodes-sorted"]
    assert [n.output[0] for n in out.proto.graph.node[3].attribute[0].g.node] == ["r", "p"]
    onnx.checker.check_model(out.proto, full_check=True)
    for flag in (True, False):
        same_numbers(TEXT, out.proto, {"c": np.array(flag), "x": np.array([1, -2], np.float32)})


def test_circles_are_refused(run_passes: Callable[..., Any]) -> None:
    proto = parser.parse_model(TEXT)
    proto.graph.node[0].input[0] = "z"
    with pytest.raises(UnsupportedError, match="graph 'g' has nodes that depend on each other in a circle"):
        run_passes(proto, SortNodes())
