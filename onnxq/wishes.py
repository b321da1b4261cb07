"""What a plan is made from: specs for everything, and what is wanted otherwise for single nodes, values and uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import onnx_ir as ir

from onnxq.numerics.spec import Blocked, TensorSpec

Ends = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Edge:
    """One use of a value: input ``index`` of ``node``."""

    node: ir.Node
    index: int

    @property
    def value(self) -> ir.Value:
        """The value on this edge."""
        value = self.node.inputs[self.index]
        assert value is not None
        return value


@dataclass(frozen=True)
class Decision:
    """What becomes of one node.

    Attributes:
        status: ``integer`` (runs on integers), ``dynamic`` (activations quantized at run time), ``moves`` (moves data,
            shares one encoding), ``weight-only``, or ``float``.
        code: Kebab-case reason code, for example ``no-integer-kernel``.
        reason: The reason in words, with numbers.
    """

    status: str
    code: str
    reason: str


@dataclass(frozen=True)
class Wish:
    """What is wanted of one node.

    Attributes:
        activation: Spec of what it reads and of what it makes; None: only its weights become integers.
        weight: Spec of its weights, without axes.
        range: Range of what it makes, as (low, high), in the value's units; None: by calibration.
        method: Calibration method for what it makes; empty: that of the calibration.
        dynamic: Whether its input is quantized at run time, where it can be: ``auto`` between float ops, or ``always``,
            or ``never``.
    """

    activation: TensorSpec | None
    weight: TensorSpec
    range: Ends | None = None
    method: str = ""
    dynamic: Literal["auto", "always", "never"] = "auto"


@dataclass(frozen=True)
class Wishes:
    """What a plan was made from, so that it can be made again with more nodes left float.

    Attributes:
        activation: Spec of activations.
        weight: Spec of weights, without axes.
        banned: Nodes that stay float, with the reason.
        forced: Nodes quantized although the target has no integer kernel for them.
        dynamic: Whether a layer between float ops may quantize its input at run time.
        static: Whether ranges will be there; without them only run-time quantization is left.
        weight_only: Only weights become integers; activations stay float.
        nodes: Nodes of which something else is wanted.
        values: Values of which another spec is wanted than that of the node that makes them.
        uses: Uses of activations and weights of which another spec is wanted than that of their node.
        ranges: Ranges of values, as (low, high), instead of those that calibration would find.
        methods: Calibration methods of values.
        contrib: Whether pairs that the model's opset does not have may be written in onnxruntime's domain.
    """

    activation: TensorSpec
    weight: TensorSpec
    banned: Mapping[ir.Node, Decision] = field(default_factory=dict)
    forced: frozenset[ir.Node] = frozenset()
    dynamic: bool = True
    static: bool = True
    weight_only: bool = False
    nodes: Mapping[ir.Node, Wish] = field(default_factory=dict)
    values: Mapping[ir.Value, TensorSpec] = field(default_factory=dict)
    uses: Mapping[Edge, TensorSpec] = field(default_factory=dict)
    ranges: Mapping[ir.Value, Ends] = field(default_factory=dict)
    methods: Mapping[ir.Value, str] = field(default_factory=dict)
    contrib: bool = False

    def of(self, node: ir.Node) -> Wish:
        """What is wanted of a node."""
        return self.nodes.get(node) or Wish(None if self.weight_only else self.activation, self.weight)

    def only_weights(self, node: ir.Node) -> bool:
        """Whether only the weights of a node may become integers."""
        return self.weight_only or self.of(node).activation is None

    def may_be_dynamic(self, node: ir.Node) -> bool:
        """Whether a node may quantize its input at run time.

        DynamicQuantizeLinear makes uint8 with a free zero point, and MatMulInteger takes integers of 8 bits that are
        not in blocks (operator texts).
        """
        wish = self.of(node)
        x, w = wish.activation, wish.weight
        if not self.dynamic or wish.dynamic == "never" or x is None or x.symmetric or x.qtype.name != "uint8":
            return False
        return w.qtype.bits == 8 and not w.qtype.is_float and not isinstance(w.granularity, Blocked)
