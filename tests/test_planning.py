"""The planner: what stays float and why, which islands form, what shares an encoding, what is planned in bodies."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper, parser

from onnxq.facts import Decision, Plan, Wishes
from onnxq.look import all_nodes
from onnxq.planning import Planner
from onnxq.targets import load_target

RNG = np.random.default_rng(0)
C4 = "(float[1,4,8,8] x) => (float[a,b,c,d] y)"
X2 = "(float[6,16] x) => (float[a,b] y)"


def w(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return (RNG.standard_normal(shape) * 0.3).astype(dtype)


def load(signature: str, body: str, weights: dict[str, Any], imports: str = "", infer: bool = True) -> ir.Model:
    proto = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21{imports}]> g {signature} {{ {body} }}')
    for name, array in weights.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto) if infer else proto)
    for i, node in enumerate(all_nodes(model)):
        node.name = f"n{i}"
    return model


def plan(model: ir.Model, **wishes: Any) -> Plan:
    target = load_target("ort-cpu")
    made = Planner(target, Wishes(target.activation_spec(), target.weight_spec(), **wishes)).make(model)
    assert list(made.decisions) == list(all_nodes(model)), "one decision a node, in graph order"
    assert all(d.reason and d.code and d.status for d in made.decisions.values())
    return made


def by_name(made: Plan) -> dict[str, Decision]:
    return {node.name or "": decision for node, decision in made.decisions.items()}


def codes(made: Plan) -> list[str]:
    return [decision.code for decision in made.decisions.values()]


CONV = {"k": w(16, 4, 3, 3), "k2": w(8, 16, 3, 3), "b": w(16)}


# What stays float, and the reason: (signature, body, weights, node, code, words of the reason).
STAYS: dict[str, tuple[str, str, dict[str, Any], str, str, str]] = {
    "no-kernel": (C4, "y = HardSwish(x)", {}, "n0", "no-integer-kernel", "ort-cpu has no integer kernel for HardSwish"),
    "transposed-conv": (C4, "y = ConvTranspose(x, k)", {"k": w(4, 8, 2, 2)}, "n0", "no-integer-kernel", "Transpose"),
    "clip": (C4, "c = Conv(x, k) d = Clip(c, m, n) y = Conv(d, k2)",
             {**CONV, "m": np.float32(-1), "n": np.float32(1)}, "n1", "not-from-zero", "clips elsewhere than at 0"),
    "attribute": (C4, 'c = Conv(x, k) y = Resize<mode="cubic">(c, , s)',
                  {**CONV, "s": np.array([1, 1, 2, 2], np.float32)}, "n1", "attribute", "mode is cubic"),
    "crop": (C4, 'c = Conv(x, k) y = Resize<mode="nearest", coordinate_transformation_mode="tf_crop_and_resize">'
             "(c, o, s)", {**CONV, "s": np.array([1, 1, 2, 2], np.float32), "o": np.zeros(8, np.float32)},
             "n1", "attribute", "tf_crop_and_resize"),
    "pool": (C4, "c = Conv(x, k) y = AveragePool<kernel_shape=[3,3], ceil_mode=1>(c)", CONV, "n1", "attribute",
             "ceil_mode is 1"),
    "dilated-pool": (C4, "c = Conv(x, k) y = AveragePool<kernel_shape=[2,2], dilations=[2,2]>(c)", CONV, "n1",
                     "attribute", "takes no dilations"),
    "alpha": (X2, "y = Gemm<alpha=0.5>(x, w)", {"w": w(16, 8)}, "n0", "attribute", "alpha is 0.5"),
    "half": (C4.replace("float", "float16"), "y = Conv(x, k)", {"k": w(8, 4, 3, 3, dtype="e")}, "n0", "data-type",
             "no integer kernel for float16 data"),
    "double": (X2.replace("float", "double"), "y = MatMul(x, w)", {"w": w(16, 8, dtype="d")}, "n0", "data-type",
               "double"),
    "integers": ("(int64[2] x) => (int64[2] y)", "y = Add(x, x)", {}, "n0", "data-type", "int64"),
    "strings": ("(string[2] x) => (string[4] y)", "y = Concat<axis=0>(x, x)", {}, "n0", "data-type", "string"),
    "weight": ("(float[1,4,8,8] x, float[8,4,3,3] k) => (float[a,b,c,d] y)", "y = Conv(x, k)", {}, "n0", "not-a-layer",
               "its weight is computed at run time"),
    "bias": ("(float[1,4,8,8] x, float[16] b) => (float[a,b,c,d] y)", "y = Conv(x, k, b)", {"k": CONV["k"]}, "n0",
             "not-a-layer", "its bias is computed at run time"),
    "bias-a-row": (X2, "y = Gemm(x, w, v)", {"w": w(16, 8), "v": w(6, 8)}, "n0", "not-a-layer", "[6, 8]"),
    "left": (X2, "y = MatMul(w, x)", {"w": w(8, 6)}, "n0", "constant-left-operand", "left operand is constant"),
    "constants": (X2, "c = MatMul(w, v) y = Add(c, x)", {"w": w(6, 4), "v": w(4, 16)}, "n0", "not-a-layer",
                  "all its operands are constant"),
    "long-sum": ("(float[1,70000] x) => (float[a,b] y)", "y = MatMul(x, w)", {"w": np.zeros((70000, 1), "f")}, "n0",
                 "accumulator", "sums of 70000 products"),
    "constant-operand": (C4, "c = Conv(x, k2) d = Add(c, v) y = Conv(d, k2)",
                         {"k2": w(4, 4, 3, 3), "v": w(1, 4, 6, 1)}, "n1", "constant-operand", "constant operand"),
    "float-operand": (C4, "c = Conv(x, k) e = Exp(c) d = Add(c, e) y = Conv(d, k2)", CONV, "n2", "float-operand",
                      "'e' is made by a float op"),
    "no-reader": (C4, "c = Conv(x, k) y = MaxPool<kernel_shape=[2,2]>(c)", CONV, "n1", "no-integer-reader",
                  "nothing behind it"),
    "little-work": (C4, "c = Conv(x, k) y = Exp(c)", CONV, "n0", "too-little-work", "sums of 36 products"),
    "two-activations": ("(float[4,4] x) => (float[4,4] y)", "y = MatMul(x, x)", {}, "n0", "activation-matmul",
                        "both operands are activations"),
    "branches": ("(bool f, float[2,2] x) => (float[2,2] y)",
                 """y = If(f) < then_branch = t () => (float[2,2] p) { p = Exp(x) },
                 else_branch = e () => (float[2,2] q) { q = Neg(x) } >""", {}, "n0", "control-flow", "nodes inside"),
}  # fmt: skip


@pytest.mark.parametrize("case", STAYS)
def test_what_stays_float_and_why(case: str) -> None:
    signature, body, weights, node, code, words = STAYS[case]
    made = plan(load(signature, body, weights), dynamic=False)
    decision = by_name(made)[node]
    assert (decision.status, decision.code) == ("float", code)
    assert words in decision.reason, decision.reason


def test_max_pool_with_indices() -> None:
    """Integers have more ties than floats, so indices may differ; unused ones do not matter."""
    body = "c = Conv(x, k) o, i = MaxPool<kernel_shape=[2,2]>(c) y = Conv(o, k2)"
    used = plan(load("(float[1,4,8,8] x) => (float[a,b,c,d] y, int64[e,f,g,h] i)", body, CONV))
    unused = plan(load(C4, body, CONV))
    assert by_name(used)["n1"].code == "indices" and by_name(unused)["n1"].status == "moves"


def test_an_overridable_initializer_is_no_constant() -> None:
    body = "c = Conv(x, k, b) r = Relu(c) y = Conv(r, k2)"
    made = plan(load("(float[1,4,8,8] x, float[16,4,3,3] k) => (float[a,b,c,d] y)", body, CONV))
    assert by_name(made)["n0"].reason == "its weight is computed at run time"


def test_unknown_element_types() -> None:
    """A custom op hides types: a layer with a float weight is one, an op without any type is not."""
    body = "f = my.Op(x) c = Conv(f, k, b) r = Relu(c) y = Conv(r, k2) m = my.Op(x) z = Add(m, m)"
    signature = "(float[1,4,8,8] x) => (float[a,b,c,d] y, float[n] z)"
    found = by_name(plan(load(signature, body, CONV, ', "my" : 1', infer=False)))
    assert found["n1"].code == found["n3"].code == "layer" and found["n2"].code == "part-of-layer"
    assert found["n5"].code == "float-operand" and found["n0"].reason == "ort-cpu has no integer kernel for my.Op"


def test_local_functions_are_listed() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "local" : 1]> g (float[2,3] x) => (float[a,b] y) {
      y = local.f(x) }
    <domain: "local", opset_import: ["" : 17]> f (a) => (b) { b = Exp(a) }"""
    assert codes(plan(ir.from_proto(parser.parse_model(text)))) == ["no-integer-kernel", "in-function"]


# -- islands ----------------------------------------------------------------------------------------------------------


def test_data_movement_shares_one_encoding() -> None:
    body = "c = Conv(x, k) m = MaxPool<kernel_shape=[2,2]>(c) t = Transpose<perm=[0,1,3,2]>(m) y = Conv(t, k2)"
    made = plan(load(C4, body, CONV))
    assert codes(made) == ["layer", "moves", "moves", "layer"]
    assert [[v.name for v in group] for group in made.shared] == [["c", "m"], ["m", "t"]]


def test_ranges_known_without_data() -> None:
    body = "c = Conv(x, k) s = Sigmoid(c) m = Mul(c, s) t = Softmax<axis=1>(m) y = Conv(t, k2)"
    made = plan(load(C4, body, CONV))
    assert {v.name: ends for v, ends in made.fixed.items()} == {"s": (0.0, 1.0), "t": (0.0, 1.0)}


def test_split_makes_several_values() -> None:
    body = "c = Conv(x, k) p, q = Split<axis=1, num_outputs=2>(c) a = Add(p, q) y = Conv(a, k3)"
    made = plan(load(C4, body, {**CONV, "k3": w(8, 8, 3, 3)}))
    assert {v.name for v in made.activations} == {"x", "c", "p", "q", "a", "y"}
    assert [[v.name for v in group] for group in made.shared] == [["c", "p"], ["c", "q"]]


def test_residual_chain_and_its_end() -> None:
    """What only a float op or the caller reads is not requantized."""
    body = """c = Conv(x, k) r = Relu(c) d = Conv(r, k3) a = Add(d, r) s = Relu(a) e = Conv(s, k3)
    f = Add(e, s) g = GlobalAveragePool(f) y = Flatten(g)"""
    made = plan(load("(float[1,4,8,8] x) => (float[a,b] y)", body, {"k": w(16, 4, 3, 3), "k3": w(16, 16, 1, 1)}))
    assert codes(made)[:6] == ["layer", "part-of-layer", "layer", "binary", "part-of-layer", "layer"]
    assert codes(made)[6:] == ["no-integer-reader"] * 3
    assert {v.name for v in made.activations} == {"x", "r", "d", "s", "e"}


def test_a_relu_of_a_float_join_stays_with_it() -> None:
    body = "c = Conv(x, k) a = Add(c, c) r = Relu(a) y = Exp(r)"
    made = plan(load(C4, body, {"k": w(16, 4, 4, 4)}))
    assert codes(made) == ["layer", "no-integer-reader", "no-integer-reader", "no-integer-kernel"]


def test_graph_outputs_in_an_island() -> None:
    body = "c = Conv(x, k) m = MaxPool<kernel_shape=[2,2]>(c) y = Conv(m, k2)"
    made = plan(load("(float[1,4,8,8] x) => (float[a,b,c,d] m, float[e,f,g,h] y)", body, CONV))
    assert {v.name for v in made.outputs} == {"m", "y"}


def test_per_channel_up_to_the_targets_rank() -> None:
    body = "c = MatMul(x, w) d = MatMul(c, v) y = MatMul(d, u)"
    weights = {"w": w(16, 8), "v": w(2, 8, 4), "u": w(4)}
    made = plan(load("(float[2,6,16] x) => (float[a,b] y)", body, weights), dynamic=False)
    kinds = {e.value.name: str(spec.granularity) for e, spec in made.weights.items()}
    assert kinds == {"w": "per-channel", "v": "per-tensor", "u": "per-tensor"}


@pytest.mark.parametrize(
    ("body", "planned"),
    [
        ("c = Gemm(x, w) y = Tanh(c)", {"x"}),
        ("c = Gemm(x, w) y = Relu(c)", {"x"}),
        ("c = Gemm(x, w) r = Relu(c) y = Tanh(r)", {"x", "r"}),
        ("c = MatMul(x, w) d = Add(c, v) y = Tanh(d)", {"x"}),
        ("c = MatMul(x, w) d = Add(c, x) y = Tanh(d)", {"x", "c"}),
        ("c = MatMul(x, w) d = Add(c, z) y = Tanh(d)", {"x", "c"}),
        ("c = Gemm(x, w) d = Add(c, z) y = Tanh(d)", {"x"}),
        ("c = MatMul(x, w) d = Add(c, v) e = Add(d, x) y = Tanh(e)", {"x"}),
    ],
)
def test_where_a_layer_needs_a_q_behind_it(body: str, planned: set[str]) -> None:
    """Measured: without one, onnxruntime merges Gemm with Relu, and MatMul with Add, and fuses nothing."""
    weights = {"w": w(16, 16), "v": w(16), "z": w(6, 16)}
    made = plan(load(X2, body, weights), dynamic=False)
    assert {v.name for v in made.activations} == planned


def test_products_of_activations_in_an_island() -> None:
    body = "q = MatMul(x, w) k = MatMul(x, v) t = Transpose(k) s = MatMul(q, t) p = Softmax(s) y = MatMul(p, q)"
    made = plan(load(X2, body, {"w": w(16, 8), "v": w(16, 8)}))
    assert codes(made) == ["layer", "layer", "moves", "layer", "unary", "layer"]


# -- bodies -----------------------------------------------------------------------------------------------------------


def test_nodes_in_bodies() -> None:
    text = """y = If(f) <
      then_branch = t () => (float[a,b] p) { m = MatMul(x, w) a = Add(m, v) r = Relu(a) p = Exp(r) },
      else_branch = e () => (float[a,b] q) { c = Conv(x4, k) s = Gemm<transA=1>(z, w) t = Transpose(s) q = Softmax(t) }
    >"""
    signature = "(bool f, float[6,16] x, float[16,6] z, float[1,4,8,8] x4) => (float[a,b] y)"
    model = load(signature, text, {"w": w(16, 8), "v": w(8), "k": w(8, 4, 3, 3)})
    assert codes(plan(model)) == [
        "control-flow", "in-subgraph", "behind-dynamic-layer", "behind-dynamic-layer", "no-integer-kernel",
        "in-subgraph", "layer", "in-subgraph", "in-subgraph",
    ]  # fmt: skip
    found = by_name(plan(model))
    assert found["n1"].status == "dynamic" and found["n6"].status == "integer", "transA has no dynamic form"
    assert found["n5"].reason == "the range of its output cannot be observed inside a subgraph"
    static = plan(model, dynamic=False)
    assert codes(static)[1:4] == ["in-subgraph"] * 3, "a Relu behind it needs a Q, and nobody knows its range"
    without = by_name(plan(model, static=False, dynamic=False))
    assert {d.status for d in without.values()} == {"float"}


def test_banned_nodes_in_bodies() -> None:
    text = """y = If(f) < then_branch = t () => (float[a,b] p) { m = MatMul(x, w) p = Add(m, v) },
                          else_branch = e () => (float[a,b] q) { q = MatMul(x, w) } >"""
    model = load("(bool f, float[6,16] x) => (float[a,b] y)", text, {"w": w(16, 8), "v": w(8)})
    nodes = {n.name: n for n in all_nodes(model)}
    banned = {nodes[name]: Decision("float", "excluded", "by test") for name in ("n2", "n3")}
    assert codes(plan(model, banned=banned)) == ["control-flow", "in-subgraph", "excluded", "excluded"]


# -- any graph --------------------------------------------------------------------------------------------------------

STEPS = (
    "Conv({a}, k)", "Conv<group=4>({a}, g)", "Relu({a})", "Add({a}, {b})", "Mul({a}, {b})", "Sigmoid({a})",
    "Exp({a})", "Clip({a}, lo, hi)", "Transpose<perm=[0,1,3,2]>({a})", "Concat<axis=2>({a}, {b})", "MatMul({a}, w)",
    "MatMul({a}, {b})", "MaxPool<kernel_shape=[1,1]>({a})", "Add({a}, v)", "Softmax({a})",
)  # fmt: skip


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=12))
def test_plans_hold_together(steps: list[tuple[str, int, int]]) -> None:
    """For any graph: every planned value is made or read by an integer op, every reader reads what its node reads."""
    names, body = ["x"], []
    for i, (text, a, b) in enumerate(steps):
        body.append(f"v{i} = {text.format(a=names[a % len(names)], b=names[b % len(names)])}")
        names.append(f"v{i}")
    weights = {
        "k": w(4, 4, 1, 1),
        "g": w(4, 1, 1, 1),
        "w": w(8, 8),
        "v": w(8),
        "lo": np.float32(0),
        "hi": np.float32(6),
    }
    model = load("(float[1,4,8,8] x) => (float[a,b,c,d] " + names[-1] + ")", " ".join(body), weights, infer=False)
    made = plan(model)
    integer = {n for n, d in made.decisions.items() if d.status in ("integer", "moves")}
    for edge, value in made.readers.items():
        assert edge.value is value and value in made.activations
    for value in made.activations:
        readers = [edge for edge, read in made.readers.items() if read is value]
        assert value.producer() in integer or any(edge.node in integer for edge in readers)
        if value.producer() in integer:
            assert len(readers) == len(value.uses()), "all readers of an integer value read its pair"
    for node, decision in made.decisions.items():
        if decision.code in ("moves", "unary", "binary", "join", "folds"):
            assert all(v in made.activations for v in node.inputs[:1])
    for edge in made.biases:
        assert made.decisions[edge.node].status == "integer"
