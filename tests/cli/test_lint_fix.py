"""`onnxq lint --fix`: files in place or not at all, differences, stdin."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from typer.testing import CliRunner

from onnxq.cli.app import app
from onnxq.errors import DataError
from onnxq.linting.api import lint
from onnxq.passes.repair_pairs import RepairPairs
from tests.linting.fixable import Parts, layer, numbers

Run = Callable[..., tuple[int, str, str]]


def broken() -> Parts:
    """A pair whose two scales differ (safe to mend), and a constant that is an input, too (not safe)."""
    parts = layer()
    parts.constants["y_scale_2"] = parts.constants["y_scale"] * np.float32(1.5)
    parts.node("DequantizeLinear_y").input[1] = "y_scale_2"
    return parts


def overridable(path: Path) -> None:
    model = broken().build()
    model.graph.input.append(helper.make_tensor_value_info("b", onnx.TensorProto.INT32, [8]))
    onnx.save(model, path)


def test_fix_replaces_the_file(onnxq: Run, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(broken().build(), path)
    code, out, err = onnxq("lint", path, "--fix")
    assert code == 0 and not err and out.splitlines()[0] == "All checks passed: 1 file, 1 fixed."
    assert np.array_equal(numbers(onnx.load(path), False), numbers(layer().build(), False))
    assert [f.name for f in tmp_path.iterdir()] == ["m.onnx"]


def test_a_file_without_findings_is_not_written(onnxq: Run, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(layer().build(), path)
    os.utime(path, ns=(1, 1))
    inode = path.stat().st_ino
    assert onnxq("lint", path, "--fix")[0] == 0
    assert path.stat().st_mtime_ns == 1 and path.stat().st_ino == inode


def test_what_cannot_be_mended_is_reported(onnxq: Run, tmp_path: Path) -> None:
    path, parts = tmp_path / "m.onnx", broken()
    parts.constants["x_scale"] = np.float32(-0.02)
    onnx.save(parts.build(), path)
    code, out, _ = onnxq("lint", path, "--fix", "--format", "concise")
    assert code == 1 and "OQ201" in out and "OQ101" not in out and "(1 fixed)" in out


def test_unsafe_fixes_are_asked_for(onnxq: Run, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    overridable(path)
    code, out, _ = onnxq("lint", path, "--fix")
    assert code == 0 and "[~] OQ017" not in out and "OQ017" in out and "1 with --unsafe-fixes" in out
    assert len(onnx.load(path).graph.input) == 2
    code, out, _ = onnxq("lint", path, "--fix", "--unsafe-fixes")
    assert code == 0 and "OQ017" not in out and [v.name for v in onnx.load(path).graph.input] == ["x"]


def test_diff_changes_nothing(onnxq: Run, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(broken().build(), path)
    before = path.read_bytes()
    code, out, err = onnxq("lint", path, "--diff")
    assert code == 1 and path.read_bytes() == before
    assert out.splitlines()[:2] == [f"--- a/{path}", f"+++ b/{path}"]
    gone = [line for line in out.splitlines()[2:] if line.startswith(("-", "+"))]
    assert gone == [
        f"-constant y_scale_2:float[] = float[] {float(np.float32(0.1) * np.float32(1.5))}",
        "-DequantizeLinear_y: y:float[1,8,3,3] = DequantizeLinear[](yq, y_scale_2, y_zero)",
        "+DequantizeLinear_y: y:float[1,8,3,3] = DequantizeLinear[](yq, y_scale, y_zero)",
    ]
    assert "All checks passed" in err
    onnxq("lint", path, "--fix")
    assert onnxq("lint", path, "--diff")[:2] == (0, "")


def test_diff_shows_what_the_graph_cannot_hold(onnxq: Run, tmp_path: Path) -> None:
    path, parts = tmp_path / "m.onnx", layer()
    parts.infos.append(helper.make_tensor_value_info("gone", 1, [3]))
    onnx.save(parts.build(), path)
    code, out, _ = onnxq("lint", path, "--diff")
    assert code == 1 and out.splitlines()[-1] == "-declared gone"
    assert onnxq("lint", path, "--fix")[0] == 0 and not onnx.load(path).graph.value_info


@pytest.mark.parametrize("whole", [True, False])
def test_stdin_goes_to_stdout(whole: bool) -> None:
    data = (layer() if whole else broken()).build().SerializeToString()
    done = CliRunner().invoke(app, ["lint", "-", "--fix"], input=data)
    assert done.exit_code == 0 and "All checks passed" in done.stderr
    assert (done.stdout_bytes == data) is whole
    assert not lint(done.stdout_bytes)


@pytest.mark.parametrize("name", ["m.onnx.data", "weights.bin"])
def test_external_data_stay_external(name: str, onnxq: Run, tmp_path: Path) -> None:
    path, parts = tmp_path / "m.onnx", broken()
    parts.constants["table"] = np.arange(1000, dtype=np.float32)
    model = parts.build()
    model.graph.node.append(helper.make_node("Identity", ["table"], ["t"], "Identity_t"))
    model.graph.output.append(helper.make_tensor_value_info("t", 1, [1000]))
    onnx.save(model, path, save_as_external_data=True, location=name, size_threshold=1000)
    assert onnxq("lint", path, "--fix")[0] == 0
    assert (tmp_path / "m.onnx.data").stat().st_size >= 4000 and path.stat().st_size < 4000
    loaded = onnx.load(path)
    (table,) = [t for t in loaded.graph.initializer if t.name == "table"]
    assert np.array_equal(numpy_helper.to_array(table), np.arange(1000))


def test_a_fix_that_fails_leaves_the_file(onnxq: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(self: RepairPairs, model: object, ctx: object) -> bool:
        raise DataError("it is too late")

    one, other = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(broken().build(), one)
    parts = layer()
    parts.nodes.reverse()
    onnx.save(parts.build(), other)
    before = one.read_bytes()
    monkeypatch.setattr(RepairPairs, "run", fail)
    code, out, err = onnxq("lint", tmp_path, "--fix")
    assert code == 2 and one.read_bytes() == before
    assert f"{one}: not mended, and left as it was: the fix repair-pairs failed: it is too late" in err
    assert "OQ101" in out and not lint(str(other)), "the other file goes on"


def test_a_file_that_cannot_be_written_is_named(onnxq: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(broken().build(), path)
    before = path.read_bytes()

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    monkeypatch.setattr(os, "replace", full)
    code, _, err = onnxq("lint", path, "--fix")
    assert code == 2 and "No space left on device" in err and path.read_bytes() == before


def test_an_unreadable_file_is_a_finding(onnxq: Run, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"no model")
    code, out, _ = onnxq("lint", path, "--fix")
    assert code == 1 and "OQ001" in out and path.read_bytes() == b"no model"
    assert onnxq("lint", path, "--diff")[:2] == (1, "")
