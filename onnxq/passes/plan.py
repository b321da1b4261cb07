"""`plan`: decide for every edge whether and how it is quantized, and say why for every node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import onnx_ir as ir

from onnxq.diagnostics import Severity
from onnxq.errors import UnsupportedError
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
        file: A plan written by ``onnxq plan``, perhaps edited: its nodes marked ``float`` stay float, the others become
            what it says where the graph allows that.
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
        """Make the plan; the graph stays as it is.

        Raises:
            OptionError: A selector that matches nothing, a type the target does not take, a bad plan file.
            UnsupportedError: The model's opset is newer than the target's newest.
        """
        goal = ctx.maybe(Goal)
        target = goal.target if goal else load_target(self.target)
        if goal is None:
            ctx.put(Goal(target))
        activation = target.activation_spec(self.activations or None)
        weight = target.weight_spec(self.weights or None)
        filed = read_plan(self.file, model) if self.file else {}
        banned = self._banned(model) | {node: said for node, said in filed.items() if said.status == "float"}
        forced = {node for node, said in filed.items() if said.status == "integer"}
        forced |= set(resolve(self.force, model) if self.force else ())
        # DynamicQuantizeLinear writes uint8 and MatMulInteger takes 8-bit weights only.
        dynamic = self.dynamic == "auto" and activation.qtype.name == "uint8" and weight.qtype.bits == 8
        wishes = Wishes(activation, weight, banned, frozenset(forced), dynamic, self.static)
        plan = Planner(target, wishes).make(model)
        opset = model.opset_imports.get("", 0)
        if plan.activations and opset > target.opset.max:
            raise UnsupportedError(
                f"the model has opset {opset}; {target.name} runs Q/DQ pairs up to opset {target.opset.max}"
            )
        ctx.put(plan)
        _note_unmet(plan, filed, ctx)
        if not plan.weights and not plan.activations:
            _note_nothing(plan, target.name, ctx)
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


def _note_unmet(plan: Plan, filed: dict[ir.Node, Decision], ctx: Context) -> None:
    """Say where the plan is not what the caller asked for."""
    for node, made in plan.decisions.items():
        said = filed.get(node)
        if said is not None and said.status not in ("float", made.status):
            why = f"the plan file says {said.status}, it becomes {made.status}: {made.reason}"
            ctx.note("plan-not-met", node, why, Severity.WARNING)
        elif said is None and made.status == "float" and node in plan.wishes.forced:
            ctx.note("force-not-met", node, f"it stays float all the same: {made.reason}", Severity.WARNING)


def _note_nothing(plan: Plan, target: str, ctx: Context) -> None:
    found = sum(decision.code == "already-quantized" for decision in plan.decisions.values())
    if found:
        why = f"{found} nodes are quantized already, and nothing else can run on integers for {target}"
        ctx.note("already-quantized", None, why, nodes=found)
    else:
        ctx.note("nothing-to-quantize", None, f"no node of this model can run on integers for {target}")
