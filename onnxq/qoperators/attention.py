"""com.microsoft.QAttention as standard ONNX: one product for query, key and value, MatMul, Softmax, MatMul.

What the masks mean was measured with onnxruntime 1.32: a mask adds ``mask_filter_value`` (-10000 by default) to the
scores of positions that are masked, ``unidirectional`` replaces scores of later positions by the lowest float.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq.look import attr_float, attr_int, dims_of
from onnxq.ops import MICROSOFT
from onnxq.pairs import parameter
from onnxq.qoperators.raising import Raiser, Refused, Rewrite

_AXES_ARE_INPUT_SINCE = 13
_RANGE_SINCE = 11


def attend(node: ir.Node, raiser: Raiser) -> str:
    """Rewrite a QAttention; stays with masks of rank 4, rotary embeddings, and a shared buffer for past and present."""
    x, weight, bias = node.inputs[:3]
    width = (dims_of(bias) or (None,))[0] or (dims_of(weight) or (None, None))[1]
    heads, mask, past = attr_int(node, "num_heads", 0), parameter(node, 5), parameter(node, 8)
    if x is None or weight is None or bias is None or width is None or not heads:
        raise Refused("weight, bias or number of heads are missing, or of unknown shape")
    if attr_int(node, "do_rotary", 0) or attr_int(node, "past_present_share_buffer", 0):
        raise Refused("rotary embeddings, or a buffer shared by past and present")
    make = _Maker(node, raiser)
    product = make("MatMul", [make.pair(x, 3, 6), make.pair(weight, 4, 7, axis=1)], name="product")
    size = width // 3 // heads
    split = make("Reshape", [make("Add", [product, bias]), make.ints([0, 0, 3, heads, size])])
    apart = make("Transpose", [split], {"perm": [2, 0, 3, 1, 4]})
    query, new = make.pick(apart, 0), make.pick(apart, [1, 2])
    present = new if past is None else make("Concat", [past, new], {"axis": 3})
    key, value = make.pick(present, 0), make.pick(present, 1)
    scale = attr_float(node, "scale", 0.0) or 1 / math.sqrt(size)
    scores = make("MatMul", [query, make("Transpose", [key], {"perm": [0, 1, 3, 2]})], name="scores")
    scores = make("Mul", [scores, make.number(scale)])
    if mask is not None:
        scores = make("Add", [scores, _mask(make, mask, x, key)])
    if attr_int(node, "unidirectional", 0):
        scores = _causal(make, scores, query, key)
    shares = make("Softmax", [scores], {"axis": -1})
    heads_last = make("Transpose", [make("MatMul", [shares, value], name="mix")], {"perm": [0, 2, 1, 3]})
    y = raiser.float_op(node, "Reshape", [heads_last, make.ints([0, 0, width // 3])])
    raiser.take_over(node.outputs[0], y)
    if len(node.outputs) > 1:
        raiser.take_over(node.outputs[1], present)
    return ""


@dataclass
class _Maker:
    """Makes the nodes that one QAttention becomes."""

    node: ir.Node
    raiser: Raiser

    @property
    def base(self) -> str:
        """What their names begin with."""
        return self.node.name or self.node.op_type

    def __call__(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: dict[str, Any] | None = None,
        *,
        name: str = "",
        dtype: ir.DataType | None = None,
    ) -> ir.Value:
        base = f"{self.base}_{name}" if name else self.base
        return self.raiser.float_op(self.node, op_type, inputs, attributes or {}, name=base, dtype=dtype)

    def pair(self, x: ir.Value, scale: int, zero: int, axis: int | None = None) -> ir.Value:
        """An operand as floats, with the parameters at two inputs."""
        found = parameter(self.node, scale)
        if found is None:
            raise Refused(f"input {scale} is missing")
        return self.raiser.dequantized(self.node, x, found, parameter(self.node, zero), axis)

    def ints(self, values: int | list[int]) -> ir.Value:
        """An int64 constant."""
        text = "_".join(map(str, values)) if isinstance(values, list) else str(values)
        return self.raiser.constant(self.node, f"int64_{text.replace('-', 'm')}", np.array(values, np.int64))

    def number(self, value: float) -> ir.Value:
        """A constant of the type of the bias."""
        dtype = (self.node.inputs[2].dtype if self.node.inputs[2] is not None else None) or ir.DataType.FLOAT
        return self.raiser.constant(self.node, f"{self.base}_number", np.array(value, dtype.numpy()))

    def pick(self, x: ir.Value, index: int | list[int]) -> ir.Value:
        """Entries along the first axis."""
        return self("Gather", [x, self.ints(index)], {"axis": 0})

    def unsqueeze(self, x: ir.Value, axes: list[int]) -> ir.Value:
        """New axes of length 1."""
        if self.raiser.opset < _AXES_ARE_INPUT_SINCE:
            return self("Unsqueeze", [x], {"axes": axes})
        return self("Unsqueeze", [x, self.ints(axes)])

    def length(self, x: ir.Value) -> ir.Value:
        """Number of positions, the second to last axis of a rank 4 tensor: an int64 scalar."""
        return self.pick(self("Shape", [x], dtype=ir.DataType.INT64), 2)

    def positions(self, start: ir.Value, end: ir.Value) -> ir.Value:
        """The numbers from start up to end."""
        if self.raiser.opset < _RANGE_SINCE:
            raise Refused(f"its mask needs Range, opset {_RANGE_SINCE}: run upgrade-opset first")
        return self("Range", [start, end, self.ints(1)], dtype=ir.DataType.INT64)

    def compare(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """``a > b``."""
        return self("Greater", [a, b], dtype=ir.DataType.BOOL)


def _mask(make: _Maker, mask: ir.Value, x: ir.Value, key: ir.Value) -> ir.Value:
    """What a mask adds to the scores [batch, heads, queries, keys]."""
    dims, off = dims_of(mask), make.number(attr_float(make.node, "mask_filter_value", -10000.0))
    if dims is None or len(dims) not in (1, 2, 3):
        raise Refused(
            "its mask has 4 axes" if dims is not None and len(dims) == 4 else "the rank of its mask is unknown"
        )
    if len(dims) > 1:
        none = make.raiser.constant(make.node, "int32_0", np.array(0, np.int32))
        seen = make.compare(make.unsqueeze(mask, [1, 2] if len(dims) == 2 else [1]), none)
        return make("Where", [seen, make.number(0.0), off], dtype=off.dtype)
    if mask.shape is None or x.shape is None or (mask.shape[0] != x.shape[0] or mask.shape[0] is None):
        raise Refused("its mask of one axis is not known to hold one number of positions for each sequence")
    ends = make.unsqueeze(make("Cast", [mask], {"to": int(ir.DataType.INT64)}, dtype=ir.DataType.INT64), [1, 2, 3])
    seen = make.compare(ends, make.positions(make.ints(0), make.length(key)))
    return make("Where", [seen, make.number(0.0), off], dtype=off.dtype)


def _causal(make: _Maker, scores: ir.Value, query: ir.Value, key: ir.Value) -> ir.Value:
    """Scores of positions behind the own one at the lowest float; the queries are the last ones of the keys."""
    end = make.length(key)
    own = make.positions(make("Sub", [end, make.length(query)]), end)
    later = make.compare(make.positions(make.ints(0), end), make.unsqueeze(own, [1]))
    lowest = make.number(float(np.finfo((scores.dtype or ir.DataType.FLOAT).numpy()).min))
    return make("Where", [later, lowest, scores], dtype=scores.dtype)


FORMS: dict[tuple[str, str], Rewrite] = {(MICROSOFT, "QAttention"): attend}
"""(domain, op type) -> its rewrite."""
