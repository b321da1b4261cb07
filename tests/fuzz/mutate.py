"""Changes of models at random: of messages, whatever ONNX thinks of them, and of bytes, whatever protobuf does.

All take a `random.Random`, so an input is told by its seed, and hypothesis can take the place of chance.
"""

from __future__ import annotations

import random

from onnxq.border.wire import WireError, _fields, _varint
from tests.fuzz.messages import mutated_message

MAX_BYTES = 1 << 18


def mutated(rng: random.Random, models: list[bytes]) -> bytes:
    """One of the models, changed a few times."""
    data = rng.choice(models)
    for _ in range(rng.choice((1, 1, 2, 3, 5, 8))):
        data = changed(rng, data, rng.choice(models))
    return data[:MAX_BYTES]


def changed(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """A serialized model, changed once, perhaps with a part of another."""
    return (mutated_bytes if rng.random() < 0.25 else mutated_message)(rng, data, other)


def mutated_bytes(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Change a serialized model as bytes."""
    if not data:
        return other
    changed = bytearray(data)
    what = rng.randrange(8)
    at = rng.randrange(len(changed))
    if what == 0:
        for _ in range(rng.choice((1, 3, 20))):
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    elif what == 1:
        del changed[at:]
    elif what == 2:
        del changed[at : at + rng.choice((1, 2, 16, 400))]
    elif what == 3:
        changed[at:at] = bytes(rng.randrange(256) for _ in range(rng.choice((1, 2, 8))))
    elif what == 4:
        start = rng.randrange(len(other) or 1)
        changed[at:at] = other[start : start + rng.choice((4, 40, 4000))]
    elif what == 5:
        changed[at : at + 1] = rng.choice(
            (b"\xff" * 9 + b"\x01", b"\xff\xff\xff\xff\x07", b"\x80\x00", b"\xff\xfe", b"\x00")
        )
    else:
        return _field_of(rng, data, other, splice=what == 6)
    return bytes(changed)


def _field_of(rng: random.Random, data: bytes, other: bytes, *, splice: bool) -> bytes:
    """Go down the wire format to a field; put one of another model there, or another length or text.

    The lengths of the messages around it are put right, or left wrong.
    """
    path = _path(rng, data)
    if not path:
        return data
    head, start, end = path[-1]
    if splice:
        taken = _path(rng, other)
        new = other[taken[-1][0] : taken[-1][2]] if taken else b""
    else:
        key, _ = _varint_at(data, head)
        text = rng.choice((b"\xff\xfe\x80", b"", b"\xc3\x28", data[start:end] * 2, b"\x0a" * 9))
        new = _varint(key) + _varint(rng.choice((len(text), 0, end - start + 1, 2**31, 2**63))) + text
    for index in range(len(path) - 1, -1, -1):
        head, start, end = path[index]
        whole_end = path[index - 1][2] if index else len(data)
        whole_start = path[index - 1][1] if index else 0
        new = data[whole_start:head] + new + data[end:whole_end]
        if index:
            outer_key, _ = _varint_at(data, path[index - 1][0])
            size = len(new) if rng.random() < 0.9 else rng.choice((0, len(new) + 1, 2**40))
            new = _varint(outer_key) + _varint(size) + new
    return new


def _path(rng: random.Random, data: bytes) -> list[tuple[int, int, int]]:
    """Fields, each within the one before: where it starts, and where its value starts and ends."""
    path: list[tuple[int, int, int]] = []
    start, end = 0, len(data)
    while True:
        try:
            inner = [(h, a, z) for key, h, a, z in _fields(data, start, end) if key & 7 == 2]
        except WireError:
            return path
        if not inner or (path and rng.random() < 0.2):
            return path
        path.append(rng.choice(inner))
        _, start, end = path[-1]


def _varint_at(data: bytes, at: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        byte = data[at]
        result |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return result, at
