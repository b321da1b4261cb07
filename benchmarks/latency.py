"""Latency of several models side by side: interleaved rounds on one machine state, minimum per model."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.tasks.base import Feed, session

ROUNDS, SECONDS = 30, 12.0


def latency(
    models: Sequence[Path],
    feeds: Sequence[Feed],
    threads: int,
    rounds: int = ROUNDS,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Milliseconds a sample for each model, mean over ``feeds``.

    A round runs each feed through each model in turn, twice in a row, so that the caches do not hold what the model
    before it left; the smallest time of each (model, feed) counts, since everything that disturbs a run makes it
    longer. Stops after ``rounds`` rounds, or after ``seconds`` seconds and five rounds, whichever is first.
    On one thread ``clock`` may be `time.thread_time`, which does not count the time that other work takes.
    """
    sessions = [session(model, threads) for model in models]
    best = [[float("inf")] * len(feeds) for _ in models]
    start = time.perf_counter()
    for done in range(rounds):
        for i, feed in enumerate(feeds):
            for j, run in enumerate(sessions):
                for _ in range(2):
                    before = clock()
                    run.run(None, feed)
                    best[j][i] = min(best[j][i], clock() - before)
        if done >= 4 and time.perf_counter() - start > seconds:
            break
    return [1e3 * sum(times) / len(times) for times in best]
