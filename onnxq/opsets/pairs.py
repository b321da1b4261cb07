"""Which opset a pair needs, and what stands in for it below: onnxruntime's own operators of the same names."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.errors import OptionError
from onnxq.facts import Encodings
from onnxq.numerics.spec import Blocked, Encoding, QType
from onnxq.ops import MICROSOFT

CONTRIB_TYPES = ("int8", "uint8", "int16", "uint16", "int32", "int4", "uint4")
"""Types that QuantizeLinear and DequantizeLinear of com.microsoft take at any opset (int32: only the latter). They know
no blocks. Measured with onnxruntime 1.32."""


def opset_of(encoding: Encoding) -> int:
    """The first default-domain opset whose QuantizeLinear and DequantizeLinear store an encoding (operator texts)."""
    needed = encoding.spec.qtype.since
    if encoding.axis is not None:
        needed = max(needed, 13)
    if encoding.scale.dtype != np.float32:
        needed = max(needed, 19)
    return max(needed, 21) if encoding.block_size is not None else needed


def is_contrib(qtype: QType, granularity: object) -> bool:
    """Whether onnxruntime's own operators take a type at a granularity."""
    return qtype.name in CONTRIB_TYPES and not isinstance(granularity, Blocked)


def domain_of(encoding: Encoding, opset: int, contrib: bool) -> str:
    """The domain of a pair in a model of this opset: onnxruntime's where it is asked for and the opset too old."""
    fits = is_contrib(encoding.spec.qtype, encoding.spec.granularity)
    return MICROSOFT if contrib and fits and opset_of(encoding) > opset else ""


def check_opset(model: ir.Model, encodings: Encodings, contrib: bool) -> None:
    """Refuse encodings that the model's opset has no pairs for.

    Raises:
        OptionError: Names the opset that has them.
    """
    opset = model.opset_imports.get("", 0)
    kinds = (encodings.activations, encodings.bridges, encodings.weights, encodings.biases)
    used = [encoding for kind in kinds for encoding in kind.values() if not domain_of(encoding, opset, contrib)]
    needed = max(map(opset_of, used), default=0)
    if opset < needed:
        raise OptionError(f"the planned Q/DQ pairs need opset {needed}, the model has {opset}: run upgrade-opset first")
