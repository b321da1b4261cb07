"""Bytes and words: Magika on files, MiniLM on package descriptions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from benchmarks.data import files, packages
from benchmarks.tasks.base import Feed, Metrics, Task, cosine
from benchmarks.tasks.images import against_float, first, top_classes
from models.fetch import fetch
from models.minilm import minilm
from models.weights import Array

# ---- Magika -------------------------------------------------------------------------------------

END, BLOCK, PADDING = 1024, 4096, 256


@cache
def _files() -> list[tuple[bytes, str]]:
    return files.labelled(40, 0)


def _bytes_feed(content: bytes) -> Feed:
    """The first and the last 1024 bytes without white space at the ends, padded with 256 in the middle."""
    long = len(content) > BLOCK
    head, tail = content[:BLOCK], content[-BLOCK:]
    head, tail = (head.lstrip(), tail.rstrip()) if long else (head.strip(), tail.rstrip())
    head, tail = head[:END], tail[-END:]
    features = np.full(2 * END, PADDING, np.int32)
    features[: len(head)] = list(head)
    features[2 * END - len(tail) :] = list(tail)
    return {"bytes": features[None]}


@cache
def _types() -> list[str]:
    return list(json.loads(fetch("magika-config").read_text("utf-8"))["target_labels_space"])


def _type_score(answers: list[Array]) -> Metrics:
    right = [_types()[c] == kind for c, (_, kind) in zip(top_classes(answers), _files(), strict=True)]
    return {"accuracy": float(np.mean(right))}


MAGIKA = Task(
    name="magika",
    title="Magika",
    model=lambda: fetch("magika"),
    calibration=lambda: [_bytes_feed(content) for content, _ in files.labelled(8, 9)][:200],
    tests=lambda: [_bytes_feed(content) for content, _ in _files()],
    answer=first,
    score=_type_score,
    compare=against_float,
    main="accuracy",
    wanted={"accuracy": 0.87, "agree": 0.98},
)

# ---- MiniLM -------------------------------------------------------------------------------------

PAIRS, CALIBRATION = 400, 64


@cache
def _tokenizer() -> Any:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(fetch("minilm-tokenizer")))
    tokenizer.no_padding()
    tokenizer.enable_truncation(128)
    return tokenizer


def text_feed(sentence: str) -> Feed:
    ids = np.array([_tokenizer().encode(sentence).ids], np.int64)
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}


@cache
def descriptions() -> list[packages.Description]:
    return packages.descriptions()


def _sentence(outputs: Sequence[Array], _: Feed) -> Array:
    """Mean over the tokens, unit length."""
    mean = outputs[0][0].mean(0)
    return np.asarray(mean / np.linalg.norm(mean))


def _retrieval(answers: list[Array]) -> Metrics:
    """Find the long description that belongs to a short one, by largest cosine."""
    half = len(answers) // 2
    similarity = np.stack(answers[:half]) @ np.stack(answers[half:]).T
    rank = (similarity > np.diag(similarity)[:, None]).sum(1)
    return {"recall@1": float((similarity.argmax(1) == np.arange(half)).mean()), "mrr": float(np.mean(1 / (1 + rank)))}


def _text_tests() -> list[Feed]:
    pairs = descriptions()[:PAIRS]
    return [text_feed(d.short) for d in pairs] + [text_feed(d.long) for d in pairs]


MINILM = Task(
    name="minilm",
    title="MiniLM-L6",
    model=minilm,
    calibration=lambda: [text_feed(d.long) for d in descriptions()[PAIRS : PAIRS + CALIBRATION]],
    tests=_text_tests,
    answer=_sentence,
    score=_retrieval,
    compare=lambda answers, reference: {"cosine": cosine(answers, reference)},
    main="recall@1",
    wanted={"recall@1": 0.56, "cosine": 0.97},
)
