"""insert-embeddings: look-ups of integer tables, against NumPy, in both sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

from onnxq.facts import Decision, Edge, Encodings, Plan, Wishes
from onnxq.look import all_nodes
from onnxq.numerics.affine import fake_quantize
from onnxq.numerics.encodings import from_values
from onnxq.numerics.spec import QTYPES, Blocked, Encoding, Granularity, PerAxis, PerTensor, TensorSpec
from onnxq.passbase import Context, run_step
from onnxq.passes.insert_embeddings import InsertEmbeddings
from onnxq.passes.insert_qdq import InsertQdq

RNG = np.random.default_rng(0)
HEAD = '<ir_version: 10, opset_import: ["" : 21]>'


class Made:
    """Gathers of a model with their tables quantized: the new message, the encodings used, the notes."""

    def __init__(self, text: str, tables: dict[str, np.ndarray[Any, Any]], specs: dict[str, TensorSpec]) -> None:
        proto = parser.parse_model(text)
        for i, each in enumerate(proto.graph.node):
            each.name = f"{each.op_type}_{i}"
        for name, array in tables.items():
            proto.graph.initializer.append(numpy_helper.from_array(array, name))
        model, self.ctx = ir.from_proto(proto), Context()
        weight = next(iter(specs.values()))
        self.plan, self.encodings = Plan(Wishes(weight, weight, weight_only=True)), Encodings()
        self.used: dict[str, Encoding] = {}
        for node in all_nodes(model):
            name = node.inputs[0].name if node.inputs and node.inputs[0] is not None else None
            if node.op_type == "Gather" and name in specs:
                if name not in self.used:
                    dtype = tables[name].dtype.type
                    self.used[name] = from_values(tables[name], specs[name], dtype=dtype)
                self.plan.weights[Edge(node, 0)] = specs[name]
                self.encodings.weights[Edge(node, 0)] = self.used[name]
        self.ctx.put(self.plan, self.encodings)
        self.changed = run_step(InsertEmbeddings(), model, self.ctx)
        assert self.ctx.has(Plan) and self.ctx.has(Encodings)
        self.model = model
        self.proto = ir.to_proto(model)
        onnx.checker.check_model(self.proto, full_check=True)

    def ops(self) -> list[str]:
        return [n.op_type for n in self.proto.graph.node]

    def stored(self) -> dict[str, np.ndarray[Any, Any]]:
        return {t.name: numpy_helper.to_array(t) for t in self.proto.graph.initializer}

    def dq(self) -> dict[str, int]:
        (node,) = [n for n in self.proto.graph.node if n.op_type == "DequantizeLinear"]
        return {a.name: a.i for a in node.attribute}


def table(*shape: int, dtype: type = np.float32) -> np.ndarray[Any, Any]:
    rows = np.linspace(0.1, 5, shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    return (RNG.standard_normal(shape) * rows + 0.3).astype(dtype)


def same(made: Made, feeds: Any, wanted: np.ndarray[Any, Any], run_model: Callable[..., Any]) -> None:
    """Bit for bit what NumPy makes of the dequantized table, in both sessions and unoptimised."""
    for options in ({}, {"true": True}, {"optimised": False}):
        (y,) = run_model(made.proto, feeds, **options)
        assert y.dtype == wanted.dtype and y.shape == wanted.shape
        np.testing.assert_array_equal(y, wanted)


# Shape of the table, granularity, look-ups written, attributes of the DequantizeLinear behind indices of rank 2.
FORMS: dict[str, tuple[tuple[int, ...], Granularity, int, dict[str, int]]] = {
    "tensor": ((11, 7), PerTensor(), 1, {}),
    "row": ((11, 7), PerAxis(0), 3, {"axis": 2, "block_size": 7}),
    "column": ((11, 7), PerAxis(1), 1, {"axis": 2}),
    "blocks": ((11, 64), Blocked(16, 1), 3, {"axis": 2, "block_size": 16}),
    "short-block": ((11, 70), Blocked(32, 1), 3, {"axis": 2, "block_size": 32}),
    "rank-1": ((11,), PerTensor(), 1, {}),
    "rank-3-row": ((11, 4, 6), PerAxis(0), 3, {"axis": 3, "block_size": 6}),
    "rank-3-middle": ((11, 4, 6), PerAxis(1), 1, {"axis": 2}),
    "rank-3-blocks": ((11, 4, 6), Blocked(2, 1), 3, {"axis": 2, "block_size": 2}),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(("qtype", "symmetric"), [("int8", True), ("uint8", False), ("int8", False), ("int16", True)])
@pytest.mark.parametrize("case", FORMS)
def test_forms(case: str, qtype: str, symmetric: bool, dtype: type, run_model: Callable[..., Any]) -> None:
    shape, granularity, lookups, attributes = FORMS[case]
    w = table(*shape, dtype=dtype)
    kind = "float" if dtype == np.float32 else "float16"
    text = f"{HEAD} g (int64[a,b] i) => ({kind}[{','.join('abcde'[: len(shape) + 1])}] y) {{ y = Gather(w, i) }}"
    made = Made(text, {"w": w}, {"w": TensorSpec(QTYPES[qtype], symmetric, granularity)})
    assert made.ops() == ["Gather"] * lookups + ["DequantizeLinear"] and made.dq() == attributes
    assert not made.plan.weights and not made.encodings.weights and "w" not in made.stored()
    assert made.stored()["w_scale"].dtype == dtype
    wanted = fake_quantize(w, made.used["w"], dtype)
    for i in (RNG.integers(-11, 11, (2, 3)), np.zeros((0, 3), np.int64)):
        same(made, {"i": i}, wanted[i], run_model)


@pytest.mark.parametrize("granularity", [PerTensor(), PerAxis(0), PerAxis(1), Blocked(4, 1)])
@pytest.mark.parametrize("indices", ["int64", "int64[a]", "int32[a,b,c]"])
def test_indices_of_any_rank(granularity: Granularity, indices: str, run_model: Callable[..., Any]) -> None:
    rank = indices.count(",") + 1 if "[" in indices else 0
    outputs = ",".join("abcd"[: rank + 1])
    w = table(9, 8)
    made = Made(
        f"{HEAD} g ({indices} i) => (float[{outputs}] y) {{ y = Gather<axis=-2>(w, i) }}",
        {"w": w},
        {"w": TensorSpec(QTYPES["int8"], True, granularity)},
    )
    alone = rank == 0 and granularity == PerAxis(0)
    assert made.dq().get("axis") == (None if alone or granularity == PerTensor() else rank), "never negative"
    assert made.ops().count("Squeeze") == (2 if alone else 0), "one row, one scale: a scalar"
    for size in (2, 1):
        i = RNG.integers(0, 9, (size,) * rank).astype(indices.split("[")[0])
        same(made, {"i": i}, fake_quantize(w, made.used["w"])[i], run_model)


def test_indices_of_unknown_rank(run_model: Callable[..., Any]) -> None:
    """The axis is counted from the end then, which holds for every rank."""
    text = f"{HEAD} g (int64[a] n, int64[b] s) => (float[c,d,e] y) {{ i = Reshape(n, s) y = Gather(w, i) }}"
    w = table(9, 8)
    made = Made(text, {"w": w}, {"w": TensorSpec(QTYPES["uint8"], False, PerAxis(0))})
    assert made.dq() == {"axis": -1, "block_size": 8}
    n = RNG.integers(0, 9, 6)
    same(made, {"n": n, "s": np.array([2, 3])}, fake_quantize(w, made.used["w"])[n.reshape(2, 3)], run_model)


@pytest.mark.parametrize("granularity", [PerTensor(), PerAxis(0), PerAxis(1), Blocked(4, 0)])
def test_look_up_along_another_axis(granularity: Granularity, run_model: Callable[..., Any]) -> None:
    w = table(8, 9)
    text = f"{HEAD} g (int64[a,b] i) => (float[c,a,b] y) {{ y = Gather<axis=1>(w, i) }}"
    made = Made(text, {"w": w}, {"w": TensorSpec(QTYPES["int8"], True, granularity)})
    i = RNG.integers(0, 9, (2, 3))
    same(made, {"i": i}, fake_quantize(w, made.used["w"])[:, i], run_model)


def test_two_gathers_share_the_table(run_model: Callable[..., Any]) -> None:
    """One copy of the integers and of the parameters; names and metadata stay, whoever else reads the output."""
    text = f"""{HEAD} g (int64[a] i, int64[a] j) => (float[a,8] y, float[a,8] z) {{
        p = Gather(w, i) y = Gather(w, j) z = Add(p, y) }}"""
    w = table(9, 8)
    proto = parser.parse_model(text)
    made = Made(text, {"w": w}, {"w": TensorSpec(QTYPES["int8"], True, PerAxis(0))})
    assert list(made.stored()) == ["w_quantized", "w_scale", "w_zero_point"]
    assert [o.name for o in made.proto.graph.output] == [o.name for o in proto.graph.output]
    names = [*(n.name for n in made.proto.graph.node), *(o for n in made.proto.graph.node for o in n.output)]
    assert len(set(names)) == len(names)
    assert all(n.metadata_props[0].value == "insert-embeddings" for n in made.proto.graph.node if n.op_type != "Add")
    (add,) = [n for n in made.proto.graph.node if n.op_type == "Add"]
    assert list(add.input) == ["p", "y"]
    exact = fake_quantize(w, made.used["w"])
    i, j = np.arange(4), np.arange(4, 8)
    for y, z in (run_model(made.proto, {"i": i, "j": j}), run_model(made.proto, {"i": i, "j": j}, true=True)):
        np.testing.assert_array_equal(y, exact[j])
        np.testing.assert_array_equal(z, exact[i] + exact[j])


def test_bodies(run_model: Callable[..., Any]) -> None:
    """A table of the main graph, read in both branches; one of the branch's own stays in it."""
    numbers = ",".join(f"{v:.3f}" for v in table(4, 4).ravel())
    text = f"""{HEAD} g (bool c, int64[a] i) => (float[a,b] y) {{
      y = If(c) < then_branch = t () => (float[a,b] p) {{ p = Gather(w, i) }},
      else_branch = e () => (float[a,b] q) <float[4,4] k = {{{numbers}}}> {{ m = Gather(w, i) n = Gather(k, i)
        q = Add(m, n) }} > }}"""
    w = table(9, 4)
    own = np.array([float(v) for v in numbers.split(",")], np.float32).reshape(4, 4)
    spec = TensorSpec(QTYPES["int8"], True, PerAxis(0))
    encoding = from_values(own, spec)
    made = Made(text, {"w": w}, {"w": spec})
    assert list(made.stored()) == ["w_quantized", "w_scale", "w_zero_point"]
    exact, i = fake_quantize(w, made.used["w"]), np.arange(4)
    same(made, {"c": np.array(True), "i": i}, exact[i], run_model)
    same(made, {"c": np.array(False), "i": i}, exact[i] + own[i], run_model)
    # Again, with the branch's own table planned as well.
    model = ir.from_proto(made.proto)
    (gather,) = [n for n in all_nodes(model) if n.op_type == "Gather" and n.inputs[0].name == "k"]
    plan, encodings = Plan(Wishes(spec, spec)), Encodings()
    plan.weights[Edge(gather, 0)], encodings.weights[Edge(gather, 0)] = spec, encoding
    assert run_step(InsertEmbeddings(), model, Context().put(plan, encodings))
    made.proto = ir.to_proto(model)
    (node,) = [n for n in made.proto.graph.node if n.op_type == "If"]
    stored = {a.name: [t.name for t in a.g.initializer] for a in node.attribute}
    assert stored["else_branch"] == ["k_quantized", "k_scale", "k_zero_point"] and not stored["then_branch"]
    wanted = exact[i] + fake_quantize(own, encoding)[i]
    same(made, {"c": np.array(False), "i": i}, wanted, run_model)


REFUSED = {
    "narrow": ("int4", PerAxis(0), 21, (9, 8), "Gather takes no int4"),
    "rows-in-a-block": ("int8", Blocked(3, 0), 21, (9, 8), "one scale for 3 rows: blocks must run along a row"),
    "scale-a-value": ("int8", PerAxis(0), 21, (9,), "one scale for every single value"),
    "old": ("int8", PerAxis(0), 20, (9, 8), "opset 20 has no blocks, 21 has: run upgrade-opset first"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_left_to_insert_qdq(case: str, run_model: Callable[..., Any]) -> None:
    """The whole table is dequantized then: slow, but right, and said."""
    qtype, granularity, opset, shape, why = REFUSED[case]
    w = table(*shape)
    text = f"""<ir_version: 10, opset_import: ["" : {opset}]> g (int64[a] i)
        => (float[{"a,b"[: 2 * len(shape) - 1]}] y) {{ y = Gather(w, i) }}"""
    made = Made(text, {"w": w}, {"w": TensorSpec(QTYPES[qtype], True, granularity)})
    (note,) = made.ctx.report.notes
    assert not made.changed and note.code == "embedding-as-a-whole" and note.place.node == "Gather_0"
    assert note.message == f"'w' is dequantized as a whole in every run: {why}"
    assert len(made.plan.weights) == len(made.encodings.weights) == 1
    (gather,) = [n for n in all_nodes(made.model) if n.op_type == "Gather"]
    made.plan.decisions[gather] = Decision("weight-only", "layer", "")
    run_step(InsertQdq(), made.model, made.ctx)
    made.proto = ir.to_proto(made.model)
    assert made.ops() == ["DequantizeLinear", "Gather"]
    same(made, {"i": np.arange(4)}, fake_quantize(w, made.used["w"])[:4], run_model)


def test_output_that_is_quantized_too() -> None:
    text = f"{HEAD} g (int64[a] i) => (float[a,8] y) {{ y = Gather(w, i) }}"
    spec = TensorSpec(QTYPES["int8"], True)
    proto = parser.parse_model(text)
    proto.graph.initializer.append(numpy_helper.from_array(table(9, 8), "w"))
    model = ir.from_proto(proto)
    node = model.graph[0]
    plan, encodings = Plan(Wishes(spec, spec)), Encodings()
    plan.weights[Edge(node, 0)], encodings.weights[Edge(node, 0)] = spec, from_values(table(9, 8), spec)
    plan.activations[node.outputs[0]] = spec
    ctx = Context().put(plan, encodings)
    assert not run_step(InsertEmbeddings(), model, ctx)
    assert "its output is quantized, too" in ctx.report.notes[0].message and plan.weights


def test_nothing_to_do() -> None:
    spec = TensorSpec(QTYPES["int8"], True)
    made = Made(f"{HEAD} g (float[2] x) => (float[2] y) {{ y = Relu(x) }}", {}, {"w": spec})
    assert not made.changed and not made.ctx.report.notes
