"""The vocabulary of quantization: integer and 8-bit float types, granularities, tensor specs and encodings.

Sources: the QuantizeLinear / DequantizeLinear operator texts of ONNX (formula, granularities, packed types, float8).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from onnxq.errors import OptionError, near


@dataclass(frozen=True)
class QType:
    """An integer type, or a float type of 8 bits, that values are quantized to.

    Attributes:
        name: ONNX spelling in lower case, for example ``uint8``.
        bits: Bits a value takes in a packed tensor.
        signed: Whether negative numbers exist.
        since: First default-domain opset whose QuantizeLinear writes this type.
        largest: Largest finite number of a float type; 0 for integers.
    """

    name: str
    bits: int
    signed: bool
    since: int
    largest: int = 0

    @property
    def is_float(self) -> bool:
        """Whether it is a float type: its steps grow with the value, and its only zero point is 0."""
        return self.largest > 0

    @property
    def qmin(self) -> int:
        """Smallest number of the type."""
        if self.is_float:
            return -self.largest
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def qmax(self) -> int:
        """Largest number of the type."""
        if self.is_float:
            return self.largest
        return (1 << (self.bits - 1)) - 1 if self.signed else (1 << self.bits) - 1

    @property
    def carrier(self) -> np.dtype[Any]:
        """The NumPy type that holds one unpacked value (int4 lives in int8, float8 in the type of ml_dtypes)."""
        if self.is_float:
            kind: np.dtype[Any] = np.dtype(getattr(ml_dtypes, self.name.replace("float8", "float8_")))
            return kind
        width = max(self.bits, 8)
        return np.dtype(f"{'int' if self.signed else 'uint'}{width}")

    @classmethod
    def named(cls, name: str) -> QType:
        """Look a type up by name.

        Raises:
            OptionError: No such type; the message names the nearest ones.
        """
        try:
            return QTYPES[name.lower()]
        except KeyError:
            raise OptionError(f"unknown quantized type '{name}'{near(name, QTYPES)}") from None

    parse = named  # what `onnxq.options` calls to read the type from YAML

    def __str__(self) -> str:
        return self.name


QTYPES: dict[str, QType] = {
    t.name: t
    for t in (
        QType("int2", 2, True, 25),
        QType("uint2", 2, False, 25),
        QType("int4", 4, True, 21),
        QType("uint4", 4, False, 21),
        QType("int8", 8, True, 10),
        QType("uint8", 8, False, 10),
        QType("int16", 16, True, 21),
        QType("uint16", 16, False, 21),
        QType("int32", 32, True, 10),
        QType("float8e4m3fn", 8, True, 19, 448),
        QType("float8e5m2", 8, True, 19, 57344),
    )
}


@dataclass(frozen=True)
class PerTensor:
    """One scale and one zero point for the whole tensor (both rank 0)."""

    def __str__(self) -> str:
        return "per-tensor"


@dataclass(frozen=True)
class PerAxis:
    """One scale per index of ``axis``; ``axis=None`` until `resolve-axes` has found it (never negative after)."""

    axis: int | None = None

    def __str__(self) -> str:
        return "per-channel" if self.axis is None else f"per-channel(axis={self.axis})"


@dataclass(frozen=True)
class Blocked:
    """One scale per block of ``size`` values along ``axis``."""

    size: int
    axis: int | None = None

    def __str__(self) -> str:
        return f"blocked({self.size})" if self.axis is None else f"blocked({self.size}, axis={self.axis})"


Granularity = PerTensor | PerAxis | Blocked


@dataclass(frozen=True)
class TensorSpec:
    """How one tensor use is quantized: type, symmetry, granularity.

    Attributes:
        qtype: Type of the stored numbers.
        symmetric: Zero point fixed at the middle of the type (0 for signed types); always so for float types.
        granularity: Per tensor, per axis or blocked.
        dynamic: Scale and zero point are computed at run time from each input (activations only).
    """

    qtype: QType
    symmetric: bool = False
    granularity: Granularity = PerTensor()
    dynamic: bool = False

    def __post_init__(self) -> None:
        if self.qtype.is_float:
            object.__setattr__(self, "symmetric", True)

    def at(self, granularity: Granularity) -> TensorSpec:
        """The same spec at another granularity."""
        return replace(self, granularity=granularity)

    def __str__(self) -> str:
        kind = "dynamic" if self.dynamic else "symmetric" if self.symmetric else "asymmetric"
        return f"{self.qtype.name} {kind} {self.granularity}"

    def to_json(self) -> dict[str, Any]:
        """A JSON-able form that `from_json` takes back."""
        g = self.granularity
        out: dict[str, Any] = {"type": self.qtype.name, "symmetric": self.symmetric}
        if isinstance(g, PerAxis):
            out["axis"] = g.axis
        elif isinstance(g, Blocked):
            out["axis"], out["block_size"] = g.axis, g.size
        if self.dynamic:
            out["dynamic"] = True
        return out

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TensorSpec:
        """Inverse of `to_json`.

        Raises:
            OptionError: Unknown type name or missing keys.
        """
        if not isinstance(data, dict) or "type" not in data:
            raise OptionError(f"a tensor spec needs a 'type', got {data!r}")
        g: Granularity = PerTensor()
        if "block_size" in data:
            g = Blocked(int(data["block_size"]), data.get("axis"))
        elif "axis" in data:
            g = PerAxis(data["axis"])
        return cls(QType.named(data["type"]), bool(data.get("symmetric", False)), g, bool(data.get("dynamic", False)))


@dataclass(frozen=True, eq=False)
class Encoding:
    """A spec with its numbers: what a Q/DQ pair stores.

    Attributes:
        spec: Type, symmetry and (resolved) granularity.
        scale: float32 or float16; rank 0 per tensor, [C] per axis, data rank when blocked; finite, > 0, normal.
        zero_point: ``spec.qtype.carrier`` (or int32 for int32 data), the shape of ``scale``.
        dead: Flat positions in ``scale`` whose values are all zero or too small for any normal scale.
        integers: Integers chosen for a weight (by GPTQ), in its layout and carrier type; None for the nearest.
    """

    spec: TensorSpec
    scale: np.ndarray[Any, Any]
    zero_point: np.ndarray[Any, Any]
    dead: tuple[int, ...] = ()
    integers: np.ndarray[Any, Any] | None = None

    @property
    def axis(self) -> int | None:
        """The quantization axis, None per tensor."""
        g = self.spec.granularity
        return None if isinstance(g, PerTensor) else g.axis

    @property
    def block_size(self) -> int | None:
        """The block size, None unless blocked."""
        g = self.spec.granularity
        return g.size if isinstance(g, Blocked) else None

    def same(self, other: Encoding) -> bool:
        """Whether both store the same pair: type, axis, block size, and bit-equal scale and zero point."""
        return (
            self.spec.qtype == other.spec.qtype
            and self.spec.granularity == other.spec.granularity
            and self.scale.dtype == other.scale.dtype
            and np.array_equal(self.scale, other.scale)
            and np.array_equal(self.zero_point, other.zero_point)
        )
