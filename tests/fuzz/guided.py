"""Fuzz `onnxq lint` guided by coverage: ``python -m tests.fuzz.guided --keep FOLDER -max_total_time=600``.

Needs ``pip install atheris``, and no more of this project. Options with one dash are libFuzzer's own.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

import atheris


def main() -> None:
    with atheris.instrument_imports(include=["onnxq"]):
        from tests.fuzz import campaign, law, mutate, seeds

        law.check(b"", law.Selection())  # imports the rules
    at = sys.argv.index("--keep")
    keep = Path(sys.argv[at + 1])
    del sys.argv[at : at + 2]
    corpus = keep / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for name, data in seeds.seeds().items():
        (corpus / name).write_bytes(data)
    folder = Path(tempfile.mkdtemp())
    campaign.prepare(folder)
    models = list(seeds.seeds().values())
    count = 0

    def one(data: bytes) -> None:
        nonlocal count
        count += 1
        target = law.TARGETS[len(data) % len(law.TARGETS)]
        why = law.broken(data, folder, target)
        if why:
            campaign.save(keep, count, data, target, why)

    def change(data: bytes, size: int, seed: int) -> bytes:
        rng = random.Random(seed)
        return mutate.changed(rng, data, rng.choice(models))[:size]

    atheris.Setup([*sys.argv, str(corpus), "-max_len=100000", "-timeout=30"], one, custom_mutator=change)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
