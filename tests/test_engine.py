"""Passes, pipelines, contexts: what runs, in which order, with which facts, and what happens when a step fails."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxq.context import Context
from onnxq.errors import FactError, OptionError, PassFailed
from onnxq.facts import Fact
from onnxq.passbase import MAX_ROUNDS, Instrument, Pass, Pipeline, Step, flatten, run_step, step_name


@dataclass
class Count(Fact):
    nodes: int = 0


@dataclass
class Wish(Fact):
    stays = True
    ask = "a wish (--wish)"
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class CountNodes(Pass):
    name = "count-nodes"
    writes = frozenset({Count})

    def run(self, model: ir.Model, ctx: Context) -> bool:
        ctx.put(Count(len(model.graph)))
        return False


@dataclass(frozen=True, kw_only=True)
class ReadCount(Pass):
    name = "read-count"
    reads = frozenset({Count})

    def run(self, model: ir.Model, ctx: Context) -> bool:
        ctx.note("counted", None, "as written before", nodes=ctx.get(Count).nodes)
        return False


@dataclass(frozen=True, kw_only=True)
class DropLast(Pass):
    """Removes the last node and makes its input the graph output."""

    name = "drop-last"
    idempotent = False
    down_to: int = 0

    def run(self, model: ir.Model, ctx: Context) -> bool:
        if len(model.graph) <= self.down_to:
            return False
        node = model.graph[-1]
        (output,) = model.graph.outputs
        model.graph.outputs[0] = node.inputs[0]
        model.graph.remove(node, safe=True)
        assert output.producer() is node
        return True


@dataclass(frozen=True, kw_only=True)
class KeepingDrop(DropLast):
    name = "keeping-drop"
    keeps = frozenset({Count})


@dataclass(frozen=True, kw_only=True)
class Crash(Pass):
    name = "crash"

    def run(self, model: ir.Model, ctx: Context) -> bool:
        raise KeyError("weight")


@dataclass(frozen=True, kw_only=True)
class Refuse(Pass):
    name = "refuse"

    def run(self, model: ir.Model, ctx: Context) -> bool:
        raise OptionError("not like this")


@dataclass
class Log(Instrument):
    lines: list[str] = field(default_factory=list)
    rests: list[tuple[Step, ...]] = field(default_factory=list)

    def before(self, step: Step, model: ir.Model, ctx: Context, rest: tuple[Step, ...]) -> None:
        self.lines.append(f"before {step_name(step)}")
        self.rests.append(rest)

    def after(self, step: Step, model: ir.Model, ctx: Context, changed: bool) -> None:
        self.lines.append(f"after {step_name(step)} {changed}")

    def failed(self, step: Step, model: ir.Model, ctx: Context, error: Exception) -> None:
        self.lines.append(f"failed {step_name(step)} {type(error).__name__}")


def proto(nodes: int = 3) -> onnx.ModelProto:
    """A chain of Add nodes, x[1, 4] float."""
    graph = helper.make_graph(
        [helper.make_node("Add", [f"v{i}", "w"], [f"v{i + 1}"], name=f"add{i}") for i in range(nodes)],
        "g",
        [helper.make_tensor_value_info("v0", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info(f"v{nodes}", TensorProto.FLOAT, [1, 4])],
        [numpy_helper.from_array(np.arange(4, dtype=np.float32), "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def model(nodes: int = 3) -> ir.Model:
    return ir.from_proto(proto(nodes))


def test_steps_run_in_order_and_see_facts_of_earlier_ones() -> None:
    ctx = Context()
    pipeline = Pipeline(steps=(CountNodes(), ReadCount(), DropLast(), CountNodes(), ReadCount()))
    assert pipeline.run(model(), ctx)
    assert [n.numbers["nodes"] for n in ctx.report.of("counted")] == [3, 2]
    assert ctx.report.notes[0].source == "read-count"


def test_a_fact_without_writer_is_refused_before_anything_runs() -> None:
    m = model()
    with pytest.raises(FactError, match=r"mine: read-count reads Count, which no earlier step writes$"):
        Pipeline(steps=(DropLast(), ReadCount()), label="mine").run(m, Context())
    assert len(m.graph) == 3


def test_a_writer_that_stands_later_is_named() -> None:
    inner = Pipeline(steps=(ReadCount(), CountNodes(), CountNodes()))
    with pytest.raises(FactError, match="; count-nodes writes it but stands later"):
        Pipeline(steps=(inner,)).run(model(), Context())


def test_a_fact_that_only_the_caller_has_is_asked_for() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Grant(CountNodes):
        reads = frozenset({Wish})

    with pytest.raises(FactError, match=r"needs a wish \(--wish\)$"):
        Pipeline(steps=(Grant(),)).run(model(), Context())


def test_facts_of_the_caller_count_as_written() -> None:
    ctx = Context().put(Count(7))
    Pipeline(steps=(ReadCount(),)).run(model(), ctx)
    assert ctx.report.notes[0].numbers == {"nodes": 7}


def test_a_changed_graph_makes_facts_stale_and_the_message_says_who_did_it() -> None:
    with pytest.raises(FactError, match=r"read-count reads Count, which went stale when drop-last changed the graph"):
        Pipeline(steps=(CountNodes(), DropLast(), ReadCount())).run(model(), Context())


def test_facts_survive_passes_that_change_nothing_or_keep_them() -> None:
    steps = (CountNodes(), DropLast(down_to=3), ReadCount(), KeepingDrop(), ReadCount())
    ctx = Context()
    Pipeline(steps=steps).run(model(), ctx)
    assert [n.numbers["nodes"] for n in ctx.report.of("counted")] == [3, 3]


def test_facts_that_are_not_about_the_graph_stay() -> None:
    ctx = Context().put(Wish("int8"), Count(3))
    run_step(DropLast(), model(), ctx)
    assert ctx.facts == (Wish("int8"),)
    assert ctx.maybe(Count) is None and ctx.get(Wish).text == "int8" and not ctx.has(Count)


def test_a_rewritten_fact_is_fresh_again() -> None:
    ctx = Context().put(Count(3))
    run_step(DropLast(), model(), ctx)
    ctx.put(Count(2))
    assert ctx.get(Count).nodes == 2
    run_step(Pipeline(steps=(ReadCount(),)), model(), ctx)
    assert ctx.get(Count).nodes == 2, "a pipeline that changes nothing keeps what it found"


def test_facts_of_a_pipeline_are_there_after_it() -> None:
    ctx = Context()
    assert run_step(Pipeline(steps=(DropLast(), CountNodes())), model(), ctx)
    assert ctx.get(Count).nodes == 2


def test_until_stable_repeats_until_nothing_changes() -> None:
    m, log = model(6), Log()
    Pipeline(steps=(DropLast(down_to=2),), until_stable=True, instruments=(log,)).run(m, Context())
    assert len(m.graph) == 2
    assert log.lines.count("before drop-last") == 5, "four rounds that change, one that does not"


def test_until_stable_gives_up_with_a_note() -> None:
    ctx, m = Context(), model(MAX_ROUNDS + 5)
    Pipeline(steps=(DropLast(),), until_stable=True, label="drop").run(m, ctx)
    assert len(m.graph) == 5
    assert [n.code for n in ctx.report.notes] == ["not-stable"]
    assert "drop" in ctx.report.notes[0].message


def test_hooks_surround_the_steps_of_nested_pipelines() -> None:
    outer, inner = Log(), Log()
    nested = Pipeline(steps=(CountNodes(),), instruments=(inner,))
    Pipeline(steps=(nested, DropLast()), instruments=(outer,)).run(model(), Context())
    assert outer.lines == ["before count-nodes", "after count-nodes False", "before drop-last", "after drop-last True"]
    assert inner.lines == outer.lines[:2]


def test_hooks_know_all_that_is_left_of_the_run() -> None:
    log = Log()
    last = ReadCount()
    loop = Pipeline(steps=(DropLast(down_to=2), CountNodes()), until_stable=True)
    whole = Pipeline(steps=(Pipeline(steps=(loop,)), last), instruments=(log,))
    whole.run(model(), Context())
    assert log.rests[0] == (DropLast(down_to=2), CountNodes(), loop, last)
    assert log.rests[1] == (CountNodes(), loop, last)
    assert log.rests[-1] == (last,)


def test_a_crash_is_wrapped_with_the_name_of_the_pass_and_hooks_hear_of_it() -> None:
    log = Log()
    with pytest.raises(PassFailed, match="crash: KeyError: 'weight'") as caught:
        Pipeline(steps=(Pipeline(steps=(Crash(),)),), instruments=(log,)).run(model(), Context())
    assert isinstance(caught.value.__cause__, KeyError)
    assert log.lines == ["before crash", "failed crash PassFailed"]


def test_errors_raised_on_purpose_go_through_unchanged() -> None:
    with pytest.raises(OptionError, match=r"^not like this$"):
        run_step(Refuse(), model(), Context())


@pytest.mark.parametrize(("step", "hint"), [(CountNodes, "call it"), (lambda m: m, "proto_pass")])
def test_what_is_not_a_pass_is_refused_at_once(step: object, hint: str) -> None:
    with pytest.raises(OptionError, match=hint):
        Pipeline(steps=(step,))  # type: ignore[arg-type]


def test_pipelines_are_equal_by_their_steps_whoever_watches() -> None:
    watched = Pipeline(steps=[DropLast(down_to=1)], instruments=(Log(),))  # type: ignore[arg-type]
    assert watched == Pipeline(steps=(DropLast(down_to=1),)) != Pipeline(steps=(DropLast(),))
    assert list(flatten(Pipeline(steps=(watched, CountNodes())))) == [DropLast(down_to=1), CountNodes()]


def test_a_pass_stands_in_an_onnx_ir_sequence() -> None:
    m = model()
    result = ir.passes.Sequential(DropLast(), Pipeline(steps=(DropLast(),)))(m)
    assert result.modified and result.model is m and len(m.graph) == 1


def test_requires_and_ensures_hold_inside_pipelines() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Picky(CountNodes):
        def requires(self, model: ir.Model) -> None:
            raise ir.passes.PreconditionError("opset 21 needed")

    with pytest.raises(PassFailed, match="opset 21 needed"):
        Pipeline(steps=(Picky(),)).run(model(), Context())


def test_apply_without_facts_says_what_to_do() -> None:
    with pytest.raises(FactError, match="read-count reads Count: run it in a Pipeline"):
        ReadCount().apply(proto())


def test_the_engine_imports_no_pass() -> None:
    code = (
        "import sys, onnxq.passbase, onnxq.context, onnxq.facts, onnxq.foreign, onnxq.registry, onnxq.recipe\n"
        "print([m for m in sys.modules if m.startswith('onnxq.passes.')])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
