"""Integers chosen for a weight, and what becomes of them when its scale changes afterwards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onnxq.facts import Edge
from onnxq.numerics.affine import quantize
from onnxq.numerics.encodings import from_values
from onnxq.numerics.spec import QTYPES, Blocked, Granularity, PerAxis, PerTensor, TensorSpec
from onnxq.rounding.gptq import requantized

Array = np.ndarray[Any, Any]


def edge(weight: Array) -> Edge:
    w = ir.Value(name="w", const_value=ir.tensor(weight), type=ir.TensorType(ir.DataType.FLOAT))
    ir.Graph([], [], nodes=[], initializers=[w])
    return Edge(ir.node("MatMul", [ir.Value(name="x"), w]), 1)


@pytest.mark.parametrize("granularity", [PerAxis(0), PerAxis(1), Blocked(4, 0), Blocked(5, 1), PerTensor()], ids=str)
def test_integers_are_kept_where_the_scale_is_the_same(granularity: Granularity) -> None:
    w = np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32)
    before = from_values(w, TensorSpec(QTYPES["int4"], True, granularity))
    before = replace(before, integers=np.full(w.shape, 3, np.int8))  # what nobody would round to
    scale = before.scale.copy()
    scale.reshape(-1)[0] *= 2
    after = replace(before, scale=scale)
    found = requantized(edge(w), before, after)
    changed = {
        PerAxis(0): np.s_[:1], PerAxis(1): np.s_[:, :1], Blocked(4, 0): np.s_[:4, :1], Blocked(5, 1): np.s_[:1, :5],
        PerTensor(): np.s_[:],
    }[granularity]  # fmt: skip
    wanted = np.full(w.shape, 3, np.int8)
    wanted[changed] = quantize(w, replace(after, integers=None))[changed]
    np.testing.assert_array_equal(found.integers, wanted)
    assert found.scale is after.scale and requantized(edge(w), before, before) is before


def test_without_integers_nothing_is_chosen() -> None:
    w = np.ones((2, 2), np.float32)
    before = from_values(w, TensorSpec(QTYPES["int8"], True))
    after = replace(before, scale=before.scale * 2)
    assert requantized(edge(w), before, after) is after
