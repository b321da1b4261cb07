"""[tool.onnxq.lint]: what a project may say, and how it is told that it may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxq.config import read_config, read_config_file
from onnxq.diagnostics import Diagnostic, Place, Severity
from onnxq.errors import OptionError
from onnxq.linting.files import merged
from onnxq.linting.settings import LintSettings

FULL = """
[tool.onnxq.lint]
select = ["OQ1", "OQ2"]
extend-select = ["OQ303"]
ignore = ["OQ104"]
fail-on = "warning"
max-warnings = 3
target = "ort-cpu"
baseline = "known.json"
[tool.onnxq.lint.per-file-ignores]
"old/*.onnx" = ["OQ1"]
[tool.onnxq.lint.per-node-ignores]
"head.*" = ["ALL"]
"""


def finding(code: str, node: str = "n", severity: Severity = Severity.ERROR) -> Diagnostic:
    return Diagnostic(code, "m", severity, Place(node, "Conv"))


@pytest.fixture
def settings(tmp_path: Path) -> LintSettings:
    (tmp_path / "pyproject.toml").write_text(FULL)
    return read_config(tmp_path).lint


def test_all_that_can_be_said(settings: LintSettings, tmp_path: Path) -> None:
    assert (settings.select, settings.extend_select, settings.ignore) == (("OQ1", "OQ2"), ("OQ303",), ("OQ104",))
    assert (settings.fail_on, settings.max_warnings, settings.target) == ("warning", 3, "ort-cpu")
    assert settings.baseline == tmp_path / "known.json"


def test_files_and_nodes_can_be_left_alone(settings: LintSettings, tmp_path: Path) -> None:
    assert settings.ignores(finding("OQ101"), tmp_path / "old" / "m.onnx")
    assert not settings.ignores(finding("OQ201"), tmp_path / "old" / "m.onnx")
    assert not settings.ignores(finding("OQ101"), tmp_path / "new" / "m.onnx")
    assert settings.ignores(finding("OQ201", "head.conv"), None) and not settings.ignores(finding("OQ201"), None)


def test_what_makes_the_exit_code(settings: LintSettings) -> None:
    warning, info = finding("OQ1", severity=Severity.WARNING), finding("OQ1", severity=Severity.INFO)
    assert settings.fails([warning]) and not settings.fails([info])
    plain = LintSettings()
    assert plain.fails([finding("OQ1")]) and not plain.fails([warning, info])
    assert not LintSettings(fail_on="never").fails([finding("OQ1")])
    few = LintSettings(max_warnings=1)
    assert few.fails([warning] * 2) and not few.fails([warning])


def test_the_command_line_wins_where_it_says_something(settings: LintSettings) -> None:
    changed = merged(settings, select=(), fail_on="error", target=None)
    assert (changed.select, changed.fail_on, changed.target) == (settings.select, "error", "ort-cpu")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("lint.selct = []", "unknown setting 'lint.selct'; did you mean select"),
        ("lint.select = 'OQ1'", "lint.select must be a list of codes"),
        ("lint.fail-on = 'bad'", "lint.fail-on must be one of error, warning, info, never, not 'bad'"),
        ("lint.max-warnings = -1", "lint.max-warnings must be a number from 0 on"),
        ("lint.target = 3", "lint.target must be a text"),
        ("lint.per-file-ignores = ['a']", "lint.per-file-ignores must be a table"),
        ("lint = 3", "lint must be a table"),
    ],
)
def test_mistakes_name_file_and_key(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "onnxq.toml"
    file.write_text(text)
    with pytest.raises(OptionError, match=says) as error:
        read_config_file(file)
    assert str(file) in str(error.value)
