"""`leave-float`: take out of the plan what calibration has shown to be unfit for integers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import onnx_ir as ir

from onnxq.facts import Decision, Fact, Goal, Plan, Ranges
from onnxq.passbase import Context, Pass
from onnxq.planning import Planner

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
        ctx.put(plan)
        return False

    def _unfit(self, plan: Plan, ranges: Ranges) -> Iterator[Found]:
        for value in plan.activations:
            if value in ranges.of or value in plan.fixed:
                continue
            why = ranges.infinite.get(value, "calibration saw no value of it")
            code = "infinite-range" if value in ranges.infinite else "no-range"
            for node in _users(plan, value):
                yield node, Decision("float", code, f"'{value.name}' has no range: {why}")
        for node, decision in plan.decisions.items():
            if decision.code in ("join", "binary"):
                yield from self._unlike(node, plan, ranges)

    def _unlike(self, node: ir.Node, plan: Plan, ranges: Ranges) -> Iterator[Found]:
        widths = {}
        for value in (*(v for v in node.inputs if v is not None), *node.outputs):
            known = ranges.of.get(value)
            if known is not None and value in plan.activations:
                widths[value] = max(known.hi, 0.0) - min(known.lo, 0.0)
        if len(widths) < 2:
            return
        widest = max(widths.values())
        narrow = min(widths, key=lambda v: widths[v])
        if widths[narrow] > 0 and widest > self.unlike * widths[narrow]:
            times = widest / widths[narrow]
            why = f"its ranges differ {times:.0f} times: one scale would leave '{narrow.name}' few steps"
            yield node, Decision("float", "unlike-ranges", why)


def _users(plan: Plan, value: ir.Value) -> Iterator[ir.Node]:
    """The integer nodes that need a pair on this value."""
    for edge, read in plan.readers.items():
        decision = plan.decisions.get(edge.node)
        if read is value and decision is not None and decision.status in ("integer", "moves"):
            yield edge.node
    producer = value.producer()
    while producer is not None:
        decision = plan.decisions.get(producer)
        if decision is None or decision.status not in ("integer", "moves"):
            return
        yield producer
        # A folded Relu or bias Add belongs to the layer in front of it: that layer has to go, too.
        if decision.code != "part-of-layer":
            return
        before = next((v for v in producer.inputs if v is not None and v.producer() is not None), None)
        producer = before.producer() if before is not None else None
