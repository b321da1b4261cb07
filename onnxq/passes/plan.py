"""`plan`: decide for every edge whether and how it is quantized, and say why for every node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import onnx_ir as ir

from onnxq.diagnostics import Severity
from onnxq.errors import OptionError
from onnxq.facts import Decision, Fact, Goal, Plan, Wish, Wishes
from onnxq.look import all_nodes, onnx_op
from onnxq.numerics.spec import TensorSpec
from onnxq.passbase import Context, Pass
from onnxq.planfile import Filed, read_plan
from onnxq.planning import Planner
from onnxq.planning.checks import GranularityName, Request, SymmetryName
from onnxq.planning.overrides import Found, Override, find, handed_on
from onnxq.planning.review import check_layers, check_opset, runs_in_float
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
        activations: Type of activations; empty means the target's default.
        activations_symmetric: Whether zero points of activations are fixed at the middle of their type; ``auto`` is the
            target's way.
        weights: Type of weights; empty means the target's default.
        granularity: Of weights: ``per-tensor``, ``per-channel``, ``blocked``; empty means blocked if there is a block
            size, else the target's default.
        block_size: Values of a weight, along the axis that is summed over, that share a scale; 0 means none given.
        symmetric: Whether zero points of weights are fixed at the middle of their type; ``auto`` is the target's way.
        weight_only: Only weights become integers, in all scopes; no calibration is needed.
        embeddings: ``int8`` stores the table of a Gather as 8-bit integers in a weight-only plan, ``float`` leaves it.
        exclude: Selectors of nodes that stay float.
        include: Selectors of the only nodes that may be quantized; empty means all.
        overrides: What is wanted otherwise of some nodes: a list of ``select`` (a selector, or ``tensor:NAME``) with
            ``activations`` (a type, or ``float`` to quantize weights only), ``activations-symmetric``, ``weights``,
            ``granularity``, ``block-size``, ``symmetric``, ``range`` ([low, high] of what the nodes make), ``method``
            (of calibration), ``float: true``. Key by key, the last one that matches counts.
        force: Selectors of weight-carrying nodes to quantize although the target has no integer kernel for them.
        dynamic: ``auto`` quantizes the input of a MatMul between float ops at run time, ``never`` calibrates it.
        static: Whether ranges will be there; ``false`` plans only what needs no calibration.
        contrib: Whether pairs that the model's opset does not have are written in onnxruntime's domain (com.microsoft).
        file: A plan written by ``onnxq plan``, perhaps edited: its nodes marked ``float`` stay float, the others become
            what it says where the graph allows that, and tensors get its types and ranges; overrides count for more.
    """

    name: ClassVar[str] = "plan"
    writes: ClassVar[frozenset[type[Fact]]] = frozenset({Plan, Goal})
    maybe_reads: ClassVar[frozenset[type[Fact]]] = frozenset({Goal})

    target: str = "ort-cpu"
    activations: str = ""
    activations_symmetric: SymmetryName = "auto"
    weights: str = ""
    granularity: GranularityName = ""
    block_size: int = 0
    symmetric: SymmetryName = "auto"
    weight_only: bool = False
    embeddings: Literal["int8", "float"] = "int8"
    exclude: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    overrides: tuple[Override, ...] = ()
    force: tuple[str, ...] = ()
    dynamic: Literal["auto", "never"] = "auto"
    static: bool = True
    contrib: bool = False
    file: str = ""

    def preflight(self, ctx: Context) -> None:
        """Refuse types and combinations before any step runs, and let the steps in front know the target.

        Raises:
            OptionError: Something the target does not take.
            CapabilityError: A type the installed onnx does not have.
        """
        target = self._goal(ctx).target
        self._request.specs(target)
        for override in self.overrides:
            override.specs(target, self._request)
        if self.contrib and not target.contrib:
            raise OptionError(f"target {target.name} does not know Q/DQ pairs of com.microsoft: contrib")

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Make the plan; the graph stays as it is.

        Raises:
            OptionError: A selector that matches nothing, a type the target does not take, a bad plan file.
            CapabilityError: A type the installed onnx does not have.
            UnsupportedError: The model's opset is newer than the target's newest, or older than its types.
        """
        target = self._goal(ctx).target
        filed = read_plan(self.file, model) if self.file else Filed()
        found = find(self.overrides, model, target, self._request)
        wishes = self._wishes(model, target, filed, found)
        plan = Planner(target, wishes).make(model)
        check_opset(plan, model.opset_imports.get("", 0), target)
        check_layers(plan, target)
        ctx.put(plan)
        _note_unmet(plan, filed, found, ctx)
        self._note_options(plan, ctx)
        for edge, spec in plan.weights.items():
            wanted = wishes.uses.get(edge, wishes.of(edge.node).weight).qtype
            if spec.qtype != wanted:
                why = f"{edge.node.op_type} takes no {wanted} data: {spec.qtype} instead"
                ctx.note("embedding-type", edge.node, why, type=spec.qtype.name)
        for node, why in unfused(plan) if target.weight_only_copies else ():
            ctx.note("not-fused", node, why)
        slow = runs_in_float(plan, target)
        if slow:
            ctx.note("runs-in-float", None, slow)
        if not plan.weights and not plan.activations:
            _note_nothing(plan, target.name, ctx)
        return False

    def _wishes(self, model: ir.Model, target: Target, filed: Filed, found: Found) -> Wishes:
        """Options, then the plan file, then overrides: what comes later counts for more."""
        activation, weight = self._request.specs(target)
        filed.check(target)
        left = {node: said for node, said in filed.decisions.items() if said.status == "float"}
        banned = self._banned(model) | left | found.banned
        forced = {node for node, said in filed.decisions.items() if said.status in ("integer", "weight-only")}
        forced |= set(resolve(self.force, model) if self.force else ())
        nodes = {n: w for n, said in filed.decisions.items() if (w := _filed_wish(n, said, activation, weight))}
        reads = {edge: spec for edge, spec in filed.reads.items() if edge.node not in found.activations}
        weights = {edge: spec for edge, spec in filed.weights.items() if edge.node not in found.weights}
        made = {value for node in found.activations for value in handed_on(node, banned)}
        return Wishes(
            activation, weight, banned, frozenset(forced),
            dynamic=self.dynamic == "auto", static=self.static, weight_only=self.weight_only,
            nodes={**nodes, **found.nodes}, uses={**reads, **weights},
            values={**{v: spec for v, spec in filed.activations.items() if v not in made}, **found.values},
            ranges={**filed.ranges, **found.ranges}, methods={**filed.methods, **found.methods},
            contrib=self.contrib,
        )  # fmt: skip

    def _note_options(self, plan: Plan, ctx: Context) -> None:
        """Say which of the types asked for no tensor has, as the plan file asks for others."""
        made = {
            "activations": {spec.qtype.name for spec in (*plan.activations.values(), *plan.bridges.values())},
            "weights": {spec.qtype.name for spec in plan.weights.values()},
        }
        asked = {"activations": self.activations, "weights": self.weights}
        unmet = [
            f"{k}: {asked[k]}" for k, types in made.items() if asked[k] and types and asked[k].lower() not in types
        ]
        if self.file and unmet:
            why = f"the plan file says otherwise than {', '.join(unmet)}, and counts for more"
            ctx.note("plan-file-counts", None, why)

    @property
    def _request(self) -> Request:
        names = ("activations", "activations_symmetric", "weights", "granularity", "block_size", "symmetric")
        return Request(**{name: getattr(self, name) for name in (*names, "weight_only")})

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


def _filed_wish(node: ir.Node, said: Decision, activation: TensorSpec, weight: TensorSpec) -> Wish | None:
    """What a plan file wants of a node beyond its specs: whether, and when, its activations are quantized."""
    if said.status == "weight-only":
        return Wish(None, weight)
    if onnx_op(node, "MatMul", "Gemm") and said.status in ("integer", "dynamic"):
        return Wish(activation, weight, dynamic="always" if said.status == "dynamic" else "never")
    return None


def _note_unmet(plan: Plan, filed: Filed, found: Found, ctx: Context) -> None:
    """Say where the plan is not what the caller asked for."""
    for place, why in found.unmet(plan):
        ctx.note("override-not-met", place, why, Severity.WARNING)
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
