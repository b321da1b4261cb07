"""`plan`: decide for every edge whether and how it is quantized, and say why for every node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import onnx_ir as ir

from onnxq.diagnostics import Severity
from onnxq.errors import UnsupportedError
from onnxq.facts import Decision, Fact, Goal, Plan, Wishes
from onnxq.look import all_nodes, onnx_op
from onnxq.numerics.spec import Blocked
from onnxq.passbase import Context, Pass
from onnxq.planfile import Filed, read_plan
from onnxq.planning import Planner
from onnxq.planning.checks import GranularityName, Request, SymmetryName
from onnxq.planning.unfused import unfused
from onnxq.selectors import resolve
from onnxq.targets import Target, load_target
from onnxq.wording import plural


@dataclass(frozen=True, kw_only=True)
class MakePlan(Pass):
    """Model, target -> `Plan`: specs for edges, sharing groups, and a decision with its reason for each node.

    Nothing in the graph changes. The target comes from the caller, else from ``target``.

    Attributes:
        target: Name of a target or path of a target file; used when the caller names none.
        activations: Integer type of activations; empty means the target's default.
        weights: Integer type of weights; empty means the target's default.
        granularity: Of weights: ``per-tensor``, ``per-channel``, ``blocked``; empty means blocked if there is a block
            size, else the target's default.
        block_size: Values of a weight, along the axis that is summed over, that share a scale; 0 means none given.
        symmetric: Whether zero points of weights are fixed at the middle of their type; ``auto`` is the target's way.
        weight_only: Only weights become integers, in all scopes; no calibration is needed.
        embeddings: ``int8`` stores the table of a Gather as 8-bit integers in a weight-only plan, ``float`` leaves it.
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
    granularity: GranularityName = ""
    block_size: int = 0
    symmetric: SymmetryName = "auto"
    weight_only: bool = False
    embeddings: Literal["int8", "float"] = "int8"
    exclude: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    force: tuple[str, ...] = ()
    dynamic: Literal["auto", "never"] = "auto"
    static: bool = True
    file: str = ""

    def preflight(self, ctx: Context) -> None:
        """Refuse types and combinations before any step runs, and let the steps in front know the target.

        Raises:
            OptionError: Something the target does not take.
            CapabilityError: A type the installed onnx does not have.
        """
        self._request.specs(self._goal(ctx).target)

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Make the plan; the graph stays as it is.

        Raises:
            OptionError: A selector that matches nothing, a type the target does not take, a bad plan file.
            CapabilityError: A type the installed onnx does not have.
            UnsupportedError: The model's opset is newer than the target's newest, or older than its types.
        """
        target = self._goal(ctx).target
        activation, weight = self._request.specs(target)
        filed = read_plan(self.file, model) if self.file else Filed()
        banned = self._banned(model) | {node: said for node, said in filed.decisions.items() if said.status == "float"}
        forced = {node for node, said in filed.decisions.items() if said.status in ("integer", "weight-only")}
        forced |= set(resolve(self.force, model) if self.force else ())
        # DynamicQuantizeLinear writes uint8 and MatMulInteger takes 8-bit weights only, not in blocks.
        dynamic = self.dynamic == "auto" and activation.qtype.name == "uint8" and weight.qtype.bits == 8
        dynamic = dynamic and not isinstance(weight.granularity, Blocked)
        wishes = Wishes(activation, weight, banned, frozenset(forced), dynamic, self.static, self.weight_only)
        plan = Planner(target, wishes).make(model)
        _check_opset(plan, model.opset_imports.get("", 0), target)
        ctx.put(plan)
        _note_unmet(plan, filed, ctx)
        for edge, spec in plan.weights.items():
            if spec.qtype != weight.qtype:
                why = f"{edge.node.op_type} takes no {weight.qtype} data: {spec.qtype} instead"
                ctx.note("embedding-type", edge.node, why, type=spec.qtype.name)
        for node, why in unfused(plan) if target.weight_only_copies else ():
            ctx.note("not-fused", node, why)
        if not plan.weights and not plan.activations:
            _note_nothing(plan, target.name, ctx)
        return False

    @property
    def _request(self) -> Request:
        names = ("activations", "weights", "granularity", "block_size", "symmetric", "weight_only")
        return Request(**{name: getattr(self, name) for name in names})

    def _goal(self, ctx: Context) -> Goal:
        if not ctx.has(Goal):
            ctx.put(Goal(load_target(self.target)))
        return ctx.get(Goal)

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
        if self.weight_only and self.embeddings == "float":
            tables = (node for node in all_nodes(model) if onnx_op(node, "Gather"))
            out |= dict.fromkeys(tables, Decision("float", "embedding", "tables of Gather stay float, as asked"))
        return out


def _check_opset(plan: Plan, opset: int, target: Target) -> None:
    if not plan.activations and not plan.weights:
        return
    if opset > target.opset.max:
        raise UnsupportedError(
            f"the model has opset {opset}; {target.name} runs Q/DQ pairs up to opset {target.opset.max}"
        )
    newest = max((*plan.activations.values(), *plan.weights.values()), key=lambda spec: spec.qtype.since)
    if opset < newest.qtype.since:
        raise UnsupportedError(
            f"the model has opset {opset}; pairs of {newest.qtype} exist from opset {newest.qtype.since} on: "
            "run upgrade-opset (parameter opset of the recipe prepare) first"
        )


def _note_unmet(plan: Plan, filed: Filed, ctx: Context) -> None:
    """Say where the plan is not what the caller asked for."""
    for place, why in filed.differences(plan):
        ctx.note("plan-not-met", place, why, Severity.WARNING)
    for node, made in plan.decisions.items():
        if made.status == "float" and node in plan.wishes.forced and node not in filed.decisions:
            ctx.note("force-not-met", node, f"it stays float all the same: {made.reason}", Severity.WARNING)


def _note_nothing(plan: Plan, target: str, ctx: Context) -> None:
    found = sum(decision.code == "already-quantized" for decision in plan.decisions.values())
    if found:
        why = f"{plural(found, 'node')} quantized already, and nothing else can run on integers for {target}"
        ctx.note("already-quantized", None, why, nodes=found)
    else:
        ctx.note("nothing-to-quantize", None, f"no node of this model can run on integers for {target}")
