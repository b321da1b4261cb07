"""What is in an ONNX file: versions, inputs and outputs, ops, weights by byte share, what is quantized and what is not.

Weights are never read: their type, shape and place are enough. Cost is linear in nodes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnxq import border
from onnxq.inventory import constants_of, external_files, users_of
from onnxq.look import all_graphs
from onnxq.states import DEQUANTIZE, QUANTIZE, dtype_name, is_q, pairs_of, state_of
from onnxq.targets import Target, load_target

if TYPE_CHECKING:
    from onnx import ModelProto

PARAMETERS = "scales and zero points"


@dataclass(frozen=True)
class Port:
    """A graph input or output: name, type, dimensions (numbers, symbols, or ``?``)."""

    name: str
    type: str
    shape: tuple[int | str, ...] | None


@dataclass(frozen=True)
class OpCount:
    """How often an op stands in the model; ``nested`` of them inside If/Loop/Scan bodies and local functions."""

    op: str
    count: int
    nested: int


@dataclass(frozen=True)
class WeightRow:
    """Constants of one stored type that feed one op type (``Gather + MatMul`` when shared)."""

    op: str
    type: str
    tensors: int
    bytes: int


@dataclass(frozen=True)
class PairRow:
    """Q/DQ pairs of one role and spec."""

    role: str
    spec: str
    count: int


@dataclass(frozen=True)
class LayerRow:
    """Nodes of one op type by how they compute.

    Attributes:
        weight_bytes: Constants that feed these nodes, each counted once.
        float_bytes: Those that feed the float ones among them.
        reasons: Why nodes are float: words to number of nodes, most first.
    """

    op: str
    integer: int
    dynamic: int
    weight_only: int
    float: int
    weight_bytes: int
    float_bytes: int
    reasons: dict[str, int]


@dataclass(frozen=True)
class FloatLayer:
    """A node with weights that computes in float, and why; ``bytes`` of its constants, shared or not."""

    node: str
    op: str
    graph: str
    bytes: int
    reason: str


@dataclass
class Inspection:
    """Everything `onnxq inspect` prints.

    Attributes:
        file_bytes: Size of the model file, 0 for a message in memory.
        external_bytes: Weights that live in other files.
        external_files: Those files, relative to the model.
        layers: Weight-bearing or quantized op types, most weight bytes first.
        float_layers: Weight-bearing float nodes, most weight bytes first.
    """

    file: str
    file_bytes: int
    ir_version: int
    opsets: dict[str, int]
    producer: str
    metadata: dict[str, str]
    inputs: list[Port]
    outputs: list[Port]
    nodes: int
    subgraphs: int
    functions: list[str]
    target: str
    ops: list[OpCount] = field(default_factory=list)
    weights: list[WeightRow] = field(default_factory=list)
    pairs: list[PairRow] = field(default_factory=list)
    layers: list[LayerRow] = field(default_factory=list)
    float_layers: list[FloatLayer] = field(default_factory=list)
    external_bytes: int = 0
    external_files: list[str] = field(default_factory=list)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all constants."""
        return sum(row.bytes for row in self.weights)

    def to_json(self) -> dict[str, Any]:
        """A JSON-able form with stable keys and order."""
        return {"format": "onnxq-inspect-1", **asdict(self), "weight_bytes": self.weight_bytes}


def inspect(source: ModelProto | bytes | str | Path, target: str | Path | Target = "ort-cpu") -> Inspection:
    """Look into a model without reading its weights.

    Args:
        source: Path, bytes or message.
        target: Runtime whose rules say what computes on integers.

    Raises:
        InputError: The source cannot be read.
        OptionError: No such target.
    """
    return inspect_crossing(border.open_model(source), load_target(target))


def inspect_crossing(crossing: border.Crossing, target: Target) -> Inspection:
    """`inspect` for a model that has crossed the border."""
    found = inspect_model(crossing.model, target)
    path = crossing.source_path
    if path is not None:
        outside = external_files(crossing.model, path)
        found.file, found.file_bytes = str(path), path.stat().st_size
        found.external_files, found.external_bytes = sorted(outside), sum(outside.values())
    return found


def inspect_model(model: ir.Model, target: Target) -> Inspection:
    """`inspect` for a model that is already open."""
    graphs = list(all_graphs(model))
    own_bodies = {id(f.graph) for f in model.functions.values()}
    found = Inspection(
        "",
        0,
        model.ir_version,
        {domain or "ai.onnx": version for domain, version in sorted(model.opset_imports.items())},
        " ".join(filter(None, (model.producer_name, model.producer_version))),
        dict(sorted(model.metadata_props.items())),
        [_port(v) for v in model.graph.inputs if not v.is_initializer()],
        [_port(v) for v in model.graph.outputs],
        sum(len(g) for g in graphs),
        len(graphs) - 1 - len(own_bodies),
        sorted(f"{f.domain}::{f.name}" for f in model.functions.values()),
        target.name,
    )
    _ops_and_layers(graphs, target, _weights(graphs, found), found)
    pairs = Counter(pair for graph in graphs for pair in pairs_of(graph))
    found.pairs = [PairRow(p.role, p.spec, n) for p, n in sorted(pairs.items(), key=lambda i: (i[0].role, i[0].spec))]
    return found


def _port(value: ir.Value) -> Port:
    shape = None
    if value.shape is not None:
        shape = tuple(d if isinstance(d, int) else d.value or "?" for d in value.shape)
    kind = dtype_name(value.dtype) if isinstance(value.type, (ir.TensorType, type(None))) else str(value.type)
    return Port(value.name or "", kind, shape)


def _op(node: ir.Node) -> str:
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


def _weights(graphs: list[ir.Graph], found: Inspection) -> dict[ir.Node, dict[ir.Value, int]]:
    """Fill the weight table; returns the constants of each node that ends up with some, and their bytes."""
    tensors: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    feeds: dict[ir.Node, dict[ir.Value, int]] = {}
    for graph in graphs:
        for value, tensor in constants_of(graph):
            users = users_of(value)
            for user in users:
                feeds.setdefault(user, {})[value] = tensor.nbytes
            ops = sorted({PARAMETERS if is_q(u, QUANTIZE) or is_q(u, DEQUANTIZE) else _op(u) for u in users})
            key = (
                " + ".join(ops) or ("graph output" if value.is_graph_output() else "unused"),
                dtype_name(tensor.dtype),
            )
            tensors[key] += 1
            sizes[key] += tensor.nbytes
    order = sorted(tensors, key=lambda key: (-sizes[key], key))
    found.weights = [WeightRow(op, kind, tensors[op, kind], sizes[op, kind]) for op, kind in order]
    return feeds


def _ops_and_layers(
    graphs: list[ir.Graph], target: Target, feeds: dict[ir.Node, dict[ir.Value, int]], found: Inspection
) -> None:
    total: Counter[str] = Counter()
    nested: Counter[str] = Counter()
    layers: dict[str, _Layer] = {}
    for i, graph in enumerate(graphs):
        for node in graph:
            op = _op(node)
            total[op] += 1
            nested[op] += i > 0
            state = state_of(node, target)
            if state is None:
                continue
            weights = feeds.get(node, {})
            layer = layers.setdefault(op, _Layer())
            layer.statuses[state.status] += 1
            layer.weights |= weights
            if state.status == "float":
                layer.float_weights |= weights
                layer.reasons[state.reason] += 1
                name = node.name or next((v.name or "" for v in node.outputs), "")
                inside = graph.name or "subgraph" if i else ""
                found.float_layers.append(FloatLayer(name, op, inside, sum(weights.values()), state.reason))
    found.ops = [OpCount(op, n, nested[op]) for op, n in sorted(total.items(), key=lambda item: (-item[1], item[0]))]
    found.float_layers.sort(key=lambda layer: (-layer.bytes, layer.graph, layer.node))
    rows = [layer.row(op) for op, layer in layers.items()]
    found.layers = sorted(rows, key=lambda row: (-row.weight_bytes, row.op))


@dataclass
class _Layer:
    """What is collected for one op type."""

    statuses: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    weights: dict[ir.Value, int] = field(default_factory=dict)
    float_weights: dict[ir.Value, int] = field(default_factory=dict)

    def row(self, op: str) -> LayerRow:
        reasons = sorted(self.reasons.items(), key=lambda item: (-item[1], item[0]))
        return LayerRow(
            op,
            integer=self.statuses["integer"],
            dynamic=self.statuses["dynamic"],
            weight_only=self.statuses["weight-only"],
            float=self.statuses["float"],
            weight_bytes=sum(self.weights.values()),
            float_bytes=sum(self.float_weights.values()),
            reasons=dict(reasons),
        )
