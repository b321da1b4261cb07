"""resolve-axes: the output-channel axis of each use of each weight."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

from onnxq.context import Context
from onnxq.errors import FactError, OptionError
from onnxq.facts import Axes, Edge, Goal, Plan, Wishes
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


def by_hand(
    body: str,
    shape: tuple[int, ...],
    wish: Granularity,
    opset: int = 21,
    index: int = 1,
    target: str = "",
    **options: Any,
) -> tuple[Granularity, Context]:
    """The first weight of the last node under a plan that no planner made."""
    text = f'<ir_version: 10, opset_import: ["" : {opset}]> g (float[6,16] x, int64[3] i) => (float y) {{ {body} }}'
    proto = parser.parse_model(text)
    for name, dims in (("k", shape), ("r", (*shape[:2], shape[1] // 4 if len(shape) > 1 else 1))):
        proto.graph.initializer.append(numpy_helper.from_array(np.ones(dims, np.float32), name))
    model, ctx = ir.from_proto(proto), Context()
    edge = Edge(model.graph[-1], index)
    ctx.put(Plan(Wishes(UINT8, INT8), weights={edge: INT8.at(wish)}), *([Goal(load_target(target))] if target else []))
    run_step(ResolveAxes(**options), model, ctx)
    return ctx.get(Axes).of[edge], ctx


@pytest.mark.parametrize(
    ("body", "shape", "wish", "granularity"),
    [
        ("y = MatMul(x, k)", (16, 4), Blocked(8), Blocked(8, 0)),
        ("y = Gemm<transB=1>(x, k)", (4, 16), Blocked(8), Blocked(8, 1)),
        ("y = Conv(x, k)", (8, 32, 1, 1), Blocked(16), Blocked(16, 1)),
        ("y = Conv(x, k)", (8, 32, 1, 1), Blocked(32), PerAxis(0)),
        ("y = MatMul(x, k)", (16, 4), Blocked(16), PerAxis(1)),
        ("y = MatMul(x, k)", (16, 4), Blocked(128), PerAxis(1)),
        ("y = MatMul(x, k)", (3, 16, 4), Blocked(16), Blocked(16, 1)),
        ("y = MatMul(x, k)", (1, 16, 4), Blocked(16), PerAxis(2)),
        ("y = MatMul(x, k)", (16, 4), Blocked(8, -2), Blocked(8, 0)),
        ("y = MatMul(x, k)", (16, 4), Blocked(2, -1), Blocked(2, 1)),
        ("y = MatMul(x, k)", (16, 4), Blocked(4, 1), PerAxis(0)),
        ("y = MatMul(x, k)", (16, 1), Blocked(16), PerAxis(1)),
        ("y = MatMul(x, k)", (16, 4), PerAxis(0), PerAxis(0)),
        ("y = MatMul(x, k)", (16, 4), PerAxis(-1), PerAxis(1)),
        ("y = MatMul(x, k)", (16,), PerAxis(0), PerAxis(0)),
        ("y = MatMul(x, k)", (16,), PerAxis(-1), PerAxis(0)),
        ("y = MatMul(x, k)", (16,), Blocked(4, 0), Blocked(4, 0)),
        ("y = MatMul(x, k)", (16,), Blocked(16, 0), PerTensor()),
        ("y = MatMul(x, k)", (16, 4), PerTensor(), PerTensor()),
        ("y = LSTM<hidden_size=4>(x, k, r)", (1, 16, 8), PerAxis(), PerAxis(1)),
        ("y = LSTM<hidden_size=4>(x, k, r)", (2, 16, 8), PerAxis(), Blocked(8, 2)),
        ("y = LSTM<hidden_size=4>(x, k, r)", (2, 16, 8), Blocked(8), Blocked(8, 2)),
        ("y = LSTM<hidden_size=4>(x, k, r)", (1, 16, 8), Blocked(8), PerAxis(1)),
        ("y = LSTM<hidden_size=4>(x, k, r)", (2, 16, 8), Blocked(4), Blocked(4, 2)),
    ],
)
def test_granularity(body: str, shape: tuple[int, ...], wish: Granularity, granularity: Granularity) -> None:
    found, ctx = by_hand(body, shape, wish)
    assert found == granularity and not ctx.report.notes


def test_adjusted_and_noted() -> None:
    found, ctx = by_hand("y = Conv(x, k)", (8, 8, 3, 3), Blocked(8))
    assert found == PerAxis(0)
    assert "is summed over several axes" in ctx.report.of("per-channel-weight")[0].message
    found, ctx = by_hand("y = MatMul(x, k)", (16,), Blocked(8))
    assert found == PerTensor() and ctx.report.of("per-tensor-weight")
    found, ctx = by_hand("y = ConvTranspose<group=4>(x, k)", (16, 3, 2, 2), PerAxis())
    (note,) = ctx.report.of("group-shared-scale")
    assert found == PerAxis(1) and note.numbers == {"scales": 3, "groups": 4}
    assert "has 3 scales for 12 channels: its 4 groups share them" in note.message


@pytest.mark.parametrize(("opset", "target"), [(17, ""), (17, "ort-cpu"), (21, "ascend")])
def test_directions_share_where_blocks_do_not_exist(opset: int, target: str) -> None:
    body = "y = LSTM<hidden_size=4>(x, k, r)"
    found, ctx = by_hand(body, (2, 16, 8), PerAxis(), opset=opset, target=target)
    assert found == PerAxis(1) and ctx.report.of("shared-directions")
    assert by_hand(body, (2, 16, 8), PerAxis(), target="ort-cpu")[0] == Blocked(8, 2)


@pytest.mark.parametrize(
    ("length", "asked", "allowed", "fitted"),
    [(48, 32, 32, 16), (96, 64, 64, 32), (40, 32, 32, 32), (96, 32, 32, 32), (80, 32, 32, 16), (50, 16, 16, 16)],
)
def test_short_blocks(length: int, asked: int, allowed: int, fitted: int) -> None:
    short = length % asked
    for option, size in (("allow", allowed), ("fit", fitted)):
        found, ctx = by_hand("y = MatMul(x, k)", (length, 4), Blocked(asked), short_block=option)
        assert found == Blocked(size, 0)
        noted = [(n.code, n.numbers) for n in ctx.report.notes]
        if size != asked:
            assert noted == [("fitted-block", {"length": length, "block": size, "asked": asked})]
        else:
            assert noted == ([("short-block", {"length": length, "block": asked, "last": short})] if short else [])


def test_short_blocks_skipped() -> None:
    """The layer with 24 inputs stays float, the one with 16 gets its blocks; the plan says so."""
    text = (
        '<ir_version: 10, opset_import: ["" : 21]> g (float[6,24] x) => (float y) { h = MatMul(x, a) y = MatMul(h, b) }'
    )
    proto = parser.parse_model(text)
    for name, dims in (("a", (24, 16)), ("b", (16, 4))):
        proto.graph.initializer.append(numpy_helper.from_array(np.ones(dims, np.float32), name))
    model, ctx = ir.from_proto(proto), Context()
    target = load_target("ort-cpu")
    ctx.put(Goal(target), Planner(target, Wishes(UINT8, INT8.at(Blocked(16)), dynamic=False)).make(model))
    run_step(ResolveAxes(short_block="skip"), model, ctx)
    plan = ctx.get(Plan)
    assert [(e.value.name, g) for e, g in ctx.get(Axes).of.items()] == [("b", PerAxis(1))]
    assert list(ctx.get(Axes).of) == list(plan.weights)
    decision = plan.decisions[model.graph[0]]
    assert (decision.status, decision.code) == ("float", "short-block")
    (note,) = ctx.report.of("short-block")
    assert note.numbers == {"length": 24, "block": 16} and "blocks of 16 do not divide the 24 values" in note.message
    before = ctx.get(Plan)
    run_step(ResolveAxes(short_block="skip"), model, ctx)
    assert ctx.get(Plan) is before, "nothing left to skip"


def test_skipping_needs_a_target() -> None:
    with pytest.raises(FactError, match="Goal"):
        by_hand("y = MatMul(x, k)", (24, 4), Blocked(16), short_block="skip")


@pytest.mark.parametrize(("axis", "shape"), [(0, (9, 32)), (1, (32, 9))])
def test_gather(axis: int, shape: tuple[int, ...]) -> None:
    body = f"y = Gather<axis={axis}>(k, i)"
    assert by_hand(body, shape, PerAxis(), index=0)[0] == PerAxis(axis)
    assert by_hand(body, shape, PerAxis(), index=0, gather="column")[0] == PerAxis(1 - axis)
    assert by_hand(body, shape, Blocked(16), index=0)[0] == Blocked(16, 1 - axis)
    assert by_hand(body, shape, Blocked(32), index=0)[0] == PerAxis(axis)
    assert by_hand(body, shape, Blocked(32), index=0, gather="column")[0] == PerAxis(axis)


@pytest.mark.parametrize("wish", [PerAxis(2), PerAxis(-3), Blocked(4, 2), Blocked(0), Blocked(0, 1)])
def test_what_does_not_fit(wish: Granularity) -> None:
    with pytest.raises(OptionError, match=r"MatMul.*has 2 axes|at least one value"):
        by_hand("y = MatMul(x, k)", (16, 4), wish)


def test_bodies() -> None:
    body = """h = Tanh(x) y = If(f) <
      then_branch = t () => (float[a,b] p) { p = MatMul(h, k) },
      else_branch = e () => (float[a,b] q) { q = Gemm<transB=1>(h, k) } >"""
    found, _ = resolved("f = Constant<value_int=1>() " + body, {"k": (16, 16)})
    assert found == {"p:k": PerAxis(1), "q:k": PerAxis(0)}
