"""Fixtures for pass tests: run passes on a message, run models in onnxruntime, compare numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import parser

from onnxq.passbase import Context, Pass, run_step

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


def _run_model(proto: onnx.ModelProto, feeds: Feeds, *, optimised: bool = True) -> list[Any]:
    """All outputs in onnxruntime, on one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimised else level.ORT_DISABLE_ALL
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
