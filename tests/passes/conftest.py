"""Fixtures for pass tests: run passes on a message, run models in onnxruntime, compare numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import numpy_helper, parser

from onnxq import ops
from onnxq.calibration.sources import open_source
from onnxq.facts import Decision, Edge, Plan, Wishes
from onnxq.facts import Feeds as Samples
from onnxq.look import all_nodes
from onnxq.numerics.spec import TensorSpec
from onnxq.passbase import Context, Pass, run_step
from onnxq.passes.calibrate import Calibrate
from onnxq.passes.encode import Encode
from onnxq.passes.guard_bias import GuardBias
from onnxq.passes.insert_dynamic import InsertDynamic
from onnxq.passes.insert_qdq import InsertQdq
from onnxq.passes.leave_float import LeaveFloat
from onnxq.passes.plan import MakePlan
from onnxq.passes.resolve_axes import ResolveAxes
from onnxq.passes.validate_qdq import ValidateQdq
from onnxq.planfile import plan_json
from onnxq.recipe import load_recipe
from onnxq.weights import weight_tensor

Feeds = Mapping[str, np.ndarray[Any, Any]]


@dataclass
class Outcome:
    """What a run of passes gave: the new message, its IR, the notes, whether anything changed."""

    proto: onnx.ModelProto
    model: ir.Model
    ctx: Context
    changed: bool

    def ops(self) -> list[str]:
        return [node.op_type for node in self.proto.graph.node]

    def node(self, op_type: str) -> onnx.NodeProto:
        (node,) = [n for n in self.proto.graph.node if n.op_type == op_type]
        return node

    def initializers(self) -> dict[str, np.ndarray[Any, Any]]:
        return {t.name: onnx.numpy_helper.to_array(t) for t in self.proto.graph.initializer}

    def codes(self) -> list[str]:
        return [n.code for n in self.ctx.report.notes]


def _run_passes(source: str | onnx.ModelProto, *passes: Pass) -> Outcome:
    """Run passes in order; asserts what holds for every pass: source untouched, a second run changes nothing."""
    proto = parser.parse_model(source) if isinstance(source, str) else source
    before = proto.SerializeToString(deterministic=True)
    model, ctx = ir.from_proto(proto), Context()
    changed = [run_step(p, model, ctx) for p in passes]
    after = ir.to_proto(model)
    assert proto.SerializeToString(deterministic=True) == before, "the caller's message was changed"
    twin = ir.from_proto(onnx.ModelProto.FromString(before))
    for p in passes:
        run_step(p, twin, Context())
    assert ir.to_proto(twin).SerializeToString(deterministic=True) == after.SerializeToString(deterministic=True)
    again = ir.from_proto(onnx.ModelProto.FromString(after.SerializeToString()))
    assert not [str(p) for p in passes if p.idempotent and run_step(p, again, Context())]
    return Outcome(after, model, ctx, any(changed))


def _random_feeds(proto: onnx.ModelProto, seed: int = 0, dim: int = 2) -> dict[str, np.ndarray[Any, Any]]:
    """Standard normal floats, small integers; unknown dims become ``dim``."""
    rng = np.random.default_rng(seed)
    known = {t.name for t in proto.graph.initializer}
    feeds = {}
    for value in proto.graph.input:
        if value.name in known:
            continue
        tensor = value.type.tensor_type
        shape = [d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else dim for d in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        drawn = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 2, shape)
        feeds[value.name] = np.asarray(drawn).astype(dtype)
    return feeds


def _session_options(optimised: bool) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimised else level.ORT_DISABLE_ALL
    return options


def _run_model(proto: onnx.ModelProto, feeds: Feeds, *, optimised: bool = True, true: bool = False) -> list[Any]:
    """All outputs in onnxruntime, on one thread; ``true`` runs Q/DQ nodes as ONNX writes them."""
    options = _session_options(optimised)
    if true:
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        options.add_session_config_entry("session.disable_double_qdq_remover", "1")
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def _same_numbers(
    before: str | onnx.ModelProto,
    after: onnx.ModelProto,
    feeds: Feeds | None = None,
    *,
    rtol: float = 1e-5,
    atol: float = 1e-5,
) -> None:
    """The same output names and, optimised and unoptimised, the same numbers; atol is relative to the largest value."""
    old = parser.parse_model(before) if isinstance(before, str) else before
    assert [o.name for o in old.graph.output] == [o.name for o in after.graph.output]
    onnx.checker.check_model(after, full_check=True)
    feeds = _random_feeds(old) if feeds is None else feeds
    wanted = _run_model(old, feeds, optimised=False)
    for optimised in (False, True):
        got = _run_model(after, feeds, optimised=optimised)
        for name, a, b in zip((o.name for o in old.graph.output), wanted, got, strict=True):
            assert np.asarray(a).dtype == np.asarray(b).dtype, name
            if np.asarray(a).dtype.kind != "f":
                np.testing.assert_array_equal(a, b, err_msg=name)
                continue
            scale = float(np.max(np.abs(a), initial=0.0, where=np.isfinite(a)))
            np.testing.assert_allclose(a, b, rtol=rtol, atol=atol * max(scale, 1e-30), err_msg=name)


@dataclass
class Quantized:
    """A quantized model, and how it came about.

    Attributes:
        float_proto: The float model with its weights.
        proto: The quantized model.
        plan: Plan as data, as it stood before pairs were inserted.
        feeds: The calibration samples.
        ctx: Notes.
    """

    float_proto: onnx.ModelProto
    proto: onnx.ModelProto
    plan: dict[str, Any]
    feeds: list[Feeds]
    ctx: Context

    def status(self, name: str) -> str:
        """``status/code`` of a node."""
        entry = self.plan["nodes"][name]
        return f"{entry['status']}/{entry['code']}"

    def codes(self) -> list[str]:
        return [n.code for n in self.ctx.report.notes]

    def ops(self) -> list[str]:
        return [node.op_type for node in self.proto.graph.node]

    def count(self, op_type: str) -> int:
        return self.ops().count(op_type)

    def initializers(self) -> dict[str, np.ndarray[Any, Any]]:
        return {t.name: numpy_helper.to_array(t) for t in self.proto.graph.initializer}

    def maker(self, value: str) -> onnx.NodeProto:
        (node,) = [n for n in self.proto.graph.node if value in n.output]
        return node

    def readers(self, value: str) -> list[str]:
        return [n.op_type for n in self.proto.graph.node if value in n.input]


def _quantized(
    source: str | onnx.ModelProto,
    constants: Mapping[str, Any] | None = None,
    *,
    feeds: list[Feeds] | None = None,
    samples: int = 3,
    **plan: Any,
) -> Quantized:
    """The recipe int8 without its search: prepare, plan, min-max ranges, pairs; the caller's message is untouched."""
    proto = parser.parse_model(source) if isinstance(source, str) else source
    for name, array in (constants or {}).items():
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    feeds = feeds or [_random_feeds(proto, seed) for seed in range(samples)]
    before = proto.SerializeToString(deterministic=True)
    model, ctx = ir.from_proto(proto), Context()
    ctx.put(Samples(open_source(feeds, model=model)))
    for step in (load_recipe("prepare"), MakePlan(**plan), Calibrate(), LeaveFloat(), ResolveAxes(), Encode()):
        run_step(step, model, ctx)
    made = plan_json(ctx.get(Plan))
    for step in (GuardBias(), InsertDynamic(), InsertQdq(), ValidateQdq()):
        run_step(step, model, ctx)
    after = ir.to_proto(model)
    assert proto.SerializeToString(deterministic=True) == before, "the caller's message was changed"
    onnx.checker.check_model(after, full_check=True)
    return Quantized(proto, after, made, feeds, ctx)


def _fused(proto: onnx.ModelProto, folder: Path) -> list[str]:
    """Op types, bodies included, of the model that onnxruntime really runs."""
    options = _session_options(optimised=True)
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [node.op_type for node in ir.load(options.optimized_model_filepath).graph.all_nodes()]


def _close(made: Quantized, bound: float = 0.05, *, gap: float = 0.02) -> None:
    """Both sessions stay within ``bound`` of the float model, and within ``gap`` of each other.

    Both are shares of the largest value of each output.
    """
    feeds = made.feeds[0]
    exact = _run_model(made.float_proto, feeds, optimised=False)
    default, true = _run_model(made.proto, feeds), _run_model(made.proto, feeds, true=True)
    names = [o.name for o in made.float_proto.graph.output]
    assert names == [o.name for o in made.proto.graph.output]
    for name, wanted, a, b in zip(names, exact, default, true, strict=True):
        assert a.shape == b.shape == wanted.shape and a.dtype == b.dtype == wanted.dtype, name
        size = float(np.abs(wanted).max(initial=1e-30))
        for kind, got in (("default", a), ("true", b)):
            error = float(np.abs(got.astype(np.float64) - wanted).max(initial=0))
            assert error <= bound * size, f"{name} ({kind}): off by {error:.4g} of {size:.4g}"
        assert float(np.abs(a.astype(np.float64) - b).max(initial=0)) <= gap * size, name


def _weight_pairs(
    proto: onnx.ModelProto, spec: TensorSpec, behind: tuple[Pass, ...] = (), **resolve: Any
) -> tuple[onnx.ModelProto, Context]:
    """Integers for every constant weight of the operator table, by a plan made by hand: no target, no activations."""
    model, ctx = ir.from_proto(proto), Context()
    plan = Plan(Wishes(spec, spec, weight_only=True))
    for node in all_nodes(model):
        row = ops.info(node)
        for slot in row.weights if row else ():
            if slot.index < len(node.inputs) and weight_tensor(node.inputs[slot.index]) is not None:
                plan.weights[Edge(node, slot.index)] = spec
                plan.decisions[node] = Decision("weight-only", "by-hand", "by hand")
    ctx.put(plan)
    for step in (ResolveAxes(**resolve), Encode(), InsertQdq(), *behind, ValidateQdq()):
        run_step(step, model, ctx)
    return ir.to_proto(model), ctx


@pytest.fixture
def weight_pairs() -> Callable[..., tuple[onnx.ModelProto, Context]]:
    return _weight_pairs


@pytest.fixture
def quantized() -> Callable[..., Quantized]:
    return _quantized


@pytest.fixture
def fused(tmp_path: Path) -> Callable[[onnx.ModelProto], list[str]]:
    return lambda proto: _fused(proto, tmp_path)


@pytest.fixture
def close() -> Callable[..., None]:
    return _close


@pytest.fixture
def run_passes() -> Callable[..., Outcome]:
    return _run_passes


@pytest.fixture
def run_model() -> Callable[..., list[Any]]:
    return _run_model


@pytest.fixture
def same_numbers() -> Callable[..., None]:
    return _same_numbers


@pytest.fixture
def random_feeds() -> Callable[..., dict[str, np.ndarray[Any, Any]]]:
    return _random_feeds
