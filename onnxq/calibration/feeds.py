"""What a model wants to be fed, and whether a sample is that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq.errors import DataError, near
from onnxq.wording import plural

Array = np.ndarray[Any, np.dtype[Any]]
Feeds = dict[str, Array]


@dataclass(frozen=True)
class Port:
    """One input of a model, or an output.

    Attributes:
        name: Its name.
        dtype: Element type; None when unknown or not a tensor.
        dims: Size of each dimension, its symbol, or None when nothing is said; None without a shape.
        required: False for an input with a default (an initializer of the same name).
    """

    name: str
    dtype: ir.DataType | None
    dims: tuple[int | str | None, ...] | None
    required: bool = True

    def __str__(self) -> str:
        return f"{_type_name(self.dtype)}{_shape_text(self.dims)}"

    def problems(self, array: Array) -> list[str]:
        """How an array differs from what this input takes; empty when it fits."""
        out = []
        if self.dtype is not None and self.dtype != ir.DataType.UNDEFINED and not _same_type(self.dtype, array.dtype):
            out.append(f"type: convert it with .astype('{_type_name(self.dtype)}')")
        if self.dims is None:
            return out
        if len(self.dims) != array.ndim:
            return [*out, f"rank {len(self.dims)} wanted, got {array.ndim}"]
        for i, (want, have) in enumerate(zip(self.dims, array.shape, strict=True)):
            if isinstance(want, int) and want != have:
                out.append(f"dimension {i} must be {want}")
        return out


def ports_of(model: ir.Model) -> list[Port]:
    """The inputs of a model in order, those with a default marked as not required."""
    return [port_of(value) for value in model.graph.inputs]


def port_of(value: ir.Value) -> Port:
    """What is known of a model's input or output."""
    dims: tuple[int | str | None, ...] | None = None
    if value.shape is not None:
        dims = tuple(map(_dim, value.shape))
    dtype = value.type.dtype if isinstance(value.type, ir.TensorType) else None
    return Port(value.name or "", dtype, dims, not value.is_initializer())


def name_feeds(sample: Any, ports: Sequence[Port], index: int) -> Feeds:
    """A sample as the caller gave it as ``{input name: array}``.

    Args:
        sample: A mapping of names; one array for a model with one required input; or a list or tuple of arrays in the
            order of the required inputs.
        ports: The model's inputs.
        index: Number of the sample, for messages.

    Raises:
        DataError: It is neither, or the number of arrays does not fit.
    """
    if isinstance(sample, Mapping):
        return {str(k): np.asarray(v) for k, v in sample.items()}
    wanted = [p.name for p in ports if p.required]
    if isinstance(sample, list | tuple):
        arrays = [np.asarray(v) for v in sample]
    elif isinstance(sample, np.ndarray | np.generic) or hasattr(sample, "__array__"):
        arrays = [np.asarray(sample)]
    else:
        raise DataError(f"sample {index} is a {type(sample).__name__}; give a dict of input name to array")
    if len(arrays) != len(wanted):
        raise DataError(
            f"sample {index} holds {plural(len(arrays), 'unnamed array')}, but the model has "
            f"{plural(len(wanted), 'input')} ({', '.join(wanted)}): give a dict of input name to array"
        )
    return dict(zip(wanted, arrays, strict=True))


def check_feeds(ports: Sequence[Port], feeds: Mapping[str, Array], index: int) -> None:
    """Compare one sample with what the model takes; nothing is converted.

    Args:
        ports: The model's inputs.
        feeds: Arrays by input name.
        index: Number of the sample, for messages.

    Raises:
        DataError: Names, element types, ranks or fixed dimensions differ; lists every difference.
    """
    known = {p.name: p for p in ports}
    lines = [f"'{name}' is no input of the model{near(name, known)}" for name in feeds if name not in known] + [
        f"input '{p.name}' ({p}) is missing" for p in ports if p.required and p.name not in feeds
    ]
    for name, array in feeds.items():
        if name in known and (problems := known[name].problems(array)):
            got = f"{array.dtype}{_shape_text(array.shape)}"
            lines.append(f"input '{name}' takes {known[name]}, got {got} ({', '.join(problems)})")
    if lines:
        raise DataError(f"sample {index} does not fit the model: {'; '.join(lines)}")


def _dim(dim: Any) -> int | str | None:
    if isinstance(dim, int):
        return dim if dim >= 0 else None
    return dim.value or None


def _type_name(dtype: ir.DataType | None) -> str:
    if dtype is None:
        return "?"
    return {"FLOAT": "float32", "DOUBLE": "float64"}.get(dtype.name, dtype.name.lower())


def _shape_text(dims: Sequence[int | str | None] | None) -> str:
    return "" if dims is None else f"[{', '.join('?' if d is None else str(d) for d in dims)}]"


def _same_type(wanted: ir.DataType, dtype: np.dtype[Any]) -> bool:
    if wanted == ir.DataType.STRING:
        return dtype.kind in "OUS"
    return bool(dtype == wanted.numpy())
