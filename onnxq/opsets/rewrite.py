"""One node on its way to a newer opset: what an adapter reads, and how it says what stands in for the node.

Nothing here touches the graph: replacements are built beside it and put in place together, or thrown away together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq.look import Array, dims_of


class Refused(Exception):
    """The node has no equal at the newer opset; the text says why."""


class NeedsShapes(Exception):
    """The adapter needs a type or a shape that shape inference may still find."""


class Rewrite:
    """The replacement of one node, as an adapter builds it.

    Attributes:
        node: The node as it is.
        nodes: What replaces it, in order; empty as long as the node is right as it is.
        outputs: Stand-ins for the node's outputs.
    """

    def __init__(self, node: ir.Node, made: list[ir.Node], *, inferred: bool) -> None:
        """Start with an empty replacement; every node made is also appended to ``made``."""
        self.node = node
        self.nodes: list[ir.Node] = []
        self.outputs: list[ir.Value] = []
        self._made = made
        self._inferred = inferred

    def has(self, index: int) -> bool:
        """Whether the optional input is there."""
        return index < len(self.node.inputs) and self.node.inputs[index] is not None

    def attr(self, name: str, default: Any = None) -> Any:
        """The value of an attribute, or the default where it is absent."""
        return self.node.attributes[name].value if name in self.node.attributes else default

    def dims(self, index: int) -> tuple[int | None, ...]:
        """The shape of an input, None for unknown dims.

        Raises:
            NeedsShapes: Not even the rank is known yet.
            Refused: Nor will it be.
        """
        dims = dims_of(self.node.inputs[index])
        if dims is None:
            raise self._missing(f"the rank of input {index}")
        return dims

    def dtype(self, index: int) -> ir.DataType:
        """The type of an input; raises as `dims` does."""
        value = self.node.inputs[index]
        if value is None or value.dtype is None:
            raise self._missing(f"the type of input {index}")
        return value.dtype

    def _missing(self, what: str) -> Exception:
        return Refused(f"{what} is unknown") if self._inferred else NeedsShapes(what)

    def _add(self, node: ir.Node) -> ir.Node:
        self.nodes.append(node)
        self._made.append(node)
        return node

    def constant(self, data: Any, dtype: ir.DataType | type[np.generic], what: str) -> ir.Value:
        """A new Constant node; ``what`` ends up in its name."""
        numpy_type = dtype.numpy() if isinstance(dtype, ir.DataType) else np.dtype(dtype)
        with np.errstate(over="ignore"):  # a float32 limit that is infinite in float16 still means "no limit"
            array: Array = np.asarray(data).astype(numpy_type)
        value = self._add(ir.node("Constant", [], {"value": ir.tensor(array)})).outputs[0]
        value.name = what
        return value

    def op(self, op_type: str, inputs: Sequence[ir.Value | None], **attributes: Any) -> ir.Value:
        """A new helper node with one output."""
        return self._add(ir.node(op_type, inputs, attributes)).outputs[0]

    def redo(
        self,
        op_type: str = "",
        *,
        inputs: Sequence[ir.Value | None] | None = None,
        drop: Sequence[str] = (),
        outputs: int | None = None,
        **attributes: Any,
    ) -> list[ir.Value]:
        """The node again with another op type, other inputs, or other attributes; becomes the replacement.

        Args:
            op_type: New op type, the old one by default.
            inputs: New inputs; trailing absent ones are cut.
            drop: Attributes to leave out.
            outputs: How many outputs, as many as before by default.
            attributes: Attributes to set; None leaves one out.
        """
        kept = [a for name, a in self.node.attributes.items() if name not in drop and name not in attributes]
        added = ir.convenience.convert_attributes({k: v for k, v in attributes.items() if v is not None})
        given = list(self.node.inputs if inputs is None else inputs)
        while given and given[-1] is None:
            given.pop()
        count = len(self.node.outputs) if outputs is None else outputs
        node = self._add(ir.Node("", op_type or self.node.op_type, given, [*kept, *added], num_outputs=count))
        self.outputs = list(node.outputs)
        return self.outputs

    def move_to_input(self, attribute: str, dtype: ir.DataType | type[np.generic], index: int) -> None:
        """Turn an attribute into an input; an absent or empty one becomes an absent input."""
        values = self.attr(attribute)
        if values is None:
            return
        inputs = [*self.node.inputs, *[None] * (index + 1 - len(self.node.inputs))]
        if len(values):
            inputs[index] = self.constant(values, dtype, attribute)
        self.redo(inputs=inputs, drop=[attribute])


Adapter = Callable[[Rewrite], None]
