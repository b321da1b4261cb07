"""What one run carries: places of notes, seeded numbers, a work folder."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from onnxq.context import Context, place_of


def test_places_name_graph_node_and_value() -> None:
    x = ir.Value(name="x")
    node = ir.node("Relu", [x], name="relu")
    graph = ir.Graph([x], node.outputs, nodes=[node], name="g")
    assert str(place_of(node, graph)) == str(place_of(node.outputs[0], graph)) == "relu (Relu)"
    assert place_of(node.outputs[0], graph).value == node.outputs[0].name
    assert str(place_of(x, graph)) == "x"
    inner = ir.Value(name="i")
    body = ir.Graph([inner], [], nodes=[ir.node("Neg", [x])], name="then")
    body[0].name = ""
    assert str(place_of(body[0], graph)) == "then/<unnamed> (Neg)"
    assert str(place_of(inner, graph)) == "then/i"
    assert place_of(None).node == ""


def test_random_numbers_depend_on_the_seed_alone() -> None:
    assert Context(seed=5).rng().random() == Context(seed=5).rng().random() != Context(seed=6).rng().random()


def test_the_work_folder_is_gone_afterwards() -> None:
    with pytest.raises(RuntimeError), Context().work_dir() as folder:
        (folder / "x").write_text("x")
        raise RuntimeError
    assert not folder.exists()
