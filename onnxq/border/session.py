"""A model for an onnxruntime session that uses the weights where they lie.

Measured on onnxruntime 1.32, Linux, 2 cores, 400 MB of weights: weights in external files are mapped, so a session is
there after 0.01 s and +3 MB of anonymous memory (with ``session.disable_prepacking``); weights inside the model file
take 0.6 s and +400 MB, in a model given as bytes 1.5 s and +800 MB, and ``add_external_initializers`` takes 0.4 s and
+400 MB, for it copies. External files may only lie in the folder of the model, not behind links out of it; but a model
given as bytes has no folder, and the session option below names one. Naming the root of the file system makes every
file reachable, at any offset, without a copy (tried with onnxruntime 1.23, 1.27 and 1.32; with a path instead of bytes
only 1.32 obeys it).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir

from onnxq.border import outgoing
from onnxq.border.files import EXTERNAL_BYTES, readable, set_external, write_data
from onnxq.border.model import Left
from onnxq.border.outgoing import Slot
from onnxq.border.part import part_for
from onnxq.border.payload import FileSpan, MappedFile
from onnxq.border.tensors import RecordTensor

FOLDER_OPTION = "session.model_external_initializers_file_folder_path"


def session_model(
    model: ir.Model, folder: Path, outputs: Sequence[ir.Value] | None = None
) -> tuple[bytes, dict[str, str]]:
    """Make a model for onnxruntime, with unchanged weights left in the files they came from.

    Args:
        model: Any model; large tensors that no file holds are written to a data file in ``folder``.
        folder: An existing folder, usually a temporary one; it must outlive the session.
        outputs: Values that nodes of the main graph make, to return instead of the model's outputs; what they do not
            need is left out.

    Returns:
        The model to give to ``InferenceSession``, small since all large weights are outside, and the session config
        entries that it needs (``SessionOptions.add_session_config_entry``).

    Raises:
        InputError: A tensor's data cannot be found.
    """
    root = Path(folder.resolve().anchor)
    data = folder / "weights"
    part = None if outputs is None else part_for(model.graph, outputs)
    shell, slots = outgoing.shell(model, Left(), part)  # onnxruntime has no use for training information
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
    return shell.SerializeToString(deterministic=True), {FOLDER_OPTION: str(root)}


def _span(tensor: ir.TensorProtocol) -> FileSpan | None:
    """Where a large tensor lies in a file, if it does."""
    payload = tensor.payload if type(tensor) is RecordTensor else None
    return payload if isinstance(payload, FileSpan) and payload.size >= EXTERNAL_BYTES else None
