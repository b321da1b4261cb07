"""SmolLM2-135M-Instruct as float32 ONNX, out of a GGUF file: a decoder of the Llama family without a cache.

RMSNorm, rotary positions, grouped-query attention, SwiGLU, one table for embedding and output. Opset 17: ReduceMean
has its axes as an attribute, which opset 18 moved to an input.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto

from models.fetch import cache_dir, fetch
from models.gguf import Gguf
from models.graph import GraphBuilder, info
from models.weights import Array, cached_build

LONGEST = 2048
"""Positions the rotary tables hold."""
HIDDEN = -1e9
"""What is added to the score of a token that comes later."""
SPECIAL = 3
"""Token type of ``<|im_start|>`` and the like."""


@dataclass(frozen=True)
class Shape:
    """Sizes of the model, from the file's metadata."""

    layers: int
    width: int
    heads: int
    key_heads: int
    epsilon: float
    base: float

    @classmethod
    def of(cls, file: Gguf) -> Shape:
        """Read them."""
        data = file.metadata
        return cls(
            layers=data["llama.block_count"],
            width=data["llama.embedding_length"],
            heads=data["llama.attention.head_count"],
            key_heads=data["llama.attention.head_count_kv"],
            epsilon=data["llama.attention.layer_norm_rms_epsilon"],
            base=data["llama.rope.freq_base"],
        )

    @property
    def head_width(self) -> int:
        """Numbers a head works on."""
        return self.width // self.heads


class _Builder(GraphBuilder):
    def __init__(self, file: Gguf) -> None:
        super().__init__()
        self.file, self.shape = file, Shape.of(file)

    def linear(self, x: str, source: str, name: str, heads: int = 0) -> str:
        """``x @ weight``; ``heads`` for weights whose rows the file holds in the order of interleaved rotation."""
        weight = self.file.tensor(f"{source}.weight")
        if heads:
            pairs = weight.reshape(heads, self.shape.head_width // 2, 2, -1)
            weight = pairs.swapaxes(1, 2).reshape(weight.shape)
        return self.node("MatMul", [x, self.constant(f"{name}.weight", weight.T)], name)

    def norm(self, x: str, source: str, name: str) -> str:
        """``x / sqrt(mean(x²) + epsilon) * weight`` over the last axis, spelled out as exporters do."""
        square = self.node("Pow", [x, self.constant("two", 2.0)], f"{name}_square")
        mean = self.node("ReduceMean", [square], f"{name}_mean", axes=[-1], keepdims=1)
        safe = self.node("Add", [mean, self.constant("epsilon", self.shape.epsilon)], f"{name}_safe")
        root = self.node("Sqrt", [safe], f"{name}_root")
        unit = self.node("Div", [x, root], f"{name}_unit")
        return self.node("Mul", [unit, self.constant(f"{name}.weight", self.file.tensor(f"{source}.weight"))], name)

    def positions(self) -> str:
        """Cosine and sine for each position and the causal mask [sequence, sequence]; the mask's name."""
        length = self.node("Gather", [self.node("Shape", ["input_ids"], "shape"), self.ints("one", 1)], "length")
        width = self.shape.head_width
        turns = np.arange(LONGEST)[:, None] * self.shape.base ** (-np.arange(0, width, 2) / width)
        angles = np.concatenate([turns, turns], axis=1)
        for name, table in (("cos", np.cos(angles)), ("sin", np.sin(angles))):
            whole = self.constant(f"{name}_table", table.astype(np.float32))
            self.node("Slice", [whole, self.ints("zero", 0), length, self.ints("axis0", 0)], name)
        last = self.node("Squeeze", [length], "last")
        begin, step = (self.constant(f"range_{n}", np.array(n, np.int64)) for n in (0, 1))
        here = self.node("Range", [begin, last, step], "here")
        rows = self.node("Unsqueeze", [here, self.ints("axis1", 1)], "rows")
        columns = self.node("Unsqueeze", [here, "axis0"], "columns")
        later = self.node("Greater", [columns, rows], "later")
        return self.node("Where", [later, self.constant("hidden", HIDDEN), self.constant("seen", 0.0)], "mask")

    def rotated(self, x: str, name: str) -> str:
        """Rotary positions, halves form: ``x * cos + (-second half, first half) * sin``."""
        width, last = self.shape.head_width, self.ints("last_axis", -1)
        half, end = self.ints("half", width // 2), self.ints("head_width", width)
        first = self.node("Slice", [x, "zero", half, last], f"{name}_first")
        second = self.node("Slice", [x, half, end, last], f"{name}_second")
        turned = self.node("Concat", [self.node("Neg", [second], f"{name}_minus"), first], f"{name}_turned", axis=-1)
        by_cos, by_sin = self.node("Mul", [x, "cos"], f"{name}_cos"), self.node("Mul", [turned, "sin"], f"{name}_sin")
        return self.node("Add", [by_cos, by_sin], name)

    def split(self, x: str, heads: int) -> str:
        """[batch, sequence, heads * width] -> [batch, heads, sequence, width]."""
        apart = self.node("Reshape", [x, self.ints(f"heads{heads}", 0, 0, heads, self.shape.head_width)], f"{x}_apart")
        return self.node("Transpose", [apart], f"{x}_heads", perm=[0, 2, 1, 3])

    def repeated(self, x: str) -> str:
        """Each key head as often as query heads share it."""
        times = self.shape.heads // self.shape.key_heads
        spread = self.node("Unsqueeze", [x, self.ints("axis2", 2)], f"{x}_spread")
        tiled = self.node("Tile", [spread, self.ints("times", 1, 1, times, 1, 1)], f"{x}_tiled")
        together = self.ints("all_heads", 0, self.shape.heads, -1, self.shape.head_width)
        return self.node("Reshape", [tiled, together], f"{x}_all")

    def attention(self, x: str, mask: str, source: str, name: str) -> str:
        """Causal attention of one layer."""
        heads, key_heads = self.shape.heads, self.shape.key_heads
        q = self.split(self.linear(x, f"{source}.attn_q", f"{name}.q_proj", heads), heads)
        k = self.split(self.linear(x, f"{source}.attn_k", f"{name}.k_proj", key_heads), key_heads)
        v = self.split(self.linear(x, f"{source}.attn_v", f"{name}.v_proj"), key_heads)
        q, k = self.rotated(q, f"{name}.q"), self.repeated(self.rotated(k, f"{name}.k"))
        scores = self.node("MatMul", [q, self.node("Transpose", [k], f"{k}_t", perm=[0, 1, 3, 2])], f"{name}.scores")
        scale = self.constant("scale", float(self.shape.head_width**-0.5))
        scaled = self.node("Mul", [scores, scale], f"{name}.scaled")
        masked = self.node("Add", [scaled, mask], f"{name}.masked")
        weights = self.node("Softmax", [masked], f"{name}.weights", axis=-1)
        context = self.node("MatMul", [weights, self.repeated(v)], f"{name}.context")
        merged = self.node("Transpose", [context], f"{name}.merged", perm=[0, 2, 1, 3])
        flat = self.node("Reshape", [merged, self.ints("flat", 0, 0, self.shape.width)], f"{name}.flat")
        return self.linear(flat, f"{source}.attn_output", f"{name}.o_proj")

    def layer(self, x: str, mask: str, index: int) -> str:
        """Attention and SwiGLU, each normed before and added to its input."""
        source, name = f"blk.{index}", f"layer{index}"
        attended = self.attention(self.norm(x, f"{source}.attn_norm", f"{name}.norm1"), mask, source, name)
        x = self.node("Add", [x, attended], f"{name}.residual1")
        normed = self.norm(x, f"{source}.ffn_norm", f"{name}.norm2")
        gate = self.linear(normed, f"{source}.ffn_gate", f"{name}.gate_proj")
        swish = self.node("Mul", [gate, self.node("Sigmoid", [gate], f"{name}.sigmoid")], f"{name}.swish")
        up = self.linear(normed, f"{source}.ffn_up", f"{name}.up_proj")
        gated = self.node("Mul", [swish, up], f"{name}.gated")
        down = self.linear(gated, f"{source}.ffn_down", f"{name}.down_proj")
        return self.node("Add", [x, down], f"{name}.residual2")


def build_from(source: Path, target: Path) -> None:
    """Write the model: ``input_ids`` int64[batch, sequence] -> ``logits`` float[batch, sequence, tokens]."""
    b = _Builder(Gguf(source))
    table = b.constant("embedding", b.file.tensor("token_embd.weight"))
    x, mask = b.node("Gather", [table, "input_ids"], "embedded"), b.positions()
    for index in range(b.shape.layers):
        x = b.layer(x, mask, index)
    x = b.norm(x, "output_norm", "norm")
    b.node("MatMul", [x, b.node("Transpose", [table], "lm_head", perm=[1, 0])], "logits")
    tokens = b.initializers["embedding"].dims[0]
    inputs = [info("input_ids", ("batch", "sequence"), TensorProto.INT64)]
    b.save(target, "SmolLM2", inputs, info("logits", ("batch", "sequence", tokens)), opset=17)


def smollm2() -> Path:
    """The built model in the cache."""
    return cached_build(
        cache_dir() / "built" / "smollm2_135m.onnx", lambda target: build_from(fetch("smollm2-weights"), target)
    )


@cache
def tokenizer(source: Path | None = None) -> Any:
    """The file's byte-level BPE as a `tokenizers.Tokenizer`; single digits, no space in front."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    data = Gguf(source or fetch("smollm2-weights")).metadata
    tokens = data["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ")) for pair in data["tokenizer.ggml.merges"]]
    bpe = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    digits, byte_level = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens(
        [t for t, kind in zip(tokens, data["tokenizer.ggml.token_type"], strict=True) if kind == SPECIAL]
    )
    return bpe


def token_ids(text: str) -> Array:
    """Token numbers, int64[sequence]."""
    return np.array(tokenizer().encode(text).ids, np.int64)
