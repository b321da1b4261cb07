"""The whole search on LeNet: bounds are met as others measure them, plans can be read back, nothing is silent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import parser

import onnxq
from onnxq.errors import DataError, OptionError
from onnxq.planfile import FORMAT
from onnxq.tuning import Tuning
from onnxq.tuning.bench import Bench

Array = np.ndarray[Any, Any]
Feeds = Sequence[dict[str, Array]]
MODEL = Path(__file__).parents[2] / "models" / "lenet" / "lenet.onnx"


def outputs(model: Path | bytes, feeds: Feeds) -> Array:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(str(model) if isinstance(model, Path) else model, options)
    return np.concatenate([session.run(None, feed)[0] for feed in feeds]).astype(np.float64)


def decibels(exact: Array, found: Array) -> float:
    return float(10 * np.log10((exact**2).sum() / ((exact - found) ** 2).sum()))


def test_the_chosen_plan_is_the_smallest_measured_one_that_meets_the_bound(tuned: Tuning, digits: Feeds) -> None:
    assert tuned.chosen is not None and tuned.path is not None and tuned.missed() == []
    point = tuned.points[tuned.chosen]
    exact, found = outputs(MODEL, digits), outputs(tuned.path, digits)
    assert point.sqnr_db == pytest.approx(decibels(exact, found), abs=0.01) and point.db >= 35
    assert point.agreement == pytest.approx(float((exact.argmax(1) == found.argmax(1)).mean()))
    assert point.cosine == pytest.approx(float((exact * found).sum() / np.sqrt((exact**2).sum() * (found**2).sum())))
    assert point.bytes == tuned.path.stat().st_size < tuned.float_bytes == MODEL.stat().st_size
    fits = [p for p in tuned.points if p.db >= 35]
    assert point.estimated_ratio == min(p.estimated_ratio for p in fits)
    assert tuned.samples == len(digits) and all(p.ratio and p.milliseconds for p in tuned.points)


def test_the_front_goes_from_four_bits_to_float(tuned: Tuning) -> None:
    first, last = tuned.points[0], tuned.points[-1]
    assert "float x int4" in first.layers and first.bytes == min(p.bytes for p in tuned.points)
    assert set(last.layers) == {"float"} and last.estimated_ratio == pytest.approx(1) and last.db > 90
    assert [p.expected_db for p in tuned.points] == sorted(p.expected_db for p in tuned.points)
    for p in tuned.points[:-1]:
        assert p.db == pytest.approx(p.expected_db, abs=12), "expected within a factor of four in amplitude"


def test_parts_are_told_by_name(tuned: Tuning) -> None:
    assert [p.node for p in tuned.parts] == ["conv1", "conv2", "fc1", "fc2"]
    counts = dict.fromkeys(tuned.points[tuned.nearest].layers, 0)
    for part in tuned.parts:
        counts[part.choice] += 1
    assert counts == tuned.points[tuned.nearest].layers


def test_the_plan_reads_back_and_gives_the_same_model(tuned: Tuning, digits: Feeds, tmp_path: Path) -> None:
    assert tuned.plan["format"] == FORMAT
    (tmp_path / "plan.json").write_text(json.dumps(tuned.plan), encoding="utf-8")
    again = onnxq.quantize(MODEL, digits, plan=str(tmp_path / "plan.json"), search=False, rounding="nearest")
    assert not again.report.of("plan-not-met") and again.plan == tuned.plan
    assert tuned.path is not None
    ours, theirs = onnx.load(tuned.path), again.model
    del ours.metadata_props[:], theirs.metadata_props[:]
    assert ours.SerializeToString(deterministic=True) == theirs.SerializeToString(deterministic=True)


@pytest.mark.usefixtures("quick")
def test_it_is_deterministic_and_leaves_the_message_alone(digits: Feeds) -> None:
    proto = onnx.load(MODEL)
    before = proto.SerializeToString(deterministic=True)
    first, second = (onnxq.tune(proto, digits, min_cosine=0.999, rounding="nearest") for _ in range(2))
    assert proto.SerializeToString(deterministic=True) == before
    assert first.plan == second.plan and first.chosen == second.chosen
    assert first.model is not None and second.model is not None and first.path is None
    assert first.model.SerializeToString(deterministic=True) == second.model.SerializeToString(deterministic=True)
    exact = outputs(MODEL, digits)
    assert decibels(exact, outputs(first.model.SerializeToString(), digits)) == pytest.approx(
        first.points[first.nearest].db, abs=0.01
    )


@pytest.mark.usefixtures("quick")
def test_no_plan_meets_the_bounds(digits: Feeds, tmp_path: Path) -> None:
    found = onnxq.tune(MODEL, digits, output=tmp_path / "no.onnx", min_sqnr=90, max_size=20_000, rounding="nearest")
    assert found.chosen is None and found.path is None and found.model is None and not list(tmp_path.iterdir())
    assert found.missed() == found.bounds.missed(found.points[found.nearest]) != []
    assert found.plan["format"] == FORMAT and found.to_json()["missed"] == found.missed()


@pytest.mark.usefixtures("quick")
def test_the_most_exact_plan_of_a_size(digits: Feeds, tmp_path: Path) -> None:
    found = onnxq.tune(MODEL, digits, output=tmp_path / "small.onnx", max_size=30_000, rounding="nearest")
    assert found.chosen is not None and (tmp_path / "small.onnx").stat().st_size <= 30_000
    assert found.points[found.chosen].db == max(p.db for p in found.points if p.bytes <= 30_000)


def test_the_latency_ratio_is_the_measured_one(digits: Feeds, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that says half for the plans with integers, whatever the table says: the most exact of these is taken."""

    def race(self: object, file: Path, seconds: float) -> tuple[float, float]:
        integers = any(n.op_type in ("QuantizeLinear", "DynamicQuantizeLinear") for n in onnx.load(file).graph.node)
        return 2.0, 1.0 if integers else 1.9

    monkeypatch.setattr(Bench, "race", race)
    found = onnxq.tune(MODEL, digits, max_latency_ratio=0.6, rounding="nearest")
    assert found.chosen is not None and found.points[found.chosen].ratio == 0.5
    assert found.points[found.chosen].db == max(p.db for p in found.points if p.ratio == 0.5)
    assert onnxq.tune(MODEL, digits, max_latency_ratio=0.4, rounding="nearest").chosen is None


@pytest.mark.usefixtures("quick")
def test_an_answer_of_ones_own(digits: Feeds) -> None:
    """Agreement counts what the answer keeps: here nothing but the sign of the first number, or nothing in common."""
    half = onnxq.tune(MODEL, digits, min_agreement=1, answer=lambda o: o[0][:, 0] > 0, rounding="nearest")
    assert half.chosen == 0
    count = iter(range(10_000))
    never = onnxq.tune(MODEL, digits, min_agreement=1, answer=lambda o: next(count), rounding="nearest")
    assert never.chosen is None and "agreement 0.00%" in never.missed()[0]


@pytest.mark.parametrize(
    ("bounds", "why"),
    [
        ({}, "needs a bound"),
        ({"min_cosine": 1.5}, "at most 1"),
        ({"max_size": 0}, "positive"),
        ({"min_sqnr": float("inf")}, "finite"),
        ({"min_sqnr": 30, "rounding": "up"}, "gptq or nearest"),
        ({"min_sqnr": 30, "target": "nowhere"}, "nowhere"),
    ],
)
def test_bad_options(bounds: dict[str, Any], why: str, digits: Feeds) -> None:
    with pytest.raises(OptionError, match=why):
        onnxq.tune(MODEL, digits, **bounds)


def test_bad_models_and_data(digits: Feeds) -> None:
    with pytest.raises(DataError):
        onnxq.tune(MODEL, [], min_sqnr=30)
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) { y = Sin(x) }'
    with pytest.raises(OptionError, match="nothing to choose"):
        onnxq.tune(parser.parse_model(text), [{"x": np.ones(4, np.float32)}], min_sqnr=30)
