"""``onnxq.noqa`` in the metadata of nodes, tensors, graphs and the model."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import StringStringEntryProto

from onnxq import lint
from onnxq.linting.engine import check
from onnxq.linting.selection import Selection
from tests.rules.lab import build, in_branch

PAIR = "q = QuantizeLinear(x, s) p = DequantizeLinear(q, t)"
DATA = {"s": np.float32(0), "t": np.float32(1)}
FUNCTION = """<domain: "local", opset_import: ["" : 21]> pair (x) => (p)
  { s = Constant<value_float=0.0>() t = Constant<value_float=1.0>()
    q = QuantizeLinear(x, s) p = DequantizeLinear(q, t) }"""


def ask(message: Any, value: str, key: str = "onnxq.noqa") -> None:
    message.metadata_props.append(StringStringEntryProto(key=key, value=value))


def model() -> onnx.ModelProto:
    """OQ201 at q, OQ101 at p."""
    return build(PAIR, DATA, y="float p")


def codes(proto: onnx.ModelProto, select: str = "OQ1,OQ2") -> list[str]:
    return [d.code for d in lint(proto, select=select)]


@pytest.mark.parametrize(
    ("where", "value", "left"),
    [
        (0, "OQ201", ["OQ101"]), (0, "OQ2", ["OQ101"]), (0, "OQ1, OQ201", ["OQ101"]), (0, "", ["OQ101"]),
        (1, "OQ101", ["OQ201"]), (1, "OQ201", ["OQ101", "OQ201"]), (0, "OQ202", ["OQ101", "OQ201"]),
        ("graph", "OQ201", ["OQ101"]), ("model", "OQ1,OQ2", []), ("model", "", []),
    ],
)  # fmt: skip
def test_where_it_counts(where: int | str, value: str, left: list[str]) -> None:
    assert codes(model()) == ["OQ101", "OQ201"]
    proto = model()
    at = proto if where == "model" else proto.graph if where == "graph" else proto.graph.node[int(where)]
    ask(at, value)
    ask(at, "OQ", key="somebody.elses")
    assert codes(proto) == left
    assert check(proto, Selection(select=("OQ1", "OQ2"))).suppressed == 2 - len(left)


def test_tensors() -> None:
    proto = build("y = Relu(x)", {"w": np.ones(2, "f"), "v": np.ones(2, "f")})
    assert codes(proto, "OQ012") == ["OQ012", "OQ012"]
    ask(proto.graph.initializer[0], "OQ012")
    (found,) = lint(proto, select="OQ012")
    assert found.place.value == "v"


def test_nodes_without_a_name() -> None:
    proto = model()
    for node in proto.graph.node:
        node.name = ""
    ask(proto.graph.node[0], "OQ2")
    assert codes(proto) == ["OQ101"]


def test_bodies_and_functions() -> None:
    inner = build(in_branch(PAIR, "p"), DATA)
    branch = inner.graph.node[2].attribute[0].g
    ask(branch, "OQ2")
    assert codes(inner) == ["OQ101"]
    outer = build(in_branch(PAIR, "p"), DATA)
    ask(outer.graph, "OQ2")
    assert codes(outer) == ["OQ101"], "it counts for what lies inside"
    called = build("y = local.pair(x)", imports=', "local" : 1', functions=FUNCTION)
    assert codes(called) == ["OQ101", "OQ201"]
    ask(called.graph, "OQ2")
    assert codes(called) == ["OQ101", "OQ201"], "a function is not inside the main graph"
    ask(called.functions[0], "OQ2")
    assert codes(called) == ["OQ101"]


def test_unused_ones_are_reported() -> None:
    proto = model()
    ask(proto.graph.node[0], "OQ201,OQ303")
    ask(proto.graph, "OQ7")
    (found,) = [d for d in lint(proto, select="OQ2,OQ3,OQ901") if d.code == "OQ901"]
    assert found.place.node == "q" and "OQ303" in found.message
    assert "OQ901" not in codes(proto, "OQ2,OQ901"), "OQ303 did not run"
    assert "OQ901" not in codes(proto, "OQ2,OQ3"), "nobody asked"
    assert [d.place.node for d in lint(proto, select="OQ2,OQ3,OQ7,OQ901") if d.code == "OQ901"] == ["", "q"]
