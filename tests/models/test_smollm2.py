"""The SmolLM2 builder against the formulas of its architecture, on a tiny file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from benchmarks.tasks.lm import next_tokens, perplexity
from models.smollm2 import build_from, smollm2, token_ids, tokenizer

Array = np.ndarray[Any, np.dtype[Any]]


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


class Llama:
    """The model in float64, one sentence at a time; rotates neighbouring pairs, as the file's rows are ordered."""

    def __init__(self, tiny: Any) -> None:
        self.w = {name: value.astype(np.float64) for name, value in tiny.weights.items()}
        self.heads, self.key_heads, self.width = 4, 2, 8
        self.epsilon, self.base = 0.5, 100.0

    def norm(self, x: Array, name: str) -> Array:
        return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + self.epsilon) * self.w[name])

    def rotate(self, x: Array) -> Array:
        pairs = x[..., 0::2] + 1j * x[..., 1::2]
        turn = self.base ** (-np.arange(self.width // 2) * 2 / self.width)
        turned = pairs * np.exp(1j * np.arange(len(x))[:, None, None] * turn)
        return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)

    def attention(self, x: Array, name: str) -> Array:
        length = len(x)
        q, k, v = (
            (x @ self.w[f"{name}.attn_{p}"].T).reshape(length, n, self.width)
            for p, n in (("q", self.heads), ("k", self.key_heads), ("v", self.key_heads))
        )
        q, k = self.rotate(q), self.rotate(k)
        out = np.zeros_like(q)
        for head in range(self.heads):
            shared = head // (self.heads // self.key_heads)
            for here in range(length):
                weights = softmax(k[: here + 1, shared] @ q[here, head] / np.sqrt(self.width))
                out[here, head] = weights @ v[: here + 1, shared]
        return np.asarray(out.reshape(length, -1) @ self.w[f"{name}.attn_output"].T)

    def logits(self, ids: Array) -> Array:
        x = self.w["token_embd"][ids]
        for layer in ("blk.0", "blk.1"):
            x = x + self.attention(self.norm(x, f"{layer}.attn_norm"), layer)
            y = self.norm(x, f"{layer}.ffn_norm")
            gate = y @ self.w[f"{layer}.ffn_gate"].T
            swish = gate / (1 + np.exp(-gate))
            x = x + (swish * (y @ self.w[f"{layer}.ffn_up"].T)) @ self.w[f"{layer}.ffn_down"].T
        return np.asarray(self.norm(x, "output_norm") @ self.w["token_embd"].T)


def test_the_built_model_computes_the_architecture(tiny: Any, tmp_path: Path) -> None:
    build_from(tiny.path, tmp_path / "tiny.onnx")
    session = ort.InferenceSession(tmp_path / "tiny.onnx", providers=["CPUExecutionProvider"])
    ids = np.random.default_rng(1).integers(0, 40, (3, 7))
    (found,) = session.run(None, {"input_ids": ids})
    expected = np.stack([Llama(tiny).logits(sentence) for sentence in ids])
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(session.run(None, {"input_ids": ids[:, :3]})[0], found[:, :3], rtol=1e-4, atol=1e-4)


def test_one_table_embeds_and_reads_out_and_the_opset_is_17(tiny: Any, tmp_path: Path) -> None:
    build_from(tiny.path, tmp_path / "tiny.onnx")
    model = onnx.load(tmp_path / "tiny.onnx")
    assert [(o.domain, o.version) for o in model.opset_import] == [("", 17)]
    assert [n.op_type for n in model.graph.node if "embedding" in n.input] == ["Gather", "Transpose"]
    assert model.graph.node[-1].op_type == "MatMul"
    assert model.graph.node[-1].input[1] == "lm_head"
    assert all(len(n.input) == 1 and n.attribute for n in model.graph.node if n.op_type == "ReduceMean")


def test_the_vocabulary_is_the_file_s(tiny: Any) -> None:
    pytest.importorskip("tokenizers")
    bpe = tokenizer(tiny.path)
    assert bpe.encode("ab ab12\n<|end|>c").tokens == ["ab", "Ġab", "1", "2", "\u010a", "<|end|>", "c"]
    assert bpe.decode([7, 8, 4]) == "ab ab1"


def test_perplexity_of_known_probabilities() -> None:
    logits = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8], [1.0, 1.0, 1.0]]))[None] + 7
    answer = next_tokens([logits], {"input_ids": np.array([[2, 0, 1]])})
    np.testing.assert_allclose(answer, [[np.log(0.5), 0], [np.log(0.1), 2]])
    assert perplexity([answer, answer])["perplexity"] == pytest.approx((0.5 * 0.1) ** -0.5)


@pytest.mark.real
@pytest.mark.slow
def test_the_real_model_answers(real_model: Callable[[str], Path]) -> None:
    real_model("smollm2-weights")
    session = ort.InferenceSession(smollm2(), providers=["CPUExecutionProvider"])
    question = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    ids = token_ids(question)
    start = len(ids)
    for _ in range(7):
        (logits,) = session.run(None, {"input_ids": ids[None]})
        ids = np.append(ids, logits[0, -1].argmax())
    assert tokenizer().decode(ids[start:].tolist()) == "The capital of France is Paris."
