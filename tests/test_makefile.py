"""The Makefile: help first, a set-up that happens once, and a clear word about an old Python."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TARGETS = ("help", "venv", "demo", "test", "cover", "lint", "type", "bench", "docs", "dist", "clean")

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="this machine has no make")


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "VENV", "ARGS")}
    return subprocess.run(["make", *arguments], cwd=ROOT, capture_output=True, text=True, check=False, env=environment)


def test_help_is_the_default_and_lists_every_target() -> None:
    assert make().stdout == make("help").stdout
    listed = re.findall(r"^  make (\w+) +\S", make().stdout, re.M)
    assert set(TARGETS) <= set(listed)
    assert listed[0] == "help"
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert phony is not None
    assert sorted(phony[1].split()) == sorted(listed)


def test_tests_set_themselves_up_once(tmp_path: Path) -> None:
    fresh = make("-n", "test", f"VENV={tmp_path}/env").stdout
    assert re.search(r"-m venv .*\n(.*\n)*.*pip install .*\[dev\](.*\n)*.*-m pytest", fresh)
    ready = tmp_path / "env" / ".ready"
    ready.parent.mkdir()
    ready.touch()
    assert "pip install" not in make("-n", "test", f"VENV={tmp_path}/env").stdout
    changed = (ROOT / "pyproject.toml").stat().st_mtime - 10
    os.utime(ready, (changed, changed))
    assert "pip install" in make("-n", "test", f"VENV={tmp_path}/env").stdout


def test_cover_runs_what_test_runs_and_has_a_floor() -> None:
    suite, covered = (make("-n", target).stdout.splitlines()[-1].rstrip() for target in ("test", "cover"))
    assert covered == f"{suite} --cov --cov-fail-under=90"


def test_an_old_python_is_named(tmp_path: Path) -> None:
    done = make("venv", f"VENV={tmp_path}/env", "PYTHON=false")
    assert done.returncode != 0
    assert "onnxq needs Python 3.10 or newer, for example: make venv PYTHON=python3.12" in done.stderr
    assert not (tmp_path / "env").exists()


def test_no_index_is_named() -> None:
    text = (ROOT / "Makefile").read_text() + (ROOT / ".ci" / "run").read_text()
    assert not re.search(r"https?://|index-url", text)
