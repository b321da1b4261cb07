"""All cases: each defect in each of its layers."""

from __future__ import annotations

from tests.defects import in_accelerators, in_axes, in_model, in_pairs, in_parameters, in_targets  # noqa: F401  (they register their defects)
from tests.defects.defect import DEFECTS, Case


def cases() -> list[Case]:
    """By code, then by name."""
    found = sorted(DEFECTS.values(), key=lambda d: (d.code, d.name))
    return [Case(one, layer, seed) for one in found for seed, layer in enumerate(one.layers)]
