"""Files of the machine, labelled by their extension: what a file type classifier sees.

The set differs from machine to machine, so results are to be compared with the float model on the same files.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from pathlib import Path

import yaml

ROOTS = ("/usr/lib", "/usr/share", "/usr/include", "/usr/local/lib")
SMALLEST, MOST_PER_TYPE = 64, 4000


def labelled(per_type: int, seed: int) -> list[tuple[bytes, str]]:
    """At most ``per_type`` files of each type: the content and the type."""
    types: dict[str, str] = yaml.safe_load(Path(__file__).with_name("extensions.yaml").read_text("utf-8"))
    found: defaultdict[str, list[str]] = defaultdict(list)
    for root in ROOTS:
        for folder, below, names in os.walk(root):
            below.sort()
            for name in sorted(names):
                kind = types.get(os.path.splitext(name)[1])  # noqa: PTH122 (a Path each costs seconds here)
                path = f"{folder}/{name}"
                if kind and len(found[kind]) < MOST_PER_TYPE and not os.path.islink(path):  # noqa: PTH114
                    found[kind].append(path)
    rng, out = random.Random(seed), []
    for kind in sorted(found):
        paths = sorted(found[kind])
        rng.shuffle(paths)
        chosen: list[tuple[bytes, str]] = []
        for file in map(Path, paths):
            if len(chosen) == per_type:
                break
            if file.stat().st_size >= SMALLEST and os.access(file, os.R_OK):
                chosen.append((file.read_bytes(), kind))
        out += chosen
    return out
