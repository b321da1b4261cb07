"""All cases: each defect in each of its layers."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from tests.defects.defect import DEFECTS, Case


def cases() -> list[Case]:
    """By code, then by name."""
    for file in sorted(Path(__file__).parent.glob("in_*.py")):
        import_module(f"tests.defects.{file.stem}")  # which registers its defects
    found = sorted(DEFECTS.values(), key=lambda d: (d.code, d.name))
    return [Case(one, layer, seed) for one in found for seed, layer in enumerate(one.layers)]
