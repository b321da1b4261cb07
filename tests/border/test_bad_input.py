"""Files that are no models: one error each, with the file and the reason."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
from onnx import ModelProto

from onnxq import border
from onnxq.errors import InputError, OptionError, UnsupportedError


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as error:
        border.open_model(path)
    assert str(error.value).startswith(f"{path}: ")
    return str(error.value)


def test_no_such_file(tmp_path: Path) -> None:
    assert refusal(tmp_path / "no.onnx").endswith("No such file or directory")


def test_a_directory(tmp_path: Path) -> None:
    assert "this is a directory" in refusal(tmp_path)


def test_a_file_as_folder(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    assert "Not a directory" in refusal(tmp_path / "f" / "m.onnx")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").touch(0o000)
    assert "Permission denied" in refusal(tmp_path / "m.onnx")


def test_empty(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").touch()
    assert "empty, not an ONNX model" in refusal(tmp_path / "m.onnx")
    with pytest.raises(InputError, match="empty"):
        border.open_model(b"")


def test_other_formats(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("data.pkl", b"1" * 5000)
    assert "not an ONNX model" in refusal(path)
    for text in (json.dumps({"graph": {}}), "<html>", "version https://git-lfs.github.com/spec/v1\n", "\n\n"):
        path.write_text(text)
        assert "not an ONNX model" in refusal(path)


def test_every_truncation(build: Any, tmp_path: Path) -> None:
    data = build.mlp(2).SerializeToString()
    path = tmp_path / "m.onnx"
    for size in [*range(1, 60), 5000, 20000, *range(len(data) - 60, len(data))]:
        path.write_bytes(data[:size])
        try:
            whole = border.open_model(path).to_proto()
        except InputError as error:
            assert str(error).startswith(f"{path}: not an ONNX model")
        else:  # cut between two fields: what is left is a model, as protobuf sees it
            assert whole == ModelProto.FromString(data[:size])


def test_the_error_says_where_a_truncated_file_ends(build: Any, tmp_path: Path) -> None:
    data = build.mlp(2).SerializeToString()
    (tmp_path / "m.onnx").write_bytes(data[:20000])
    assert "or truncated: byte 2: field 7 ends" in refusal(tmp_path / "m.onnx")


def test_errors_of_the_model_name_the_file_too(build: Any, tmp_path: Path) -> None:
    model = build.model(ir=99)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(UnsupportedError, match=r"m\.onnx: IR version 99"):
        border.open_model(tmp_path / "m.onnx")


def test_a_pipe_is_read_as_a_whole(build: Any, tmp_path: Path) -> None:
    read, write = os.pipe()
    os.write(write, build.model().SerializeToString())
    os.close(write)
    assert border.open_model(f"/dev/fd/{read}").to_proto() == build.model()
    os.close(read)


def test_an_odd_but_legal_message_goes_through_the_parser(build: Any) -> None:
    """A group is legal wire format that no ONNX model has; the scan leaves it to the parser, which calls it unknown."""
    data = build.mlp(1).SerializeToString() + b"\xfb\x3f\xfc\x3f"
    with pytest.raises(UnsupportedError, match="unknown field 1023"):
        border.open_model(data)


@pytest.mark.parametrize("source", [None, 3, bytearray(b"x"), ["m.onnx"]])
def test_other_sources(source: Any) -> None:
    with pytest.raises(OptionError, match="a ModelProto, bytes or a path, not"):
        border.open_model(source)
