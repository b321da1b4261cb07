"""External data coming in: read lazily, checked at once, never outside the model's folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper

from onnxq import border
from onnxq.errors import InputError, UnsupportedError


@pytest.fixture
def path(build: Any, tmp_path: Path) -> Path:
    """A model of three 16 KiB weights, all in ``m.bin``."""
    onnx.save(build.mlp(3), tmp_path / "m.onnx", save_as_external_data=True, location="m.bin")
    return tmp_path / "m.onnx"


def change(path: Path, edit: Callable[[ModelProto], Any]) -> None:
    model = onnx.load(path, load_external_data=False)
    edit(model)
    path.write_bytes(model.SerializeToString())


def set_entry(key: str, value: str) -> Callable[[ModelProto], None]:
    def edit(model: ModelProto) -> None:
        entries = model.graph.initializer[1].external_data
        kept = [(e.key, e.value) for e in entries if e.key != key]
        del entries[:]
        for k, v in [*kept, *([(key, value)] if value else [])]:
            entries.add(key=k, value=v)

    return edit


def weights(crossing: border.Crossing) -> list[Any]:
    return [v.const_value.numpy() for v in crossing.model.graph.initializers.values() if v.const_value is not None]


def test_values_are_views_of_the_file(path: Path, build: Any) -> None:
    crossing = border.open_model(path)
    assert crossing.source_path == path
    for array, tensor in zip(weights(crossing), build.mlp(3).graph.initializer, strict=True):
        np.testing.assert_array_equal(array, numpy_helper.to_array(tensor))
        assert not array.flags.owndata
        assert not array.flags.writeable


def test_a_path_gives_back_a_message_with_everything_inside(path: Path, build: Any) -> None:
    assert border.open_model(path).give_back() == build.mlp(3)
    assert border.open_model(str(path)).to_bytes() == build.mlp(3).SerializeToString()


def test_a_relative_path(path: Path, monkeypatch: pytest.MonkeyPatch, build: Any) -> None:
    monkeypatch.chdir(path.parent)
    assert border.open_model("m.onnx").give_back() == build.mlp(3)


@pytest.mark.parametrize(
    ("entry", "value", "message"),
    [
        ("location", "{folder}/m.bin", "outside the model's folder"),
        ("location", "../other/m.bin", "tensor 'w1' has its external data in '../other/m.bin', outside"),
        ("location", "a/../../m.bin", "outside the model's folder"),
        ("location", "C:\\m.bin", "outside the model's folder"),
        ("location", "..\\m.bin", "outside the model's folder"),
        ("location", "", "tensor 'w1' has external data without a usable location: ''"),
        ("location", "a\0b", "without a usable location"),
        ("location", "no.bin", "no.bin' of tensor 'w1' (16384 bytes) cannot be read: No such file"),
        ("location", ".", "of tensor 'w1' (16384 bytes) cannot be read: Is a directory"),
        ("offset", "40000", "m.bin' has 49152 bytes, and tensor 'w1' needs 16384 bytes from byte 40000 on"),
        ("offset", "-4", "the offset of its external data is '-4', which is no number"),
        ("length", "x", "tensor 'w1': the length of its external data is 'x'"),
        ("length", "8", "tensor 'w1' has 8 bytes of external data, and its type and shape need 16384"),
    ],
)
def test_bad_records_name_tensor_file_and_bytes(path: Path, entry: str, value: str, message: str) -> None:
    change(path, set_entry(entry, value.format(folder=path.parent)))
    with pytest.raises(InputError) as error:
        border.open_model(path)
    assert message in str(error.value)
    assert str(error.value).startswith(f"{path}: ")


def test_absent_numbers(path: Path, build: Any) -> None:
    change(path, set_entry("length", ""))
    assert border.open_model(path).give_back() == build.mlp(3)
    change(path, set_entry("offset", ""))  # then w1 starts where w0 does
    first, second, _ = weights(border.open_model(path))
    np.testing.assert_array_equal(first, second)


def test_a_short_file(path: Path) -> None:
    data = path.with_name("m.bin")
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(InputError, match="has 49151 bytes, and tensor 'w2' needs 16384 bytes from byte 32768 on"):
        border.open_model(path)
    data.write_bytes(b"")
    with pytest.raises(InputError, match="cannot be read: the file is empty"):
        border.open_model(path)


def test_links_may_not_lead_out(path: Path, tmp_path: Path, build: Any) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (path.parent / "m.bin").rename(other / "m.bin")
    (path.parent / "m.bin").symlink_to(other / "m.bin")
    assert border.open_model(path).give_back() == build.mlp(3)  # still inside
    inner = tmp_path / "inner"
    inner.mkdir()
    path.rename(inner / "m.onnx")
    (inner / "m.bin").symlink_to(other / "m.bin")
    with pytest.raises(InputError, match="outside the model's folder"):
        border.open_model(inner / "m.onnx")


def test_download_caches_link_model_and_data(path: Path, tmp_path: Path, build: Any) -> None:
    """A cache keeps both files under hashes in one folder, and links with the real names in another."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    path.rename(blobs / "0a")
    (tmp_path / "m.bin").rename(blobs / "0b")
    (snapshot / "m.onnx").symlink_to("../blobs/0a")
    (snapshot / "m.bin").symlink_to("../blobs/0b")
    assert border.open_model(snapshot / "m.onnx").give_back() == build.mlp(3)


def test_hard_links_are_files_like_others(path: Path, build: Any) -> None:
    os.link(path.with_name("m.bin"), path.with_name("copy.bin"))
    assert border.open_model(path).give_back() == build.mlp(3)


def test_external_data_everywhere(build: Any, tmp_path: Path) -> None:
    """In a Constant, in a branch, in a function; and a tensor without values, whose file need not exist."""
    (tmp_path / "nowhere.bin").write_bytes(np.array([9, 1, 2, 3], np.float32).tobytes())
    tensor = build.external(offset="4", length="12")
    model = build.model(helper.make_node("Constant", [], ["k"], value=tensor), build.branches(tensor))
    model.functions.append(build.function())
    model.functions[0].node.append(helper.make_node("Constant", [], ["k"], value=tensor))
    nothing = model.graph.initializer.add(name="nothing", data_type=1, dims=[0, 4], data_location=1)
    nothing.external_data.add(key="location", value="no.bin")
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    result = border.open_model(tmp_path / "m.onnx").to_proto()
    then = next(a.g for a in result.graph.node[1].attribute if a.name == "then_branch").initializer[0]
    for found in (result.graph.node[0].attribute[0].t, then, result.functions[0].node[-1].attribute[0].t):
        np.testing.assert_array_equal(numpy_helper.to_array(found), [1, 2, 3])
        assert not found.external_data
    assert numpy_helper.to_array(result.graph.initializer[1]).shape == (0, 4)


@pytest.mark.parametrize("as_bytes", [False, True])
def test_without_a_folder_records_are_carried_but_not_read(path: Path, as_bytes: bool, tmp_path: Path) -> None:
    model = onnx.load(path, load_external_data=False)
    crossing = border.open_model(model.SerializeToString() if as_bytes else model)
    result = crossing.give_back()
    assert (ModelProto.FromString(result) if isinstance(result, bytes) else result) == model
    for read in (lambda: weights(crossing), lambda: crossing.save(tmp_path / "out.onnx")):
        with pytest.raises(InputError, match=r"tensor 'w0' lies in the external file 'm\.bin'.*give the path"):
            read()
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize("as_bytes", [False, True])
def test_base_dir_is_the_folder_of_a_message(path: Path, as_bytes: bool, build: Any) -> None:
    model = onnx.load(path, load_external_data=False)
    crossing = border.open_model(model.SerializeToString() if as_bytes else model, base_dir=path.parent)
    assert crossing.to_proto() == build.mlp(3)


def test_training_info_with_external_data(path: Path) -> None:
    change(path, lambda m: m.training_info.add().algorithm.initializer.append(m.graph.initializer[0]))
    with pytest.raises(UnsupportedError, match="training graph '' has external data"):
        border.open_model(path)


@pytest.mark.parametrize("kind", ["INT4", "UINT4", "INT2", "FLOAT6E2M3", "BFLOAT16", "FLOAT8E4M3FN", "INT16"])
def test_every_width_of_type_is_read_from_a_file(kind: str, tmp_path: Path) -> None:
    number = onnx.TensorProto.DataType.Value(kind)
    tensor = helper.make_tensor("w", number, [3, 5], [1, 0, 1] * 5)
    inline = numpy_helper.from_array(numpy_helper.to_array(tensor), "w")
    model = helper.make_model(helper.make_graph([], "g", [], [], [inline]))
    external = ModelProto()
    external.CopyFrom(model)
    record = external.graph.initializer[0]
    (tmp_path / "d").write_bytes(b"???" + record.raw_data)
    record.ClearField("raw_data")
    record.data_location = 1
    record.external_data.add(key="location", value="d")
    record.external_data.add(key="offset", value="3")
    (tmp_path / "m.onnx").write_bytes(external.SerializeToString())
    crossing = border.open_model(tmp_path / "m.onnx")
    np.testing.assert_array_equal(weights(crossing)[0], numpy_helper.to_array(inline))
    assert crossing.to_proto().graph == model.graph
