"""cancel-transposes: what undoes each other goes, around pairs too; the rest stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper, parser
from onnx.reference import ReferenceEvaluator

from onnxq.context import Context
from onnxq.passbase import run_step
from onnxq.passes.cancel_transposes import CancelTransposes

CONSTANTS = {f"s{n}": np.geomspace(0.01, 0.1, n).astype(np.float32) for n in (2, 3, 4)}
CONSTANTS |= {f"z{n}": np.arange(n, dtype=np.int8) for n in (2, 3, 4)}
CONSTANTS |= {"s": np.float32(0.05), "sb": np.full((4, 1, 3), 0.1, np.float32)}
P, BACK = "Transpose<perm=[2,0,1]>", "Transpose<perm=[1,2,0]>"

PAIR = "q = QuantizeLinear(t, s) d = DequantizeLinear(q, s)"

# body, ops that stay, axes of pairs
GONE: dict[str, tuple[str, list[str], list[int]]] = {
    "adjacent": (f"t = {P}(x) u = {BACK}(t) y = Exp(u)", ["Exp"], []),
    "default-perm": ("t = Transpose(x) u = Transpose(t) y = Exp(u)", ["Exp"], []),
    "identity": ("t = Transpose<perm=[0,1,2]>(x) y = Exp(t)", ["Exp"], []),
    "three": (f"t = {P}(x) u = {BACK}(t) v = {P}(u) y = Exp(v)", ["Transpose", "Exp"], []),
    "four": (f"t = {P}(x) u = {BACK}(t) v = {P}(u) w = {BACK}(v) y = Exp(w)", ["Exp"], []),
    "nested": (f"t = {P}(x) a = Transpose(t) b = Transpose(a) u = {BACK}(b) y = Exp(u)", ["Exp"], []),
    "half": (f"t = {P}(x) u = {BACK}(t) a = Exp(u) b = Exp(t) y = Add(b, b) v = Add(a, a)",
             ["Transpose", "Exp", "Exp", "Add", "Add"], []),
    "output": (f"e = Exp(x) t = {P}(e) y = {BACK}(t)", ["Exp"], []),
    "pair": (f"""t = {P}(x) q = QuantizeLinear<axis=0>(t, s4, z4) d = DequantizeLinear<axis=0>(q, s4, z4)
                 u = {BACK}(d) y = Exp(u)""",
             ["QuantizeLinear", "DequantizeLinear", "Exp"], [2, 2]),
    "negative": (f"""t = {P}(x) q = QuantizeLinear<axis=-2>(t, s2, z2) d = DequantizeLinear(q, s2, z2)
                     u = {BACK}(d) y = Exp(u)""",
                 ["QuantizeLinear", "DequantizeLinear", "Exp"], [0, 0]),
    "per-tensor": (f"t = {P}(x) {PAIR} u = {BACK}(d) y = Exp(u)",
                   ["QuantizeLinear", "DequantizeLinear", "Exp"], []),
    "two-readers": (f"t = {P}(x) {PAIR} u = {BACK}(d) v = {BACK}(d) y = Add(u, v)",
                    ["QuantizeLinear", "DequantizeLinear", "Add"], []),
    "two-dq": (f"""t = {P}(x) {PAIR} e = DequantizeLinear(q, s)
                   u = {BACK}(d) v = {BACK}(e) y = Add(u, v)""",
               ["QuantizeLinear", "DequantizeLinear", "DequantizeLinear", "Add"], []),
    "pair-output": (f"t = {P}(x) {PAIR} y = {BACK}(d)",
                    ["QuantizeLinear", "DequantizeLinear"], []),
}  # fmt: skip
STAYS = {
    "not-inverse": f"t = {P}(x) u = {P}(t) y = Exp(u)",
    "input-to-output": f"t = {P}(x) y = {BACK}(t)",
    "between": f"t = {P}(x) e = Exp(t) y = {BACK}(e)",
    "mixed-readers": f"t = {P}(x) {PAIR} u = {BACK}(d) v = Exp(d) y = Exp(u)",
    "pair-not-inverse": f"t = {P}(x) {PAIR} u = {P}(d) y = Exp(u)",
    "blocks": f"""t = {P}(x) q = QuantizeLinear<axis=1, block_size=2>(t, sb)
                  d = DequantizeLinear<axis=1, block_size=2>(q, sb) u = {BACK}(d) y = Exp(u)""",
    "nobody-dequantizes": f"t = {P}(x) q = QuantizeLinear(t, s) c = Cast<to=1>(q) u = {BACK}(c) y = Exp(u)",
    "dq-is-output": f"t = {P}(x) q = QuantizeLinear(t, s) v = DequantizeLinear(q, s) u = {BACK}(v) y = Exp(u)",
    "one": f"t = {P}(x) y = Exp(t)",
}  # fmt: skip


def build(body: str, shapes: bool = True) -> onnx.ModelProto:
    second = any(f" v = {op}" in body for op in ("Add", "Exp", "DequantizeLinear"))
    outputs = "float[a,b,c] y, float[d,e,f] v" if second else "float[a,b,c] y"
    proto = parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> g (float[2,3,4] x) => ({outputs}) {{ {body} }}'
    )
    for name, array in CONSTANTS.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return onnx.shape_inference.infer_shapes(proto) if shapes else proto


@pytest.mark.parametrize("shapes", [True, False])
@pytest.mark.parametrize("case", GONE)
def test_gone(case: str, shapes: bool, run_passes: Callable[..., Any], same_numbers: Callable[..., None]) -> None:
    body, ops, axes = GONE[case]
    proto = build(body, shapes)
    made = run_passes(proto, CancelTransposes())
    assert made.ops() == ops
    assert [a.i for n in made.proto.graph.node for a in n.attribute if a.name == "axis"] == axes
    (note,) = made.ctx.report.of("transposes-cancelled")
    assert note.numbers["nodes"] == len(proto.graph.node) - len(ops)
    same_numbers(proto, made.proto, rtol=0, atol=0)
    assert len(made.proto.graph.initializer) == len(proto.graph.initializer), (
        "what it did not make it does not clean up"
    )


@pytest.mark.parametrize("case", STAYS)
def test_stays(case: str, run_passes: Callable[..., Any]) -> None:
    made = run_passes(build(STAYS[case]), CancelTransposes())
    assert not made.changed and not made.codes()


def test_bodies(run_passes: Callable[..., Any], same_numbers: Callable[..., None]) -> None:
    """A Transpose outside that a body undoes; and two of them inside."""
    text = f"""<ir_version: 10, opset_import: ["": 21]> g (float[2,3,4] x, bool p) => (float[2,3,4] y) {{
      t = {P}(x) y = If(p) <then_branch = a () => (float[i,j,k] r) {{ u = {BACK}(t) r = Exp(u) }},
        else_branch = b () => (float[l,m,n] s) {{ u = {P}(x) v = {BACK}(u) s = Neg(v) }}> }}"""
    made = run_passes(text, CancelTransposes())
    assert made.ops() == ["If"] and [n.op_type for n in made.model.graph.all_nodes()] == ["If", "Exp", "Neg"]
    same_numbers(text, made.proto, rtol=0, atol=0)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(perm=st.permutations(range(3)), axis=st.integers(-3, 2))
def test_any_permutation(perm: list[int], axis: int) -> None:
    """Axis and permutation at random: both Transposes go, and the reference evaluator sees no difference."""
    length = (2, 3, 4)[perm[axis]]
    given = f"s{length}, z{length}"
    pair = f"q = QuantizeLinear<axis={axis}>(t, {given}) d = DequantizeLinear<axis={axis}>(q, {given})"
    proto = build(f"t = Transpose<perm={perm}>(x) {pair} y = Transpose<perm={np.argsort(perm).tolist()}>(d)")
    model = ir.from_proto(proto)
    assert run_step(CancelTransposes(), model, Context())
    assert [n.op_type for n in model.graph] == ["QuantizeLinear", "DequantizeLinear"]
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)}
    wanted, got = (ReferenceEvaluator(m).run(None, feeds)[0] for m in (proto, ir.to_proto(model)))
    np.testing.assert_array_equal(got, wanted)
