"""Settings of a project: where they are found, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxq.config import Config, read_config
from onnxq.errors import OptionError


def test_the_nearest_file_upwards_that_speaks_of_onnxq_holds(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[tool.onnxq]\npass-dirs = ["passes", "more"]\n')
    (tmp_path / "a" / "pyproject.toml").write_text("[tool.other]\n")
    assert read_config(inner).pass_dirs == (tmp_path / "passes", tmp_path / "more")
    (tmp_path / "a" / "onnxq.toml").write_text('pass-dirs = ["own"]\n')
    assert read_config(inner) == Config((tmp_path / "a" / "own",), tmp_path / "a" / "onnxq.toml")


def test_without_a_file_nothing_is_set(tmp_path: Path) -> None:
    assert read_config(tmp_path).pass_dirs == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.onnxq]\npas-dirs = []\n", "unknown setting 'pas-dirs'; did you mean pass-dirs"),
        ('[tool.onnxq]\npass-dirs = "passes"\n', "pass-dirs must be a list of folders"),
        ("[tool]\nonnxq = 3\n", "must be a table"),
        ("[tool.onnxq\n", "pyproject.toml: "),
    ],
)
def test_what_is_wrong_names_the_file(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(OptionError, match=f"pyproject.toml.*{message}|{message}"):
        read_config(tmp_path)
