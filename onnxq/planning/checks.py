"""What a plan is asked for: checked, and made into specs, before any work is done."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import onnx

from onnxq.errors import CapabilityError, OptionError
from onnxq.numerics.spec import Blocked, Granularity, PerAxis, PerTensor, QType, TensorSpec
from onnxq.targets import Target

# First onnx version with the type, by its bits (onnx release notes).
ONNX_SINCE = {4: "1.16", 2: "1.20"}

GranularityName = Literal["", "per-tensor", "per-channel", "blocked"]
SymmetryName = Literal["auto", "yes", "no"]


@dataclass(frozen=True)
class Request:
    """Types and granularity as a caller asks for them.

    Attributes:
        activations: Type of activations; empty means the target's default.
        weights: Type of weights; empty means the target's default.
        granularity: Of weights; empty means blocked with a block size, the target's default without.
        block_size: Values that share a scale; 0 means none given.
        symmetric: Whether the zero point of weights is fixed at the middle of their type; ``auto`` is the target's way.
        weight_only: Activations stay float.
        activations_symmetric: The same for the zero point of activations.
    """

    activations: str = ""
    weights: str = ""
    granularity: GranularityName = ""
    block_size: int = 0
    symmetric: SymmetryName = "auto"
    weight_only: bool = False
    activations_symmetric: SymmetryName = "auto"

    def specs(self, target: Target) -> tuple[TensorSpec, TensorSpec]:
        """Specs of activations and weights for a target; the weights' axis is still open.

        Raises:
            OptionError: A type, granularity or combination the target does not take.
            CapabilityError: The installed onnx has no such type.
        """
        activation, weight = self.activation(target), target.weight_spec(self.weights or None)
        if self.weight_only and self.activations:
            raise OptionError(f"activations: {self.activations} does not go with weight-only: activations stay float")
        check_combination(target, weight.qtype, None if self.weight_only else activation.qtype)
        for qtype in (weight.qtype,) if self.weight_only else (activation.qtype, weight.qtype):
            check_installed(qtype)
        if self.symmetric == "no" and target.weights.always_symmetric:
            raise OptionError(f"target {target.name} takes symmetric weights only: give symmetric: auto, not no")
        weight = _with_symmetry(weight, self.symmetric, "symmetric")
        return activation, weight.at(self._granularity(target, weight))

    def activation(self, target: Target) -> TensorSpec:
        """The spec of activations, whatever the weights.

        Raises:
            OptionError: A type or symmetry the target does not take.
        """
        spec = target.activation_spec(self.activations or None)
        if not isinstance(spec.granularity, PerTensor):
            raise OptionError(
                f"target {target.name} asks for activations per channel: onnxq takes them per tensor only"
            )
        if self.activations_symmetric == "no" and target.activations.always_symmetric:
            raise OptionError(
                f"target {target.name} takes symmetric activations only: give activations-symmetric: auto"
            )
        return _with_symmetry(spec, self.activations_symmetric, "activations-symmetric")

    def _granularity(self, target: Target, weight: TensorSpec) -> Granularity:
        name = self.granularity or ("blocked" if self.block_size else "")
        if self.block_size < 0 or (name == "blocked" and not self.block_size):
            raise OptionError(f"blocked weights need a block size of at least 1, got block-size: {self.block_size}")
        if self.block_size and name != "blocked":
            raise OptionError(f"block-size: {self.block_size} does not go with granularity: {name}")
        if name == "blocked":
            if not target.weights.blocked:
                raise OptionError(f"target {target.name} takes weights per tensor or per channel, not in blocks")
            return Blocked(self.block_size)
        if name == "per-tensor":
            return PerTensor()
        if name == "per-channel" and isinstance(weight.granularity, PerTensor):
            raise OptionError(f"target {target.name} takes weights per tensor only")
        return PerAxis() if name == "per-channel" else weight.granularity


def _with_symmetry(spec: TensorSpec, asked: SymmetryName, option: str) -> TensorSpec:
    if spec.qtype.is_float and asked == "no":
        raise OptionError(f"{spec.qtype} has no zero point other than 0: {option}: no does not go with it")
    return spec if asked == "auto" else replace(spec, symmetric=asked == "yes")


def check_combination(target: Target, weight: QType, activation: QType | None) -> None:
    """Refuse a type of weights beside a type of activations (None: floats) that the target does not pair it with.

    Raises:
        OptionError: Names both, and what would do.
    """
    allowed = target.combinations.get(weight.name)
    if allowed is None or (activation.name if activation is not None else "float") in allowed:
        return
    with_what = "float activations (weight-only)" if activation is None else f"{activation.name} activations"
    name = "" if activation is None else f" (A{activation.bits}W{weight.bits})"
    raise OptionError(
        f"target {target.name} takes {weight.name} weights with {' or '.join(allowed)} activations only, "
        f"not with {with_what}{name}"
    )


def check_installed(qtype: QType) -> None:
    """Refuse a type that the installed onnx has no tensors of; all other types keep working.

    Raises:
        CapabilityError: Names the version that brings the type.
    """
    if qtype.bits in ONNX_SINCE and qtype.name.upper() not in native_types():
        raise CapabilityError(
            f"onnx {onnx.__version__} has no native {qtype.name.upper()}: that needs onnx {ONNX_SINCE[qtype.bits]} or "
            "newer (pip install -U onnx)"
        )


def native_types() -> frozenset[str]:
    """Element types of the installed onnx."""
    return frozenset(onnx.TensorProto.DataType.keys())
