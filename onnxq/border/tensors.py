"""Tensors that remember the record they were read from, so that writing them again loses nothing.

To every pass they are lazy `onnx_ir` tensors. None of them caches what it reads, none writes through to a message of
the caller, and all hand out read-only arrays.

They are asked for by ``type(tensor) is RecordTensor``: `isinstance` takes the slow way of protocols on these classes (1
us; a model of 5 000 nodes is asked 200 000 times).
"""

from __future__ import annotations

import math
from functools import cache, lru_cache, partial
from typing import Any, BinaryIO, final

import numpy as np
import onnx_ir as ir
from onnx import SparseTensorProto, TensorProto

from onnxq.border.payload import Payload
from onnxq.errors import InputError
from onnxq.look import nbytes
from onnxq.wording import plural

Array = np.ndarray[Any, Any]

DATA_FIELDS = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")


@final
class RecordTensor(ir.LazyTensor):
    """A tensor as its TensorProto describes it; the data are in the record or in ``payload``.

    Reading raises `InputError` when the data do not fit type and shape.

    Attributes:
        record: The message, without ``raw_data`` when there is a payload. Not to be changed.
        payload: Where the bytes are.
    """

    __slots__ = ("payload", "record")

    def __init__(self, record: TensorProto, payload: Payload | None = None) -> None:
        super().__init__(
            partial(_decode, record, payload),
            _DTYPES[record.data_type],
            _frozen_shape(tuple(record.dims)),
            name=record.name if record.HasField("name") else None,
            doc_string=record.doc_string or None,
            metadata_props=_metadata(record),
        )
        self.record, self.payload = record, payload

    def numpy(self) -> Array:
        """The values, read anew."""
        return _array(self.record, self.payload)

    def tobytes(self) -> bytes:
        """The data as ``raw_data`` holds them."""
        if self.payload is not None:
            return bytes(self.payload.view())
        data: bytes = _of_record(self.record, "tobytes")
        return data

    def tofile(self, file: BinaryIO) -> None:
        """Write the data as ``raw_data`` holds them."""
        file.write(self.tobytes() if self.payload is None else self.payload.view())

    def head_into(self, out: TensorProto) -> None:
        """Copy the record, as far as the data lie in it with the data, under the tensor's present name and metadata."""
        out.CopyFrom(self.record)
        if self.name is not None and self.name != self.record.name:
            out.name = self.name
        if self.doc_string is not None and self.doc_string != self.record.doc_string:
            out.doc_string = self.doc_string
        if self.metadata_props != (_metadata(self.record) or {}):
            del out.metadata_props[:]
            for key in sorted(self.metadata_props):
                out.metadata_props.add(key=key, value=self.metadata_props[key])

    def __repr__(self) -> str:
        return f"{self._repr_base()}(name={self.name!r})"


@lru_cache(maxsize=1024)
def _frozen_shape(dims: tuple[int, ...]) -> ir.Shape:
    """A shape that nobody can change, so that tensors may share it: a model has few, and making one costs 4 us."""
    return ir.Shape(dims, frozen=True)


@final
class Elsewhere(ir.ExternalTensor):
    """A tensor in an external file whose folder nobody told: the record is carried, the data cannot be read."""

    __slots__ = ("record",)

    def __init__(self, record: TensorProto) -> None:
        super().__init__(
            next((e.value for e in record.external_data if e.key == "location"), ""),
            None,
            None,
            ir.DataType(record.data_type),
            shape=ir.Shape(record.dims),
            name=record.name,
            doc_string=record.doc_string or None,
            metadata_props=_metadata(record),
        )
        self.record = record

    def refusal(self) -> InputError:
        """Why it cannot be read."""
        return InputError(
            f"tensor '{self.name}' lies in the external file '{self.location}', and a model that comes as a message or"
            " as bytes has no folder: give the path of the model, or base_dir"
        )

    def numpy(self) -> Array:
        """Raise: nobody knows where the data are."""
        raise self.refusal()

    def __array__(self, dtype: Any = None) -> Array:
        raise self.refusal()

    def tobytes(self) -> bytes:
        """Raise: nobody knows where the data are."""
        raise self.refusal()

    def tofile(self, file: Any) -> None:
        """Raise: nobody knows where the data are."""
        raise self.refusal()


@final
class SparseTensor(ir.LazyTensor):
    """A sparse initializer: dense to every pass, written as its record while no pass puts another tensor in its place.

    Reading raises `InputError` when an index lies outside the shape or there is not one index per value.

    Attributes:
        record: The sparse message. Not to be changed.
    """

    __slots__ = ("record",)

    def __init__(self, record: SparseTensorProto) -> None:
        super().__init__(
            partial(_dense, record),
            ir.DataType(record.values.data_type),
            ir.Shape(record.dims, frozen=True),
            name=record.values.name,
        )
        self.record = record


def typed(tensor: ir.TensorProtocol) -> RecordTensor:
    """The same integers of 8 bits in the typed field ``int32_data``, and written so by the border.

    onnxruntime's training build finds zero points only there.
    """
    record = TensorProto(data_type=int(tensor.dtype), dims=tensor.shape.numpy())
    record.int32_data.extend(int(n) for n in tensor.numpy().reshape(-1))
    return RecordTensor(record)


def is_typed(tensor: ir.TensorProtocol) -> bool:
    """Whether integers of 8 bits lie in the typed field, or would be written so by the border."""
    if type(tensor) is RecordTensor:
        return tensor.payload is None and not tensor.record.HasField("raw_data")
    return isinstance(tensor, ir.serde.TensorProtoTensor) and not tensor.raw.HasField("raw_data")


def payload_size(tensor: ir.TensorProtocol) -> int:
    """Bytes of ``raw_data`` that the tensor writes."""
    if type(tensor) is RecordTensor and tensor.payload is not None:
        return tensor.payload.size
    return nbytes(tensor)


def drop_data(out: TensorProto) -> None:
    """Clear every data field of a record."""
    for name in DATA_FIELDS:
        out.ClearField(name)


def _decode(record: TensorProto, payload: Payload | None) -> ir.TensorProtocol:
    return ir.Tensor(_array(record, payload), dtype=ir.DataType(record.data_type))


def _array(record: TensorProto, payload: Payload | None) -> Array:
    """The values, read-only."""
    data = payload.view() if payload is not None else record.raw_data if record.HasField("raw_data") else None
    plain, dims = _PLAIN.get(record.data_type), tuple(record.dims)
    if plain is not None and data is not None and len(dims) < 9 and 0 < len(data) == plain.itemsize * math.prod(dims):
        return np.frombuffer(data, plain).reshape(dims)  # nearly all there are, in half the time
    dtype = ir.DataType(record.data_type)
    size = -(-dtype.bitwidth * math.prod(dims) // 8)
    given = _typed_size(record, dtype) if data is None else len(data)
    if given is not None and given != size:
        raise _misfit(record, f"{plural(given, 'byte')} instead of {size}")
    if not size and math.prod(d or 1 for d in dims) >> 58:
        raise _misfit(record, "dimensions beside the 0 that no array can have")
    if data is not None and dtype.bitwidth >= 8:
        try:
            return np.frombuffer(data, _little_endian(dtype)).reshape(dims)
        except ValueError as error:  # more dimensions than an array can have
            raise _misfit(record, str(error)) from error
    if payload is not None:
        record = TensorProto(dims=dims, data_type=record.data_type, raw_data=bytes(payload.view()))
    array: Array = _of_record(record, "numpy")
    array.flags.writeable = False
    return array


@cache
def _little_endian(dtype: ir.DataType) -> np.dtype[Any]:
    return dtype.numpy().newbyteorder("<")


_DTYPES = {dtype.value: dtype for dtype in ir.DataType}
"""Faster than the call of the enumeration."""

_PLAIN: dict[int, np.dtype[Any]] = {
    dtype.value: _little_endian(dtype)
    for dtype in ir.DataType
    if dtype not in (ir.DataType.UNDEFINED, ir.DataType.STRING) and dtype.bitwidth >= 8
}
"""Types of whole bytes, as they lie in ``raw_data``."""


def _typed_size(record: TensorProto, dtype: ir.DataType) -> int | None:
    """Bytes in the typed field of a type that shares bytes; else None when there are typed data, 0 when there are none.

    A wrong number of larger elements is found when they get their shape.
    """
    if dtype.bitwidth in (2, 4):  # one entry per byte
        return len(record.int32_data)
    return None if any(len(getattr(record, name)) for name in DATA_FIELDS) else 0


def _of_record(record: TensorProto, what: str) -> Any:
    try:
        return getattr(ir.serde.TensorProtoTensor(record), what)()
    except (ValueError, TypeError, AssertionError) as error:
        raise _misfit(record, str(error)) from error


def _misfit(record: TensorProto, what: str) -> InputError:
    shape = f"{ir.DataType(record.data_type).name}{list(record.dims)}"
    return InputError(f"tensor '{record.name}': the data do not fit {shape}: {what}")


def _dense(record: SparseTensorProto) -> ir.TensorProtocol:
    shape, values = tuple(record.dims), RecordTensor(record.values).numpy().reshape(-1)
    index = RecordTensor(record.indices).numpy()
    try:
        flat = index if index.ndim == 1 else np.ravel_multi_index(tuple(index.T), shape)
        if flat.shape != values.shape or (flat.size and flat.min() < 0):
            raise ValueError(f"{flat.size} indices for {plural(values.size, 'value')}")
        dense = np.zeros(math.prod(shape), values.dtype)
        dense[flat] = values
    except (ValueError, TypeError, IndexError) as error:
        raise InputError(f"sparse initializer '{record.values.name}' of shape {list(shape)}: {error}") from error
    dense.flags.writeable = False
    return ir.Tensor(dense.reshape(shape), dtype=ir.DataType(record.values.data_type))


def _metadata(record: TensorProto) -> dict[str, str] | None:
    return {entry.key: entry.value for entry in record.metadata_props} or None
