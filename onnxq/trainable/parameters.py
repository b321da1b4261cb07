"""What can be trained in a model, and trained values on their way back into it."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnxq import ops
from onnxq.carry import constant_behind
from onnxq.edit import Array
from onnxq.errors import DataError, near
from onnxq.look import constant_tensor, onnx_op
from onnxq.states import DEQUANTIZE, is_q
from onnxq.trainable import folding, record
from onnxq.wording import plural

_OTHERS = {"BatchNormalization": (1, 2), "LayerNormalization": (1, 2), "PRelu": (1,)}
"""Op type -> inputs that are parameters, for ops that are not in the table of weights."""


def parameters(model: ir.Model) -> list[str]:
    """Names of the float constants of the main graph that training may change, in graph order.

    These are weights and biases of layers, also those added behind a MatMul or Conv, and whatever stands in front of a
    pair; not scales and other constants.
    """
    found: dict[str, None] = {}
    for node in model.graph:
        for value in _used_as_parameter(node):
            behind = constant_behind(value)
            if isinstance(behind, str) or not behind.source.is_initializer() or behind.source.graph is not model.graph:
                continue
            if behind.tensor.dtype.is_floating_point() and behind.source.name:
                found[behind.source.name] = None
    return list(found)


def _used_as_parameter(node: ir.Node) -> list[ir.Value | None]:
    if is_q(node, DEQUANTIZE):
        pair = folding.find(node)
        q = node.inputs[0].producer() if node.inputs[0] is not None else None
        return [pair.source if pair is not None else q.inputs[0] if q is not None and q.inputs else None]
    if onnx_op(node, "Identity") and record.KEY in node.metadata_props:
        return [node.inputs[0]]
    if onnx_op(node, "Add"):  # a bias that stands behind its product
        makers = [value.producer() if value is not None else None for value in node.inputs]
        return [node.inputs[1 - i] for i, maker in enumerate(makers) if onnx_op(maker, "MatMul", "Conv")]
    row = ops.info(node)
    indices = [s.index for s in row.weights] if row is not None else []
    indices += [row.bias] if row is not None and row.bias is not None else []
    if node.domain == "":
        indices += _OTHERS.get(node.op_type, ())
    return [node.inputs[i] for i in indices if i < len(node.inputs)]


def load(model: ir.Model, path: str, required: Sequence[str]) -> int:
    """Put the arrays of a ``.npz`` file in the place of the float constants of their names.

    The arrays are read anew when they are written. Returns how many there are.

    Raises:
        DataError: A file that cannot be read; a name that the model does not have, or ``required`` has and the file has
            not; another shape or type; numbers that are not finite.
    """
    graph, file = model.graph, Path(path)
    with _opened(file) as arrays:
        names = list(arrays)
        for name in names:
            _check(graph, file, name, arrays[name])
    missing = [name for name in required if name not in names]
    if missing:
        text = ", ".join(f"'{name}'" for name in missing[:5]) + (", ..." if len(missing) > 5 else "")
        raise DataError(
            f"checkpoint {path} lacks {len(missing)} of {len(required)} parameters: {text};"
            " partial=true lets them keep the values of the model"
        )
    for name in names:
        value = graph.initializers[name]
        assert value.const_value is not None
        value.const_value = ir.LazyTensor(
            lambda name=name: ir.Tensor(_read(file, name)),  # type: ignore[misc]
            dtype=value.const_value.dtype,
            shape=ir.Shape(value.const_value.shape.numpy()),
            name=name,
        )
    return len(names)


def _check(graph: ir.Graph, file: Path, name: str, array: Array) -> None:
    value = graph.initializers.get(name)
    tensor = constant_tensor(value)
    if value is None or tensor is None:
        hint = near(name, graph.initializers)
        raise DataError(f"checkpoint {file} has '{name}', which is no constant of this model{hint}")
    shape = list(tensor.shape.numpy())
    if list(array.shape) != shape:
        raise DataError(f"checkpoint {file}: '{name}' has shape {list(array.shape)}, the model's has {shape}")
    if array.dtype != tensor.dtype.numpy():
        kind = tensor.dtype.numpy()
        raise DataError(f"checkpoint {file}: '{name}' is {array.dtype}, the model's is {kind}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        count = int((~np.isfinite(array)).sum())
        raise DataError(f"checkpoint {file}: '{name}' has {plural(count, 'value')} not finite: the training diverged")


def _read(file: Path, name: str) -> Array:
    with _opened(file) as arrays:
        return np.asarray(arrays[name])


@contextmanager
def _opened(file: Path) -> Iterator[Mapping[str, Array]]:
    """The arrays of a file, each read when it is asked for."""
    try:
        with file.open("rb") as stream:  # numpy leaves a file open that it cannot read
            arrays = np.load(stream, allow_pickle=False)
            if isinstance(arrays, np.ndarray):
                raise ValueError("it holds a single array without a name")
            with arrays:
                yield arrays
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        why = getattr(error, "strerror", None) or error
        raise DataError(f"cannot read checkpoint {file}: {why} (it has to be a .npz file of arrays)") from error
