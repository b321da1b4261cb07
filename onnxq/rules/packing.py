"""OQ40x: how small integers lie in bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator

import onnx_ir as ir
from onnx import TensorProto

from onnxq.carry import readers_behind
from onnxq.linting.rule import Finding, graph_rule, wire_rule
from onnxq.linting.subject import Subject
from onnxq.linting.wire import Wire
from onnxq.look import attr_int, constant_tensor, onnx_op
from onnxq.passes.skip_odd_pack_axis import pack_axis_of
from onnxq.rules._weights import extent, scale_axis
from onnxq.wording import plural

_BITS: dict[int, int] = {
    TensorProto.INT4: 4,
    TensorProto.UINT4: 4,
    TensorProto.FLOAT4E2M1: 4,
    TensorProto.INT2: 2,
    TensorProto.UINT2: 2,
}
_FOUR_BITS = (ir.DataType.INT4, ir.DataType.UINT4)
_TWO_BITS = (ir.DataType.INT2, ir.DataType.UINT2)


@graph_rule("OQ401", "odd-pack-axis", "error")
def odd_pack_axis(subject: Subject) -> Iterator[Finding]:
    """A 4-bit weight is odd along the axis that the target packs.

    What it does:
        With `--target`: follows each 4- and 2-bit weight to the operator that reads it, and takes the target's rule for
        the axis that has to be a multiple of the values in a byte. Targets that pack over the whole tensor have none.

    Why is this bad:
        The target's compiler refuses the layer, or reads rows that are shifted by half a byte.

    Use instead:
        Leave such a layer float (`skip-odd-pack-axis`), or widen it by zeros (`on-odd: pad`).
    """
    rule = subject.target.pack_axis if subject.target is not None else "flat"
    for one in subject.linears if rule != "flat" else ():
        per_byte = 2 if one.dtype in _FOUR_BITS else 4 if one.dtype in _TWO_BITS else 1
        dims = one.dims
        if one.quantizes or one.out is None or per_byte == 1 or not dims or None in dims:
            continue
        known = tuple(int(d or 0) for d in dims)
        for use in readers_behind(one.out, known, 0):
            axis = pack_axis_of(use.node.op_type, len(use.dims), rule, trans_b=bool(attr_int(use.node, "transB", 0)))
            if axis is not None and use.dims[axis] % per_byte:
                axis %= len(use.dims)
                text = f"its weight of shape {list(use.dims)} is {use.dims[axis]} long on pack axis {axis}"
                numbers = {"axis": axis, "length": use.dims[axis], "values in a byte": per_byte}
                yield Finding(use.node, text, numbers=numbers)
                break


@graph_rule("OQ402", "four-bits-in-eight", "info", weights=True, fix="pack-int4", safe=False)
def four_bits_in_eight(subject: Subject) -> Iterator[Finding]:
    """Integers of four bits are stored one in a byte.

    What it does:
        Reads 8-bit weights, and looks for those whose integers all lie in -8 to 7, or 0 to 15.

    Why is this bad:
        The file is twice as large as it needs to be, and no runtime takes it for a 4-bit model.

    Use instead:
        int4 or uint4 tensors (opset 21).

    Fix safety:
        Unsafe: integers, scales and zero points stay what they are, but the opset goes to 21, and layers that ran on
        8-bit kernels may run in float: onnxruntime has no kernel of 4-bit weights with 8-bit activations.
    """
    for one in subject.stored:
        tensor = constant_tensor(one.data)
        if tensor is None or one.dtype not in (ir.DataType.INT8, ir.DataType.UINT8) or tensor.size < 2:
            continue
        found = extent(one, scale_axis(one))
        if found is None:
            continue
        low, high = int(found[0].min()), int(found[1].max())
        least, most = (-8, 7) if one.dtype == ir.DataType.INT8 else (0, 15)
        if least <= low and high <= most and low < high:
            text = f"its integers '{one.data.name if one.data is not None else ''}' need four bits, and have eight"
            yield Finding(one.node, text, numbers={"least": low, "greatest": high, "bytes": int(tensor.size)})


@wire_rule("OQ403", "dirty-padding", "warning")
def dirty_padding(wire: Wire) -> Iterator[Finding]:
    """The unused bits behind the last 4- or 2-bit value are not zero.

    What it does:
        Looks at the last byte of tensors whose number of values does not fill it.

    Why is this bad:
        Readers ignore them, but files that mean the same differ in bytes and checksums, and packers that count bytes
        see a value that is not there.

    Use instead:
        Zero bits.
    """
    tensors = wire.tensors
    for index in tensors.of(_BITS):
        total = math.prod(tensors.dims[index]) * _BITS[tensors.types[index]]
        used, fits = total % 8, tensors.sizes[index] == -(-total // 8)
        data = wire.data(tensors.protos[index]) if used and fits else None
        if data and data[-1] >> used:
            text = f"the last byte of '{tensors.name(index)}' has bits set behind its last value"
            yield Finding(tensors.place(index), text, numbers={"byte": int(data[-1]), "bits used": used})


@graph_rule("OQ404", "int2-columns", "error", targets=("ort-cpu",))
def int2_columns(subject: Subject) -> Iterator[Finding]:
    """A 2-bit weight has a number of columns that four does not divide.

    What it does:
        Looks for MatMul and Gemm whose weight is int2 or uint2 behind a DequantizeLinear, with N % 4 other than 0.

    Why is this bad:
        onnxruntime's default session repacks it for MatMulNBits and computes something else (relative errors above 1,
        measured with 1.32), without a word.

    Use instead:
        4 bits, or columns of zeros up to a multiple of four.
    """
    for one in subject.linears:
        if one.quantizes or one.out is None or one.dtype not in _TWO_BITS or one.dims is None or len(one.dims) != 2:
            continue
        for node, index in one.out.uses():
            if index == 1 and onnx_op(node, "MatMul", "Gemm"):
                columns = one.dims[0 if attr_int(node, "transB", 0) else 1]
                if columns is not None and columns % 4:
                    text = f"its 2-bit weight has {columns} columns for {node.op_type} '{node.name}'"
                    yield Finding(one.node, text, numbers={"columns": columns})


@wire_rule("OQ405", "packed-too-long", "error")
def packed_too_long(wire: Wire) -> Iterator[Finding]:
    """A 4- or 2-bit tensor has more bytes than its values need.

    What it does:
        Compares the size of `raw_data` with the number of values; two int4 share a byte, four int2 do.

    Why is this bad:
        It is what writing one value a byte gives. onnx.checker passes, readers take wrong values, onnxruntime refuses
        to load.

    Example:
        int4 of shape [3, 3] with 9 bytes; it needs 5.

    Use instead:
        Packed values, low bits first.
    """
    tensors = wire.tensors
    for index in tensors.of(_BITS):
        bits, size = _BITS[tensors.types[index]], tensors.sizes[index]
        needed = -(-math.prod(tensors.dims[index]) * bits // 8)
        if size > needed >= 0:
            text = f"tensor '{tensors.name(index)}' has {plural(size, 'byte')}; its {bits}-bit values need {needed}"
            yield Finding(tensors.place(index), text, numbers={"has": size, "needs": needed})
