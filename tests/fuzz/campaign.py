"""Fuzz `onnxq lint` for as long as one likes: ``python -m tests.fuzz.campaign --minutes 20 --keep FOLDER``.

A child process does the work, so that a crash of native code is seen, and an input that does not come to an end or
wants too much memory. Every input is told by its number; those that break the law are kept as files.
"""

from __future__ import annotations

import argparse
import mmap
import multiprocessing
import os
import random
import resource
import struct
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.fuzz.law import TARGETS, broken
from tests.fuzz.mutate import mutated
from tests.fuzz.seeds import EXTERNAL, EXTERNAL_BYTES, seeds

SECONDS, MEMORY = 20, 3 << 30  # for one input
GROWTH = 600 << 20  # what a child's memory may grow by


def make(number: int, models: list[bytes]) -> tuple[bytes, str | None]:
    """Input number so-and-so, and the target to check it for."""
    rng = random.Random(number)
    return mutated(rng, models), rng.choice(TARGETS)


def prepare(folder: Path) -> None:
    """What external data may point at."""
    (folder / EXTERNAL).write_bytes(bytes(range(EXTERNAL_BYTES)))
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to("/etc/hostname")
    (folder / "folder").mkdir()


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _child(start: int, shared: mmap.mmap, keep: Path, models: list[bytes]) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123
    number = start
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        peak = 0
        while True:
            data, target = make(number, models)
            shared[:16] = struct.pack("<qd", number, time.monotonic())
            try:
                why = broken(data, folder, target)
            except BaseException as error:
                why = "".join(traceback.format_exception(error))
            now = _peak()
            if peak and now > peak + GROWTH:
                why = why or f"memory grew from {peak >> 20} to {now >> 20} MB"
            peak = max(peak, now)
            if why:
                save(keep, number, data, target, why)
            number += 1


def save(keep: Path, number: int, data: bytes, target: str | None, why: str) -> None:
    """Keep an input, and say what is wrong with it."""
    (keep / f"{number}.onnx").write_bytes(data)
    (keep / f"{number}.txt").write_text(f"target {target}\n{why}\n", errors="replace")
    print(f"{number} ({target}): {why.strip().splitlines()[-1][:300]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--keep", type=Path, required=True)
    parser.add_argument("models", nargs="*", type=Path, help="further models to start from")
    given = parser.parse_args()
    given.keep.mkdir(parents=True, exist_ok=True)
    models = [*seeds().values(), *(path.read_bytes() for path in given.models)]
    shared = mmap.mmap(-1, 16)
    end, begun, number, bad = time.monotonic() + given.minutes * 60, time.monotonic(), given.start, 0
    while time.monotonic() < end:
        shared[:16] = struct.pack("<qd", number, time.monotonic() + SECONDS)  # imports take their time
        process = multiprocessing.get_context("fork").Process(target=_child, args=(number, shared, given.keep, models))
        process.start()
        while process.is_alive() and time.monotonic() < end:
            process.join(0.5)
            number, since = struct.unpack("<qd", shared[:16])
            if time.monotonic() - since > SECONDS:
                break
        alive = process.is_alive()
        process.kill()
        process.join()
        if alive and time.monotonic() >= end:
            break
        data, target = make(number, models)
        save(given.keep, number, data, target, f"no end after {SECONDS} s" if alive else f"died: {process.exitcode}")
        number, bad = number + 1, bad + 1
    seconds = time.monotonic() - begun
    print(f"{number - given.start} inputs, {(number - given.start) / seconds:.0f} a second; the child died {bad} times")


if __name__ == "__main__":
    main()
