"""`from-matmulnbits`: onnxruntime's packed weights as standard ONNX."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from onnxq.edit import (
    PASS_KEY,
    Namer,
    add_initializer,
    all_nodes,
    copy_metadata,
    graph_of,
    nested_graphs,
    plain_initializers,
    remove_dead,
)
from onnxq.errors import OptionError
from onnxq.look import Array, attr_int, constant_tensor
from onnxq.lookups import Table, add_table, dequantize_behind, insert_behind
from onnxq.nbits import DOMAIN, LOOKUP, OP, Refused, lazy, unpacked
from onnxq.numerics import nbits
from onnxq.numerics.spec import QTYPES, Blocked, Encoding, QType, TensorSpec
from onnxq.passbase import Context, Pass
from onnxq.wording import plural

_OPSET = 21  # first with blocks and 4-bit integers


@dataclass(frozen=True, kw_only=True)
class FromMatmulnbits(Pass):
    """``com.microsoft.MatMulNBits`` -> ``integer weight [K, N] -> DequantizeLinear -> MatMul (-> Add)``.

    Weights become uint2, uint4 or uint8 with the same integers, scales and zero points; where zero points are left out
    they are the middle, 2^(bits - 1), and get written. One block a column becomes the form of one scale an output
    channel. Every node gets a weight of its own, since onnxruntime makes no MatMulNBits of a shared one. An accuracy
    level cannot be said in ONNX and is dropped, with a note: a session option of onnxruntime sets it.

    ``GatherBlockQuantized`` becomes ``Gather -> DequantizeLinear``; its integers of 2 or 4 bits are stored in 8, since
    Gather takes no narrower ones. An index out of range gives zeros there and is an error here.

    Stays, with a note: float zero points, ``g_idx``, layouts prepared for one device, parts that are no constants,
    blocks of several rows of a table, nodes of local functions. Works in If/Loop/Scan bodies.
    """

    name: ClassVar[str] = "from-matmulnbits"

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Rewrite every node that ONNX can say; one note says how many.

        Raises:
            OptionError: The model's opset has no integers of that width, or no blocks.
        """
        raising = _Raising(model, Namer(model), ctx)
        for graph in nested_graphs(model.graph):
            for node in filter(_packed, tuple(graph)):
                try:
                    raising.replace(node)
                except Refused as refused:
                    ctx.note("not-raised", node, f"stays {node.op_type}: {refused}")
        for function in model.functions.values():
            for node in (n for graph in nested_graphs(function.graph) for n in graph if _packed(n)):
                why = "a local function holds no initializers: run inline-functions first"
                ctx.note("not-raised", node, f"stays {node.op_type}: {why}")
        if not raising.count:
            return False
        plain_initializers(model)
        remove_dead(model)
        if all(node.domain != DOMAIN for node in all_nodes(model)):
            model.opset_imports.pop(DOMAIN, None)
        ctx.note(
            "raised", None, f"{plural(raising.count, 'node')} of {DOMAIN} became standard ONNX", nodes=raising.count
        )
        if raising.levels:
            why = f"{plural(raising.levels, 'layer')} without an accuracy level now: onnxruntime runs Q/DQ files at "
            why = f"{why}level 4 unless session.qdq_matmulnbits_accuracy_level says otherwise"
            ctx.note("accuracy-level-dropped", None, why, layers=raising.levels)
        return True


def _packed(node: ir.Node) -> bool:
    return node.domain == DOMAIN and node.op_type in (OP, LOOKUP)


@dataclass
class _Raising:
    """Rewrites nodes; stores each table once and each weight once a node."""

    model: ir.Model
    namer: Namer
    ctx: Context
    count: int = 0
    levels: int = 0
    _tables: dict[tuple[ir.Value | int | None, ...], Table] = field(default_factory=dict)

    def replace(self, node: ir.Node) -> None:
        """The node becomes MatMul or Gather; it keeps its name and its place.

        Raises:
            Refused: ONNX cannot say it.
            OptionError: The model's opset is too old.
        """
        if node.op_type == OP:
            self._product(node)
        else:
            self._look_up(node)
        self.count += 1

    def _product(self, node: ir.Node) -> None:
        qtype, *parts = unpacked(node)
        self._check_opset(node, qtype)
        packed, graph, size = node.inputs[1], node.graph, attr_int(node, "block_size", 0)
        bias = node.inputs[5] if len(node.inputs) > 5 else None
        assert packed is not None and isinstance(graph, ir.Graph)
        base, home = (packed.name or "weight").removesuffix("_packed"), graph_of(packed)
        names = ("quantized", "scale", "zero_point")
        stored = [
            add_initializer(home, f"{base}_{what}", part, self.namer) for what, part in zip(names, parts, strict=True)
        ]
        given = {"axis": 0, "block_size": size} if len(parts[1].shape) > 1 else {"axis": 1}
        dq = ir.node("DequantizeLinear", stored, given, name=self.namer(f"{base}_DequantizeLinear"))
        made = dq.outputs[0]
        made.name, made.type, made.shape = self.namer(f"{base}_dequantized"), stored[1].type, stored[0].shape
        copy_metadata(dq, node, FromMatmulnbits.name)
        graph.insert_before(node, dq)
        self.levels += attr_int(node, "accuracy_level", 0) != 0
        _become(node, "MatMul", {}, [node.inputs[0], made])
        if bias is not None:
            add = ir.node("Add", [node.outputs[0], bias], name=self.namer(f"{node.name or node.op_type}_Add"))
            made, out = add.outputs[0], node.outputs[0]
            made.name, made.type, made.shape = self.namer(f"{add.name}_output"), out.type, out.shape
            copy_metadata(add, node, FromMatmulnbits.name)
            insert_behind(node, add, self.namer, f"{out.name}_product")

    def _look_up(self, node: ir.Node) -> None:
        self._check_opset(node, QTYPES["uint4"])
        data, indices, *parameters = node.inputs
        given = {"bits": 4, "block_size": 128, "gather_axis": 0, "quantize_axis": 1}
        options = {name: attr_int(node, name, default) for name, default in given.items()}
        key = (data, *parameters, *options.values())
        if key not in self._tables:
            tensors = [constant_tensor(value) for value in (data, *parameters)]
            if data is None or None in tensors:
                raise Refused("table, scales or zero points are computed")
            integers, encoding = _table(
                [t for t in tensors if t is not None], options["bits"], options["block_size"], options["quantize_axis"]
            )
            along = options["gather_axis"] % len(integers.shape)
            self._tables[key] = add_table(graph_of(data), data.name or "table", integers, encoding, along, self.namer)
            if data.dtype != ir.DataType.UINT8 or options["bits"] < 8:
                grown = int(np.prod(integers.shape.numpy()))
                why = f"'{data.name}' takes {plural(grown, 'byte')}: Gather takes no integers below 8 bits"
                self.ctx.note("table-widened", node, why, bytes=grown)
        table = self._tables[key]
        _become(node, "Gather", {"axis": options["gather_axis"]}, [table.integers, indices])
        dequantize_behind(node, table, self.namer, FromMatmulnbits.name)

    def _check_opset(self, node: ir.Node, qtype: QType) -> None:
        opset, needed = self.model.opset_imports.get("", 0), max(_OPSET, qtype.since)
        if opset < needed:
            raise OptionError(
                f"node '{node.name}': {qtype} blocks need opset {needed}, the model has {opset}: "
                f"run upgrade-opset (to: {needed}) first"
            )


def _become(node: ir.Node, op_type: str, attributes: dict[str, int], inputs: list[ir.Value | None]) -> None:
    """Make another node of this one; its output stays."""
    node.domain, node.op_type = "", op_type
    node.attributes.clear()
    for key, value in attributes.items():
        node.attributes.add(ir.AttrInt64(key, value))
    node.resize_inputs(len(inputs))
    for i, each in enumerate(inputs):
        node.replace_input_with(i, each)
    node.metadata_props[PASS_KEY] = FromMatmulnbits.name


def _table(
    tensors: list[ir.TensorProtocol], bits: int, block_size: int, quantize_axis: int
) -> tuple[ir.TensorProtocol, Encoding]:
    """Integers of a GatherBlockQuantized, one a byte, and their encoding.

    Args:
        tensors: Table, scales, and zero points where there are any.
        bits: Width of integers that are packed into uint8.
        block_size: Values in a block.
        quantize_axis: Axis of the blocks.
    """
    data, scales = tensors[:2]
    dims, scale = [int(d) for d in data.shape.numpy()], scales.numpy()
    packed = data.dtype == ir.DataType.UINT8
    if not packed and data.dtype not in (ir.DataType.INT4, ir.DataType.UINT4):
        raise Refused(f"its table is {data.dtype.name.lower()}")
    if packed:
        dims[-1] = dims[-1] * 8 // bits
    axis = quantize_axis % len(dims)
    blocks = [-(-d // block_size) if i == axis else d for i, d in enumerate(dims)]
    if list(scale.shape) != blocks:
        raise Refused(f"its scales of shape {list(scale.shape)} should be {blocks}")
    qtype = QTYPES["int8" if data.dtype == ir.DataType.INT4 else "uint8"]

    def widened(tensor: ir.TensorProtocol, last: int) -> Array:
        return nbits.unpack(tensor.numpy(), bits, last) if packed else tensor.numpy().astype(qtype.carrier)

    if len(tensors) > 2:
        zero = widened(tensors[2], blocks[-1])
    else:
        zero = np.full(blocks, 1 << (bits - 1) if packed else 0, qtype.carrier)
    spec = TensorSpec(qtype, False, Blocked(min(block_size, dims[axis]), axis))
    integers = lazy(lambda: widened(data, dims[-1]), ir.DataType[qtype.name.upper()], tuple(dims))
    return integers, Encoding(spec, scale, zero)
