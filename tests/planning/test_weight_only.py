"""Weight-only plans: which weights become integers, in which scope, of which type, and why the others do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

from onnxq.facts import Decision, Plan, Wishes
from onnxq.look import all_nodes
from onnxq.numerics.spec import Blocked, Granularity, PerAxis, PerTensor
from onnxq.planning import Planner
from onnxq.targets import load_target

RNG = np.random.default_rng(0)
X2 = "(float[6,64] x) => (float[a,b] y)"
LSTM = {"w": (1, 32, 8), "r": (1, 32, 8), "b": (1, 64)}
WEIGHT_ONLY = "weight-only"
CHANNELS = PerAxis()


def w(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return (RNG.standard_normal(shape) * 0.3).astype(dtype)


def load(signature: str, body: str, weights: dict[str, Any]) -> ir.Model:
    proto = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> g {signature} {{ {body} }}')
    for name, array in weights.items():
        array = w(*array) if isinstance(array, tuple) else np.asarray(array)
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    for i, node in enumerate(all_nodes(model)):
        node.name = f"n{i}"
    return model


def plan(
    model: ir.Model, target: str = "ort-cpu", types: str = "int4", granularity: Granularity = CHANNELS, **wishes: Any
) -> Plan:
    rules = load_target(target)
    weight = replace(rules.weight_spec(types), granularity=granularity)
    made = Planner(rules, Wishes(rules.activation_spec(), weight, weight_only=True, **wishes)).make(model)
    assert list(made.decisions) == list(all_nodes(model)), "one decision a node, in graph order"
    assert all(d.reason and d.code for d in made.decisions.values())
    assert not made.activations and not made.biases and not made.readers and not made.outputs
    planned = {edge.node for edge in made.weights}
    stored = {n for n, d in made.decisions.items() if d.status == WEIGHT_ONLY and d.code != "already-quantized"}
    assert planned == stored
    return made


def uses(made: Plan) -> dict[str, str]:
    return {f"{e.node.name}:{e.index}": str(spec) for e, spec in made.weights.items()}


def by_name(made: Plan) -> dict[str, Decision]:
    return {node.name or "": decision for node, decision in made.decisions.items()}


def test_products_with_all_that_static_plans_refuse() -> None:
    """Biases computed at run time or a row of numbers, and sums too long for int32, do not matter in float."""
    body = "c = Gemm(x, w, v) h = Abs(c) d = MatMul(h, u) h2 = Identity(d) y = Add(d, h2)"
    made = plan(load(X2, body, {"w": (64, 70000), "v": w(6, 1), "u": (70000, 4)}))
    assert uses(made) == {"n0:1": "int4 symmetric per-channel", "n2:1": "int4 symmetric per-channel"}
    assert by_name(made)["n1"].code == by_name(made)["n4"].code == "no-weight"
    assert by_name(made)["n1"].reason == "Abs carries no weights"


@pytest.mark.parametrize(
    ("signature", "body", "weights", "code", "words"),
    [
        (X2, "y = MatMul(w, x)", {"w": (8, 6)}, "constant-left-operand", "left operand is constant"),
        ("(float[4,4] x) => (float[4,4] y)", "y = MatMul(x, x)", {}, "activation-matmul", "both operands"),
        (X2, "y = Gemm<alpha=0.5>(x, w)", {"w": (64, 8)}, "attribute", "alpha is 0.5"),
        ("(float[2,6,64] x) => (float[a,b,c] y)", "y = MatMul(x, w)", {"w": (2, 64, 8)}, "weight-rank",
         "its weight has rank 3; ort-cpu fuses weights up to rank 2"),
        ("(float[1,4,8,8] x) => (float[a,b,c,d] y)", "y = Conv(x, w)", {"w": (8, 4, 3, 3)}, "not-weight-only",
         "ort-cpu takes no weight-only form of Conv"),
        ("(float[5,1,8] x) => (float[a,b,c,d] y)", "y = LSTM<hidden_size=8>(x, w, r, b)", LSTM, "no-integer-kernel",
         "LSTM"),
        (X2.replace("float", "double"), "y = MatMul(x, w)", {"w": w(64, 8, dtype="d")}, "data-type", "double"),
        ("(float[6,64] x, float[64,8] w) => (float[a,b] y)", "y = MatMul(x, w)", {}, "activation-matmul", "both"),
        ("(int64[2] i) => (float[a,b] y)", "y = Gather(t, i)", {"t": (8, 511)}, "small-table", "[8, 511] is too small"),
        ("(int64[2] i) => (float[a] y)", "y = Gather(t, i)", {"t": (5000,)}, "small-table", "fewer than two axes"),
        ("(float[9,9] x, int64[2] i) => (float[a,b] y)", "y = Gather(x, i)", {}, "no-weight", "no constant table"),
        ("(int64[2] i) => (int64[a,b] y)", "y = Gather(t, i)", {"t": np.zeros((99, 99), np.int64)}, "data-type", "int"),
    ],
)  # fmt: skip
def test_what_stays_float_and_why(signature: str, body: str, weights: dict[str, Any], code: str, words: str) -> None:
    made = plan(load(signature, body, weights))
    decision = by_name(made)["n0"]
    assert (decision.status, decision.code) == ("float", code) and words in decision.reason, decision


def test_the_specification_takes_all_that_has_weights() -> None:
    signature = "(float[1,4,8] x, float[5,1,8] z) => (float[a,b,c] y, float[d,e,f,g] u, float[h,i,j] v)"
    body = """c = Conv(x, k) y = ConvTranspose(c, t) u = LSTM<hidden_size=8>(z, w, r, b) v = MatMul(z, m)"""
    made = plan(load(signature, body, {"k": (8, 4, 3), "t": (8, 4, 3), **LSTM, "m": (1, 8, 8)}), "onnx")
    assert uses(made) == dict.fromkeys(["n0:1", "n1:1", "n2:1", "n2:2", "n3:1"], "int4 symmetric per-channel")
    assert "its two weights as integers" in by_name(made)["n2"].reason


def test_forced_though_the_runtime_has_no_kernel() -> None:
    signature = "(float[1,4,8] x, float[5,1,8] z, int64[3] i) => (float[a,b,c] y, float[d,e,f,g] u, float[h,j] v)"
    body = "y = Conv(x, k) u = GRU<hidden_size=8>(z, w, r) v = Gather(t, i)"
    model = load(signature, body, {"k": (8, 4, 3), "w": (1, 24, 8), "r": (1, 24, 8), "t": (4, 4)})
    made = plan(model, forced=frozenset(all_nodes(model)))
    assert list(uses(made)) == ["n0:1", "n1:1", "n1:2", "n2:0"]
    assert uses(made)["n2:0"] == "int8 symmetric per-channel", "no 4-bit Gather, whoever asks"


def test_banned_nodes_stay() -> None:
    model = load(X2, "y = MatMul(x, w)", {"w": (64, 8)})
    why = Decision("float", "excluded", "excluded by the caller")
    made = plan(model, banned=dict.fromkeys(all_nodes(model), why))
    assert by_name(made) == {"n0": why}


@pytest.mark.parametrize(
    ("types", "granularity", "expected"),
    [
        ("int4", PerAxis(), "int8 symmetric per-channel"),
        ("uint4", Blocked(32), "int8 symmetric blocked(32)"),
        ("uint8", Blocked(32), "uint8 symmetric blocked(32)"),
        ("int8", PerTensor(), "int8 symmetric per-channel"),
    ],
)
def test_tables_have_eight_bits_and_at_least_a_scale_a_row(types: str, granularity: Granularity, expected: str) -> None:
    made = plan(
        load("(int64[2] i) => (float[a,b] y)", "y = Gather(t, i)", {"t": (8, 512)}),
        types=types,
        granularity=granularity,
    )
    assert uses(made) == {"n0:0": expected} and by_name(made)["n0"].code == "table"


def test_every_scope_is_alike() -> None:
    body = """y = If(f) <
      then_branch = t () => (float[6,8] p) { k = Abs(x) p = MatMul(k, w) },
      else_branch = e () => (float[6,8] q) {
        q = If(f) < then_branch = t2 () => (float[6,8] a) { a = MatMul(x, w) },
                    else_branch = e2 () => (float[6,8] b) { b = Gemm(x, v) } > } >"""
    made = plan(load("(bool f, float[6,64] x) => (float[6,8] y)", body, {"w": (64, 8), "v": (64, 8)}))
    assert len(made.weights) == 3 and {e.value.name for e in made.weights} == {"w", "v"}
    assert [d.code for d in made.decisions.values()].count("control-flow") == 2


def test_functions_are_left_alone() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21, "own" : 1]> g (float[2,2] x) => (float[2,2] y) { y = own.f(x) }
    <domain: "own", opset_import: ["" : 21]> f (a) => (b) { c = Constant<value_float=2.0>() b = Mul(a, c) }"""
    model = ir.from_proto(parser.parse_model(text))
    made = plan(model)
    assert {d.code for d in made.decisions.values()} == {"no-weight", "in-function"}


def test_half_floats_have_a_weight_only_kernel() -> None:
    """onnxruntime fuses MatMulNBits in float16 models, too; its integer kernels take float32 only."""
    model = load(X2.replace("float", "float16"), "y = MatMul(x, w)", {"w": w(64, 8, dtype=np.float16)})
    assert uses(plan(model)) == {"n0:1": "int4 symmetric per-channel"}
    target = load_target("ort-cpu")
    static = Planner(target, Wishes(target.activation_spec(), target.weight_spec())).make(model)
    assert by_name(static)["n0"].code == "data-type"


def test_found_as_it_is() -> None:
    body = "d = DequantizeLinear(q, s) y = MatMul(x, d)"
    made = plan(load(X2, body, {"q": np.ones((64, 8), np.int8), "s": np.float32(0.1)}))
    assert (by_name(made)["n1"].status, by_name(made)["n1"].code) == (WEIGHT_ONLY, "already-quantized")
