"""Samples that lie in files: .npz, .npy, and the test_data_set folders of the ONNX model zoo."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onnxq.calibration.feeds import Port
from onnxq.errors import DataError
from onnxq.wording import plural

Reader = Callable[[], Any]


def natural(path: Path) -> tuple[Any, ...]:
    """Sort key that puts ``x_10`` after ``x_9``."""
    return tuple(int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name))


def array_reader(path: Path) -> Reader:
    """Reads one .npz (a mapping) or .npy file (one array); a file is one sample."""

    def read() -> Any:
        try:
            with path.open("rb") as file:
                if file.peek(6)[:6] != b"\x93NUMPY" and file.peek(2)[:2] != b"PK":
                    raise DataError(f"{path}: not a NumPy file: it begins neither as .npz nor as .npy")
                loaded = np.load(file, allow_pickle=False)
                if isinstance(loaded, np.ndarray):
                    return loaded
                return {name: loaded[name] for name in loaded.files}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            why = "it holds Python objects" if "allow_pickle" in str(error) else error
            raise DataError(f"{path}: not a NumPy file of plain arrays: {why}") from error

    return read


def test_set_reader(folder: Path, ports: Sequence[Port]) -> Reader:
    """Reads ``input_0.pb``, ``input_1.pb`` ... of one folder.

    The tensors go to the inputs they are named after; where names do not say it, to the inputs in order.
    """

    def read() -> Any:
        import onnx

        tensors = []
        for path in sorted(folder.glob("input_*.pb"), key=natural):
            try:
                tensors.append(onnx.TensorProto.FromString(path.read_bytes()))
                onnx.numpy_helper.to_array(tensors[-1])
            except Exception as error:
                raise DataError(f"{path}: not a serialized tensor: {error}") from error
        names = [t.name for t in tensors]
        arrays = [onnx.numpy_helper.to_array(t) for t in tensors]
        if len(set(names)) == len(names) and set(names) <= {p.name for p in ports}:
            return dict(zip(names, arrays, strict=True))
        if len(arrays) > len(ports):
            raise DataError(
                f"{folder}: {plural(len(arrays), 'input file')} for a model with {plural(len(ports), 'input')}"
            )
        return {port.name: array for port, array in zip(ports, arrays, strict=False)}

    return read
