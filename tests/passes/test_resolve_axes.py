"""resolve-axes: the output-channel axis of each use of each weight."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

from onnxq.context import Context
from onnxq.facts import Axes, Plan, Wishes
from onnxq.numerics.spec import Blocked, Granularity, PerAxis, PerTensor, QType, TensorSpec
from onnxq.passbase import run_step
from onnxq.passes.resolve_axes import ResolveAxes
from onnxq.planning import Planner
from onnxq.targets import load_target

INT8, UINT8 = TensorSpec(QType.named("int8"), True), TensorSpec(QType.named("uint8"))


def resolved(
    body: str, weights: dict[str, tuple[int, ...]], wish: Granularity | None = None, force: bool = False
) -> tuple[dict[str, Granularity], Context]:
    """Axis by ``node:weight``."""
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[6,16] x, float[1,8,8,8] z) => (float[a] y) '
    proto = parser.parse_model(text + f"{{ {body} }}")
    for name, shape in weights.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
    model, ctx = ir.from_proto(proto), Context()
    wishes = Wishes(
        UINT8, INT8.at(wish or PerAxis()), dynamic=False, forced=frozenset(model.graph) if force else frozenset()
    )
    ctx.put(Planner(load_target("ort-cpu"), wishes).make(model))
    assert not run_step(ResolveAxes(), model, ctx)
    found = {f"{e.node.outputs[0].name}:{e.value.name}": g for e, g in ctx.get(Axes).of.items()}
    assert list(ctx.get(Axes).of) == list(ctx.get(Plan).weights)
    return found, ctx


@pytest.mark.parametrize(
    ("body", "weights", "axis"),
    [
        ("y = Conv(z, k)", {"k": (12, 8, 3, 3)}, 0),
        ("y = Conv<group=8>(z, k)", {"k": (8, 1, 9, 9)}, 0),
        ("y = ConvTranspose(z, k)", {"k": (8, 12, 2, 2)}, 1),
        ("y = Gemm(x, k)", {"k": (16, 4)}, 1),
        ("y = Gemm<transB=1>(x, k)", {"k": (4, 16)}, 0),
        ("y = MatMul(x, k)", {"k": (16, 4)}, 1),
        ("y = MatMul(x, k)", {"k": (16, 16)}, 1),
        ("t = Transpose(k) y = MatMul(x, t)", {"k": (4, 16)}, 1),
        ("t = Transpose<perm=[1,0]>(k) y = Gemm<transB=1>(x, t)", {"k": (16, 4)}, 0),
        ("t = Transpose<perm=[1,0,2,3]>(k) y = Conv(z, t)", {"k": (8, 12, 3, 3)}, 0),
    ],
)
def test_axes(body: str, weights: dict[str, tuple[int, ...]], axis: int) -> None:
    found, ctx = resolved(body, weights, force=True)
    assert list(found.values()) == [PerAxis(axis)] and not ctx.report.notes


def test_uses_not_tensors() -> None:
    found, _ = resolved("a = Gemm(x, k) r = Tanh(a) y = Gemm<transB=1>(r, k)", {"k": (16, 8)})
    assert found == {"a:k": PerAxis(1), "y:k": PerAxis(0)}


def test_no_channel_axis() -> None:
    """The planner asks for one scale there; a plan from elsewhere that does not is corrected, and that is said."""
    found, ctx = resolved("y = MatMul(x, k)", {"k": (16,)})
    assert found == {"y:k": PerTensor()} and not ctx.report.notes
    plan = ctx.get(Plan)
    (edge,) = plan.weights
    plan.weights[edge] = INT8.at(PerAxis())
    run_step(ResolveAxes(), ir.Model(edge.node.graph, ir_version=8), ctx)
    assert ctx.get(Axes).of == {edge: PerTensor()}
    (note,) = ctx.report.of("per-tensor-weight")
    assert "weight 'k' of shape [16] has no output-channel axis" in note.message


def test_blocks_run_along_the_sum_and_given_axes_stay() -> None:
    found, _ = resolved("y = MatMul(x, k)", {"k": (16, 4)}, Blocked(8))
    assert found == {"y:k": Blocked(8, 0)}
    found, _ = resolved("y = Gemm<transB=1>(x, k)", {"k": (4, 16)}, Blocked(8))
    assert found == {"y:k": Blocked(8, 1)}
    found, ctx = resolved("y = Conv(z, k)", {"k": (8, 8, 3, 3)}, Blocked(8))
    assert found == {"y:k": PerAxis(0)}
    assert "is summed over several axes" in ctx.report.of("per-channel-weight")[0].message
    found, _ = resolved("y = MatMul(x, k)", {"k": (16, 4)}, PerAxis(0))
    assert found == {"y:k": PerAxis(0)}


def test_bodies() -> None:
    body = """h = Tanh(x) y = If(f) <
      then_branch = t () => (float[a,b] p) { p = MatMul(h, k) },
      else_branch = e () => (float[a,b] q) { q = Gemm<transB=1>(h, k) } >"""
    found, _ = resolved("f = Constant<value_int=1>() " + body, {"k": (16, 16)})
    assert found == {"p:k": PerAxis(1), "q:k": PerAxis(0)}
