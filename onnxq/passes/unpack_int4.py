"""`unpack-int4`: ONNX's 4- and 2-bit integers stored in 8 bits, for tools that do not know the types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from onnxq.carry import CARRIERS
from onnxq.edit import Namer, plain_initializers
from onnxq.numerics.spec import QTYPES
from onnxq.passbase import Context, Pass
from onnxq.stored import convert, selected, stored_integers
from onnxq.weights import onnx_dtype
from onnxq.wording import plural

_NARROW = {onnx_dtype(qtype): qtype for qtype in QTYPES.values() if qtype.bits < 8}
_THROUGH = tuple(op for op in CARRIERS if op != "Cast")


@dataclass(frozen=True, kw_only=True)
class UnpackInt4(Pass):
    """``INT4, UINT4, INT2 or UINT2 constant -> DequantizeLinear`` -> the same values in int8 or uint8.

    The inverse of `pack-int4`. Zero points change their type with the data. Each DequantizeLinear stays as it is, with
    axis, block size, output type, metadata and all its readers, and so does the opset. Weights are unpacked when they
    are written, one at a time. Works in all scopes. Constants with other readers keep their type, and so does
    ``float -> Q -> DQ``.

    Attributes:
        include: Names of constants, or selectors of the nodes that read them, dequantized or not; empty: all.
    """

    name: ClassVar[str] = "unpack-int4"

    include: tuple[str, ...] = ()

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Unpack every constant that only DequantizeLinear nodes read; True if the graph changed.

        Raises:
            OptionError: A selector of ``include`` matches nothing.
        """
        plain = plain_initializers(model)
        items = stored_integers(model, tuple(_NARROW), _THROUGH)
        if self.include:
            items = selected(items, self.include, model)
        for item in items:
            if item.obstacle:
                ctx.note("not-unpacked", item.value, f"it stays {item.tensor.dtype.name}: {item.obstacle}")
        free = [item for item in items if not item.obstacle]
        convert(free, _unpacked, Namer(model), self.name)
        if items:
            text = f"{len(free)} of {plural(len(items), 'packed tensor')} now in 8 bits"
            ctx.note("unpacked", None, text, unpacked=len(free), stored=len(items))
        return plain or bool(free)


def _unpacked(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    carrier = _NARROW[tensor.dtype].carrier
    return ir.LazyTensor(
        lambda: ir.Tensor(tensor.numpy().astype(carrier)),
        dtype=ir.DataType.from_numpy(carrier),
        shape=ir.Shape(tensor.shape.numpy()),
    )
