"""What a target is: the runtime's rules as plain frozen data. Nothing here imports onnx."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from onnxq.errors import OptionError, near
from onnxq.numerics.spec import Granularity, PerAxis, PerTensor, QType, TensorSpec

Kind = Literal["matmul-like", "recurrent", "binary", "unary", "join", "moves", "folds"]
Form = Literal["static", "dynamic", "weight-only"]
PackAxis = Literal["flat", "ascend", "input-channel"]
WeightForm = Literal["deploy", "fake-quant"]
AxisForm = Literal["native", "canonical"]
Pairs = Literal["islands", "inputs"]
BiasPolicy = Literal["raise-weight-scale", "own-scale", "float"]


@dataclass(frozen=True)
class OpsetWindow:
    """Default-domain opsets a written model may import.

    Attributes:
        min: Oldest; an older model is upgraded.
        max: Newest that the runtime has QuantizeLinear kernels for.
        default: Opset an older model is upgraded to.
    """

    min: int
    max: int
    default: int

    def __post_init__(self) -> None:
        if not self.min <= self.default <= self.max:
            raise OptionError(f"opset: needs min <= default <= max, got {self.min}, {self.default}, {self.max}")


@dataclass(frozen=True)
class TensorRules:
    """Types one role (activations or weights) may take.

    Attributes:
        types: Types the runtime loads and computes right.
        default: The one used when nobody asks.
        symmetric: Whether the zero point is fixed at the middle of the type.
        always_symmetric: Whether it must be, whatever is asked for.
        granularity: One scale per tensor or per output channel.
        blocked: Whether one scale per block of values may be asked for.
    """

    types: tuple[QType, ...]
    default: QType
    symmetric: bool
    granularity: Literal["per-tensor", "per-channel"] = "per-tensor"
    blocked: bool = False
    always_symmetric: bool = False

    def __post_init__(self) -> None:
        if self.default not in self.types:
            raise OptionError(f"the default type {self.default.name} is not one of the listed types")


@dataclass(frozen=True)
class IntegerKernels:
    """Which types really reach integer kernels, where these are fewer than the runtime loads.

    Attributes:
        activations: Types of activations.
        weights: Types of weights.
        otherwise: How layers of other types run, in words, as measured.
    """

    activations: tuple[QType, ...]
    weights: tuple[QType, ...]
    otherwise: str


@dataclass(frozen=True)
class BiasRules:
    """How a bias is stored: as integers at input scale x weight scale, where it fits.

    Attributes:
        type: Integer type.
        policy: What happens to a channel whose bias does not fit. ``raise-weight-scale``: its weights get a coarser
            scale, since the runtime takes the product of the scales whatever the bias says; ``own-scale``: the bias
            gets a scale of its own; ``float``: the layer's bias stays float where ``float_bias`` allows that, else its
            weight scale is raised.
        wide_policy: The same where activations or weights have more than 8 bits; ``policy`` if not given.
        float_bias: Where a bias may stay float: ``anywhere``, behind layers with a ``float-output`` (onnxruntime
            rounds a float bias to int32 as it loads the model if a QuantizeLinear follows, and wraps around), or
            ``nowhere``. ``always``: it must, since the runtime takes no integers there.
    """

    type: QType
    policy: BiasPolicy
    wide_policy: BiasPolicy | None = None
    float_bias: Literal["anywhere", "float-output", "nowhere", "always"] = "float-output"

    def policy_for(self, wide: bool) -> BiasPolicy:
        """The policy for a layer; ``wide`` if its activations or weights have more than 8 bits."""
        return self.wide_policy if wide and self.wide_policy else self.policy


@dataclass(frozen=True)
class IntegerOp:
    """One op that the target runs on integers.

    Attributes:
        kind: ``matmul-like`` has weights and anchors an integer island, ``recurrent`` (LSTM, GRU, RNN) the same with
            two weights; ``binary``, ``unary`` and ``join`` requantize;
            ``moves`` only moves data and shares one encoding between input and output; ``folds`` disappears into the
            QuantizeLinear behind it when that Q clips at least as tightly (Relu: zero point = qmin).
        forms: Ways of quantizing that reach a fast kernel.
        per_channel: Weights may have one scale per output channel.
        needs_output_q: Without a QuantizeLinear behind it the op stays float.
        needs_weight: A product of two activations stays float.
        per_channel_max_rank: Largest rank of a weight with one scale per channel or block; larger ones get one scale,
            and stay float in weight-only form; 0 is any.
        bias_int32: The bias (third input, or the constant of a following Add) must be int32 for the integer kernel.
        weight_types: Types its weights may take where these are fewer than the target's; the first one is used instead
            of a type that is not among them (with a note). Empty: all.
        where: Attribute values the kernel takes, none if it does not know the attribute; one that is not written fits.
    """

    kind: Kind
    forms: tuple[Form, ...] = ("static",)
    per_channel: bool = False
    needs_output_q: bool = True
    needs_weight: bool = False
    per_channel_max_rank: int = 0
    bias_int32: bool = False
    weight_types: tuple[QType, ...] = ()
    where: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def misfit(self, attributes: Mapping[str, Any]) -> str:
        """Why a node with these attribute values stays float, in words; ``""`` if it fits."""
        for name, allowed in self.where.items():
            if name in attributes and not allowed:
                return f"the integer kernel takes no {name}"
            if name in attributes and attributes[name] not in allowed:
                return f"{name} is {attributes[name]}, the integer kernel takes {' or '.join(map(str, allowed))}"
        return ""


@dataclass(frozen=True)
class Target:
    """The rules of one runtime.

    Attributes:
        name: Name in messages and in the written model's metadata.
        description: One line.
        opset: Opsets of a written model.
        ir_version: Least IR version of a written model.
        float_types: Float types whose ops have integer kernels, ONNX spelling in lower case.
        activations: Types and symmetry of activations.
        weights: Types, symmetry and granularity of weights.
        bias: Type and overflow policy of biases.
        integer_ops: Default-domain op type to rule; an op that is not here stays float.
        pairs: ``islands``: ops between layers run on integers, too; ``inputs``: pairs stand in front of layers only.
        weight_only_float_types: Float types of weight-only layers, where these are more than ``float_types``.
        weight_only_copies: Whether each use of a weight-only weight needs integers of its own to be fused, as
            onnxruntime does it.
        exact_wide_products: Whether weights of matrix products with activations of more than 8 bits are written so that
            onnxruntime does not put MatMulNBits there, which by default rounds the activations to 8 bits.
        pack_axis: Which axis of a 4-bit weight has to be even. ``flat``: none, two values share a byte over the
            whole tensor; ``ascend``: axis 0 of Gemm with transB=1, the last axis elsewhere; ``input-channel``: the axis
            that is summed over (older Ascend deploy).
        combinations: Weight type to the activation types it may stand with, ``float`` for weight-only; a type that is
            not here stands with all.
        gemm_trans_b: Whether a Gemm may keep its weight transposed; ``false`` asks for ``transB=0``.
        weight_form: ``deploy``: integers -> DQ -> op; ``fake-quant``: float -> Q -> DQ -> op.
        axis_form: ``native``: the channel axis stays where it is; ``canonical``: Transposes put it at 1.
        integer_kernels: Types that run on integers, where these are fewer than those that load.
        contrib: Whether it knows onnxruntime's own pairs (com.microsoft), which need no opset.
        newest_ir_version: The newest IR version it loads; 0 is any.
        weight_zero_point: Whether weight pairs carry a zero point even where it is 0; ``false`` leaves it out and
            writes ``output_dtype`` instead.
    """

    name: str
    description: str
    opset: OpsetWindow
    ir_version: int
    float_types: tuple[str, ...]
    activations: TensorRules
    weights: TensorRules
    bias: BiasRules
    integer_ops: Mapping[str, IntegerOp]
    pairs: Pairs = "islands"
    weight_only_float_types: tuple[str, ...] = ()
    weight_only_copies: bool = False
    exact_wide_products: bool = False
    pack_axis: PackAxis = "flat"
    combinations: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gemm_trans_b: bool = True
    weight_form: WeightForm = "deploy"
    axis_form: AxisForm = "native"
    weight_zero_point: bool = True
    integer_kernels: IntegerKernels | None = None
    contrib: bool = False
    newest_ir_version: int = 0

    def activation_spec(self, qtype: str | None = None) -> TensorSpec:
        """The spec of activations, of the default or of a requested type.

        Raises:
            OptionError: The target does not take that type.
        """
        return self._spec("activations", self.activations, qtype)

    def weight_spec(self, qtype: str | None = None) -> TensorSpec:
        """The spec of weights; per channel has no axis yet.

        Raises:
            OptionError: The target does not take that type.
        """
        return self._spec("weights", self.weights, qtype)

    def _spec(self, role: str, rules: TensorRules, name: str | None) -> TensorSpec:
        qtype = QType.named(name) if name else rules.default
        if qtype not in rules.types:
            names = [t.name for t in rules.types]
            hint = near(qtype.name, names)
            raise OptionError(f"target {self.name} does not take {qtype.name} {role}{hint}")
        granularity: Granularity = PerAxis() if rules.granularity == "per-channel" else PerTensor()
        return TensorSpec(qtype, rules.symmetric, granularity)
