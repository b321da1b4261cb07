"""all-MiniLM-L6-v2 as ONNX, from its safetensors: a BERT encoder of 6 layers, width 384, 12 heads, erf GELU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto

from models.fetch import cache_dir, fetch
from models.graph import GraphBuilder, info
from models.weights import Array, cached_build, safetensors

LAYERS, WIDTH, HEADS = 6, 384, 12
HEAD_WIDTH = WIDTH // HEADS
POSITIONS = 512
EPSILON = 1e-12


class _Builder(GraphBuilder):
    def __init__(self, state: dict[str, Array]) -> None:
        super().__init__()
        self.state = state

    def linear(self, x: str, source: str, name: str) -> str:
        y = self.node("MatMul", [x, self.constant(f"{name}.weight", self.state[f"{source}.weight"].T)], f"{name}_mm")
        return self.node("Add", [y, self.constant(f"{name}.bias", self.state[f"{source}.bias"])], name)

    def norm(self, x: str, source: str, name: str) -> str:
        scale = self.constant(f"{name}.scale", self.state[f"{source}.weight"])
        bias = self.constant(f"{name}.bias", self.state[f"{source}.bias"])
        return self.node("LayerNormalization", [x, scale, bias], name, axis=-1, epsilon=EPSILON)

    def embeddings(self) -> str:
        word, kind, place = (
            self.constant(f"{k}_table", self.state[f"embeddings.{k}_embeddings.weight"])
            for k in ("word", "token_type", "position")
        )
        word = self.node("Gather", [word, "input_ids"], "word")
        kind = self.node("Gather", [kind, "token_type_ids"], "token_type")
        length = self.node("Gather", [self.node("Shape", ["input_ids"], "shape"), self.ints("one", 1)], "length")
        all_positions = self.constant("all_positions", np.arange(POSITIONS, dtype=np.int64))
        positions = self.node("Slice", [all_positions, self.ints("start", 0), length], "positions")
        position = self.node("Gather", [place, positions], "position")
        total = self.node("Add", [self.node("Add", [word, kind], "word_type"), position], "embeddings_sum")
        return self.norm(total, "embeddings.LayerNorm", "embeddings")

    def mask(self) -> str:
        """0 where a token is, -10000 where padding is, shape [batch, 1, 1, sequence]."""
        present = self.node("Cast", ["attention_mask"], "present", to=TensorProto.FLOAT)
        absent = self.node("Sub", [self.constant("1.0", 1.0), present], "absent")
        penalty = self.node("Mul", [absent, self.constant("-10000.0", -10000.0)], "penalty")
        return self.node("Unsqueeze", [penalty, self.ints("mask_axes", 1, 2)], "mask")

    def heads(self, x: str, name: str, perm: list[int]) -> str:
        split = self.node("Reshape", [x, self.ints("split_heads", 0, 0, HEADS, HEAD_WIDTH)], f"{name}_split")
        return self.node("Transpose", [split], f"{name}_heads", perm=perm)

    def attention(self, x: str, mask: str, source: str, name: str) -> str:
        q, k, v = (
            self.heads(self.linear(x, f"{source}.self.{part}", f"{name}.{part}"), f"{name}.{part}", perm)
            for part, perm in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3]))
        )
        scores = self.node("MatMul", [q, k], f"{name}.scores")
        scaled = self.node("Div", [scores, self.constant("sqrt_head_width", HEAD_WIDTH**0.5)], f"{name}.scaled")
        masked = self.node("Add", [scaled, mask], f"{name}.masked")
        weights = self.node("Softmax", [masked], f"{name}.weights", axis=-1)
        context = self.node("MatMul", [weights, v], f"{name}.context")
        merged = self.node("Transpose", [context], f"{name}.merged", perm=[0, 2, 1, 3])
        flat = self.node("Reshape", [merged, self.ints("join_heads", 0, 0, WIDTH)], f"{name}.flat")
        return self.linear(flat, f"{source}.output.dense", f"{name}.output")

    def gelu(self, x: str, name: str) -> str:
        """x / 2 * (1 + erf(x / sqrt 2)), spelled out as exporters do."""
        erf = self.node(
            "Erf", [self.node("Div", [x, self.constant("sqrt2", 2**0.5)], f"{name}.over_sqrt2")], f"{name}.erf"
        )
        plus = self.node("Add", [erf, self.constant("1.0", 1.0)], f"{name}.plus1")
        both = self.node("Mul", [x, plus], f"{name}.doubled")
        return self.node("Mul", [both, self.constant("0.5", 0.5)], name)

    def layer(self, x: str, mask: str, index: int) -> str:
        source, name = f"encoder.layer.{index}", f"layer{index}"
        attended = self.attention(x, mask, f"{source}.attention", f"{name}.attention")
        x = self.norm(
            self.node("Add", [attended, x], f"{name}.residual1"),
            f"{source}.attention.output.LayerNorm",
            f"{name}.norm1",
        )
        hidden = self.gelu(self.linear(x, f"{source}.intermediate.dense", f"{name}.up"), f"{name}.gelu")
        down = self.linear(hidden, f"{source}.output.dense", f"{name}.down")
        name_out = "last_hidden_state" if index == LAYERS - 1 else f"{name}.norm2"
        return self.norm(self.node("Add", [down, x], f"{name}.residual2"), f"{source}.output.LayerNorm", name_out)


def build(target: Path) -> None:
    """Write the model: three int64[batch, sequence] inputs, ``last_hidden_state`` float[batch, sequence, 384]."""
    b = _Builder(safetensors(fetch("minilm-weights")))
    x, mask = b.embeddings(), b.mask()
    for index in range(LAYERS):
        x = b.layer(x, mask, index)
    names = ("input_ids", "attention_mask", "token_type_ids")
    inputs = [info(name, ("batch", "sequence"), TensorProto.INT64) for name in names]
    b.save(target, "all-MiniLM-L6-v2", inputs, info(x, ("batch", "sequence", WIDTH)), opset=17)


def minilm() -> Path:
    """The built model in the cache."""
    return cached_build(cache_dir() / "built" / "minilm_l6.onnx", build)
