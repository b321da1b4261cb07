"""Answers, and weights that are rounded once for many plans."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onnxq.calibration.sources import open_source
from onnxq.facts import Encodings, Feeds, Plan
from onnxq.passbase import Context, run_step
from onnxq.passes.calibrate import Calibrate
from onnxq.passes.encode import Encode
from onnxq.passes.gptq import Gptq
from onnxq.passes.plan import MakePlan
from onnxq.passes.resolve_axes import ResolveAxes
from onnxq.planning.overrides import Override
from onnxq.recipe import load_recipe
from onnxq.tuning.bench import Remembered, answer_of, same

Array = np.ndarray[Any, Any]
LENET = Path(__file__).parents[2] / "models" / "lenet" / "lenet.onnx"


@pytest.mark.parametrize(
    ("outputs", "wanted"),
    [
        ([[[1.0, 2.0], [3.0, 1.0]]], [[1], [0]]),
        ([[[[1.0, 2.0], [3.0, 1.0]]]], [[1, 0]]),
        ([[0.5, 0.1, 0.7]], [[2]]),
        ([[[1.0, 2.0]], [[5, 6, 7]]], [[1, 5, 6, 7]]),
        ([[[1.0, 2.0], [2.0, 1.0]], [7]], [[1, 0, 7]]),
        ([[[1.0]]], [[]]),
    ],
)
def test_default_answers(outputs: Sequence[Any], wanted: Sequence[Any]) -> None:
    found = answer_of([np.array(o) for o in outputs])
    assert found.tolist() == wanted


@pytest.mark.parametrize(
    ("a", "b", "wanted"),
    [
        (np.array([[1], [2], [3]]), np.array([[1], [0], [3]]), (2, 3)),
        (np.array([[1, 2]]), np.array([[1, 0]]), (0, 1)),
        (np.array([[1, 2]]), np.array([[1]]), (0, 1)),
        ([1, 2], [1, 2], (1, 1)),
        ("text", "text", (1, 1)),
        ("text", "test", (0, 1)),
    ],
)
def test_rows_are_answers_of_their_own(a: Any, b: Any, wanted: tuple[int, int]) -> None:
    assert same(a, b) == wanted


def test_weights_are_rounded_once(digits: list[dict[str, Array]], monkeypatch: pytest.MonkeyPatch) -> None:
    """The second plan takes the integers over; weights of another type are rounded when they first come."""
    rounded: list[int] = []
    inner = Gptq.run

    def counted(self: Gptq, model: ir.Model, ctx: Context) -> bool:
        rounded.append(len(ctx.get(Encodings).weights))
        return inner(self, model, ctx)

    monkeypatch.setattr(Gptq, "run", counted)
    known: dict[object, Array | None] = {}
    found = []
    for overrides in ((), (), (Override(select="fc1", weights="int4", activations="float"),)):
        model, ctx = ir.load(LENET), Context()
        ctx.put(Feeds(open_source(digits, model=model)))
        for step in (
            load_recipe("prepare"), MakePlan(overrides=overrides), Calibrate(), ResolveAxes(), Encode(),
            Remembered(inner=Gptq(), known=known),
        ):  # fmt: skip
            run_step(step, model, ctx)
        made, plan = ctx.get(Encodings), ctx.get(Plan)
        assert set(made.weights) == set(plan.weights)
        found.append({edge.node.name: encoding.integers for edge, encoding in made.weights.items()})
    assert rounded == [4, 1]
    first, second, third = found
    for name, integers in first.items():
        assert integers is not None and integers is second[name]
        assert (integers is third[name]) is (name != "fc1")
