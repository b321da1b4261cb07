"""OQ01x and OQ02x: does the file say the same as the operators' schemas?"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir
from onnx import GraphProto

from onnxq.diagnostics import Place, Severity
from onnxq.linting.rule import Finding, graph_rule, wire_rule
from onnxq.linting.subject import Subject
from onnxq.linting.wire import Wire
from onnxq.look import dims_of
from onnxq.opsets.needed import ir_version_of
from onnxq.states import dtype_name
from onnxq.wording import plural


@graph_rule("OQ010", "stale-value-info", "warning", fix="infer-shapes")
def stale_value_info(subject: Subject) -> Iterator[Finding]:
    """The file declares another type or shape for a value than its operators give.

    What it does:
        Runs onnx's type and shape inference on the graph without its declarations, and compares. A wrong element type
        is an error, a wrong shape a warning.

    Why is this bad:
        With a wrong element type onnxruntime does not load the model. Tools that trust a wrong shape allocate or
        quantize wrongly.

    Use instead:
        Leave declarations out, or make them anew after each change of the graph.

    Fix safety:
        Safe: only declarations change.
    """
    for value, (dtype, dims) in subject.inferred.items():
        if value.dtype is not None and dtype is not None and value.dtype != dtype:
            text = f"'{value.name}' is declared as {dtype_name(value.dtype)}, but its node makes {dtype_name(dtype)}"
            yield Finding(value, text, severity=Severity.ERROR)
        elif value.shape is not None and dims is not None and value.shape.dims != dims:
            declared = dims_of(value) or ()
            known = len(dims) == len(declared)
            if known and all(None in (a, b) or a == b for a, b in zip(declared, dims, strict=True)):
                continue
            names = [["?" if d is None else d for d in dims] for dims in (declared, dims)]
            yield Finding(value, f"'{value.name}' is declared with shape {names[0]}, but its node makes {names[1]}")


@wire_rule("OQ022", "value-info-of-nothing", "info", fix="infer-shapes")
def value_info_of_nothing(wire: Wire) -> Iterator[Finding]:
    """The file declares the type of a value that is not there.

    What it does:
        Looks for value_info entries whose name nothing in their graph defines.

    Why is this bad:
        It is what a rewrite left behind, and it misleads tools that look values up by name.

    Use instead:
        Leave it out.

    Fix safety:
        Safe: only declarations go.
    """
    for scope in wire.scopes:
        loose = set(scope.described) - scope.defined
        for name in (name for name in scope.described if name in loose):
            yield Finding(scope.place(value=name), f"value_info of '{name}', which nothing defines")


@wire_rule("OQ011", "unused-import", "warning", fix="drop-unused-imports")
def unused_import(wire: Wire) -> Iterator[Finding]:
    """An opset is imported that no operator needs, or imported twice.

    What it does:
        Looks for domains without a node or local function, and for domains imported twice (an error when the versions
        differ).

    Why is this bad:
        Runtimes that do not know the domain refuse the model, for nothing.

    Use instead:
        Imports of the domains that are used.

    Fix safety:
        Safe: no operator changes.
    """
    used = {kind.domain for scope in wire.scopes for kind in scope.kinds.values()} | {
        f.domain for f in wire.model.functions
    }
    versions: dict[str, list[int]] = {}
    for entry in wire.model.opset_import:
        versions.setdefault("" if entry.domain == "ai.onnx" else entry.domain, []).append(entry.version)
    for domain, found in versions.items():
        name = domain or "ai.onnx"
        if len(found) > 1:
            severity = Severity.ERROR if len(set(found)) > 1 else None
            text = f"domain {name} is imported {len(found)} times, as version {', '.join(map(str, found))}"
            yield Finding(None, text, severity=severity, fixable=False)
        if domain not in used and domain:
            yield Finding(None, f"domain {name} is imported, and no node is of it", numbers={"version": found[0]})


@wire_rule("OQ014", "dropped-by-tools", "warning")
def dropped_by_tools(wire: Wire) -> Iterator[Finding]:
    """The model has parts that most tools drop in silence.

    What it does:
        Looks for sparse initializers and training information.

    Why is this bad:
        Converters and optimizers read neither: weights or training graphs are gone after the next one.

    Use instead:
        Dense initializers, and training graphs in files of their own.
    """
    for scope in wire.scopes:
        if isinstance(scope.body, GraphProto):
            for name in scope.constants[len(scope.initializers) :]:
                yield Finding(scope.place(value=name), f"'{name}' is a sparse initializer")
    if wire.model.training_info:
        yield Finding(None, f"the model has {plural(len(wire.model.training_info), 'training graph')}")


@wire_rule("OQ017", "constant-is-input", "warning", fix="freeze-defaults", safe=False)
def constant_is_input(wire: Wire) -> Iterator[Finding]:
    """A constant is listed among the inputs, so that a caller may override it.

    What it does:
        Looks for inputs of the main graph that have an initializer, from IR version 4 on. Before, every initializer had
        to be listed.

    Why is this bad:
        A runtime must not fold or fuse what may change: an integer kernel whose weight or scale is an input is not
        used.

    Use instead:
        List only what callers give.

    Fix safety:
        Unsafe: the value can no longer be overridden.
    """
    if wire.model.ir_version < 4:
        return
    both = set(wire.scopes[0].inputs).intersection(wire.scopes[0].constants)
    for name in (name for name in wire.scopes[0].constants if name in both):
        yield Finding(Place(value=name), f"'{name}' is an initializer and an input, too")


@wire_rule("OQ020", "ir-version", "error", fix="fit-versions")
def ir_version(wire: Wire) -> Iterator[Finding]:
    """The file uses an element type that its IR version does not have.

    What it does:
        Looks for types of tensors that came with a later IR version: 8-bit floats with 9, int4 with 10, int2 with 13.

    Why is this bad:
        Readers that go by the IR version refuse the file or misread the tensor.

    Use instead:
        The IR version that brought the type, or a later one.

    Fix safety:
        Safe: the IR version is raised to the one that brought the type.
    """
    tensors, has = wire.tensors, wire.model.ir_version
    for kind in sorted(set(tensors.types) & _TYPES):
        dtype, first = ir.DataType(kind), tensors.types.index(kind)
        needs = ir_version_of(dtype)
        if 0 < has < needs:
            text = f"'{tensors.name(first)}' is of type {dtype.name.lower()}, which needs IR version {needs}"
            yield Finding(tensors.place(first), text, numbers={"has": has, "needs": needs})


_TYPES = frozenset(dtype.value for dtype in ir.DataType)
