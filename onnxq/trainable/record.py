"""What a trainable model remembers of the model it was made from: JSON in the metadata of model and nodes.

The graph alone says which integers belong to which floats; the record adds what it cannot say: attributes, element
types that training does not have, which pairs were one. A model without records folds back, too, with the usual
choices.
"""

from __future__ import annotations

import json
from collections.abc import MutableMapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq.edit import Namer, add_initializer
from onnxq.errors import InputError
from onnxq.numerics.spec import QTYPES, Blocked, Encoding, Granularity, PerAxis, PerTensor, QType, TensorSpec
from onnxq.pairs import parameter
from onnxq.weights import as_tensor

KEY = "onnxq.trainable"
Props = MutableMapping[str, str]


def read(props: Props) -> dict[str, Any]:
    """The record in some metadata; empty where there is none.

    Raises:
        InputError: It is damaged.
    """
    try:
        found = json.loads(props.get(KEY, "{}"))
    except json.JSONDecodeError as error:
        raise InputError(f"the metadata entry '{KEY}' is damaged: {error}") from error
    if not isinstance(found, dict):
        raise InputError(f"the metadata entry '{KEY}' is damaged: it holds no mapping")
    return found


def write(props: Props, **entries: Any) -> None:
    """Add entries to the record in some metadata."""
    props[KEY] = json.dumps({**read(props), **entries}, sort_keys=True)


@dataclass(frozen=True)
class Form:
    """How a pair was written.

    Attributes:
        type: ONNX name of its integer type, lower case.
        granularity: ``[]`` per tensor, ``[axis]``, or ``[axis, block size]``.
        scale_shape: Shape of the scale.
        zero_points: Whether the QuantizeLinear and the DequantizeLinear have a zero point.
        zero_shape: Its shape.
        names: Names of scale, zero point and stored integers.
        q: Attributes of the QuantizeLinear; None where integers are stored.
        dq: Attributes of the DequantizeLinear.
        domain: The domain of both.
    """

    type: str
    granularity: list[int]
    scale_shape: list[int]
    zero_points: list[bool]
    zero_shape: list[int]
    names: list[str] = field(default_factory=lambda: ["scale", "zero_point", "quantized"])
    dq: dict[str, int] = field(default_factory=dict)
    q: dict[str, int] | None = None
    domain: str = ""

    @classmethod
    def of(cls, q: ir.Node | None, dq: ir.Node, encoding: Encoding) -> Form:
        """The form of a pair that stores ``encoding``."""
        scale, zeros = parameter(dq, 1), [parameter(n, 2) if n is not None else None for n in (q, dq)]
        zero = zeros[1] or zeros[0]
        given = [encoding.axis, encoding.block_size]
        names = [value.name or "" if value is not None else "zero_point" for value in (scale, zero, dq.inputs[0])]
        return cls(
            encoding.spec.qtype.name,
            [n for n in given if n is not None],
            [int(d) for d in scale.shape.numpy()] if scale is not None and scale.shape is not None else [],
            [z is not None for z in zeros],
            [int(d) for d in zero.shape.numpy()] if zero is not None and zero.shape is not None else [],
            names,
            _attributes(dq),
            None if q is None else _attributes(q),
            dq.domain,
        )

    def to_json(self) -> dict[str, Any]:
        """A JSON-able form that `from_json` takes back."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Form:
        """Inverse of `to_json`.

        Raises:
            InputError: It is damaged.
        """
        try:
            form = cls(**data)
        except TypeError as error:
            raise InputError(f"the metadata entry '{KEY}' is damaged: {error}") from error
        if form.type not in QTYPES:
            raise InputError(f"the metadata entry '{KEY}' is damaged: no integer type is called {form.type}")
        return form

    @property
    def qtype(self) -> QType:
        """The integer type."""
        return QTYPES[self.type]

    def encoding(self, scale: np.ndarray[Any, Any], zero: np.ndarray[Any, Any]) -> Encoding:
        """The encoding with these numbers, in the shape of the granularity."""
        granularity: Granularity = PerTensor()
        if self.granularity:
            axis, *size = self.granularity
            granularity = Blocked(size[0], axis) if size else PerAxis(axis)
        shape = () if isinstance(granularity, PerTensor) else scale.shape
        spec = TensorSpec(self.qtype, not zero.any(), granularity)
        carrier = np.int32 if self.qtype.bits > 16 else self.qtype.carrier
        return Encoding(spec, scale.reshape(shape), zero.astype(carrier).reshape(shape))

    def write(self, q: ir.Node | None, dq: ir.Node, data: ir.Value, parameters: tuple[ir.Value, ir.Value]) -> None:
        """Make nodes what they were: ``data -> Q -> DQ``, or ``data -> DQ`` where integers are stored."""
        for node, attributes, zero in ((q, self.q or {}, self.zero_points[0]), (dq, self.dq, self.zero_points[1])):
            if node is None:
                continue
            inputs = [data if node is q or q is None else q.outputs[0], parameters[0], parameters[1]]
            rewire(node, inputs if zero else inputs[:2])
            node.domain = self.domain
            node.attributes.clear()
            for name, value in attributes.items():
                node.attributes[name] = ir.AttrInt64(name, value)
        if q is not None:
            q.outputs[0].dtype = ir.DataType[self.type.upper()]

    def parameters(self, graph: ir.Graph, encoding: Encoding, namer: Namer) -> tuple[ir.Value, ir.Value]:
        """Scale and zero point as new initializers of their old shapes, under their old names where these are free."""
        scale = add_initializer(graph, self.names[0], encoding.scale.reshape(self.scale_shape), namer)
        zero = as_tensor(encoding.zero_point.reshape(self.zero_shape or self.scale_shape), self.qtype)
        return scale, add_initializer(graph, self.names[1], zero, namer)


def rewire(node: ir.Node, inputs: list[ir.Value]) -> None:
    """Give a node these inputs."""
    node.resize_inputs(len(inputs))
    for index, value in enumerate(inputs):
        node.replace_input_with(index, value)


def _attributes(node: ir.Node) -> dict[str, int]:
    return {name: attr.as_int() for name, attr in node.attributes.items()}
