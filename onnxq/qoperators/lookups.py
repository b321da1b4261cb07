"""com.microsoft.GatherBlockQuantized: a table of embeddings in blocks, as Gather -> DequantizeLinear."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.look import Array, attr_int, constant_tensor, graph_of
from onnxq.lookups import Table, add_table, dequantize_behind
from onnxq.nbits import DOMAIN, LOOKUP, lazy
from onnxq.numerics import nbits
from onnxq.numerics.spec import QTYPES, Blocked, Encoding, TensorSpec
from onnxq.qoperators.contrib_pairs import become, refuse_opset
from onnxq.qoperators.raising import Raiser, Refused, Rewrite
from onnxq.wording import plural


def look_up(node: ir.Node, raiser: Raiser) -> str:
    """The node becomes a Gather of integers, and a DequantizeLinear stands behind it; a table is stored once.

    Integers of 2 or 4 bits are stored in 8, since Gather takes no narrower ones, with a note. An index out of range
    gives zeros in the operator and is an error in Gather.
    """
    refuse_opset(node, raiser)
    data, indices, *parameters = node.inputs
    given = {"bits": 4, "block_size": 128, "gather_axis": 0, "quantize_axis": 1}
    options = {name: attr_int(node, name, default) for name, default in given.items()}

    def make() -> Table:
        tensors = [constant_tensor(value) for value in (data, *parameters)]
        if data is None or None in tensors:
            raise Refused("table, scales or zero points are computed")
        integers, encoding = _table(
            [t for t in tensors if t is not None], options["bits"], options["block_size"], options["quantize_axis"]
        )
        along = options["gather_axis"] % len(integers.shape)
        table = add_table(graph_of(data), data.name or "table", integers, encoding, along, raiser.namer)
        if data.dtype != ir.DataType.UINT8 or options["bits"] < 8:
            grown = int(np.prod(integers.shape.numpy()))
            why = f"'{data.name}' takes {plural(grown, 'byte')}: Gather takes no integers below 8 bits"
            raiser.ctx.note("table-widened", node, why, bytes=grown)
        return table

    table = raiser.once((LOOKUP, data, *parameters, *options.values()), make)
    become(node, raiser, "Gather", {"axis": options["gather_axis"]}, [table.integers, indices])
    dequantize_behind(node, table, raiser.namer, raiser.maker)
    return ""


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


FORMS: dict[tuple[str, str], Rewrite] = {(DOMAIN, LOOKUP): look_up}
"""(domain, op type) -> its rewrite."""
