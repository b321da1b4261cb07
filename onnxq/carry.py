"""Constants behind ops that only carry them, and axes through such ops.

Between a stored weight and the op that reads it may stand Transpose, Reshape, Squeeze, Unsqueeze, Flatten, Identity,
and Cast to a float type. Shapes are known all along, since they start from a constant.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq.look import attr_int, attr_ints, constant, constant_tensor, onnx_op
from onnxq.numerics.tiles import in_c_order

Array = np.ndarray[Any, Any]
Dims = tuple[int, ...]

CARRIERS = ("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Cast")
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)


@dataclass(frozen=True)
class Step:
    """What one carrier does to a tensor.

    Attributes:
        label: Op and name, for messages.
        before: Shape of its input.
        after: Shape of its output.
        perm: The permutation of a Transpose.
        dtype: The type a Cast writes.
    """

    label: str
    before: Dims
    after: Dims
    perm: Dims | None = None
    dtype: ir.DataType | None = None

    def forward(self, axis: int) -> int | str:
        """Where an axis of the input is in the output, or in words why it is nowhere.

        An axis of length 1 may be found at another place of length 1 than one would think; that is the same tensor.
        """
        if self.perm is not None:
            return self.perm.index(axis)
        found = _moved(self.before, self.after, axis)
        return self._lost(axis, self.before, self.after) if found is None else found

    def back(self, axis: int) -> int | str:
        """Inverse of `forward`: where an axis of the output is in the input."""
        if self.perm is not None:
            return self.perm[axis]
        found = _moved(self.after, self.before, axis)
        return self._lost(axis, self.after, self.before) if found is None else found

    def apply(self, array: Array) -> Array:
        """The output for an input."""
        if self.perm is not None:
            return array.transpose(self.perm)
        if self.dtype is not None:
            with np.errstate(over="ignore"):  # what leaves the range of the type is infinite there, too
                return array.astype(self.dtype.numpy())
        return array.reshape(self.after)

    def _lost(self, axis: int, here: Dims, there: Dims) -> str:
        return f"{self.label} between {list(self.before)} and {list(self.after)} merges or splits axis {axis}"


def _moved(here: Dims, there: Dims, axis: int) -> int | None:
    """The axis of ``there`` of the same length with as many values in front of it."""
    lead = math.prod(here[:axis])
    for i, length in enumerate(there):
        if length == here[axis] and math.prod(there[:i]) == lead:
            return i
    return None


def carries(node: ir.Node | None) -> bool:
    """Whether the op hands its first input on, perhaps in another layout or float type."""
    return onnx_op(node, *CARRIERS)


def step(node: ir.Node, dims: Sequence[int]) -> Step | str:
    """What a carrier does to a first input of shape ``dims``, or in words why that cannot be told."""
    label, before = f"{node.op_type} '{node.name}'", tuple(dims)
    if not carries(node):
        return f"{label} computes something"
    if any(attr.is_ref() for attr in node.attributes.values()):
        return f"{label} has attributes that a function call fills in"
    if node.op_type == "Transpose":
        perm = tuple(attr_ints(node, "perm", range(len(before))[::-1]) or ())
        if sorted(perm) != list(range(len(before))):
            return f"{label} turns {list(perm)}, which does not fit {list(before)}"
        return Step(label, before, tuple(before[i] for i in perm), perm)
    if node.op_type == "Cast":
        dtype = next((kind for kind in ir.DataType if kind == attr_int(node, "to", 0)), ir.DataType.UNDEFINED)
        return Step(label, before, before, dtype=dtype) if dtype in _FLOATS else f"{label} casts to {dtype.name}"
    after = _shape(node, before)
    if after is None:
        return f"{label} gets its shape or axes at run time"
    return Step(label, before, after) if math.prod(after) == math.prod(before) else f"{label} does not fit {dims}"


def _shape(node: ir.Node, dims: Dims) -> Dims | None:
    """Output shape of Identity, Flatten, Reshape, Squeeze, Unsqueeze; None where it depends on run-time values."""
    if node.op_type == "Identity":
        return dims
    if node.op_type == "Flatten":
        axis = attr_int(node, "axis", 1)
        cut = axis + len(dims) if axis < 0 else axis
        return math.prod(dims[:cut]), math.prod(dims[cut:])
    given = _ints(node, "shape" if node.op_type == "Reshape" else "axes")
    if node.op_type == "Squeeze" and given == ():
        return tuple(d for d in dims if d != 1)
    if given is None:
        return None
    if node.op_type == "Reshape":
        return _reshaped(given, dims, bool(attr_int(node, "allowzero", 0)))
    rank = len(dims) + (len(given) if node.op_type == "Unsqueeze" else 0)
    axes = {a % rank if rank else a for a in given}
    if len(axes) != len(given):
        return None  # no axis can be named twice
    if node.op_type == "Squeeze":
        return tuple(d for i, d in enumerate(dims) if i not in axes)
    rest = iter(dims)
    return tuple(1 if i in axes else next(rest) for i in range(rank))


def _ints(node: ir.Node, attribute: str) -> Dims | None:
    """Numbers of the second input, or of an attribute in older opsets; () where neither is there, None if computed."""
    if attribute in node.attributes:
        return tuple(attr_ints(node, attribute) or ())
    if len(node.inputs) < 2 or node.inputs[1] is None:
        return ()
    found = constant(node.inputs[1])
    return None if found is None else tuple(int(i) for i in found.reshape(-1))


def _reshaped(target: Dims, dims: Dims, allow_zero: bool) -> Dims:
    out = [dims[i] if t == 0 and not allow_zero and i < len(dims) else t for i, t in enumerate(target)]
    if -1 in out:
        out[out.index(-1)] = math.prod(dims) // max(1, -math.prod(out))
    return tuple(out)


@dataclass(frozen=True, eq=False)
class Carried:
    """A constant, and the steps between it and what reads it.

    Attributes:
        source: The value that holds the constant.
        tensor: The constant.
        nodes: The carriers, nearest to the constant first.
        steps: What they do.
    """

    source: ir.Value
    tensor: ir.TensorProtocol
    nodes: tuple[ir.Node, ...] = ()
    steps: tuple[Step, ...] = ()

    @property
    def dims(self) -> Dims:
        """Shape of what the reader gets."""
        return self.steps[-1].after if self.steps else tuple(int(d) for d in self.tensor.shape.numpy())

    def forward(self, axis: int) -> int | str:
        """Where an axis of the stored constant is when it is read, or in words why it is nowhere."""
        for one in self.steps:
            found = one.forward(axis)
            if isinstance(found, str):
                return found
            axis = found
        return axis

    def back(self, axis: int) -> int | str:
        """Where an axis of what is read is in the stored constant, or in words why it is nowhere."""
        for one in reversed(self.steps):
            found = one.back(axis)
            if isinstance(found, str):
                return found
            axis = found
        return axis

    def read(self) -> ir.TensorProtocol:
        """What the reader gets, computed when it is asked for."""
        if not self.steps:
            return self.tensor
        # No nodes in here: they may be gone when the data is asked for.
        tensor, steps = self.tensor, self.steps
        dtype = next((s.dtype for s in reversed(steps) if s.dtype is not None), tensor.dtype)

        def compute() -> ir.TensorProtocol:
            array = tensor.numpy()
            for one in steps:
                array = one.apply(array)
            return ir.Tensor(in_c_order(array), dtype=dtype)

        return ir.LazyTensor(compute, dtype=dtype, shape=ir.Shape(self.dims))


def constant_behind(value: ir.Value | None) -> Carried | str:
    """The constant that a use reads through carriers, without reading its data, or in words why there is none."""
    nodes: list[ir.Node] = []
    while value is not None:
        tensor = constant_tensor(value)
        if tensor is not None:
            return _followed(value, tensor, tuple(reversed(nodes)))
        node = value.producer()
        if node is None:
            return f"'{value.name}' is computed at run time"
        if not carries(node) or not node.inputs:
            return f"{node.op_type} '{node.name}' computes it"
        nodes.append(node)
        value = node.inputs[0]
    return "an input is missing"


def _followed(source: ir.Value, tensor: ir.TensorProtocol, nodes: tuple[ir.Node, ...]) -> Carried | str:
    dims: Dims = tuple(int(d) for d in tensor.shape.numpy())
    steps = []
    for node in nodes:
        one = step(node, dims)
        if isinstance(one, str):
            return one
        steps.append(one)
        dims = one.after
    return Carried(source, tensor, nodes, tuple(steps))


@dataclass(frozen=True)
class Reader:
    """A use of a value behind carriers.

    Attributes:
        node: What reads it.
        index: The input it is read at.
        dims: Its shape there.
        axis: Where the axis that was followed is there.
    """

    node: ir.Node
    index: int
    dims: Dims
    axis: int


def readers_behind(value: ir.Value, dims: Dims, axis: int) -> Iterator[Reader]:
    """What reads a value of shape ``dims``, directly or through carriers, with where an axis of it went.

    Where a carrier merges or splits the axis nobody can say where it is, and what lies behind is left out.
    """
    pending = [(value, dims, axis)]
    while pending:
        value, dims, axis = pending.pop()
        for node, index in value.uses():
            if not carries(node) or index:
                yield Reader(node, index, dims, axis)
                continue
            one = step(node, dims)
            there = one.forward(axis) if isinstance(one, Step) else one
            if isinstance(one, Step) and isinstance(there, int):
                pending.append((node.outputs[0], one.after, there))
