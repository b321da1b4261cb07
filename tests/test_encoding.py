"""Encodings of groups: who shares with whom."""

from __future__ import annotations

import onnx_ir as ir
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxq.encoding import activation_encoding, groups
from onnxq.facts import Plan, Range, Wishes
from onnxq.numerics.spec import QType, TensorSpec

U8 = TensorSpec(QType.named("uint8"))


def plan(size: int, shared: list[list[int]]) -> tuple[Plan, list[ir.Value]]:
    values = [ir.Value(name=f"v{i}") for i in range(size)]
    out = Plan(Wishes(U8, U8), dict.fromkeys(values, U8))
    out.shared = [[values[i] for i in group] for group in shared]
    return out, values


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), max_size=8))
def test_groups_are_the_connected_components(shared: list[list[int]]) -> None:
    """Against a search over the graph of pairs; order is the plan's."""
    made, values = plan(10, shared)
    found = [[values.index(v) for v in group] for group in groups(made)]
    near = {i: {j for group in shared if i in group for j in group} | {i} for i in range(10)}
    wanted = []
    for i in range(10):
        component = {i}
        while (grown := set().union(*(near[j] for j in component))) != component:
            component = grown
        if min(component) == i:
            wanted.append(sorted(component))
    assert found == wanted


def test_values_that_are_not_planned_do_not_join_groups() -> None:
    made, values = plan(3, [[0, 1, 2]])
    del made.activations[values[1]]
    assert groups(made) == [[values[0], values[2]]]
    made, values = plan(3, [[0, 1, 2]])
    del made.activations[values[0]]
    assert groups(made) == [[values[1], values[2]]]


def test_one_float16_value_makes_the_scale_float16() -> None:
    values = [ir.Value(name="a", type=ir.TensorType(t)) for t in (ir.DataType.FLOAT, ir.DataType.FLOAT16)]
    ranges = {v: Range(0, 1, 0, 1) for v in values}
    assert activation_encoding(values, U8, ranges).scale.dtype == "float16"
    assert activation_encoding(values[:1], U8, ranges).scale.dtype == "float32"
