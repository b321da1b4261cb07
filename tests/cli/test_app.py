"""The frame of the command line: help, errors, exit codes, what is imported when."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import onnxq
from onnxq.cli import _common, show
from onnxq.cli.app import COMMANDS, app
from onnxq.errors import InputError, OptionError


def call(*args: str, **kwargs: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "onnxq", *args], capture_output=True, text=True, **kwargs)  # type: ignore[call-overload]


def invoke(*args: str) -> tuple[int, str, str]:
    """Run in this process: exit code, stdout, stderr."""
    done = CliRunner().invoke(app, list(args))
    return done.exit_code, done.stdout, done.stderr


def test_help_lists_the_commands_and_imports_none_of_them() -> None:
    code = (
        "import sys\nsys.argv = ['onnxq', '--help']\n"
        "try:\n    import onnxq.__main__; onnxq.__main__.main()\nexcept SystemExit as e: assert not e.code\n"
        "heavy = {'onnx', 'onnx_ir', 'numpy', 'yaml', 'rich', 'onnxruntime', 'onnxq.cli.run', 'onnxq.registry'}\n"
        "print('imported:', sorted(heavy & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "imported: []" in out
    for name in ("run", "passes", "show", "schema"):
        assert f"\n  {name} " in out
    assert "Print a recipe with every default filled in" in out


def test_importing_onnxq_imports_nothing_heavy() -> None:
    code = "import sys, onnxq\nprint(sorted({'onnx', 'onnx_ir', 'numpy', 'yaml', 'typer'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize("name", [n for n in COMMANDS if Path(show.__file__).with_name(f"{n}.py").is_file()])
def test_every_command_has_help_and_a_line_in_the_list(name: str) -> None:
    code, out, _ = invoke(name, "--help")
    assert code == 0 and out.startswith(f"Usage: root {name} ") and "--help" in out
    assert invoke("-h")[1].count(f"\n  {name} ") == 1


def test_a_command_whose_module_is_missing_is_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxq.cli.app.COMMANDS", ("nowhere", "show"))
    code, out, _ = invoke("--help")
    assert code == 0 and "show" in out and "nowhere" not in out
    assert invoke("nowhere")[0] == 2


def test_version() -> None:
    assert invoke("--version")[:2] == (0, f"onnxq {onnxq.__version__}\n")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["shw"], "no such command 'shw'; did you mean show?"),
        (["show", "plan", "--parm", "x=1"], "--param"),
        (["show", "plan", "--pass-dri", "x"], "--pass-dir"),
        (["show"], "Missing argument 'RECIPE'"),
        ([], "Usage: "),
    ],
)
def test_bad_usage_is_exit_code_2_with_the_nearest_name(args: list[str], message: str) -> None:
    code, out, err = invoke(*args)
    assert code == 2 and message in out + err


def test_an_error_raised_on_purpose_is_one_line_on_stderr() -> None:
    done = call("show", "pln")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: unknown pass or recipe 'pln'; did you mean plan?\n"


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (OptionError("bad"), 2, "error: bad\n"),
        (PermissionError(13, "Permission denied", "/x/y"), 2, "error: /x/y: Permission denied\n"),
        (OSError("disk on fire"), 2, "error: disk on fire\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_exit_codes(monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, text: str) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr("onnxq.recipe.load_recipe", lambda *args, **kwargs: fail())
    assert invoke("show", "plan")[::2] == (code, text)


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("onnxq.recipe.load_recipe", crash)
    assert isinstance(CliRunner().invoke(app, ["show", "plan"]).exception, ZeroDivisionError)


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    command = f"{sys.executable} -m onnxq schema | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.stdout == "{\n" and "Traceback" not in done.stderr


def test_ctrl_c_ends_with_130_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "sleep.py").write_text("import time\nprint('ready', flush=True)\ntime.sleep(60)\n")
    command = [sys.executable, "-m", "onnxq", "show", "sleep", "--pass-dir", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (130, "interrupted\n")


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_is_no_place_for_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Terminal())
    with pytest.raises(InputError, match="MODEL is -, but no model comes in on stdin"):
        _common.source("-")
    monkeypatch.setattr("sys.stdout", Terminal())
    with pytest.raises(OptionError, match="OUT is -, but stdout is a terminal: redirect it, or name a file"):
        _common.check_out("-")


def test_progress_is_a_bar_for_each_label_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    with _common.progress() as show:
        show("calibrate", 1, 4)
        show("calibrate", 4, 4)
        show("search", 3, 0)  # nobody knows how many
    text = stream.getvalue()
    assert "calibrate" in text and "4/4" in text and "search" in text
    monkeypatch.setattr("sys.stderr", io.StringIO())
    with _common.progress() as show:
        show("calibrate", 1, 4)
    assert sys.stderr.getvalue() == ""  # type: ignore[attr-defined]
