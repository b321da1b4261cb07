"""Model files: written beside the target and renamed, one weight in memory at a time."""

from __future__ import annotations

import io
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import onnx_ir as ir
from onnx import ModelProto, TensorProto

from onnxq.border import outgoing
from onnxq.border.model import Left
from onnxq.border.outgoing import Slot
from onnxq.border.tensors import Elsewhere, RecordTensor, drop_data
from onnxq.border.wire import MARK_BYTES, mark, splice
from onnxq.errors import OnnxqError, OptionError
from onnxq.wording import plural

# Tensors from this size on go to the data file; runtimes want shapes and other small ones inside the model.
EXTERNAL_BYTES = 1024
# A single file is written up to this size when nobody asked for external data; protobuf ends at 2 GiB.
INLINE_BYTES = 3 << 29
_PROTOBUF_BYTES = (1 << 31) - 1
# ONNX wants offsets that are multiples of a page, for mapping; with small tensors the file would be mostly air.
_PAGE, _LINE, _PAGE_FROM = 4096, 64, 1 << 20
_TAG_BYTES = MARK_BYTES - 4


def inline_bytes(model: ir.Model, left: Left) -> bytes:
    """The serialized model with all weights inside.

    Raises:
        OptionError: More than protobuf can hold.
    """
    shell, slots = outgoing.shell(model, left)
    sink = io.BytesIO()
    _Inline(shell, [slot for slot in slots if type(slot.tensor) is not Elsewhere]).write(sink)
    return sink.getvalue()


def write(model: ir.Model, left: Left, path: Path, external: bool | None) -> None:
    """Write a model file, and its data file if it has one; see `onnxq.border.save`."""
    if not path.name:
        raise OptionError(f"cannot write '{path}': it is not the name of a file")
    shell, slots = outgoing.shell(model, left)
    readable(slots)
    sizes = [slot.size for slot in slots]
    if external is None:
        external = left.external or sum(sizes) > INLINE_BYTES
    external = external and max(sizes, default=0) >= EXTERNAL_BYTES
    data_path = path.with_name(path.name + ".data")
    _spare_source(left, path, data_path if external else path)
    try:
        if external:
            with replacing(data_path, path) as (data, file):
                write_data(slots, data, data_path.name)
                file.write(shell.SerializeToString(deterministic=True))
        else:
            with replacing(path) as (file,):
                _Inline(shell, slots).write(file)
    except OSError as error:
        raise OnnxqError(f"cannot write '{path}': {error.strerror or error}") from error


def _spare_source(left: Left, *targets: Path) -> None:
    """Refuse to replace the weights of the model that was read, unless that model is replaced, too."""
    for target in targets:
        if target.resolve() in left.data_files and targets[0].resolve() != left.source:
            raise OptionError(
                f"writing '{targets[0]}' would replace '{target}', which holds weights of '{left.source}':"
                " choose another name or folder"
            )


def readable(slots: Sequence[Slot]) -> None:
    """Refuse tensors whose data nobody can find.

    Raises:
        InputError: Names the first one.
    """
    for slot in slots:
        if type(slot.tensor) is Elsewhere:
            raise slot.tensor.refusal()


class _Inline:
    """One message with everything in it, ready to be written piece by piece."""

    def __init__(self, shell: ModelProto, slots: Sequence[Slot]) -> None:
        tag = secrets.token_bytes(_TAG_BYTES)
        self.slots: list[Slot] = []
        for slot in slots:
            if slot.size < EXTERNAL_BYTES or slot.complete:
                slot.fill()
            else:
                slot.record.raw_data = mark(tag, len(self.slots))
                self.slots.append(slot)
        sizes = [slot.size for slot in self.slots]
        self.pieces, self.size = splice(shell.SerializeToString(deterministic=True), tag, sizes)

    def write(self, sink: BinaryIO) -> None:
        if self.size > _PROTOBUF_BYTES:
            raise OptionError(
                f"a single ONNX file ends at 2 GiB, and the model has {plural(self.size, 'byte')}: "
                "save it with external data"
            )
        for piece in self.pieces:
            if isinstance(piece, int):
                _write_tensor(self.slots[piece], sink)
            else:
                sink.write(piece)


def write_data(slots: Sequence[Slot], data: BinaryIO, location: str) -> None:
    """Write the large tensors to a data file, and where they are into their records; small ones go into the records."""
    for slot in slots:
        size = slot.size
        if size < EXTERNAL_BYTES:
            slot.fill()
            continue
        unit = _PAGE if size >= _PAGE_FROM else _LINE
        data.write(bytes(-data.tell() % unit))
        set_external(slot.record, location, data.tell(), size)
        _write_tensor(slot, data)


def set_external(record: TensorProto, location: str, offset: int, length: int) -> None:
    """Make a record say that its data are in a file."""
    drop_data(record)
    record.data_location = TensorProto.EXTERNAL
    del record.external_data[:]
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        record.external_data.add(key=key, value=value)


def _write_tensor(slot: Slot, sink: BinaryIO) -> None:
    start, tensor = sink.tell(), slot.tensor
    while isinstance(tensor, ir.LazyTensor) and type(tensor) is not RecordTensor:
        tensor = tensor.raw()
    if isinstance(tensor, ir.Tensor) and not tensor.numpy().flags.c_contiguous:
        # NumPy writes such arrays value by value, four times slower than a copy and a write.
        tensor = ir.Tensor(np.ascontiguousarray(tensor.numpy()), dtype=tensor.dtype)
    cast("Any", tensor).tofile(sink)
    slot.check(sink.tell() - start)


@contextmanager
def replacing(*targets: Path) -> Iterator[list[BinaryIO]]:
    """Temporary files beside the targets, which take their places when the block ends well, all or none.

    Folders that are missing are made. After a failure everything is as it was before.

    Raises:
        OptionError: A target is a folder or a device.
    """
    for target in targets:
        if target.exists() and not target.is_file():
            raise OptionError(f"cannot write '{target}': it is not a regular file")
    made = _make_folder(targets[0].parent)
    temporary = {target: target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp") for target in targets}
    try:
        with ExitStack() as stack:
            yield [stack.enter_context(path.open("xb")) for path in temporary.values()]
        for target, path in temporary.items():
            if target.exists():
                shutil.copymode(target, path)
        _swap(temporary)
    except BaseException:
        for path in temporary.values():
            path.unlink(missing_ok=True)
        with suppress(OSError):  # somebody else may use them by now
            for folder in made:
                folder.rmdir()
        raise


def _swap(temporary: dict[Path, Path]) -> None:
    """Rename all; when one fails, undo the earlier ones."""
    *earlier, last = temporary
    undo: list[tuple[Path, Path]] = []
    try:
        for target in earlier:
            backup = temporary[target].with_suffix(".old")
            if target.exists():
                target.replace(backup)
            undo.append((target, backup))
            temporary[target].replace(target)
        temporary[last].replace(last)
    except BaseException:
        for target, backup in undo:
            if backup.exists():
                backup.replace(target)
            else:
                target.unlink(missing_ok=True)
        raise
    for _, backup in undo:
        backup.unlink(missing_ok=True)


def _make_folder(folder: Path) -> list[Path]:
    """Make a folder and its parents; returns those that were missing, innermost first."""
    missing = [p for p in (folder, *folder.parents) if not p.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return missing
