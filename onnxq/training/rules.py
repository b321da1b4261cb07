"""What a gradient rule sees and returns, and the table of onnxq's own rules.

A rule turns the gradient of a node's first output into gradients of its inputs. Gradients carry no seed axis: the
gradient of a value has exactly that value's shape and type. Ops without an own rule go through `onnx_ad` node by node
(`rules_borrowed`); an op is in this table because onnx-ad refuses it or because its own form was measured to be faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

FLOATS = frozenset({onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16})


class NoGradient(Exception):
    """A node that cannot be differentiated; the message is the reason."""


class Tape:
    """Emits nodes behind a graph whose types and shapes are known.

    Args:
        graph: The graph that is differentiated, with the type and static shape of its values in ``value_info``.
        opset: Its version of the default domain.
    """

    def __init__(self, graph: onnx.GraphProto, opset: int) -> None:
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._stored = {tensor.name: tensor for tensor in graph.initializer}
        self._types = {tensor.name: tensor.data_type for tensor in graph.initializer}
        self._shapes: dict[str, tuple[int, ...]] = {t.name: tuple(t.dims) for t in graph.initializer}
        for value in (*graph.input, *graph.output, *graph.value_info):
            self._known(value)
        self._taken = {name for node in graph.node for name in node.output} | set(self._types)

    def _known(self, value: onnx.ValueInfoProto) -> None:
        kind = value.type.tensor_type
        if not kind.elem_type:
            return
        self._types[value.name] = kind.elem_type
        if kind.HasField("shape") and all(d.WhichOneof("value") == "dim_value" for d in kind.shape.dim):
            self._shapes[value.name] = tuple(d.dim_value for d in kind.shape.dim)

    def type(self, name: str) -> int:
        """Element type of a value; 0 when it is not a tensor or not known."""
        return int(self._types.get(name, 0))

    def shape(self, name: str) -> tuple[int, ...]:
        """Static shape of a value of the differentiated graph.

        Raises:
            NoGradient: The shape is not known.
        """
        if name not in self._shapes:
            raise NoGradient(f"the shape of {name!r} is not known")
        return self._shapes[name]

    def declare(self, name: str, kind: int, shape: tuple[int, ...]) -> None:
        """Say what an emitted value is, so that it can be asked for."""
        self._types[name], self._shapes[name] = kind, shape

    def stored(self, name: str) -> onnx.TensorProto | None:
        """The initializer of that name, if it is one."""
        return self._stored.get(name)

    def name(self, stem: str) -> str:
        """A name that nothing has yet."""
        name, n = stem, 1
        while name in self._taken:
            name, n = f"{stem}.{n}", n + 1
        self._taken.add(name)
        return name

    def op(self, op_type: str, *inputs: str, stem: str = "", **attributes: Any) -> str:
        """Emit a node of one output and return the output's name."""
        out = self.name(stem or f"grad/{op_type}")
        self.nodes.append(helper.make_node(op_type, list(inputs), [out], **attributes))
        return out

    def constant(self, array: npt.ArrayLike, dtype: npt.DTypeLike) -> str:
        """Name of an initializer of that content; equal ones are shared."""
        data = np.asarray(array, dtype)
        key = (data.dtype.str, data.shape, data.tobytes())
        if key not in self._constants:
            self._constants[key] = self.name("grad/const")
            self.initializers.append(numpy_helper.from_array(data, self._constants[key]))
        return self._constants[key]

    def ints(self, values: Iterable[int]) -> str:
        """A constant int64 vector."""
        return self.constant(list(values), np.int64)

    def number(self, value: float, like: str) -> str:
        """A constant scalar of the type of the value ``like``."""
        return self.constant(value, helper.tensor_dtype_to_np_dtype(self.type(like)))

    def reshape(self, value: str, shape: Sequence[int]) -> str:
        """Reshape to a constant shape."""
        return self.op("Reshape", value, self.ints(shape))

    def transpose(self, value: str, perm: Sequence[int]) -> str:
        """Transpose, or nothing when the order stays."""
        return value if list(perm) == sorted(perm) else self.op("Transpose", value, perm=list(perm))

    def sum(self, value: str, axes: Sequence[int], *, keepdims: bool = False) -> str:
        """Sum over constant axes; the value itself when there are none."""
        if not axes:
            return value
        if self.opset >= 13:
            return self.op("ReduceSum", value, self.ints(axes), keepdims=int(keepdims))
        return self.op("ReduceSum", value, axes=list(axes), keepdims=int(keepdims))

    def reduced_to(self, value: str, shape: tuple[int, ...], target: tuple[int, ...]) -> str:
        """Undo broadcasting: the sum of ``value`` (of ``shape``) over the axes along which ``target`` was repeated."""
        lead = len(shape) - len(target)
        axes = [*range(lead), *(lead + i for i, d in enumerate(target) if d == 1 and shape[lead + i] != 1)]
        kept = tuple(d for i, d in enumerate(shape) if i not in axes)
        summed = self.sum(value, axes)
        return summed if kept == target else self.reshape(summed, target)


Rule: TypeAlias = Callable[[Tape, onnx.NodeProto, str, Sequence[bool]], "Sequence[str | None] | None"]
"""``rule(tape, node, gradient of output 0, which inputs are wanted) -> gradient of each input, or None``.

Instead of the list a rule may return None for a node that it leaves to onnx-ad.
"""

RULES: dict[str, Rule] = {}


def rule(*op_types: str) -> Callable[[Rule], Rule]:
    """Register a rule for ops of the default domain."""

    def register(function: Rule) -> Rule:
        for op_type in op_types:
            RULES[op_type] = function
        return function

    return register


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """A node's attributes as Python values, strings decoded."""
    found = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in found.items()}
