"""Samples from everywhere: named, checked, repeatable; bad data is one clear error."""

import gc
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser

from onnxq.calibration.sources import open_source
from onnxq.calibration.spool import Spool
from onnxq.errors import DataError, OptionError

ONE = "agraph (float[N, 3] x) => (float[N, 3] y) { y = Relu(x) }"
TWO = "agraph (float[N, 3] x, int64[N] ids, float[2] k = {1, 2}) => (float[N, 3] y) { y = Relu(x) }"


def model(graph=ONE):
    return ir.from_proto(parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {graph}'))


def x(value=0.0, rows=2):
    return np.full((rows, 3), value, np.float32)


def twice(source):
    """Two passes over a source, which must agree."""
    first, second = list(source), list(source)
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])
    return first


def values(feeds, name="x"):
    return [float(f[name].flat[0]) for f in feeds]


# ---------------------------------------------------------------------------------------------- Python objects


@pytest.mark.parametrize(
    "data",
    [
        [{"x": x(1)}, {"x": x(2, rows=5)}],
        (x(1), x(2)),
        [[x(1)], (x(2),)],
        lambda: [x(1), x(2)],
        lambda: (x(i) for i in (1, 2)),
    ],
)
def test_python_data(data):
    source = open_source(data, model())
    assert values(twice(source)) == [1, 2]
    assert values(open_source(data, model(), samples=1)) == [1]


def test_an_iterator_is_used_once_and_kept():
    assert values(twice(open_source(iter([x(1), x(2)]), model()))) == [1, 2]


def test_positional_arrays_follow_the_required_inputs():
    (feeds,) = open_source([(x(4), np.zeros(2, np.int64))], model(TWO))
    assert list(feeds) == ["x", "ids"]


def test_size_and_description():
    assert open_source([x(), x(), x()], model()).size == 3
    limited = open_source([x(), x(), x()], model(), samples=2)
    assert limited.size == 2 and limited.describe() == "a list, first 2"
    assert open_source(lambda: [x()], model()).size is None


def test_one_mapping_or_array_is_one_sample():
    assert values(open_source({"x": x(3)}, model())) == [3]
    assert values(open_source(x(3), model())) == [3]


def test_a_limit_draws_no_sample_too_many():
    drawn = []

    def data():
        for i in range(5):
            drawn.append(i)
            yield x(i)

    assert values(open_source(data, model(), samples=2)) == [0, 1]
    assert drawn == [0, 1]


def test_broken_off_pass_over_an_iterator_loses_nothing_and_files_go_with_it():
    spool = Spool(iter([x(1), x(2), x(3)]))
    first = iter(spool)
    assert next(first).flat[0] == 1
    assert [float(v.flat[0]) for v in spool] == [1, 2, 3]
    folder = spool._folder
    assert len(list(folder.iterdir())) == 3
    del spool, first
    gc.collect()
    assert not folder.exists()


@pytest.mark.parametrize("data", [[], lambda: [], iter([])])
def test_empty_data_is_an_error(data):
    with pytest.raises(DataError, match="holds no samples"):
        list(open_source(data, model()))


@pytest.mark.parametrize(("data", "message"), [(7, "got a int"), (None, "got a NoneType")])
def test_not_data_at_all(data, message):
    with pytest.raises(OptionError, match=message):
        open_source(data, model())


def test_no_samples_asked_for():
    with pytest.raises(OptionError, match="at least 1, got 0"):
        open_source([x()], model(), samples=0)


# ---------------------------------------------------------------------------------------------------- the check


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"X": x()}, r"'X' is no input of the model; did you mean x\?; input 'x' \(float32\[N, 3\]\) is missing"),
        (
            {"x": x().astype("f8")},
            r"takes float32\[N, 3\], got float64\[2, 3\] \(type: convert it with .astype\('float32'",
        ),
        ({"x": x()[0]}, r"got float32\[3\] \(rank 2 wanted, got 1\)"),
        ({"x": x().T}, r"got float32\[3, 2\] \(dimension 1 must be 3\)"),
        ([x(), x()], r"holds 2 unnamed arrays, but the model has 1 input \(x\)"),
        ("text", r"is a str; give a dict"),
    ],
)
def test_misfits_are_told_with_sample_and_difference(sample, message):
    with pytest.raises(DataError, match=f"sample 1 .*{message}"):
        list(open_source([x(), sample], model()))


def test_optional_inputs_may_be_given_or_left_out():
    ids = np.zeros(2, np.int64)
    assert len(list(open_source([{"x": x(), "ids": ids}], model(TWO)))) == 1
    assert len(list(open_source([{"x": x(), "ids": ids, "k": np.float32([3, 4])}], model(TWO)))) == 1
    with pytest.raises(DataError, match=r"input 'ids' \(int64\[N\]\) is missing"):
        list(open_source([{"x": x()}], model(TWO)))


# ---------------------------------------------------------------------------------------------------- folders


def test_folder_of_npz_and_npy(tmp_path):
    for i in (10, 9, 1):
        np.savez(tmp_path / f"s{i}.npz", x=x(i))
    np.save(tmp_path / "s2.npy", x(2))
    (tmp_path / ".hidden").write_text("")
    (tmp_path / "notes.txt").write_text("")
    source = open_source(str(tmp_path), model())
    assert values(twice(source)) == [1, 2, 9, 10]
    assert source.size == 4 and "4 .npz / .npy files" in source.describe()
    assert values(open_source(tmp_path / "s9.npz", model())) == [9]


def test_broken_array_files(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"nonsense")
    with pytest.raises(DataError, match=r"a\.npz: not a NumPy file: it begins neither as \.npz nor as \.npy$"):
        list(open_source(tmp_path, model()))
    (tmp_path / "a.npz").write_bytes(b"PK\x03\x04nonsense")
    with pytest.raises(DataError, match=r"a\.npz: not a NumPy file"):
        list(open_source(tmp_path, model()))
    np.save(tmp_path / "b.npy", np.array([{}], object))
    with pytest.raises(DataError, match=r"b\.npy: not a NumPy file of plain arrays: it holds Python objects$"):
        list(open_source(tmp_path / "b.npy", model()))


def test_model_zoo_folders(tmp_path):
    for i, (name_a, name_b) in enumerate([("x", "ids"), ("", "")]):
        folder = tmp_path / f"test_data_set_{i}"
        folder.mkdir()
        for k, (name, array) in enumerate([(name_a, x(i)), (name_b, np.zeros(2, np.int64))]):
            tensor = onnx.numpy_helper.from_array(array, name)
            (folder / f"input_{k}.pb").write_bytes(tensor.SerializeToString())
        (folder / "output_0.pb").write_bytes(b"")
    assert values(twice(open_source(tmp_path, model(TWO)))) == [0, 1]
    assert values(open_source(tmp_path / "test_data_set_1", model(TWO))) == [1]
    (tmp_path / "test_data_set_1" / "input_1.pb").write_bytes(b"\xff\xff")
    with pytest.raises(DataError, match=r"input_1\.pb: not a serialized tensor"):
        list(open_source(tmp_path, model(TWO)))


def test_names_of_a_test_set_beat_their_order(tmp_path):
    for k, (name, array) in enumerate([("ids", np.zeros(2, np.int64)), ("x", x(5))]):
        (tmp_path / f"input_{k}.pb").write_bytes(onnx.numpy_helper.from_array(array, name).SerializeToString())
    assert values(open_source(tmp_path, model(TWO))) == [5]


def test_folders_of_nothing_or_of_several_kinds(tmp_path):
    with pytest.raises(DataError, match="holds no data; want one of"):
        open_source(tmp_path, model())
    np.save(tmp_path / "a.npy", x())
    (tmp_path / "b.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"holds \.npz / \.npy files and images"):
        open_source(tmp_path, model())


def test_no_such_file():
    with pytest.raises(OptionError, match="'nowhere/data': no such file or folder"):
        open_source("nowhere/data", model())
    with pytest.raises(OptionError, match="no such file or folder"):
        open_source(Path("module:function"), model())


# ---------------------------------------------------------------------------------------------------- functions


def test_module_function_is_called_for_each_pass(tmp_path, monkeypatch):
    (tmp_path / "my_feeds_module.py").write_text(
        "import numpy as np\n"
        "calls = []\n"
        "def feeds():\n"
        "    calls.append(1)\n"
        "    for i in range(3):\n"
        "        yield {'x': np.full((1, 3), i, np.float32)}\n"
        "number = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    source = open_source("my_feeds_module:feeds", model())
    assert sys.path == before
    assert values(twice(source)) == [0, 1, 2]
    assert len(sys.modules["my_feeds_module"].calls) == 2
    assert source.describe() == "function my_feeds_module:feeds"
    with pytest.raises(OptionError, match=r"has no 'feds'; did you mean feeds\?"):
        open_source("my_feeds_module:feds", model())
    with pytest.raises(OptionError, match="is a int, not a function"):
        open_source("my_feeds_module:number", model())
    with pytest.raises(OptionError, match="cannot import 'no_such_module_here'"):
        open_source("no_such_module_here:f", model())
    del sys.modules["my_feeds_module"]


def test_what_a_function_raises_is_told(tmp_path, monkeypatch):
    (tmp_path / "my_broken_feeds.py").write_text(
        "from onnxq.errors import DataError\n"
        "def late():\n    yield {'x': [[1, 2, 3]]}\n    raise KeyError('gone')\n"
        "def own():\n    raise DataError('the disk is empty')\n"
        "def needy(path):\n    return []\n"
        "def endless():\n    return 3\n"
    )
    (tmp_path / "my_broken_module.py").write_text("def f(:\n")
    monkeypatch.chdir(tmp_path)
    for name, words in (
        ("needy", r"data 'my_broken_feeds:needy' failed: TypeError: needy\(\) missing 1 required .* 'path'"),
        ("endless", "data 'my_broken_feeds:endless' failed: TypeError: 'int' object is not iterable"),
        ("own", "^the disk is empty$"),
    ):
        with pytest.raises(DataError, match=words):
            next(iter(open_source(f"my_broken_feeds:{name}", model())))
    raw = iter(open_source("my_broken_feeds:late", model()).make())
    assert next(raw) == {"x": [[1, 2, 3]]}
    with pytest.raises(DataError, match="data 'my_broken_feeds:late' failed: KeyError: 'gone'"):
        next(raw)
    with pytest.raises(OptionError, match="cannot import 'my_broken_module' from here: SyntaxError"):
        open_source("my_broken_module:f", model())
    del sys.modules["my_broken_feeds"]


# ------------------------------------------------------------------------------------------------------- random


def test_random_only_with_numbers_for_open_dimensions():
    with pytest.raises(OptionError, match=r"write random:N=NUMBER"):
        open_source("random", model(TWO))
    source = open_source("random:N=4", model(TWO), samples=3)
    feeds = twice(source)
    assert source.random and "seed 0, 3 samples" in source.describe() and source.size == 3
    assert [f["x"].shape for f in feeds] == [(4, 3)] * 3
    assert feeds[0]["x"].dtype == np.float32 and feeds[0]["ids"].dtype == np.int64
    assert not np.array_equal(feeds[0]["x"], feeds[1]["x"])
    other = next(iter(open_source("random:N=4", model(TWO), seed=1)))
    assert not np.array_equal(feeds[0]["x"], other["x"])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("random:N", "expected random:DIM=NUMBER"),
        ("random:N=x", "expected random:DIM=NUMBER"),
        ("random:M=2", "no open dimension 'M'"),
    ],
)
def test_random_with_wrong_dimensions(data, message):
    with pytest.raises(OptionError, match=message):
        open_source(data, model())


def test_random_for_dimensions_without_a_symbol():
    m = model("agraph (float[?, 3] x) => (float[?, 3] y) { y = Relu(x) }")
    with pytest.raises(OptionError, match=r"random:x\.0=NUMBER"):
        open_source("random", m)
    assert next(iter(open_source("random:x.0=7", m)))["x"].shape == (7, 3)


def test_paths_named_like_keywords_need_a_dot(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("random").mkdir()
    np.save("random/a.npy", x(8))
    assert values(open_source("./random", model())) == [8]
