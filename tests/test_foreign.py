"""Steps that are no onnxq passes: somebody else's `onnx_ir` passes, and plain functions over messages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxq.context import Context
from onnxq.errors import FactError, OptionError
from onnxq.facts import Fact
from onnxq.foreign import IrPass, ProtoPass, locate, proto_pass
from onnxq.passbase import Pipeline, run_step


@dataclass
class Count(Fact):
    nodes: int = 0


def model() -> ir.Model:
    """v0[1, 4] -> Add w -> Add w -> v2."""
    graph = helper.make_graph(
        [helper.make_node("Add", [f"v{i}", "w"], [f"v{i + 1}"], name=f"add{i}") for i in range(2)],
        "g",
        [helper.make_tensor_value_info("v0", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("v2", TensorProto.FLOAT, [1, 4])],
        [numpy_helper.from_array(np.arange(4, dtype=np.float32), "w")],
    )
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


class Functional(ir.passes.FunctionalPass):
    """Somebody else's: a new model with another producer."""

    def __init__(self, modified: bool = True) -> None:
        self.modified = modified

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        new = model.clone()
        if self.modified:
            new.producer_name, new.metadata_props["k"] = "other", "v"
        return ir.passes.PassResult(new, self.modified)


def test_an_onnx_ir_pass_stands_in_a_pipeline_and_makes_facts_stale() -> None:
    from onnx_ir.passes.common import RemoveUnusedNodesPass

    m = model()
    m.graph.append(ir.node("Neg", [m.graph.inputs[0]], name="dead"))
    ctx = Context().put(Count(4))
    assert Pipeline(steps=(RemoveUnusedNodesPass(),)).run(m, ctx)
    assert len(m.graph) == 2 and not ctx.has(Count)
    with pytest.raises(FactError, match="RemoveUnusedNodesPass changed the graph"):
        ctx.get(Count)


def test_the_result_of_a_functional_pass_is_taken_over() -> None:
    m = model()
    old = m.graph
    assert Pipeline(steps=(Functional(),)).run(m, Context())
    assert m.graph is not old
    assert (m.producer_name, dict(m.metadata_props)) == ("other", {"k": "v"})


def test_a_functional_pass_that_changed_nothing_leaves_objects_and_facts_alone() -> None:
    m, ctx = model(), Context().put(Count(3))
    graph = m.graph
    assert not Pipeline(steps=(Functional(modified=False),)).run(m, ctx)
    assert m.graph is graph and ctx.has(Count)


def rename_doc(message: onnx.ModelProto, text: str = "new") -> None:
    message.doc_string = text


def test_a_plain_function_is_a_step() -> None:
    m, ctx = model(), Context().put(Count(3))
    step = proto_pass(rename_doc, text="hello")
    assert Pipeline(steps=(step,)).run(m, ctx)
    assert m.doc_string == "hello" and not ctx.has(Count)
    assert str(step) == "rename_doc" and str(proto_pass(rename_doc, name="docs")) == "docs"
    assert step == ProtoPass(function=rename_doc, options=(("text", "hello"),))


def test_a_function_gets_weights_that_lie_in_another_file(tmp_path) -> None:
    path = tmp_path / "m.onnx"
    ir.save(model(), path, external_data="m.data", size_threshold_bytes=0)
    m = ir.load(path)

    def double(message: onnx.ModelProto) -> onnx.ModelProto:
        (w,) = message.graph.initializer
        w.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(w) * 2, "w"))
        return message

    run_step(proto_pass(double), m, Context())
    np.testing.assert_array_equal(m.graph.initializers["w"].const_value.numpy(), [0, 2, 4, 6])
    assert isinstance(ir.load(path).graph.initializers["w"].const_value, ir.ExternalTensor)


def test_a_function_that_returns_nonsense_is_named() -> None:
    with pytest.raises(OptionError, match="rename returned int; a ModelProto or None is needed"):
        run_step(proto_pass(lambda message: 3, name="rename"), model(), Context())


def test_onnx_ir_passes_by_path_take_constructor_options() -> None:
    step = IrPass(target="onnx_ir.passes.common.DeduplicateInitializersPass", options=(("size_limit", 2),))
    assert str(step) == "DeduplicateInitializersPass"
    assert step.make().size_limit == 2  # type: ignore[attr-defined]
    assert step == IrPass(target=step.target, options=step.options)
    m = model()
    m.graph.append(ir.node("Neg", [m.graph.inputs[0]], name="dead"))
    assert run_step(IrPass(target="onnx_ir.passes.common:RemoveUnusedNodesPass"), m, Context())
    assert len(m.graph) == 2


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ("no_such_module:Thing", (), "cannot import no_such_module:Thing"),
        ("onnx_ir.passes.common.NoSuchPass", (), "cannot import onnx_ir.passes.common.NoSuchPass"),
        ("onnx_ir:Model", (), "is not an onnx_ir pass class"),
        ("onnx_ir.passes.common.RemoveUnusedNodesPass", (("x", 1),), "RemoveUnusedNodesPass: .*arguments"),
    ],
)
def test_a_bad_path_is_an_option_error(target: str, options: tuple[tuple[str, object], ...], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        IrPass(target=target, options=options)


def test_locate_finds_both_spellings() -> None:
    assert locate("onnxq.errors:near") is locate("onnxq.errors.near")
