"""Findings in every format: what people and services read, held to their schemas."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel
from sarif_pydantic import Sarif

from onnxq.diagnostics import Diagnostic, Place, Severity
from onnxq.linting.files import FileReport
from onnxq.report.lint import FORMATS
from onnxq.report.lint.text import statistics

WRONG = Diagnostic(
    "OQ101", "its scale differs", Severity.ERROR, Place("conv1_DQ", "DequantizeLinear", "", "if_1/then_branch"),
    {"quantize": 0.02, "dequantize": 0.03}, "pair-parameters-differ", "Take the other.", "repair-pairs", True,
)  # fmt: skip
UNSAFE = Diagnostic("OQ017", "it is an input,\ntoo: 100 %", Severity.WARNING, Place(value="w\x01\u00e9"), {},
                    "constant-is-input", "", "freeze-defaults", False)  # fmt: skip
PLAIN = Diagnostic("OQ005", "2 nodes without a name", Severity.INFO, Place(), {"nodes": 2}, "node-name")
REPORTS = [FileReport("a,b/m:1.onnx", [WRONG, UNSAFE, WRONG], 2), FileReport("clean.onnx"), FileReport("-", [PLAIN])]


def test_text_says_where_what_and_what_to_do() -> None:
    lines = FORMATS["text"](REPORTS).splitlines()
    assert lines[:4] == [
        "error OQ101 pair-parameters-differ [*]",
        "  a,b/m:1.onnx: if_1/then_branch/conv1_DQ (DequantizeLinear)",
        "  its scale differs (quantize 0.02, dequantize 0.03)",
        "  help: Take the other.",
    ]
    assert "warning OQ017 constant-is-input [~]" in lines and "  <stdin>" in lines
    assert lines[-3:] == [
        "Found 2 errors, 1 warning, 1 info.",
        "[*] 2 fixable with --fix, [~] 1 with --unsafe-fixes.",
        "2 not shown: metadata, settings or the baseline say so.",
    ]


def test_nothing_found_is_said() -> None:
    assert FORMATS["text"]([FileReport("m.onnx")]) == "All checks passed: 1 file.\n"
    assert FORMATS["concise"]([FileReport("m.onnx", [], 0, {"OQ101": 2})]) == "All checks passed: 1 file, 2 fixed.\n"


def test_concise_has_one_line_a_finding() -> None:
    first = FORMATS["concise"](REPORTS).splitlines()[0]
    assert first == (
        "a,b/m:1.onnx: if_1/then_branch/conv1_DQ (DequantizeLinear): error OQ101 [*] its scale differs "
        "(quantize 0.02, dequantize 0.03)"
    )


def test_statistics_count_rules() -> None:
    assert statistics(REPORTS).splitlines()[:3] == [
        "2 OQ101 pair-parameters-differ", "1 OQ005 node-name", "1 OQ017 constant-is-input",
    ]  # fmt: skip


def test_json_has_stable_keys() -> None:
    whole = json.loads(FORMATS["json"](REPORTS))
    assert whole["format"] == "onnxq-lint-1" and whole["files"] == 3 and whole["suppressed"] == 2
    found = whole["findings"][0]
    assert found.pop("fingerprint") == whole["findings"][2].get("fingerprint")
    assert found == {
        "code": "OQ101", "name": "pair-parameters-differ", "severity": "error", "message": "its scale differs",
        "file": "a,b/m:1.onnx", "numbers": {"quantize": 0.02, "dequantize": 0.03}, "help": "Take the other.",
        "place": {"graph": "if_1/then_branch", "node": "conv1_DQ", "op_type": "DequantizeLinear", "value": ""},
        "fix": {"passes": ["repair-pairs"], "safe": True},
    }  # fmt: skip
    assert whole["findings"][3]["fix"] is None
    lines = FORMATS["json-lines"](REPORTS).splitlines()
    assert [json.loads(line)["code"] for line in lines] == ["OQ101", "OQ017", "OQ101", "OQ005"]


def test_github_annotations_are_one_line_each_and_name_nothing_but_the_file() -> None:
    lines = FORMATS["github"](REPORTS).splitlines()
    assert lines[0].startswith("::error file=a%2Cb/m%3A1.onnx,title=onnxq (OQ101)::if_1/then_branch/conv1_DQ")
    assert lines[1].startswith("::warning ") and "too%3A" not in lines[1] and "%0Atoo: 100 %25" in lines[1]
    assert lines[3].startswith("::notice file=<stdin>,") and len(lines) == 4


def test_gitlab_fingerprints_are_unique() -> None:
    entries = json.loads(FORMATS["gitlab"](REPORTS))
    assert len({entry["fingerprint"] for entry in entries}) == len(entries) == 4
    assert entries[0]["severity"] == "major" and entries[0]["location"] == {
        "path": "a,b/m:1.onnx", "lines": {"begin": 1},
    }  # fmt: skip


def test_junit_is_xml_with_a_case_for_each_finding_and_for_each_clean_file() -> None:
    root = ET.fromstring(FORMATS["junit"](REPORTS).encode())
    assert root.attrib == {"name": "onnxq lint", "tests": "5", "failures": "4", "errors": "0"}
    assert [(s.attrib["name"], s.attrib["failures"], len(s)) for s in root] == [
        ("a,b/m:1.onnx", "3", 3), ("clean.onnx", "0", 1), ("<stdin>", "1", 1),
    ]  # fmt: skip


def models(one: Any) -> Iterator[BaseModel]:
    """Every object of the document that the model of SARIF 2.1.0 describes."""
    if isinstance(one, BaseModel):
        yield one
        for name in type(one).model_fields:
            yield from models(getattr(one, name))
    elif isinstance(one, list):
        for each in one:
            yield from models(each)


def test_sarif_is_what_the_standard_describes() -> None:
    text = FORMATS["sarif"](REPORTS)
    whole = Sarif.model_validate_json(text)
    extra = {key for one in models(whole) for key in (one.model_extra or {})}
    assert extra <= {"columnKind", "semanticVersion", "$schema", "helpUri"}, extra
    run = json.loads(text)["runs"][0]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["OQ005", "OQ017", "OQ101"]
    result = run["results"][0]
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "OQ101"
    assert result["level"] == "error" and run["results"][3]["level"] == "note"
    (location,) = result["locations"]
    assert location["physicalLocation"] == {
        "artifactLocation": {"uri": "a%2Cb/m%3A1.onnx"}, "region": {"startLine": 1},
    }  # fmt: skip
    assert location["logicalLocations"][0]["fullyQualifiedName"] == "if_1/then_branch/conv1_DQ"
    prints = [r["partialFingerprints"]["onnxq/v1"] for r in run["results"]]
    assert len(set(prints)) == 4


def test_fingerprints_stay_when_other_findings_go() -> None:
    before = json.loads(FORMATS["sarif"]([FileReport("m.onnx", [PLAIN, WRONG])]))["runs"][0]["results"]
    after = json.loads(FORMATS["sarif"]([FileReport("m.onnx", [WRONG])]))["runs"][0]["results"]
    assert before[1]["partialFingerprints"] == after[0]["partialFingerprints"]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_takes_nothing(name: str) -> None:
    assert FORMATS[name]([FileReport("m.onnx")]) is not None
