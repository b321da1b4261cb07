"""`plan`: decide for every edge whether and how it is quantized, and say why for every node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import onnx_ir as ir

from onnxq.facts import Decision, Fact, Goal, Plan, Wishes
from onnxq.look import all_nodes
from onnxq.passbase import Context, Pass
from onnxq.planfile import read_plan
from onnxq.planning import Planner
from onnxq.selectors import resolve
from onnxq.targets import load_target


@dataclass(frozen=True, kw_only=True)
class MakePlan(Pass):
    """Model, target -> `Plan`: specs for edges, sharing groups, and a decision with its reason for each node.

    Nothing in the graph changes. The target comes from the caller, else from ``target``.

    Attributes:
        target: Name of a target or path of a target file; used when the caller names none.
        activations: Integer type of activations; empty means the target's default.
        weights: Integer type of weights; empty means the target's default.
        exclude: Selectors of nodes that stay float.
        include: Selectors of the only nodes that may be quantized; empty means all.
        force: Selectors of weight-carrying nodes to quantize although the target has no integer kernel for them.
        dynamic: ``auto`` quantizes the input of a MatMul between float ops at run time, ``never`` calibrates it.
        static: Whether ranges will be there; ``false`` plans only what needs no calibration.
        file: A plan written by ``onnxq plan``; its nodes marked ``float`` stay float.
    """

    name: ClassVar[str] = "plan"
    writes: ClassVar[frozenset[type[Fact]]] = frozenset({Plan, Goal})
    maybe_reads: ClassVar[frozenset[type[Fact]]] = frozenset({Goal})

    target: str = "ort-cpu"
    activations: str = ""
    weights: str = ""
    exclude: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    force: tuple[str, ...] = ()
    dynamic: Literal["auto", "never"] = "auto"
    static: bool = True
    file: str = ""

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Make the plan; the graph stays as it is."""
        goal = ctx.maybe(Goal)
        target = goal.target if goal else load_target(self.target)
        if goal is None:
            ctx.put(Goal(target))
        activation = target.activation_spec(self.activations or None)
        weight = target.weight_spec(self.weights or None)
        banned = self._banned(model)
        if self.file:
            banned |= read_plan(self.file, model)
        forced = frozenset(resolve(self.force, model)) if self.force else frozenset()
        # DynamicQuantizeLinear writes uint8 and MatMulInteger takes 8-bit weights only.
        dynamic = self.dynamic == "auto" and activation.qtype.name == "uint8" and weight.qtype.bits == 8
        plan = Planner(target, Wishes(activation, weight, banned, forced, dynamic, self.static)).make(model)
        ctx.put(plan)
        if not plan.weights and not plan.activations:
            ctx.note("nothing-to-quantize", None, f"no node of this model can run on integers for {target.name}")
        return False

    def _banned(self, model: ir.Model) -> dict[ir.Node, Decision]:
        out: dict[ir.Node, Decision] = {}
        if self.include:
            chosen = set(resolve(self.include, model))
            for node in all_nodes(model):
                if node not in chosen:
                    out[node] = Decision("float", "not-included", "not selected by include")
        if self.exclude:
            for node in resolve(self.exclude, model):
                out[node] = Decision("float", "excluded", "excluded by the caller")
        return out
