"""The converter of checkpoints runs alone, and writes what `from-trainable` reads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from onnxq.trainable import checkpoint


def state() -> SimpleNamespace:
    """What a CheckpointState looks like from outside."""
    values = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "layer.bias": np.ones(2, np.float32)}
    return SimpleNamespace(parameters=[(name, SimpleNamespace(data=data)) for name, data in values.items()])


def test_parameters_by_name(tmp_path: Path) -> None:
    assert checkpoint.to_npz(state(), str(tmp_path / "c.npz")) == ["w", "layer.bias"]
    with np.load(tmp_path / "c.npz") as arrays:
        assert sorted(arrays) == ["layer.bias", "w"]
        np.testing.assert_array_equal(arrays["w"], np.arange(6).reshape(2, 3))


def test_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    api = SimpleNamespace(CheckpointState=SimpleNamespace(load_checkpoint=lambda path: state()))
    monkeypatch.setitem(sys.modules, "onnxruntime.training", SimpleNamespace(api=api))
    monkeypatch.setitem(sys.modules, "onnxruntime.training.api", api)
    assert checkpoint.main(["folder", str(tmp_path / "c.npz")]) == 0
    assert "2 parameters written" in capsys.readouterr().out
    assert checkpoint.main([]) == 2
    assert "usage" in capsys.readouterr().err


def test_it_needs_nothing_of_onnxq() -> None:
    """The training build's environment has neither onnxq nor onnx_ir."""
    code = "import runpy, sys; runpy.run_path(sys.argv[1]); print([m for m in sys.modules if m.startswith('onnx')])"
    done = subprocess.run([sys.executable, "-c", code, checkpoint.__file__], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
