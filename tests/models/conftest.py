"""A small GGUF file with known content."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

F32, Q4_1, Q8_0 = 0, 3, 8


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def item(value: Any) -> bytes:
    """Type number and value, as the format's description lists them."""
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    if isinstance(value, list):
        parts = [item(v) for v in value]
        return struct.pack("<I", 9) + parts[0][:4] + struct.pack("<Q", len(parts)) + b"".join(p[4:] for p in parts)
    kind, form = {bool: (7, "?"), int: (4, "I"), float: (6, "f")}[type(value)]
    return struct.pack(f"<I{form}", kind, value)


def q8_0(rows: np.ndarray[Any, Any]) -> bytes:
    """Half-precision scale and 32 signed bytes a block."""
    out = b""
    for block in rows.reshape(-1, 32):
        scale = np.float16(abs(block).max() / 127)
        out += scale.tobytes() + np.rint(block / np.float32(scale)).astype(np.int8).tobytes()
    return out


class TinyGguf:
    """A decoder of 2 layers with 4 heads of 8 on 2 key heads, and a vocabulary of 40 tokens.

    Attributes:
        path: The file.
        weights: What a reader has to find in it.
        sizes: Its metadata.
    """

    sizes: dict[str, Any] = {  # noqa: RUF012
        "general.alignment": 64,
        "llama.block_count": 2,
        "llama.embedding_length": 32,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.attention.layer_norm_rms_epsilon": 0.5,
        "llama.rope.freq_base": 100.0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.tokens": ["<|end|>", "a", "b", "c", "1", "2", "Ġ", "ab", "Ġab", "\u010a"],
        "tokenizer.ggml.token_type": [3, 1, 1, 1, 1, 1, 1, 1, 1, 1],
        "tokenizer.ggml.merges": ["a b", "Ġ ab"],
    }

    def __init__(self, path: Path) -> None:
        rng = np.random.default_rng(3)
        self.path, self.weights = path, {}
        table, data = b"", b""
        shapes = {"token_embd": (40, 32), "output_norm": (32,)}
        for i in range(2):
            shapes |= {f"blk.{i}.{name}": (32,) for name in ("attn_norm", "ffn_norm")}
            shapes |= {f"blk.{i}.attn_{name}": (rows, 32) for name, rows in (("q", 32), ("k", 16), ("v", 16))}
            shapes |= {f"blk.{i}.attn_output": (32, 32), f"blk.{i}.ffn_down": (32, 64)}
            shapes |= {f"blk.{i}.ffn_{name}": (64, 32) for name in ("gate", "up")}
        for name, shape in shapes.items():
            kind, stored, values = self._stored(name, rng.normal(0, 0.3, shape).astype("<f4"))
            self.weights[name] = values
            dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
            table += text(f"{name}.weight") + dims + struct.pack("<IQ", kind, len(data))
            data += stored + bytes(-len(stored) % 64)
        keys = b"".join(text(key) + item(value) for key, value in self.sizes.items())
        head = struct.pack("<4sIQQ", b"GGUF", 3, len(shapes), len(self.sizes)) + keys + table
        path.write_bytes(head + bytes(-len(head) % 64) + data)

    def _stored(self, name: str, values: np.ndarray[Any, Any]) -> tuple[int, bytes, np.ndarray[Any, Any]]:
        if name != "token_embd":
            return F32, values.tobytes(), values
        stored = q8_0(values)
        scales = [np.frombuffer(stored, "<f2", 1, at)[0] for at in range(0, len(stored), 34)]
        bytes_ = [np.frombuffer(stored, "i1", 32, at + 2) for at in range(0, len(stored), 34)]
        read = [np.float32(s) * b.astype(np.float32) for s, b in zip(scales, bytes_, strict=True)]
        return Q8_0, stored, np.concatenate(read).reshape(values.shape)


@pytest.fixture
def tiny(tmp_path: Path) -> TinyGguf:
    return TinyGguf(tmp_path / "tiny.gguf")
