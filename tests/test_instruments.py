"""What watches a pipeline: times, dumps, checks, comparisons, reproducers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxq import api, instruments
from onnxq.border import open_model
from onnxq.calibration.sources import open_source
from onnxq.context import Context
from onnxq.errors import InputError, OptionError, PassFailed
from onnxq.facts import Fact, Feeds
from onnxq.instruments import CompareEach, DumpAfter, Reproducer, Timing, VerifyEach
from onnxq.passbase import Pass, Pipeline
from onnxq.recipe import load_recipe
from onnxq.registry import Registry
from onnxq.validity import interface, verify


@dataclass
class Count(Fact):
    nodes: int

    def to_json(self) -> dict[str, int]:
        return {"nodes": self.nodes}


@dataclass(frozen=True, kw_only=True)
class CountNodes(Pass):
    name = "count-nodes"
    writes = frozenset({Count})

    def run(self, model: ir.Model, ctx: Context) -> bool:
        ctx.put(Count(len(model.graph)))
        return False


@dataclass(frozen=True, kw_only=True)
class Scale(Pass):
    """Multiplies the weight; makes the result wrong on purpose."""

    name = "scale"
    by: float = 1.0
    honest: bool = True

    def run(self, model: ir.Model, ctx: Context) -> bool:
        value = model.graph.initializers["w"]
        value.const_value = ir.tensor(value.const_value.numpy() * np.float32(self.by), name="w")
        return self.honest


@dataclass(frozen=True, kw_only=True)
class Break(Pass):
    name = "break"
    how: str = ""

    def run(self, model: ir.Model, ctx: Context) -> bool:
        graph = model.graph
        if self.how == "order":
            last = graph[-1]
            graph.remove(last)
            graph.insert_before(graph[0], last)
        elif self.how == "removed":
            first = graph[0]
            graph.append(ir.node("Neg", [first.outputs[0]], name="n"))
            graph.remove(first)
        elif self.how == "captured":
            after = ir.node("Neg", [graph.inputs[0]], name="late")
            body = ir.Graph([], [], nodes=[ir.node("Neg", [after.outputs[0]], name="in")], name="b")
            body.outputs.append(body[0].outputs[0])
            flag = ir.node("Constant", [], attributes={"value": ir.tensor(True)}, name="flag")
            graph.extend([flag, ir.node("If", flag.outputs, {"then_branch": body}, name="if"), after])
        elif self.how == "names":
            graph[0].outputs[0].name = graph[1].outputs[0].name
        elif self.how == "operator":
            graph[0].op_type = "NoSuchOperator"
        elif self.how == "output":
            graph.outputs[0].name = "renamed"
        elif self.how == "crash":
            raise KeyError("weight")
        return True


def proto(nodes: int = 2, width: int = 4) -> onnx.ModelProto:
    """x[N, width] -> Add w -> Add w ...; w = 0, 1, 2, ..."""
    graph = helper.make_graph(
        [helper.make_node("Add", [f"v{i}", "w"], [f"v{i + 1}"], name=f"add{i}") for i in range(nodes)],
        "g",
        [helper.make_tensor_value_info("v0", TensorProto.FLOAT, [2, width])],
        [helper.make_tensor_value_info(f"v{nodes}", TensorProto.FLOAT, [2, width])],
        [numpy_helper.from_array(np.arange(width, dtype=np.float32), "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def model(nodes: int = 2, width: int = 4) -> ir.Model:
    return open_model(proto(nodes, width)).model


def test_timing_has_one_row_a_step() -> None:
    ctx = Context()
    Pipeline(steps=(CountNodes(), Scale()), instruments=(Timing(),)).run(model(), ctx)
    assert [name for name, _ in ctx.report.seconds] == ["count-nodes", "scale"]
    assert all(0 <= seconds < 1 for _, seconds in ctx.report.seconds)
    again = api.run(Pipeline(steps=(CountNodes(), Scale())), proto()).report
    assert [name for name, _ in again.seconds] == ["count-nodes", "scale"]


def test_dumps_are_numbered_and_hold_the_model_of_that_moment(tmp_path: Path) -> None:
    pipeline = Pipeline(steps=(CountNodes(), Pipeline(steps=(Scale(by=2),)), Scale(by=3)))
    dump = DumpAfter(tmp_path / "d", ["all"], pipeline)
    Pipeline(steps=pipeline.steps, instruments=(dump,)).run(model(), Context())
    assert sorted(p.name for p in (tmp_path / "d").iterdir()) == ["02-scale.onnx", "03-scale.onnx"]
    weights = [numpy_helper.to_array(onnx.load(p).graph.initializer[0])[1] for p in sorted((tmp_path / "d").iterdir())]
    assert weights == [2.0, 6.0]


def test_a_named_dump_is_written_even_if_nothing_changed(tmp_path: Path) -> None:
    pipeline = Pipeline(steps=(CountNodes(), Scale()))
    Pipeline(steps=pipeline.steps, instruments=(DumpAfter(tmp_path, ["count-nodes"], pipeline),)).run(
        model(), Context()
    )
    assert [p.name for p in tmp_path.iterdir()] == ["01-count-nodes.onnx"]


def test_a_dump_after_no_step_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"dump-after count-node: no step .* did you mean count-nodes"):
        DumpAfter(tmp_path, ["count-node"], Pipeline(steps=(CountNodes(),)))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("order", r"break broke the model: node 'add1' \(Add\) reads 'v1', which is made later, .* by 'add0'"),
        ("removed", r"'add1' \(Add\) reads 'v1', which comes from a node that was removed: 'add0'"),
        ("captured", r"node 'in' \(Neg\) reads .* which is made later, or in another graph, by 'late' \(Neg\)"),
        ("names", "break broke the model: .*v2"),
        ("operator", "break broke the model: .*NoSuchOperator"),
        (
            "output",
            r"break changed the inputs or outputs from .*'v2'.* to .*'renamed'",
        ),
    ],
)
def test_the_step_that_breaks_the_model_is_named(how: str, message: str) -> None:
    steps = (CountNodes(), Break(how=how), Scale())
    with pytest.raises(PassFailed, match=message):
        Pipeline(steps=steps, instruments=(VerifyEach(),)).run(model(), Context())


def test_a_step_that_hides_its_change_is_named() -> None:
    with pytest.raises(PassFailed, match="scale changed the graph but said that it did not"):
        Pipeline(steps=(Scale(by=2, honest=False),), instruments=(VerifyEach(),)).run(model(), Context())
    Pipeline(steps=(Scale(by=1, honest=False), Scale(by=2)), instruments=(VerifyEach(),)).run(model(), Context())


def test_a_model_that_comes_in_broken_is_not_blamed_on_a_step() -> None:
    m = model()
    Break(how="order").run(m, Context())
    with pytest.raises(InputError, match="the model is invalid before the first step"):
        Pipeline(steps=(CountNodes(),), instruments=(VerifyEach(),)).run(m, Context())


def test_checks_read_no_large_weight_and_leave_the_model_alone() -> None:
    def read() -> ir.TensorProtocol:
        raise AssertionError("the weight was read")

    def lazy(dtype: ir.DataType) -> ir.LazyTensor:
        return ir.LazyTensor(read, dtype=dtype, shape=ir.Shape([1024, 8]), name="w")

    m = model(width=1024)
    m.graph.initializers["w"].const_value = lazy(ir.DataType.FLOAT)
    m.graph.append(ir.node("Constant", [], attributes={"value": lazy(ir.DataType.INT4)}, name="c"))
    assert verify(m)[0] is None and verify(m) == verify(m)
    assert list(m.graph.initializers) == ["w"] and interface(m) == (("v0",), ("v2",))
    before = verify(m)
    m.graph.initializers["w"].const_value = lazy(ir.DataType.FLOAT16)
    assert verify(m) != before, "another type or shape is a change"


def test_inputs_with_a_default_are_not_part_of_the_interface() -> None:
    message = proto()
    message.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [4]))
    assert interface(open_model(message).model) == (("v0",), ("v2",))


def test_compare_each_reports_the_error_of_each_step() -> None:
    feeds = [{"v0": np.zeros((2, 4), np.float32)}, {"v0": np.ones((2, 4), np.float32)}]
    m, ctx = model(), Context()
    ctx.put(Feeds(open_source(feeds, m)))
    steps = (CountNodes(), Scale(by=1), Scale(by=2), Scale(by=0.5))
    Pipeline(steps=steps, instruments=(CompareEach(),)).run(m, ctx)
    # y = x + 2 w with w = 0..3, so y reaches 7; doubling w adds 2 w, at most 6.
    assert ctx.report.tables["compare-each"] == [
        {"step": "scale", "output": "v2", "max_error": 0.0, "relative": 0.0, "total_relative": 0.0},
        {"step": "scale", "output": "v2", "max_error": 6.0, "relative": 6 / 7, "total_relative": 6 / 7},
        {"step": "scale", "output": "v2", "max_error": 6.0, "relative": 6 / 13, "total_relative": 0.0},
    ]


def test_compare_each_makes_inputs_when_there_are_none() -> None:
    ctx = Context()
    Pipeline(steps=(Scale(by=2),), instruments=(CompareEach(samples=1),)).run(model(), ctx)
    assert ctx.report.tables["compare-each"][0]["max_error"] == pytest.approx(6.0)


def test_a_model_that_does_not_run_is_a_note_and_the_comparison_goes_on() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Opset(Pass):
        name = "opset"
        to: int

        def run(self, model: ir.Model, ctx: Context) -> bool:
            model.graph.opset_imports[""] = self.to
            return True

    ctx, m = Context(), model()
    m.graph.opset_imports[""] = 6  # onnxruntime has no Add of opset 6
    Pipeline(steps=(Scale(by=2), Opset(to=17), Scale(by=2)), instruments=(CompareEach(),)).run(m, ctx)
    assert [note.message.partition(":")[0] for note in ctx.report.of("not-comparable")] == [
        "before scale",
        "after scale",
    ]
    # w = 2 * (0..3) at first; doubling adds 2 w to y, at most 12.
    assert [row["max_error"] for row in ctx.report.tables["compare-each"]] == [pytest.approx(12.0)]


def test_a_reproducer_holds_what_is_needed_to_fail_again(tmp_path: Path) -> None:
    (tmp_path / "boom.py").write_text("def boom(model, *, text: str = 'x'):\n    raise KeyError(text)\n")
    (tmp_path / "tidy.py").write_text("def tidy(model):\n    model.doc_string = 'tidy'\n")
    registry = Registry([tmp_path])
    steps = (*load_recipe("tidy", registry=registry).steps, CountNodes(), *load_recipe("boom", registry=registry).steps)
    keep = Reproducer(tmp_path / "r", ["--data", "my data"], registry)
    with pytest.raises(PassFailed, match="boom: KeyError: 'x'"):
        Pipeline(steps=steps, instruments=(keep,)).run(model(), Context())
    files = {p.relative_to(tmp_path / "r").as_posix() for p in (tmp_path / "r").rglob("*") if p.is_file()}
    assert files == {"model.onnx", "recipe.yaml", "command.txt", "error.txt", "facts/count.json"}
    command = (tmp_path / "r" / "command.txt").read_text()
    assert command == "onnxq run recipe.yaml model.onnx -o out.onnx --data 'my data'\n"
    assert json.loads((tmp_path / "r" / "facts" / "count.json").read_text()) == {"nodes": 2}
    assert "KeyError" in (tmp_path / "r" / "error.txt").read_text()
    # The fact is not in a file, so the rest starts where it did not exist yet, after the first step.
    rest = load_recipe(tmp_path / "r" / "recipe.yaml", registry=registry)
    assert rest.steps == steps[1:]
    again = open_model(tmp_path / "r" / "model.onnx").model
    assert again.doc_string == "tidy"
    with pytest.raises(PassFailed, match="boom: KeyError: 'x'"):
        rest.run(again, Context())


def test_a_reproducer_also_catches_what_another_instrument_finds(tmp_path: Path) -> None:
    keep = Reproducer(tmp_path / "r", [], Registry())
    with pytest.raises(PassFailed):
        Pipeline(steps=(Scale(), Break(how="operator")), instruments=(VerifyEach(), keep)).run(model(), Context())
    rest = load_recipe(tmp_path / "r" / "recipe.yaml")
    assert rest.steps == (Break(how="operator"),)


def test_steps_made_in_python_leave_their_names(tmp_path: Path) -> None:
    class Anon(ir.passes.InPlacePass):
        def call(self, model: ir.Model) -> ir.passes.PassResult:
            raise ValueError("no")

    with pytest.raises(PassFailed, match="Anon: ValueError: no"):
        Pipeline(steps=(Anon(), Scale()), instruments=(Reproducer(tmp_path, [], Registry()),)).run(model(), Context())
    assert "# steps: Anon, scale" in (tmp_path / "command.txt").read_text()


@pytest.mark.parametrize(
    ("reference", "other", "expected"),
    [
        ([np.ones(2)], [np.ones(2), np.ones(2)], (np.inf, np.inf)),
        ([np.ones(2)], [np.ones(3)], (np.inf, np.inf)),
        ([np.array(["a"])], [np.array(["b"])], (np.inf, np.inf)),
        ([np.array(["a"]), np.ones(2)], [np.array(["a"]), np.ones(2)], (0.0, 0.0)),
        ([np.zeros(2)], [np.ones(2)], (1.0, np.inf)),
        ([np.array([4.0, np.nan])], [np.array([3.0, np.nan])], (1.0, 0.25)),
        ([np.array([4.0, np.inf])], [np.array([4.0, 1.0])], (np.inf, np.inf)),
        ([[np.ones(2), np.ones(3)]], [[np.ones(2), np.zeros(3)]], (1.0, 1.0)),  # an output that is a sequence
    ],
)
def test_errors(reference: list[Any], other: list[Any], expected: tuple[float, float]) -> None:
    assert instruments._error(reference, other) == expected
