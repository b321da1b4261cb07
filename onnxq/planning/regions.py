"""Where regions of different types meet: which spec a value carries, and who reads it at another one.

The op that makes a value decides its spec; data movement hands it on. A value that no integer op makes (a graph input,
the result of a float op) gets the widest spec that a reader wants, so that nobody reads it at fewer bits than he asked
for. Readers of another region read a bridge: the value quantized once more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import onnx_ir as ir

from onnxq.encoding import groups
from onnxq.facts import Edge, Ends, Plan
from onnxq.numerics.spec import TensorSpec


def settle(plan: Plan, wanted: Mapping[Edge, TensorSpec], made: Collection[ir.Value]) -> None:
    """Fix the spec of each planned value, and fill in the bridges.

    Args:
        plan: The plan; values made by integer ops have their spec already.
        wanted: The spec at which each use of an integer op wants to read.
        made: Values made by integer ops.
    """
    wishes = plan.wishes
    specs: dict[ir.Value, list[TensorSpec]] = {}
    for edge, spec in wanted.items():
        specs.setdefault(edge.value, []).append(spec)
    for value, found in specs.items():
        if value in wishes.values and value not in made:
            plan.activations[value] = wishes.values[value]
        elif value not in made:
            plan.activations[value] = max(found, key=lambda spec: spec.qtype.bits)
    for edge, spec in wanted.items():
        # Who asks for a spec of a value means its readers, too, except those of which something else was asked.
        follows = edge.value in wishes.values and edge not in wishes.uses
        if follows and wishes.of(edge.node).activation in (None, wishes.activation):
            continue
        if spec != plan.activations[edge.value]:
            plan.bridges[edge] = spec


def known_ranges(plan: Plan, given: Mapping[ir.Value, Ends]) -> None:
    """Fill in ranges that need no data, and methods; what is known of one value holds for all of its sharing group.

    Args:
        plan: The plan; ``fixed`` and ``methods`` hold what the makers of values say.
        given: Ranges that the caller gave: they count for more than those that are known.
    """
    methods = {**plan.methods, **{v: m for v, m in plan.wishes.methods.items() if v in plan.activations}}
    for group in groups(plan):
        ranges = [given[v] for v in group if v in given] or [plan.fixed[v] for v in group if v in plan.fixed]
        if ranges:
            hull = min(lo for lo, _ in ranges), max(hi for _, hi in ranges)
            plan.fixed.update(dict.fromkeys(group, hull))
        method = next((methods[v] for v in group if v in methods), "")
        if method:
            plan.methods.update(dict.fromkeys(group, method))
