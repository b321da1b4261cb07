"""From a message without payloads to an `onnx_ir.Model` that loses nothing of it."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import onnx_ir as ir
from onnx import GraphProto, ModelProto, SparseTensorProto, TensorProto, TrainingInfoProto

from onnxq.border import declared
from onnxq.border.admit import Admission
from onnxq.border.incoming import Incoming, Maker, placed
from onnxq.border.tensors import Elsewhere, RecordTensor, SparseTensor
from onnxq.border.wire import marked
from onnxq.collector import relaxed
from onnxq.diagnostics import Diagnostic, Place, Severity
from onnxq.errors import InputError, UnsupportedError
from onnxq.look import all_graphs, nested_graphs

# Keys of `meta`, the store of the IR that is never serialized but stays with an object and its clones.
LEFT_KEY = "onnxq.left"
ANNOTATIONS_KEY = "onnxq.annotations"
VALUE_INFO_KEY = "onnxq.value_info"
BOTH_KEY = "onnxq.input_and_output"


@dataclass
class Left:
    """What the IR has no place for; hangs on the main graph.

    Attributes:
        training_info: Carried as it is.
        training_names: Names of the main graph that the training information refers to.
        external: Whether the model came with external data.
        source: The file it came from, symbolic links resolved.
        data_files: The files that its external data are in, likewise.
        notes: What was repaired, and what had to be dropped.
    """

    training_info: list[TrainingInfoProto] = field(default_factory=list)
    training_names: frozenset[str] = frozenset()
    external: bool = False
    source: Path | None = None
    data_files: frozenset[Path] = frozenset()
    notes: list[Diagnostic] = field(default_factory=list)

    def succeed(self, earlier: Left) -> None:
        """Take over what is true of the source, whatever graph the model has now."""
        self.external |= earlier.external
        self.source, self.data_files = earlier.source, earlier.data_files
        self.notes = [*earlier.notes, *(note for note in self.notes if note not in earlier.notes)]

    def note(self, code: str, value: str, why: str) -> None:
        """Say what was done to the model at the border."""
        diagnostic = Diagnostic(code, why, Severity.WARNING, Place(value=value), {}, "border")
        if diagnostic not in self.notes:
            self.notes.append(diagnostic)


def left_of(model: ir.Model, default: Left | None = None) -> Left:
    """What the border keeps for a model; the default, or nothing, for a graph that was made inside."""
    return cast("Left", model.graph.meta.get(LEFT_KEY) or default or Left())


def build(incoming: Incoming) -> ir.Model:
    """Check the message and make the model.

    Raises:
        InputError: The message is no valid model in a way that cannot be carried.
        UnsupportedError: The IR cannot hold it.
    """
    with relaxed():
        return _build(incoming)


def _build(incoming: Incoming) -> ir.Model:
    shell, left = incoming.shell, Left()
    if not shell.HasField("graph") or not shell.ir_version:
        raise InputError("not an ONNX model: it has no graph or no IR version")
    admission = Admission(shell)
    left.external = bool(admission.external)
    for record in admission.external:
        incoming.mark(record, _external(record, incoming))
    if incoming.folder is not None:
        left.data_files = frozenset(file.path for file in incoming.folder.files.values())
    for graph in admission.graphs:
        _densify(graph, incoming)
        _drop_output_info(graph)
    _keep_training(shell, left, incoming)
    taken = [declared.take(graph) for graph in admission.graphs]
    try:
        model = ir.from_proto(shell)
    except Exception as error:
        cause = root_cause(error)
        what = f"{type(cause).__name__}: {cause}".splitlines()[0]
        raise UnsupportedError(f"onnx-ir cannot hold this model: {what}") from error
    _attach(model, incoming)
    bodies = [g for f in model.functions.values() for g in nested_graphs(f.graph) if g is not f.graph]
    types: declared.Types = {}
    graphs = [*nested_graphs(model.graph), *bodies]
    for ir_graph, graph, infos in zip(graphs, admission.graphs, taken, strict=True):
        _remember(ir_graph, graph, left)
        declared.give(ir_graph, infos, types)
    model.graph.meta[LEFT_KEY] = left
    return model


def _external(record: TensorProto, incoming: Incoming) -> Maker:
    if incoming.folder is None:
        kept = TensorProto()
        kept.CopyFrom(record)
        record.ClearField("data_location")
        return lambda _: Elsewhere(kept)
    payload = incoming.folder.payload(record)
    record.ClearField("data_location")
    record.ClearField("external_data")
    return placed(payload)


def _densify(graph: GraphProto, incoming: Incoming) -> None:
    """Let a dense initializer stand for each sparse one, since the IR knows no other."""
    for sparse in graph.sparse_initializer:
        kept = SparseTensorProto()
        kept.CopyFrom(sparse)
        stand_in = graph.initializer.add(name=sparse.values.name, data_type=sparse.values.data_type, dims=sparse.dims)
        incoming.mark(stand_in, lambda _, kept=kept: SparseTensor(kept))  # type: ignore[misc]
    del graph.sparse_initializer[:]


def _drop_output_info(graph: GraphProto) -> None:
    """Remove value_info of graph outputs: the IR would mix it with what the output says of itself."""
    outputs = {v.name for v in graph.output}
    if any(v.name in outputs for v in graph.value_info):
        kept = [v for v in graph.value_info if v.name not in outputs]
        del graph.value_info[:]
        graph.value_info.extend(kept)


def _keep_training(shell: ModelProto, left: Left, incoming: Incoming) -> None:
    names: set[str] = set()
    for info in shell.training_info:
        for graph, bindings in (
            (info.initialization, info.initialization_binding),
            (info.algorithm, info.update_binding),
        ):
            if incoming.folder is not None and any(map(_is_external, _tensors(graph))):
                raise UnsupportedError(f"training graph '{graph.name}' has external data")
            names.update(name for node in graph.node for name in node.input)
            names.update(entry.key for entry in bindings)
    left.training_info = list(shell.training_info)
    if names:
        main = shell.graph
        defined = {v.name for v in main.input} | {t.name for t in main.initializer}
        left.training_names = frozenset(names & defined.union(*(n.output for n in main.node)))


def _tensors(graph: GraphProto) -> Iterable[TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for inner in (attribute.g, *attribute.graphs):
                yield from _tensors(inner)


def _is_external(tensor: TensorProto) -> bool:
    return tensor.data_location == TensorProto.EXTERNAL


def _attach(model: ir.Model, incoming: Incoming) -> None:
    """Replace the tensors of the IR, which point into the shell, by ones that know where their data are."""

    def tensor_of(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        if type(tensor) is not ir.serde.TensorProtoTensor:
            return tensor
        record = tensor.raw
        index = marked(record.raw_data, incoming.tag)
        return RecordTensor(record) if index is None else incoming.makers[index](record)

    def renew(attributes: MutableMapping[str, ir.Attr]) -> None:
        for name, attr in attributes.items():
            if attr.type == ir.AttributeType.TENSOR and not attr.is_ref():
                attributes[name] = ir.AttrTensor(name, tensor_of(attr.value), attr.doc_string)
            elif attr.type == ir.AttributeType.TENSORS and not attr.is_ref():
                attributes[name] = ir.AttrTensors(name, [tensor_of(t) for t in attr.value], attr.doc_string)

    for graph in all_graphs(model):
        for value in graph.initializers.values():
            if value.const_value is not None:
                value.const_value = tensor_of(value.const_value)
        for node in graph:
            if node.attributes:
                renew(node.attributes)
    for function in model.functions.values():
        renew(function.attributes)


def _remember(graph: ir.Graph, proto: GraphProto, left: Left) -> None:
    """Keep what the IR forgets: which initializers had a value_info, annotations of tensors that do not exist, and the
    two descriptions of an input that is an output as well."""
    outputs = {v.name: v for v in proto.output}
    for value, info in zip(graph.inputs, proto.input, strict=True):
        if info.name in outputs and info != outputs[info.name]:
            value.meta[BOTH_KEY] = (ir.to_proto(value), info, outputs[info.name])
    for info in proto.value_info:
        known = graph.initializers.get(info.name)
        if known is None or known.is_graph_input() or known.const_value is None:
            continue
        known.meta[VALUE_INFO_KEY] = True
        if not describes(known, known.const_value):
            left.note(
                "stale-value-info",
                info.name,
                f"value_info of initializer '{info.name}' contradicts its tensor, and the tensor is right",
            )
            known.type, known.shape = ir.TensorType(known.const_value.dtype), ir.Shape(known.const_value.shape.numpy())
    if proto.quantization_annotation:
        names = {*(v.name for v in proto.input), *(t.name for t in proto.initializer)}
        names.update(name for node in proto.node for name in node.output)
        loose = [a for a in proto.quantization_annotation if not (a.tensor_name in names and len(a.ListFields()) > 1)]
        if loose:
            graph.meta[ANNOTATIONS_KEY] = loose


def describes(value: ir.Value, tensor: ir.TensorProtocol) -> bool:
    """Whether a value's type and shape (unknown dimensions fit all) hold for a tensor."""
    if value.type is not None and not (isinstance(value.type, ir.TensorType) and value.type.dtype == tensor.dtype):
        return False
    if value.shape is None:
        return True
    dims = tensor.shape.numpy()
    return len(value.shape) == len(dims) and all(
        not isinstance(d, int) or d == n for d, n in zip(value.shape, dims, strict=True)
    )


def root_cause(error: BaseException) -> BaseException:
    """The innermost error; those of the IR's reader and writer are nested as deep as the model."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error
