"""As much of the protobuf wire format as weights need: take the payloads out of a serialized model, or put them in.

A message is a row of fields, each a varint key (field number and wire type) and a value; a value of wire type 2 is a
varint length and that many bytes (https://protobuf.dev/programming-guides/encoding/). So a `TensorProto.raw_data` of
any size can be cut out, or spliced in, without parsing it: only the lengths of the messages around it change. What is
not on the way to a ``raw_data`` stays byte for byte, unknown fields included.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from mmap import mmap

from onnxq.wording import plural

Data = bytes | mmap
Piece = bytes | int
Swap = tuple[Piece, int]

MARK_BYTES = 16
_LENGTH_DELIMITED = 2
_RAW_DATA = 9
# Field numbers of onnx.proto that lead from a ModelProto to a TensorProto, and the message each of them holds.
_INNER = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph"},
}


class WireError(ValueError):
    """Not the wire format, or a part of it that ONNX does not use (groups)."""


def mark(tag: bytes, index: int) -> bytes:
    """The `MARK_BYTES` bytes that stand for payload ``index``; ``tag`` is random, so no weight looks like one."""
    return tag + index.to_bytes(MARK_BYTES - len(tag), "little")


def marked(raw: bytes, tag: bytes) -> int | None:
    """The index in a mark, or None when ``raw`` is not a mark of this tag."""
    if len(raw) != MARK_BYTES or not raw.startswith(tag):
        return None
    return int.from_bytes(raw[len(tag) :], "little")


def lift(data: Data, tag: bytes, threshold: int) -> tuple[bytes, list[tuple[int, int]]]:
    """Replace every ``raw_data`` of at least ``threshold`` bytes in a serialized ModelProto by a mark.

    Returns:
        The shortened message, and (start, end) of each payload in ``data`` by mark index.

    Raises:
        WireError: The data end inside a field, or hold something that is no field.
    """
    spans: list[tuple[int, int]] = []

    def swap(start: int, end: int) -> Swap | None:
        spans.append((start, end))
        return mark(tag, len(spans) - 1), MARK_BYTES

    pieces, _ = _rewrite(data, "model", 0, len(data), lambda start, end: end - start >= threshold, swap)
    return b"".join(p for p in pieces if not isinstance(p, int)), spans


def splice(shell: bytes, tag: bytes, sizes: Sequence[int]) -> tuple[list[Piece], int]:
    """Inverse of `lift`: the pieces of the full message, where an int stands for the payload of that index.

    Args:
        shell: A serialized ModelProto with marks.
        tag: The tag of the marks.
        sizes: Payload sizes in bytes by index.

    Returns:
        The pieces in order, and the size of the full message in bytes.
    """
    at = [m.start() for m in re.finditer(re.escape(tag), shell)]

    def holds_mark(start: int, end: int) -> bool:
        i = bisect_left(at, start)
        return i < len(at) and at[i] < end

    def swap(start: int, end: int) -> Swap | None:
        index = marked(shell[start:end], tag)
        return None if index is None else (index, sizes[index])

    return _rewrite(shell, "model", 0, len(shell), holds_mark, swap)


def _rewrite(
    data: Data,
    kind: str,
    start: int,
    end: int,
    wanted: Callable[[int, int], bool],
    swap: Callable[[int, int], Swap | None],
) -> tuple[list[Piece], int]:
    """Copy a message of this kind, going down into wanted fields; returns pieces and their size."""
    inner = _INNER.get(kind, {})
    pieces: list[Piece] = []
    size, copied = 0, start
    for key, head, first, last in _fields(data, start, end):
        if key & 7 != _LENGTH_DELIMITED or not wanted(first, last):
            continue
        if kind == "tensor":
            swapped = swap(first, last) if key >> 3 == _RAW_DATA else None
            if swapped is None:
                continue
            new: list[Piece] = [swapped[0]]
            length = swapped[1]
        elif key >> 3 in inner:
            new, length = _rewrite(data, inner[key >> 3], first, last, wanted, swap)
        else:
            continue
        prefix = data[copied:head] + _varint(key) + _varint(length)
        pieces += [prefix, *new]
        size += len(prefix) + length
        copied = last
    pieces.append(data[copied:end])
    return pieces, size + end - copied


def _fields(data: Data, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Fields in order: key, where the field starts, and start and end of its value."""
    at = start
    while at < end:
        head = at
        key, at = _read_varint(data, at, end)
        wire_type = key & 7
        if wire_type == _LENGTH_DELIMITED:
            length, at = _read_varint(data, at, end)
            last = at + length
        elif wire_type == 0:
            _, last = _read_varint(data, at, end)
        elif wire_type in (1, 5):
            last = at + (8 if wire_type == 1 else 4)
        else:
            raise WireError(f"byte {head}: wire type {wire_type}")
        if key < 8:
            raise WireError(f"byte {head}: field number 0")
        if last > end:
            raise WireError(f"byte {head}: field {key >> 3} ends {plural(last - end, 'byte')} behind the end")
        yield key, head, at, last
        at = last


def _read_varint(data: Data, at: int, end: int) -> tuple[int, int]:
    result = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        result |= (byte & 127) << shift
        if byte < 128:
            return result, at
        shift += 7
    raise WireError(f"byte {at}: " + ("a number of more than 10 bytes" if at < end else "the data end in a number"))


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)
