"""The Makefile: help first, a set-up that happens once, and a clear word about an old Python."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TARGETS = ("help", "venv", "demo", "test", "test-training", "cover", "lint", "type", "bench", "docs", "dist", "clean")

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="this machine has no make")


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    ours = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "VENV", "TRAINING_VENV", "TRAINING_PYTHON", "ARGS")
    environment = {k: v for k, v in os.environ.items() if k not in ours}
    return subprocess.run(["make", *arguments], cwd=ROOT, capture_output=True, text=True, check=False, env=environment)


def test_help_is_the_default_and_lists_every_target() -> None:
    assert make().stdout == make("help").stdout
    listed = re.findall(r"^  make ([\w-]+) +\S", make().stdout, re.M)
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


@pytest.fixture
def ready(tmp_path: Path) -> tuple[str, str]:
    """Arguments that say: the tool's environment is there, the one of the training build is not."""
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / ".ready").touch()
    return f"VENV={tmp_path}/env", f"TRAINING_VENV={tmp_path}/training"


def test_the_training_build_has_an_environment_of_its_own(tmp_path: Path, ready: tuple[str, str]) -> None:
    fresh = make("-n", "test-training", *ready).stdout
    assert re.search(r"-m venv .*\n.*pip install .*--no-deps -r tests/training_build/requirements.txt", fresh)
    assert f"ONNXQ_TRAINING_PYTHON={tmp_path}/training/bin/python" in fresh
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / ".ready").touch()
    assert "pip install" not in make("-n", "test-training", *ready).stdout
    assert "not training" in make("-n", "test", *ready).stdout


def test_a_python_without_training_build_is_named(tmp_path: Path, ready: tuple[str, str]) -> None:
    done = make("test-training", *ready, "TRAINING_PYTHON=false no-such-python")
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if not line.startswith("make: ***")]
    assert said == [
        "onnxruntime-training-cpu has wheels for Python 3.10 to 3.12 only, and there is none; "
        "for example: make test-training TRAINING_PYTHON=/opt/python3.12/bin/python"
    ]
    assert not (tmp_path / "training").exists()


def test_no_index_is_named() -> None:
    text = (ROOT / "Makefile").read_text() + (ROOT / ".ci" / "run").read_text()
    assert not re.search(r"https?://|index-url", text)
