"""`onnxq quantize`: files in and out, round trips of plan and ranges, and every kind of bad input."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser
from typer.testing import CliRunner

from onnxq.cli.app import app

Ran = tuple[int, str, str]
Cli = Callable[..., Ran]

NET = """<ir_version: 8, opset_import: ["" : 17]> g (float[n,4,8,8] x) => (float[n,6] y) {
  [a] a = Conv<pads=[1,1,1,1]>(x, w1) [b] b = Relu(a) [c] c = Conv(b, w2) [d] d = Relu(c)
  [e] e = GlobalAveragePool(d) [f] f = Flatten(e) [y] y = Gemm<transB=1>(f, w3) }"""
QUICK = ("--no-search",)


def save(path: Path, text: str = NET) -> None:
    rng = np.random.default_rng(0)
    proto = parser.parse_model(text)
    for name, shape in {"w1": (8, 4, 3, 3), "w2": (16, 8, 1, 1), "w3": (6, 16)}.items():
        array = (rng.standard_normal(shape) * 0.3).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.save(proto, path)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model, three samples, and the folder they lie in as working directory."""
    save(tmp_path / "m.onnx")
    (tmp_path / "data").mkdir()
    rng = np.random.default_rng(1)
    for i in range(3):
        np.savez(tmp_path / "data" / f"{i}.npz", x=rng.standard_normal((1, 4, 8, 8)).astype(np.float32))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ops(model: onnx.ModelProto) -> list[str]:
    return [n.op_type for n in model.graph.node]


def test_a_model_and_a_folder(folder: Path, onnxq: Cli) -> None:
    before = Path("m.onnx").read_bytes()
    code, out, err = onnxq("quantize", "m.onnx", "-o", "sub/q.onnx", "--data", "data")
    assert (code, err) == (0, "") and Path("m.onnx").read_bytes() == before
    model = onnx.load("sub/q.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert ops(model).count("QuantizeLinear") == 5
    for part in ("Layers", "integer", "Weights", "%)", "Notes", "Time", "Written  sub/q.onnx ("):
        assert part in out, part
    assert [p.name for p in Path("sub").iterdir()] == ["q.onnx"]


def test_the_same_bytes_twice_and_in_place(folder: Path, onnxq: Cli) -> None:
    for name in ("1.onnx", "2.onnx"):
        assert onnxq("quantize", "m.onnx", "-o", name, "--data", "data", "--method", "mse")[0] == 0
    assert Path("1.onnx").read_bytes() == Path("2.onnx").read_bytes()
    assert onnxq("quantize", "m.onnx", "-o", "m.onnx", "--data", "data", "--method", "mse")[0] == 0
    assert Path("m.onnx").read_bytes() == Path("1.onnx").read_bytes()


def test_stdin_to_stdout(folder: Path) -> None:
    """Nothing but the model on stdout; the report goes to stderr."""
    given = Path("m.onnx").read_bytes()
    done = CliRunner().invoke(app, ["quantize", "-", "-o", "-", "--data", "data", *QUICK], input=given)
    assert done.exit_code == 0, done.stderr
    assert "QuantizeLinear" in ops(onnx.load_from_string(done.stdout_bytes))
    assert "Layers" in done.stderr and "Written" not in done.stderr


def test_report_plan_and_ranges(folder: Path, onnxq: Cli) -> None:
    code, *_ = onnxq(
        "quantize", "m.onnx", "-o", "q.onnx", "--data", "data", "--method", "minmax", *QUICK,
        "--report", "out/report.json", "--save-plan", "out/plan.json", "--save-ranges", "out/ranges.json",
    )  # fmt: skip
    assert code == 0 and sorted(p.name for p in Path("out").iterdir()) == ["plan.json", "ranges.json", "report.json"]
    report, plan, ranges = (json.loads(Path(f"out/{n}.json").read_text()) for n in ("report", "plan", "ranges"))
    assert report["summary"] == {"integer": 6, "moves": 1, "dynamic": 0, "weight-only": 0, "float": 0}
    layer = {"op": "Conv", "layer": True, "status": "integer", "code": "layer", "reason": "Conv on integers"}
    layer["types"] = "uint8 x int8"
    assert plan["nodes"]["c"] == layer and "layer" not in plan["nodes"]["b"]
    stacked = np.concatenate([np.load(f"data/{i}.npz")["x"] for i in range(3)])
    assert ranges["ranges"]["x"]["lo"] == stacked.min() and ranges["ranges"]["x"]["hi"] == stacked.max()
    # Ranges instead of samples; without samples nothing is measured and rounding is to nearest.
    code, out, _ = onnxq("quantize", "m.onnx", "-o", "r.onnx", "--ranges", "out/ranges.json")
    assert code == 0 and "no samples to measure on" in out
    one, two = (numpy_helper.to_array(_initializer(n, "x_scale")) for n in ("q.onnx", "r.onnx"))
    assert one == two
    # An edited plan goes back in.
    plan["nodes"]["c"]["status"] = "float"
    Path("edited.json").write_text(json.dumps(plan))
    assert onnxq("quantize", "m.onnx", "-o", "p.onnx", "--data", "data", "--plan", "edited.json", *QUICK)[0] == 0
    (conv,) = [n for n in onnx.load("p.onnx").graph.node if n.name == "c"]
    assert conv.input[1] == "w2"
    onnxq("quantize", "m.onnx", "-o", "p2.onnx", "--data", "data", "--exclude", "c", *QUICK)
    (conv,) = [n for n in onnx.load("p2.onnx").graph.node if n.name == "c"]
    assert conv.input[1] == "w2"


def _initializer(file: str, name: str) -> onnx.TensorProto:
    (found,) = [t for t in onnx.load(file).graph.initializer if t.name == name]
    return found


def test_types_and_selectors(folder: Path, onnxq: Cli) -> None:
    code, *_ = onnxq(
        "quantize", "m.onnx", "-o", "q.onnx", "--data", "data", "--activations", "uint16", "--weights", "int4",
        "--include", "re:[a-f]", "--exclude", "f", "--exclude", "op:Gl*", "--samples", "2", *QUICK,
    )  # fmt: skip
    assert code == 0
    types = {t.name: t.data_type for t in onnx.load("q.onnx").graph.initializer}
    assert types["w1_quantized"] == onnx.TensorProto.INT4 and types["x_zero_point"] == onnx.TensorProto.UINT16
    assert types["w2_quantized"] == onnx.TensorProto.INT4 and types["w3"] == onnx.TensorProto.FLOAT


def test_other_sources_of_samples(folder: Path, onnxq: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("feeds_of_mine.py").write_text(
        "import numpy as np\n\n\ndef samples():\n    yield {'x': np.ones((1, 4, 8, 8), np.float32)}\n"
    )
    monkeypatch.delitem(sys.modules, "feeds_of_mine", raising=False)
    assert onnxq("quantize", "m.onnx", "-o", "1.onnx", "--data", "feeds_of_mine:samples", *QUICK)[0] == 0
    assert onnxq("quantize", "m.onnx", "-o", "2.onnx", "--data", "random:n=2", "--samples", "2", *QUICK)[0] == 0
    props = {p.key: p.value for p in onnx.load("2.onnx").metadata_props}
    assert props["onnxq.data"] == "random:n=2 numbers (seed 0, 2 samples)"
    assert onnxq("quantize", "m.onnx", "-o", "3.onnx", "--recipe", "dynamic")[0] == 0
    assert "DynamicQuantizeLinear" in ops(onnx.load("3.onnx"))


# -- bad input ---------------------------------------------------------------------------------------------------------


def refused(onnxq: Cli, *args: Any, data: str | None = "data", model: str = "m.onnx") -> str:
    """The one line on stderr; exit code 2, nothing on stdout, nothing written."""
    before = sorted(p.name for p in Path().rglob("*"))
    given = () if data is None else ("--data", data)
    code, out, err = onnxq("quantize", model, "-o", "out/z.onnx", *given, *args)
    assert code == 2 and out == "" and err.startswith("error: ") and len(err.splitlines()) == 1, err
    assert "Traceback" not in err and sorted(p.name for p in Path().rglob("*")) == before
    return err


def broken_models(folder: Path) -> None:
    whole = (folder / "m.onnx").read_bytes()
    (folder / "text.onnx").write_text("I am no model, but a letter.")
    (folder / "empty.onnx").write_bytes(b"")
    (folder / "cut.onnx").write_bytes(whole[: len(whole) // 2])
    onnx.save(
        onnx.load(folder / "m.onnx"), folder / "e.onnx", save_as_external_data=True, location="e.data", size_threshold=0
    )
    (folder / "e.data").unlink()
    new = onnx.load(folder / "m.onnx")
    new.opset_import[0].version = 99
    onnx.save(new, folder / "new.onnx")
    save(
        folder / "custom.onnx",
        NET.replace('"" : 17', '"" : 17, "mine" : 1').replace(
            "[f] f = Flatten(e)", "[k] k = mine.Odd(e) [f] f = Flatten(k)"
        ),
    )


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("none.onnx", "none.onnx: No such file"),
        ("data", "data: this is a directory, not an ONNX file"),
        ("text.onnx", "text.onnx: not an ONNX model"),
        ("empty.onnx", "empty.onnx: "),
        ("cut.onnx", "cut.onnx: not an ONNX model, or truncated"),
        ("e.onnx", "e.data"),
        ("new.onnx", "99"),
        ("custom.onnx", "give its kernels with --custom-op-library"),
    ],
)
def test_bad_models(model: str, message: str, folder: Path, onnxq: Cli) -> None:
    broken_models(folder)
    assert message in refused(onnxq, model=model)


def test_custom_ops_pass_through_where_nothing_is_run(folder: Path, onnxq: Cli) -> None:
    broken_models(folder)
    assert onnxq("quantize", "custom.onnx", "-o", "q.onnx", "--recipe", "dynamic")[0] == 0
    assert "Odd" in ops(onnx.load("q.onnx")) and "DynamicQuantizeLinear" in ops(onnx.load("q.onnx"))


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("x", np.zeros((1, 3, 8, 8), np.float32), "dimension 1 must be 4"),
        ("x", np.zeros((4, 8, 8), np.float32), "rank 4 wanted, got 3"),
        ("x", np.zeros((1, 4, 8, 8), np.float64), "convert it with .astype('float32')"),
        ("xx", np.zeros((1, 4, 8, 8), np.float32), "'xx' is no input of the model; did you mean x?"),
        ("x", np.full((1, 4, 8, 8), np.nan, np.float32), "input 'x' is NaN in sample 0"),
    ],
)
def test_bad_samples(name: str, array: Any, message: str, folder: Path, onnxq: Cli) -> None:
    Path("odd").mkdir()
    np.savez("odd/0.npz", **{name: array})
    assert message in refused(onnxq, data="odd")


@pytest.mark.parametrize("option", ["-o", "--report", "--save-plan", "--save-ranges"])
def test_files_that_cannot_be_written(option: str, folder: Path, onnxq: Cli) -> None:
    Path("dir").mkdir()
    rest = [] if option == "-o" else ["-o", "q.onnx"]
    what = "OUT dir" if option == "-o" else "dir"
    words = f"error: {what} is a folder: name a file\n"
    assert onnxq("quantize", "m.onnx", "--data", "data", option, "dir", *rest) == (2, "", words)
    assert not Path("q.onnx").exists()
    if option != "-o":
        Path("file").write_text("")
        code, _, err = onnxq("quantize", "m.onnx", "--data", "data", option, "file/x.json", *rest)
        assert (code, err) == (2, "error: cannot write file/x.json: its folder is a file\n")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("void", "void holds no data; want one of: test_data_set folders, .npz / .npy files, images"),
        ("nowhere", "data 'nowhere': no such file or folder, and not 'module:function' or 'random'"),
        ("no_such_module:f", "cannot import 'no_such_module'"),
        ("random:q=3", "q"),
        ("random", "n"),
        (
            None,
            "calibrate needs samples (--data) or calibrated ranges (--ranges); dynamic, w8 and w4-blocked need none",
        ),
    ],
)
def test_no_samples(data: str | None, message: str, folder: Path, onnxq: Cli) -> None:
    Path("void").mkdir()
    assert message in refused(onnxq, data=data)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--weights", "int9"], "unknown quantized type 'int9'; did you mean int8"),
        (["--activations", "int8"], "int8"),
        (["--method", "minmix"], "--method: option 'method' of calibrate: expected one of minmax"),
        (["--dynamic", "maybe"], "--dynamic: option 'dynamic' of plan: expected one of auto, never"),
        (["--target", "ort"], "unknown target 'ort'; did you mean ort-cpu"),
        (["--exclude", "cc"], "selector 'cc' matches no node; did you mean c?"),
        (["--include", "op:Cnv"], "did you mean"),
        (["--recipe", "int88"], "unknown pass or recipe 'int88'; did you mean int8"),
        (["--plan", "none.json"], "cannot read the plan none.json"),
        (["--ranges", "m.onnx"], "cannot read the calibration cache m.onnx"),
        (["--preprocessing", "none.yaml"], "none.yaml"),
        (["--custom-op-library", "none.so"], "cannot load the custom-op library none.so"),
    ],
)
def test_bad_options(args: list[str], message: str, folder: Path, onnxq: Cli) -> None:
    assert message in refused(onnxq, *args)


def test_bad_plan_and_ranges_files(folder: Path, onnxq: Cli) -> None:
    Path("list.json").write_text("[]")
    assert "list.json is not a plan" in refused(onnxq, "--plan", "list.json")
    assert "list.json: not a calibration cache" in refused(onnxq, "--ranges", "list.json")
    plan = {"format": "onnxq-plan-1", "nodes": {"aa": {"status": "float"}}}
    Path("other.json").write_text(json.dumps(plan))
    assert "names node 'aa', which this model does not have; did you mean a?" in refused(onnxq, "--plan", "other.json")
    plan["nodes"] = {"a": {"status": "flaot"}}
    Path("other.json").write_text(json.dumps(plan))
    assert "unknown status 'flaot'; did you mean float?" in refused(onnxq, "--plan", "other.json")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["quantize", "m.onnx", "--data", "data"], "-o"),
        (["quantize", "-o", "q.onnx"], "MODEL"),
        (["quantize", "m.onnx", "-o", "q.onnx", "--dta", "data"], "--data"),
        (["quantize", "m.onnx", "-o", "q.onnx", "--data", "data", "--samples", "0"], "--samples"),
    ],
)
def test_bad_usage(args: list[str], message: str, folder: Path, onnxq: Cli) -> None:
    code, out, err = onnxq(*args)
    assert code == 2 and out == "" and message in err and not Path("q.onnx").exists()


def test_out_is_a_folder(folder: Path, onnxq: Cli) -> None:
    code, _, err = onnxq("quantize", "m.onnx", "-o", "data", "--data", "data")
    assert code == 2 and err == "error: OUT data is a folder: name a file\n"
    assert sorted(p.name for p in Path("data").iterdir()) == ["0.npz", "1.npz", "2.npz"]


def test_an_older_result_survives_a_failure(folder: Path, onnxq: Cli) -> None:
    Path("q.onnx").write_bytes(b"old")
    code, *_ = onnxq("quantize", "m.onnx", "-o", "q.onnx", "--data", "nowhere", "--report", "r.json")
    assert code == 2 and Path("q.onnx").read_bytes() == b"old" and not Path("r.json").exists()
