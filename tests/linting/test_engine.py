"""From a file to findings: sources, broken files, rules that fail."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto

from onnxq import lint
from onnxq.diagnostics import Severity
from onnxq.errors import OptionError
from onnxq.linting import engine
from onnxq.linting.catalog import entries, rules
from onnxq.linting.rule import Rule
from onnxq.linting.selection import Selection
from tests.rules.lab import build

PAIR = "q = QuantizeLinear(x, s) y = DequantizeLinear(q, t)"
DATA: dict[str, Any] = {"s": np.float32(1), "t": np.float32(2), "w": np.ones((64, 64), "f")}


def codes(source: Any, **options: Any) -> list[str]:
    return [d.code for d in lint(source, **options)]


def test_the_same_of_a_message_bytes_and_a_file(tmp_path: Path) -> None:
    model, path = build(PAIR, DATA), tmp_path / "m.onnx"
    onnx.save(model, path)
    found = [str(d) for d in lint(model)]
    assert [d.split("[")[-1] for d in found] == ["OQ012]", "OQ101]"]
    for source in (model.SerializeToString(), path, str(path)):
        assert [str(d) for d in lint(source)] == found


def test_the_message_is_left_as_it_is() -> None:
    model = build(PAIR, DATA)
    before = model.SerializeToString(deterministic=True)
    lint(model, target="ort-cpu")
    assert model.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("content", [b"", b"hello, this is no model", b"version https://git-lfs.github.com/spec/v1\n"])
def test_what_is_no_model(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    for source in (path, content):
        (found,) = lint(source)
        assert found.code in ("OQ001", "OQ003", "OQ002") and found.severity is Severity.ERROR


def test_files_that_are_not_there(tmp_path: Path) -> None:
    assert codes(tmp_path / "none.onnx") == ["OQ001"] and codes(tmp_path) == ["OQ001"]


def test_a_file_cut_off_anywhere(tmp_path: Path) -> None:
    """Never a traceback: every prefix of a model ends in findings, or is a model of its own."""
    data = build(PAIR, DATA).SerializeToString()
    path = tmp_path / "m.onnx"
    for size in [*range(0, 700, 13), *range(len(data) - 600, len(data), 29)]:
        path.write_bytes(data[:size])
        found = codes(path, select="ALL")
        assert found and "OQ900" not in found, size


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_bytes_that_are_changed(data: st.DataObject) -> None:
    raw = bytearray(build(PAIR, {k: v for k, v in DATA.items() if k != "w"}).SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    assert "OQ900" not in codes(bytes(raw), select="ALL", target="ort-cpu")


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.binary(max_size=200))
def test_random_bytes(data: bytes) -> None:
    found = codes(data, select="ALL")
    assert found and "OQ900" not in found


def test_broken_graphs_get_the_wire_rules() -> None:
    model = build("a = Relu(x) a = Neg(x) y = Add(a, nobody)")
    found = lint(model)
    assert {"OQ004", "OQ007"} <= {d.code for d in found}
    (why,) = [d for d in found if d.code == "OQ002"]
    assert why.severity is Severity.INFO, "the others say what is wrong"


def test_external_data(tmp_path: Path) -> None:
    model, path = build(PAIR, DATA), tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    assert codes(path) == ["OQ012", "OQ101"], "scales are read where they lie"
    raw = path.read_bytes()
    assert "OQ009" not in codes(raw), "nobody knows the folder"
    assert codes(raw, base_dir=tmp_path) == ["OQ012", "OQ101"]
    (tmp_path / "w.bin").write_bytes(b"")
    assert "OQ009" in codes(path)
    (tmp_path / "w.bin").unlink()
    (found,) = [d for d in lint(path) if d.code == "OQ009"]
    assert "w.bin" in found.message


def test_weights_are_not_read_by_rules_that_need_none(tmp_path: Path) -> None:
    """A file of zero blocks on the disk, which no rule looks into: only its size is asked for."""
    weight = TensorProto(name="w", data_type=TensorProto.INT8, dims=[1 << 15, 1 << 15])
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="w.bin")
    model = build("d = DequantizeLinear(w, s) y = MatMul(x, d)", {"w": weight, "s": np.ones(1 << 15, "f")},
                  x="float[1,32768] x")  # fmt: skip
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    with (tmp_path / "w.bin").open("wb") as file:
        os.truncate(file.fileno(), 1 << 30)
    reading = tuple(rule.code for rule in rules().values() if rule.weights)
    assert not lint(path, ignore=(*reading, "OQ307"))
    assert all(code in entries() for code in reading) and "OQ209" in reading


def test_a_rule_that_fails_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(subject: object) -> Any:
        raise KeyError("no such thing")
        yield

    known = rules()
    one = Rule("OQ102", "pair-types-differ", Severity.ERROR, "graph", broken)
    monkeypatch.setattr("onnxq.linting.selection.rules", lambda: {**known, "OQ102": one})
    found = lint(build(PAIR, DATA))
    assert [d.code for d in found] == ["OQ012", "OQ101", "OQ900"]
    assert "OQ102" in found[-1].message and "KeyError" in found[-1].message and found[-1].severity is Severity.ERROR


def test_findings_are_sorted_and_say_what_to_do() -> None:
    found = lint(build(f"{PAIR.replace('y =', 'p =')} y = Neg(p)", {**DATA, "s": np.float32(0)}))
    assert [d.code for d in found] == sorted(d.code for d in found)
    assert all(d.source and (d.fix or d.help or d.severity) for d in found)
    (pair,) = [d for d in found if d.code == "OQ101"]
    assert (pair.source, pair.fix, pair.safe) == ("pair-parameters-differ", "repair-pairs", True)


def test_options() -> None:
    model = build(PAIR, DATA)
    with pytest.raises(OptionError, match="OQ99"):
        lint(model, select="OQ99")
    with pytest.raises(OptionError, match="nowhere"):
        lint(model, target="nowhere")


def test_the_outcome_keeps_what_fixes_need() -> None:
    outcome = engine.check(build(PAIR, DATA), Selection(select=("OQ1",)))
    assert outcome.model is not None and outcome.subject is not None
    ((rule, finding),) = outcome.findings
    assert rule.code == "OQ101" and finding.at is outcome.subject.linears[1].node
    assert outcome.reported == outcome.diagnostics


def test_wire_rules_alone_make_no_graph() -> None:
    assert engine.check(build(PAIR, DATA), Selection(select=("OQ012",))).model is None
    assert engine.check(build(PAIR, DATA), Selection(select=("OQ012",)), graph=True).model is not None


def test_the_collector_is_as_it_was() -> None:
    before = gc.get_threshold()
    lint(ModelProto())
    assert gc.get_threshold() == before
