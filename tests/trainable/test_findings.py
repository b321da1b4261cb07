"""Each obstacle to training, by what the training build was measured to refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from onnxq import border
from onnxq.diagnostics import Diagnostic, Severity
from onnxq.passes.to_trainable import ToTrainable
from onnxq.trainable.findings import trainable_findings
from tests.trainable.layers import layer

TYPED = {"z": helper.make_tensor("z", TensorProto.UINT8, [], [7])}


def model(body: str, constants: dict[str, Any] | None = None, opset: int = 17) -> onnx.ModelProto:
    made = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]> g (float[2, 3] x) => (float[2, 3] y) {{ {body} }}'
    )
    given = {"s": np.float32(0.5), **TYPED, **(constants or {})}
    used = {name for node in made.graph.node for name in node.input}
    for name in sorted(used & set(given)):
        value = given[name]
        made.graph.initializer.append(
            value if isinstance(value, TensorProto) else numpy_helper.from_array(np.asarray(value), name)
        )
    for node in made.graph.node:
        node.name = f"{node.op_type[0]}_{node.output[0]}"
    return made


def findings(proto: onnx.ModelProto) -> list[Diagnostic]:
    return list(trainable_findings(border.open_model(proto).model))


def test_nothing_to_say() -> None:
    pair = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) "
    assert findings(model(pair + "a = Abs(d) y = Add(d, a)")) == []
    assert findings(ToTrainable().apply(layer("ConvTranspose"))) == []


PAIR = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) "
RAW = numpy_helper.from_array(np.array(7, np.uint8), "z")
CASES: list[tuple[str, dict[str, Any], int, str, str, str]] = [
    (PAIR + "y = Abs(d)", {}, 19, "opset", "", "up to opset 18, the model has 19"),
    (PAIR + "y = Abs(d)", {}, 12, "opset", "", "from opset 13 on, the model has 12"),
    (PAIR + "y = Abs(d)", {"z": RAW}, 17, "raw-zero-point", "Q_q", "int32_data (read by 'A_y' (Abs))"),
    (
        "q = QuantizeLinear<axis = 1>(x, s, z) d = DequantizeLinear<axis = 1>(q, s, z) y = Abs(d)",
        {"s": np.ones(3, np.float32), "z": helper.make_tensor("z", TensorProto.UINT8, [3], [7] * 3)},
        17, "several-scales", "Q_q", "has 3 scales, the training build computes with one (read by 'A_y' (Abs))",
    ),
    (
        PAIR + "e = DequantizeLinear(q, s, z) y = Add(d, e)", {}, 17, "shared-integers", "Q_q",
        "exactly one DequantizeLinear behind it, has 2: 'D_d' (DequantizeLinear), 'D_e' (DequantizeLinear)",
    ),
    (
        PAIR + "i = Identity(q) y = Abs(d)", {}, 17, "shared-integers", "Q_q",
        "'I_i' (Identity) reads its integers",
    ),
    (
        PAIR + "p = QuantizeLinear(x, s, o) e = DequantizeLinear(p, s, o) y = Add(d, e)",
        {"o": helper.make_tensor("o", TensorProto.UINT8, [], [7])}, 17, "equal-pairs", "Q_p", "alike as",
    ),
    (
        PAIR + "p = QuantizeLinear(d, s, z) y = DequantizeLinear(p, s, z)", {}, 17, "shared-zero-point", "Q_q",
        "shares its zero point with 'Q_p' (QuantizeLinear)",
    ),
    (
        "d = DequantizeLinear(w, s, k) y = Add(x, d)",
        {"w": np.ones((2, 3), np.int8), "k": helper.make_tensor("k", TensorProto.INT8, [], [0])},
        17, "frozen-weight", "D_d", "reads stored integers: they stay as they are (read by 'A_y' (Add))",
    ),
    (
        "q, t, k = DynamicQuantizeLinear(x) d = DequantizeLinear(q, t, k) y = Abs(d)",
        {}, 17, "computed-scale", "D_q", "has no gradient (read by 'A_y' (Abs))",
    ),
    (
        "q = QuantizeLinear(x, s, h) d = DequantizeLinear(q, s, h) y = Abs(d)", {"h": np.array(7, np.uint16)}, 21,
        "other-width", "Q_q", "rounds to uint16, the training build to 8 bits",
    ),
    ("y = QuantizeLinear(x, t, z)", {}, 17, "computed-scale", "Q_y", "computed at run time"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "constants", "opset", "code", "place", "words"), CASES, ids=lambda v: str(v)[:30])
def test_obstacle(body: str, constants: dict[str, Any], opset: int, code: str, place: str, words: str) -> None:
    proto = model(body, constants, opset)
    if code == "equal-pairs":
        words = "'Q_q' (QuantizeLinear) alike"
    if body == CASES[-1][0]:
        proto.graph.output[0].type.tensor_type.elem_type = TensorProto.UINT8
        proto.graph.input.append(helper.make_tensor_value_info("t", TensorProto.FLOAT, []))
    found = [d for d in findings(proto) if d.code == code]
    assert found and place in {d.place.node for d in found}
    assert any(words in d.message for d in found), [d.message for d in found]
    wanted = Severity.WARNING if code == "frozen-weight" else Severity.ERROR
    assert {d.severity for d in found} == {wanted}


def test_integer_operators_and_gradients() -> None:
    proto = parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]> g (uint8[1, 2, 5, 5] q, float[1, 2, 5, 5] x, float[2, 2, 3, 3] v,
            uint8[2, 2, 3, 3] w) => (int32[1, 2, 3, 3] y, float[1, 2, 7, 7] z)
        { y = ConvInteger(q, w) z = ConvTranspose(x, v) }""")
    assert [(d.code, d.place.op_type) for d in findings(proto)] == [
        ("integer-operator", "ConvInteger"),
        ("no-gradient", "ConvTranspose"),
    ]


def test_bodies_other_domains_and_new_files() -> None:
    proto = parser.parse_model("""
        <ir_version: 11, opset_import: ["": 18, "com.microsoft": 1]> g (float[3] x, bool c) => (float[3] y)
        <float s = {0.5}, uint8 z = {7}, uint8 k = {7}> {
            p = com.microsoft.QuantizeLinear(x, s, k)
            e = com.microsoft.DequantizeLinear(p, s, k)
            y = If(c) <
                then_branch = t () => (float[3] a) { q = QuantizeLinear(e, s, z) a = DequantizeLinear(q, s, z) },
                else_branch = f () => (float[3] b) { b = Identity(x) }
            >
        }""")
    codes = {d.code: d for d in findings(proto)}
    assert {"ir-version", "pair-domain", "pair-in-body"} <= set(codes)
    assert codes["pair-in-body"].place.graph == "t"
