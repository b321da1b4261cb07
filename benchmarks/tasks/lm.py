"""A language model: SmolLM2 reads package descriptions, and its perplexity counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.data import packages
from benchmarks.tasks.base import Feed, Metrics, Task
from models.smollm2 import smollm2, token_ids
from models.weights import Array

TEXTS, LONGEST = 60, 128
SAMPLES = 128


def _tests() -> list[Feed]:
    """The first long descriptions, at most `LONGEST` tokens of each."""
    return [{"input_ids": token_ids(d.long)[None, :LONGEST]} for d in packages.descriptions()[:TEXTS]]


def _calibration() -> list[Feed]:
    """The next `SAMPLES` long descriptions, cut in the same way.

    Single texts, not windows of many: the first token of a text has states many times larger than all others.
    """
    chosen = packages.descriptions()[TEXTS : TEXTS + SAMPLES]
    return [{"input_ids": token_ids(d.long)[None, :LONGEST]} for d in chosen]


def next_tokens(outputs: Sequence[Array], feed: Feed) -> Array:
    """For each token but the first: log probability it had, and the token that was likeliest; float64[n - 1, 2]."""
    logits, following = np.asarray(outputs[0][0, :-1], np.float64), feed["input_ids"][0, 1:]
    shifted = logits - logits.max(-1, keepdims=True)
    right = np.take_along_axis(shifted, following[:, None], -1)[:, 0]
    return np.stack([right - np.log(np.exp(shifted).sum(-1)), logits.argmax(-1)], axis=-1)


def perplexity(answers: list[Array]) -> Metrics:
    """exp of the mean negative log probability over all tokens of all texts."""
    return {"perplexity": float(np.exp(-np.concatenate(answers)[:, 0].mean()))}


def _same_tokens(answers: list[Array], reference: list[Array]) -> Metrics:
    ours, floats = np.concatenate(answers)[:, 1], np.concatenate(reference)[:, 1]
    return {"agree": float((ours == floats).mean())}


SMOLLM2 = Task(
    name="smollm2",
    title="SmolLM2-135M",
    model=smollm2,
    calibration=_calibration,
    tests=_tests,
    answer=next_tokens,
    score=perplexity,
    compare=_same_tokens,
    main="perplexity",
)
