"""OQ00x: is this a model, and is everything there that it is made of?"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from pathlib import Path

import onnx_ir as ir
from onnx import TensorProto

from onnxq.border.external import Folder
from onnxq.errors import InputError
from onnxq.linting.rule import Finding, wire_rule
from onnxq.linting.wire import NO_RAW, Wire
from onnxq.wording import plural

_BITS = {t.value: t.bitwidth for t in ir.DataType if t not in (ir.DataType.UNDEFINED, ir.DataType.STRING)}
_FIELDS: dict[int, str] = {
    TensorProto.FLOAT: "float_data",
    TensorProto.COMPLEX64: "float_data",
    TensorProto.DOUBLE: "double_data",
    TensorProto.COMPLEX128: "double_data",
    TensorProto.INT64: "int64_data",
    TensorProto.UINT32: "uint64_data",
    TensorProto.UINT64: "uint64_data",
    TensorProto.STRING: "string_data",
}
"""The typed field of each element type; all others have ``int32_data`` (onnx.proto)."""


@wire_rule("OQ001", "unreadable", "error")
def unreadable(wire: Wire) -> Iterator[Finding]:
    """The file is missing, empty, truncated, or not ONNX.

    What it does:
        Tries to read the file as a serialized ModelProto.

    Why is this bad:
        No tool can load it. A download that broke off, a pointer file of a version control system, and a text page of
        a server that refused all look like this.

    Use instead:
        The file as its source has it; compare sizes or checksums.
    """
    return iter(())


@wire_rule("OQ002", "not-carried", "error")
def not_carried(wire: Wire) -> Iterator[Finding]:
    """The rules about the graph, or one of them, could not run.

    What it does:
        Says why: no graph could be made of the message, its nodes depend on each other in a circle, a standard operator
        lacks inputs or attributes, a tensor cannot be read. It is only an info when other findings tell what is wrong.

    Why is this bad:
        What these rules look for was not looked for.

    Use instead:
        Mend what the message names, and check again.
    """
    return iter(())


@wire_rule("OQ003", "missing-import", "error")
def missing_import(wire: Wire) -> Iterator[Finding]:
    """A domain is used but not imported, or the model does not say its versions at all.

    What it does:
        Looks for operator domains without an opset import, in the model and in each local function, and for a model
        without IR version.

    Why is this bad:
        Without a version nobody can tell what the operators mean. onnx.checker refuses the model; onnxruntime fills in
        its own domain in silence, other runtimes do not.

    Example:
        A `com.microsoft` QuantizeLinear in a model that imports only `ai.onnx`.

    Use instead:
        One opset import for each domain.
    """
    if not wire.model.ir_version:
        yield Finding(None, "the model has no IR version", "Write the ir_version that its opsets need.")
    if wire.model.HasField("graph") and not wire.model.opset_import:
        yield Finding(None, "the model has no opset import", "Import the opset that its operators are of.")
        return
    for domain, version in sorted(wire.scopes[0].imports.items()):
        if version < 1:
            yield Finding(None, f"domain {domain or 'ai.onnx'} is imported as version {version}")
    for scope in wire.scopes:
        for domain in sorted({kind.domain for kind in scope.kinds.values()} - set(scope.imports)):
            here = [i for i, op in enumerate(scope.ops) if op[0] == domain]
            text = f"{plural(len(here), 'node')} of domain {domain or 'ai.onnx'}, which is not imported"
            help_ = f"Add an opset import of {domain or 'ai.onnx'}."
            yield Finding(scope.place(here[0]), text, help_, {"nodes": len(here)})


@wire_rule("OQ008", "data-size", "error")
def data_size(wire: Wire) -> Iterator[Finding]:
    """A tensor has more or fewer data than its type and shape need.

    What it does:
        Compares the size of `raw_data`, or the number of entries in the typed fields, with type and shape. Data are
        not read. Sub-byte types that are too long are OQ405.

    Why is this bad:
        Too few: nothing loads it. Too many: onnx.checker passes, other readers take the wrong values, and onnxruntime
        refuses to load.

    Use instead:
        Write the tensor anew, for example by `onnx.numpy_helper.from_array`.
    """
    tensors = wire.tensors
    rows = zip(tensors.types, tensors.dims, tensors.sizes, strict=True)
    for index, (kind, dims, size) in enumerate(rows):
        bits = _BITS.get(kind, 0)
        if (bits and size == (prod(dims) * bits + 7) >> 3) or _is_external(tensors.protos[index]):
            continue
        for text, numbers in _misfit(tensors.protos[index], bits, size):
            name = tensors.name(index)
            yield Finding(tensors.place(index), f"{f'tensor {name!r}' if name else 'its tensor'} {text}", "", numbers)


def _misfit(tensor: TensorProto, bits: int, size: int) -> Iterator[tuple[str, dict[str, int]]]:
    """What is wrong with the size of a tensor whose raw data are not as long as they should be, or not there."""
    kind, count = tensor.data_type, prod(tensor.dims)
    if min(tensor.dims, default=0) < 0:
        yield "has a negative dimension", {"least": min(tensor.dims)}
    elif not bits and kind != TensorProto.STRING:
        yield f"has the element type {kind}, which is none" if kind else "has no element type", {"type": kind}
    elif size != NO_RAW:
        needed = (count * bits + 7) >> 3
        if bits >= 8 or size < needed:
            yield (
                f"has {plural(size, 'byte')} of data; its type and shape need {needed}",
                {"has": size, "needs": needed},
            )
    else:
        has, needs = len(getattr(tensor, _FIELDS.get(kind, "int32_data"))), _entries(kind, count, bits)
        if has != needs:
            text = f"has {plural(has, 'typed value')}; its type and shape need {needs}" if has else "has no data"
            yield text, {"has": has, "needs": needs}


@wire_rule("OQ009", "external-data", "error")
def external_data(wire: Wire) -> Iterator[Finding]:
    """External data are missing, too short, outside the model's folder, or described wrongly.

    What it does:
        Looks up the file of each external tensor and its size; nothing is read. A model that did not come from a
        file has no folder unless one is given; then only the description is looked at.

    Why is this bad:
        The model does not load, or loads weights that belong to something else. Runtimes refuse paths that lead out of
        the model's folder.

    Use instead:
        Keep the data file beside the model, under the name that the model gives.
    """
    folder = Folder(wire.folder, wire.path) if wire.folder is not None else None
    seen: set[str] = set()
    for index, tensor in enumerate(wire.tensors.protos):
        if not _is_external(tensor):
            continue
        location = next((e.value for e in tensor.external_data if e.key == "location"), "")
        try:
            if folder is not None and tensor.data_type in _BITS:
                folder.payload(tensor)
            elif not isinstance(location, str):
                raise InputError(f"tensor '{tensor.name}' has external data at {location!r}, which is not text")
            elif not location or Path(location).is_absolute() or ".." in Path(location).parts:
                raise InputError(f"tensor '{tensor.name}' has its external data at {location!r}")
        except InputError as error:
            missing = f"external file '{location}'" if "cannot be read" in str(error) else str(error)
            if missing not in seen:  # a file that is gone is one finding, not one a tensor
                seen.add(missing)
                yield Finding(wire.tensors.place(index), str(error))


def _is_external(tensor: TensorProto) -> bool:
    return tensor.data_location == TensorProto.EXTERNAL


def _entries(kind: int, count: int, bits: int) -> int:
    """Entries that typed fields need (onnx.proto): complex numbers take two, 4- and 2-bit ones share an entry."""
    if kind in (TensorProto.COMPLEX64, TensorProto.COMPLEX128):
        return 2 * count
    return -(-count * bits // 8) if bits in (2, 4) else count
