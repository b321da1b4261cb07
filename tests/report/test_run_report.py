import json

import numpy as np
import pytest

from onnxq.context import Report
from onnxq.diagnostics import Diagnostic, Place, Severity
from onnxq.report.run import layer_table, quantized_text, to_json, to_text
from onnxq.report.tables import counts, human_bytes, share
from onnxq.report.tables import to_text as render

NODES = {
    "conv1": {"op": "Conv", "status": "integer", "code": "integer", "reason": "fused"},
    "conv0": {"op": "Conv", "status": "integer", "code": "integer", "reason": "fused"},
    "up": {"op": "ConvTranspose", "status": "float", "code": "no-integer-kernel", "reason": "ort-cpu has none"},
    "lstm": {"op": "LSTM", "status": "float", "code": "no-integer-kernel", "reason": "ort-cpu has no LSTM"},
    "cat": {"op": "Concat", "status": "float", "code": "unlike-ranges", "reason": "640 against 1"},
    "pool": {"op": "MaxPool", "status": "moves", "code": "moves", "reason": "shares"},
}


def note(code, node, severity=Severity.INFO, **numbers):
    return Diagnostic(code, f"something about {node}", severity, Place(node, "Conv"), numbers, "some-pass")


def report(reverse=False):
    notes = [
        note("raised", "conv1", ratio=2.0),
        note("raised", "conv0", ratio=np.float32(3)),
        note("odd", "up", Severity.WARNING),
    ]
    nodes = dict(reversed(NODES.items())) if reverse else dict(NODES)
    tables = {"plan": {"nodes": nodes}, "weights": {"before": 4000, "after": 1000}}
    return Report(notes[::-1] if reverse else notes, [("plan", 0.25), ("calibrate", 1.5), ("plan", 0.25)], tables)


def test_json_counts_and_groups():
    data = to_json(report())
    assert data["format"] == "onnxq-report-1"
    assert data["summary"] == {"integer": 2, "moves": 1, "dynamic": 0, "weight-only": 0, "float": 3}
    assert data["reasons"][0] == {"status": "integer", "code": "integer", "nodes": 2, "ops": {"Conv": 2}}
    assert data["reasons"][2] == {
        "status": "float",
        "code": "no-integer-kernel",
        "nodes": 2,
        "ops": {"ConvTranspose": 1, "LSTM": 1},
    }
    assert [(n["code"], n["count"]) for n in data["notes"]] == [("odd", 1), ("raised", 2)]
    assert [n["node"] for n in data["notes"][1]["notes"]] == ["conv0", "conv1"]
    assert data["weights"] == {"before": 4000, "after": 1000}
    assert list(data["layers"]) == sorted(NODES)


def test_json_is_the_same_for_the_same_run_and_has_no_times():
    first, second = (json.dumps(to_json(report(reverse))) for reverse in (False, True))
    assert first == second
    assert "1.5" not in first and "seconds" not in first


def test_json_holds_plain_numbers_only():
    odd = Report([note("x", "n", inf=float("inf"), array=np.arange(2), scalar=np.int64(3), nan=np.float32("nan"))])
    numbers = json.loads(json.dumps(to_json(odd), allow_nan=False))["notes"][0]["notes"][0]["numbers"]
    assert numbers == {"inf": "inf", "array": [0, 1], "scalar": 3, "nan": "nan"}


def test_json_copies_other_tables():
    assert to_json(Report(tables={"compare-each": [{"step": "a", "error": np.float32(0.5)}]}))["tables"] == {
        "compare-each": [{"step": "a", "error": 0.5}]
    }


def test_text():
    text = to_text(report())
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "integer 2 Conv 2" in lines and "float 3 Concat 1, ConvTranspose 1, LSTM 1" in lines
    assert any(line.startswith("no-integer-kernel 2 ConvTranspose 1, LSTM 1") and "+1 more" in line for line in lines)
    assert "Weights 4 kB -> 1 kB (25.0 %)" in lines
    assert "Time 2.00 s: calibrate 1.50 s, plan 0.50 s" in lines
    warnings = [i for i, line in enumerate(lines) if line.startswith("odd warning 1 up (Conv)")]
    infos = [i for i, line in enumerate(lines) if line.startswith("raised info 2 conv0 (Conv)")]
    assert warnings < infos
    assert "\x1b" not in text


def test_an_empty_report_is_empty():
    assert to_text(Report()) == "\n"
    assert to_json(Report())["summary"]["integer"] == 0


def test_layer_table_keeps_model_order_and_odd_names():
    nodes = {"[red]b[/]": NODES["up"], "a": NODES["conv0"]}
    text = render([layer_table(nodes)])
    assert text.index("[red]b[/]") < text.index("ort-cpu has none") < text.index("fused")


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        (
            {"a": {"status": "integer", "layer": True}, "b": {"status": "float", "layer": True}},
            "1 of 2 layers quantized",
        ),
        ({"a": {"status": "weight-only", "layer": True}, "b": {"status": "float"}}, "1 of 1 layer quantized"),
        ({"a": {"status": "float"}}, "no layers with float weights"),
    ],
)
def test_layers_in_words(nodes, text):
    assert quantized_text(nodes) == text


def test_numbers_for_people():
    assert [human_bytes(n) for n in (0, 999, 1000, 97_500_000, 999_600, 4_000_000_000)] == [
        "0 B",
        "999 B",
        "1 kB",
        "97.5 MB",
        "1 MB",
        "4 GB",
    ]
    assert (share(0, 10), share(1, 0), share(1, 100_000), share(1, 8)) == ("0 %", "0 %", "<0.1 %", "12.5 %")
    assert counts([("Conv", 2), ("Add", 1)], limit=1) == "Conv\N{NO-BREAK SPACE}2, … 1 more"
