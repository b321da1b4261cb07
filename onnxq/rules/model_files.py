"""OQ00x: is this a model, and is everything there that it is made of?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir
from onnx import TensorProto

from onnxq.border.external import Folder
from onnxq.errors import InputError
from onnxq.linting.rule import Finding, wire_rule
from onnxq.linting.wire import Wire
from onnxq.wording import plural

_BITS = {t.value: t.bitwidth for t in ir.DataType if t not in (ir.DataType.UNDEFINED, ir.DataType.STRING)}
_TYPED = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")


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
    """The rules about the graph could not run.

    What it does:
        Says why no graph could be made of the message. It is only an info when other findings tell what is wrong.

    Why is this bad:
        Only the rules about the file itself ran. What other rules look for was not looked for.

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
    for scope in wire.scopes:
        domains = [domain for domain, _ in scope.ops]
        for domain in sorted(set(domains) - set(scope.imports)):
            count, name = domains.count(domain), domain or "ai.onnx"
            text = f"{plural(count, 'node')} of domain {name}, which is not imported"
            yield Finding(scope.place(domains.index(domain)), text, f"Add an opset import of {name}.", {"nodes": count})


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
    for found in wire.tensors:
        tensor = found.proto
        bits = _BITS.get(tensor.data_type)
        if bits is None or tensor.data_location == TensorProto.EXTERNAL:
            continue
        count = 1
        for dim in tensor.dims:
            count *= dim
        size, needed = wire.size(tensor), -(-count * bits // 8)
        if size == needed or count < 0 or (size is not None and size > needed and bits < 8):
            continue
        name = f"tensor '{tensor.name}'" if tensor.name else "its tensor"
        if size is not None:
            text = f"{name} has {plural(size, 'byte')} of data; its type and shape need {needed}"
            yield Finding(found.place, text, numbers={"has": size, "needs": needed})
            continue
        has, needs = sum(len(getattr(tensor, field)) for field in _TYPED), _entries(tensor, count, bits)
        if has != needs:
            text = f"{name} has {plural(has, 'typed value')}; its type and shape need {needs}"
            yield Finding(found.place, text if has else f"{name} has no data", numbers={"has": has, "needs": needs})


@wire_rule("OQ009", "external-data", "error")
def external_data(wire: Wire) -> Iterator[Finding]:
    """External data are missing, too short, outside the model's folder, or described wrongly.

    What it does:
        Looks up the file of each external tensor and its size; nothing is read. Models that did not come from a file
        have no folder, so that only the description is looked at.

    Why is this bad:
        The model does not load, or loads weights that belong to something else. Runtimes refuse paths that lead out of
        the model's folder.

    Use instead:
        Keep the data file beside the model, under the name that the model gives.
    """
    folder = Folder(wire.path.parent, wire.path) if wire.path is not None else None
    seen: set[str] = set()
    for found in wire.tensors:
        tensor = found.proto
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        location = next((e.value for e in tensor.external_data if e.key == "location"), "")
        try:
            if folder is not None and tensor.data_type in _BITS:
                folder.payload(tensor)
            elif not location or Path(location).is_absolute() or ".." in Path(location).parts:
                raise InputError(f"tensor '{tensor.name}' has its external data at {location!r}")
        except InputError as error:
            missing = f"external file '{location}'" if "cannot be read" in str(error) else str(error)
            if missing not in seen:  # a file that is gone is one finding, not one a tensor
                seen.add(missing)
                yield Finding(found.place, str(error))


def _entries(tensor: TensorProto, count: int, bits: int) -> int:
    """Entries that typed fields need (onnx.proto): complex numbers take two, 4- and 2-bit ones share an entry."""
    if tensor.data_type in (TensorProto.COMPLEX64, TensorProto.COMPLEX128):
        return 2 * count
    return -(-count * bits // 8) if bits in (2, 4) else count
