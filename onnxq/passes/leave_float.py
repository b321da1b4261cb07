"""`leave-float`: take out of the plan what calibration has shown to be unfit for integers."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, replace
from typing import ClassVar

import onnx_ir as ir

from onnxq.diagnostics import Severity
from onnxq.facts import Decision, Fact, Goal, Plan, Ranges
from onnxq.layers import folded_behind
from onnxq.passbase import Context, Pass
from onnxq.planning import Planner
from onnxq.planning.requantized import requantized

Found = tuple[ir.Node, Decision]


@dataclass(frozen=True, kw_only=True)
class LeaveFloat(Pass):
    """`Plan`, `Ranges` -> `Plan` without nodes whose values have no finite range, and without joins of unlike ranges.

    A Concat or Where has one output scale: where one operand's range is much narrower than the output's, that operand
    is left with few steps while the cosine of the whole stays high. The plan is made again until nothing more is found.

    Attributes:
        unlike: A join stays float when its output range is more than this many times an operand's range.
    """

    name: ClassVar[str] = "leave-float"
    reads: ClassVar[frozenset[type[Fact]]] = frozenset({Plan, Ranges, Goal})
    writes: ClassVar[frozenset[type[Fact]]] = frozenset({Plan})

    unlike: float = 50.0

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Plan again without the unfit nodes; the graph stays as it is."""
        plan, ranges, goal = ctx.get(Plan), ctx.get(Ranges), ctx.get(Goal)
        banned = dict(plan.wishes.banned)
        while found := dict(self._unfit(plan, ranges)):
            for node, decision in found.items():
                ctx.note(decision.code, node, decision.reason)
            banned |= found
            plan = Planner(goal.target, replace(plan.wishes, banned=banned)).make(model)
        for node in requantized(plan):
            why = "a float layer between two pairs: onnxruntime rounds its weight to int8 per tensor while loading; "
            ctx.note("requantized-by-runtime", node, why + "leave its neighbours float, too", Severity.WARNING)
        ctx.put(plan)
        return False

    def _unfit(self, plan: Plan, ranges: Ranges) -> Iterator[Found]:
        without = {v for v in plan.activations if v not in ranges.of and v not in plan.fixed}
        users = _users(plan, without)
        for value in (v for v in plan.activations if v in without):
            why = ranges.infinite.get(value, "calibration saw no value of it")
            code = "infinite-range" if value in ranges.infinite else "no-range"
            for node in users[value]:
                yield node, Decision("float", code, f"'{value.name}' has no range: {why}")
        for node, decision in plan.decisions.items():
            # The operands of a product keep their own scales, and its range follows from theirs.
            if decision.code in ("join", "binary") and node.op_type != "Mul":
                yield from self._unlike(node, plan, ranges)

    def _unlike(self, node: ir.Node, plan: Plan, ranges: Ranges) -> Iterator[Found]:
        widths = {}
        tail = folded_behind(node.outputs[0], plan.wishes.banned)
        for value in (*(v for v in node.inputs if v is not None), *(tail or node).outputs):
            known = ranges.of.get(value)
            ends = (known.lo, known.hi) if known is not None else plan.fixed.get(value)
            if ends is not None and value in plan.activations:
                widths[value] = max(ends[1], 0.0) - min(ends[0], 0.0)
        if len(widths) < 2:
            return
        widest = max(widths.values())
        narrow = min(widths, key=lambda v: widths[v])
        if widths[narrow] > 0 and widest > self.unlike * widths[narrow]:
            times = widest / widths[narrow]
            why = f"its ranges differ {times:.0f} times: one scale would leave '{narrow.name}' few steps"
            yield node, Decision("float", "unlike-ranges", why)


def _users(plan: Plan, values: Set[ir.Value]) -> dict[ir.Value, list[ir.Node]]:
    """The integer nodes that need a pair on each of these values."""
    out: dict[ir.Value, list[ir.Node]] = {value: list(_makers(plan, value)) for value in values}
    for edge, value in plan.readers.items():
        if value in values and plan.decisions[edge.node].status in ("integer", "moves"):
            out[value].append(edge.node)
    return out


def _makers(plan: Plan, value: ir.Value) -> Iterator[ir.Node]:
    """The integer op that makes a value; a folded Relu or bias Add goes with the layer in front of it."""
    node = value.producer()
    while node is not None and plan.decisions[node].status in ("integer", "moves"):
        yield node
        if plan.decisions[node].code != "part-of-layer":
            return
        before = next((v for v in node.inputs if v is not None and v.producer() is not None), None)
        node = before.producer() if before is not None else None
