"""Quantized embedding tables: the rows are looked up as integers and dequantized behind the look-up.

``DequantizeLinear -> Gather`` is right, too, but turns the whole table into floats in every run: with onnxruntime 1.32,
50000 x 768 int8 and 128 tokens 16.6 ms, a thousand times a float Gather. Behind the look-up, a DequantizeLinear of the
rows takes 0.1 ms; its scale and zero point may be computed, so one scale a row or a block is looked up as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxq.edit import Namer, add_initializer, copy_metadata, replace_uses
from onnxq.look import Array, attr_int, constant, dims_of, onnx_op
from onnxq.nbits import Refused
from onnxq.numerics.spec import QTYPES, Blocked, Encoding, PerAxis, PerTensor, TensorSpec
from onnxq.numerics.tiles import scale_shape
from onnxq.weights import as_tensor


@dataclass(frozen=True, eq=False)
class Table:
    """A table in a graph.

    Attributes:
        integers: The integers, in an 8-bit type or a wider one: Gather takes no narrower one.
        scale: Scale.
        zero_point: Zero point.
        axis: Axis of the table that scales differ along; None for one scale.
        block_size: Values a scale holds for along ``axis``; None where that axis has one scale an index.
        gathered: Whether scale and zero point are looked up like the integers.
    """

    integers: ir.Value
    scale: ir.Value
    zero_point: ir.Value
    axis: int | None
    block_size: int | None
    gathered: bool

    @property
    def parameters(self) -> tuple[ir.Value, ir.Value]:
        """Scale and zero point."""
        return self.scale, self.zero_point


@dataclass(frozen=True)
class _Layout:
    """Parameters as a DequantizeLinear behind the look-up reads them."""

    scale: Array
    zero_point: Array
    axis: int | None
    block_size: int | None
    gathered: bool


def looked_up(node: ir.Node, rank: int) -> int:
    """The axis, never negative, that a Gather looks indices up along."""
    return attr_int(node, "axis", 0) % rank


def add_table(
    home: ir.Graph, base: str, integers: ir.TensorProtocol, encoding: Encoding, along: int, namer: Namer
) -> Table:
    """Put integers, scale and zero point of a table into a graph.

    Args:
        home: The graph that gets them.
        base: Name of the table.
        integers: The integers, of the encoding's type.
        encoding: Scale, zero point, granularity with its axis.
        along: The axis of the table that indices are looked up along.
        namer: Gives names.

    Raises:
        Refused: Less than 8 bits, a float type, or scales that no DequantizeLinear behind the look-up can take.
    """
    qtype = encoding.spec.qtype
    if qtype.bits < 8 or qtype.is_float:
        raise Refused(f"Gather takes no {qtype}")
    layout = _layout(encoding, integers.shape.numpy(), along)
    return Table(
        add_initializer(home, f"{base}_quantized", integers, namer),
        add_initializer(home, f"{base}_scale", layout.scale, namer),
        add_initializer(home, f"{base}_zero_point", as_tensor(layout.zero_point, qtype), namer),
        layout.axis,
        layout.block_size,
        layout.gathered,
    )


def _layout(encoding: Encoding, dims: Sequence[int], along: int) -> _Layout:
    scale, zero, granularity = encoding.scale, encoding.zero_point, encoding.spec.granularity
    if isinstance(granularity, PerTensor):
        return _Layout(scale, zero, None, None, gathered=False)
    axis = granularity.axis
    assert axis is not None
    if axis != along:
        size = granularity.size if isinstance(granularity, Blocked) else None
        return _Layout(scale, zero, axis, size, gathered=size is not None)
    if isinstance(granularity, Blocked):
        raise Refused(f"one scale for {granularity.size} rows: blocks must run along a row")
    if len(dims) < 2:
        raise Refused("one scale for every single value")
    # One scale a row is one block a row.
    inner = max(i for i in range(len(dims)) if i != along)
    shape = [1 if i == inner else d for i, d in enumerate(dims)]
    column = [d if i == along else 1 for i, d in enumerate(dims)]
    scale, zero = (np.ascontiguousarray(np.broadcast_to(p.reshape(column), shape)) for p in (scale, zero))
    return _Layout(scale, zero, inner, dims[inner], gathered=True)


def dequantize_behind(node: ir.Node, table: Table, namer: Namer, pass_name: str) -> None:
    """``Gather(table)`` -> ``Gather(integers) -> DequantizeLinear``; the latter takes the output name over.

    Args:
        node: The Gather; it stays and reads the integers.
        table: The table.
        namer: Gives names.
        pass_name: Who does it, for metadata.
    """
    graph, out, indices = node.graph, node.outputs[0], node.inputs[1]
    assert isinstance(graph, ir.Graph) and indices is not None and table.integers.shape is not None
    rank, base = len(table.integers.shape), node.name or node.op_type
    along, indexed = looked_up(node, rank), dims_of(indices)
    node.replace_input_with(0, table.integers)
    given = {"axis": table.axis, "block_size": table.block_size}
    if table.axis is not None:
        given["axis"] = _axis_behind(table.axis, along, rank, indexed)
    parameters = list(table.parameters)
    before: list[ir.Node] = []
    if table.gathered:
        parameters, before = _look_up(node, table, along, namer)
        if indexed == () and dims_of(parameters[0]) == (1,):
            # One row with one scale: onnxruntime takes a single number for per tensor, and then refuses a block size.
            parameters, squeezed = _squeeze(parameters, base, namer)
            before, given = [*before, *squeezed], {}
    attributes = [ir.AttrInt64(key, value) for key, value in given.items() if value is not None]
    dq = ir.Node("", "DequantizeLinear", [out, *parameters], attributes, name=namer(f"{base}_DequantizeLinear"))
    new = dq.outputs[0]
    new.name, new.type, new.shape = namer(f"{base}_dequantized"), table.scale.type, out.shape
    for each in (*before, dq):
        copy_metadata(each, node, pass_name)
    graph.insert_before(node, before)
    insert_behind(node, dq, namer, f"{out.name}_quantized")
    out.type = table.integers.type


def table_encoding(gather: ir.Node, dq: ir.Node, table: ir.TensorProtocol) -> Encoding:
    """The encoding of a whole table whose rows a DequantizeLinear behind the look-up dequantizes.

    Inverse of `dequantize_behind`: its scale and zero point are constants, or are looked up like the rows.

    Args:
        gather: Looks rows of the table up; nothing stands between.
        dq: Dequantizes them.
        table: The table.

    Raises:
        Refused: Scale or zero point are computed in another way, or do not fit the table.
    """
    dims = tuple(int(d) for d in table.shape.numpy())
    along, qtype = looked_up(gather, len(dims)), QTYPES.get(table.dtype.name.lower())
    scale, gathered = _source(dq.inputs[1], gather, along)
    zero, _ = _source(dq.inputs[2], gather, along) if len(dq.inputs) > 2 else (None, gathered)
    if qtype is None or scale is None or (zero is None and len(dq.inputs) > 2):
        raise Refused("its scale or zero point is computed at run time")
    granularity = _granularity(dq, gather, scale, dims, gathered)
    zeros = np.zeros(scale.shape, qtype.carrier) if zero is None else zero.astype(qtype.carrier)
    shape = scale_shape(dims, granularity)
    if scale.size != math.prod(shape) or zeros.size != scale.size:
        raise Refused(f"its scales of shape {list(scale.shape)} do not fit a table of shape {list(dims)}")
    return Encoding(TensorSpec(qtype, not zeros.any(), granularity), scale.reshape(shape), zeros.reshape(shape))


def _source(value: ir.Value | None, gather: ir.Node, along: int) -> tuple[Array | None, bool]:
    """The constant behind scale or zero point, and whether it is looked up with the indices of the rows."""
    found = constant(value)
    node = value.producer() if value is not None else None
    if found is None and onnx_op(node, "Squeeze") and node is not None and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    if found is not None or node is None or not onnx_op(node, "Gather") or node.inputs[1] is not gather.inputs[1]:
        return found, False
    found = constant(node.inputs[0])
    return (found, True) if found is not None and looked_up(node, found.ndim) == along else (None, True)


def _granularity(
    dq: ir.Node, gather: ir.Node, scale: Array, dims: tuple[int, ...], gathered: bool
) -> PerTensor | PerAxis | Blocked:
    """Where in the table the scales differ."""
    size, axis, rank = attr_int(dq, "block_size", 0), attr_int(dq, "axis", 1), len(dims)
    if gathered:
        short = [i for i, d in enumerate(dims) if i < scale.ndim and scale.shape[i] < d]
        if scale.ndim != rank or len(short) != 1:
            raise Refused(f"its scales of shape {list(scale.shape)} do not fit a table of shape {list(dims)}")
        return Blocked(size or dims[short[0]], short[0])
    if scale.size == 1:
        return PerTensor()
    along, indexed = looked_up(gather, rank), dims_of(gather.inputs[1])
    if axis < 0:
        axis += rank if indexed is None else rank - 1 + len(indexed)
        axis = axis if indexed is None or axis < along else axis - len(indexed) + 1
    elif axis >= along:
        if indexed is None or axis < along + len(indexed):
            raise Refused("nobody knows which axis of the table its scales belong to")
        axis -= len(indexed) - 1
    if size or not 0 <= axis < rank or axis == along:
        raise Refused(f"its scales along axis {axis} do not fit a table of shape {list(dims)}")
    return PerAxis(axis)


def insert_behind(node: ir.Node, new: ir.Node, namer: Namer, rest: str) -> None:
    """Put ``new``, which reads an output of ``node``, behind it: everybody else reads what it makes.

    Args:
        node: The node that makes what ``new`` reads.
        new: The node to insert; its output takes the name of that output over.
        namer: Gives names.
        rest: The name that is left for the output of ``node``.
    """
    graph, made = node.graph, new.outputs[0]
    out = next(value for value in new.inputs if value is not None and value.producer() is node)
    assert isinstance(graph, ir.Graph)
    read = [i for i, value in enumerate(new.inputs) if value is out]
    graph.insert_after(node, new)
    is_output = out.is_graph_output()
    replace_uses(out, made, namer)
    for index in read:
        new.replace_input_with(index, out)
    if not is_output and out.name:
        out.name, made.name = namer(rest), out.name


def _look_up(node: ir.Node, table: Table, along: int, namer: Namer) -> tuple[list[ir.Value], list[ir.Node]]:
    """Scale and zero point of the rows that a Gather finds."""
    indices, made = node.inputs[1], []
    assert indices is not None
    for value, what in zip(table.parameters, ("scale", "zero_point"), strict=True):
        name = f"{node.name or node.op_type}_{what}"
        gather = ir.node("Gather", [value, indices], {"axis": along}, name=namer(name))
        out = gather.outputs[0]
        out.name, out.type, out.shape = namer(f"{name}_output"), value.type, _shape_behind(value, along, indices)
        made.append(gather)
    return [gather.outputs[0] for gather in made], made


def _squeeze(values: list[ir.Value], base: str, namer: Namer) -> tuple[list[ir.Value], list[ir.Node]]:
    """Single numbers as scalars."""
    made = [ir.node("Squeeze", [value], name=namer(f"{base}_Squeeze")) for value in values]
    for squeeze, value in zip(made, values, strict=True):
        out = squeeze.outputs[0]
        out.name, out.type, out.shape = namer(f"{value.name}_scalar"), value.type, ir.Shape([])
    return [squeeze.outputs[0] for squeeze in made], made


def _axis_behind(axis: int, along: int, rank: int, indexed: tuple[int | None, ...] | None) -> int:
    """Where an axis of the table is in what Gather makes; counted from the end if nobody knows the indices' rank."""
    if axis < along:
        return axis
    return axis - rank if indexed is None else axis + len(indexed) - 1


def _shape_behind(value: ir.Value, along: int, indices: ir.Value) -> ir.Shape | None:
    if indices.shape is None or value.shape is None:
        return None
    dims = list(value.shape)
    return ir.Shape([*dims[:along], *indices.shape, *dims[along + 1 :]])
