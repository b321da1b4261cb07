"""The cost table applied to plans: by hand for a few layers, and sizes against written files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

import onnxq
from onnxq.facts import Decision, Plan, Wish, Wishes
from onnxq.inventory import constants_of
from onnxq.look import nbytes
from onnxq.numerics.spec import Blocked
from onnxq.planning import Planner
from onnxq.targets import load_target
from onnxq.tuning.costs import CALL, TABLE, Costs

TARGET = load_target("ort-cpu")
A8, A16 = TARGET.activation_spec(), TARGET.activation_spec("uint16")
W8, W4 = TARGET.weight_spec(), TARGET.weight_spec("int4").at(Blocked(32))
LENET = Path(__file__).parents[2] / "models" / "lenet" / "lenet.onnx"


def load(text: str, **weights: tuple[int, ...]) -> ir.Model:
    proto = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> g {text}')
    for name, shape in weights.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    for node in model.graph:
        node.name = f"make_{node.outputs[0].name}"
    return model


def plan(model: ir.Model, only_weights: Sequence[str] = (), floats: Sequence[str] = (), **wishes: Any) -> Plan:
    nodes = {node.name: node for node in model.graph}
    asked = {nodes[f"make_{name}"]: Wish(*wish) for name, wish in wishes.items()}
    banned = {nodes[f"make_{name}"]: Decision("float", "x", "x") for name in floats}
    return Planner(TARGET, Wishes(A8, W8, nodes=asked, banned=banned)).make(model)


def nanoseconds(model: ir.Model, made: Plan) -> float:
    return Costs(model, {}, {}).latency(made)


def pair(values: int, kind: str = "quantize 8") -> float:
    return 2 * CALL + (TABLE[kind].value + TABLE["dequantize"].value) * values


CONVS = (
    "(float[1,32,16,16] x) => (float[1,64,16,16] z) { y = Conv<pads=[1,1,1,1]>(x, w1) z = Conv<pads=[1,1,1,1]>(y, w2) }"
)
SHAPES = {"w1": (64, 32, 3, 3), "w2": (64, 64, 3, 3)}
OUT, TERMS = 64 * 256, (32 * 9, 64 * 9)


def convs(form: str, weight: bool = False) -> float:
    rate = TABLE[f"conv {form}"]
    total = 0.0
    for terms in TERMS:
        total += CALL + (rate.product * terms + rate.value) * OUT + rate.tap * 9 * 256
        total += rate.weight * 64 * terms
    return total


def test_an_island_of_two_convolutions_pays_for_pairs_at_its_ends_only() -> None:
    model = load(CONVS, **SHAPES)
    everything, nothing = plan(model), plan(model, floats="yz")
    ends = CALL + TABLE["quantize 8"].value * 32 * 256 + CALL + TABLE["dequantize"].value * OUT
    assert nanoseconds(model, everything) == pytest.approx(convs("int8") + ends)
    assert nanoseconds(model, nothing) == pytest.approx(convs("float"))
    assert nanoseconds(model, everything) < 0.5 * nanoseconds(model, nothing)
    half = nanoseconds(model, plan(model, floats="z"))
    assert nanoseconds(model, everything) < half < nanoseconds(model, nothing)


def test_sixteen_bits_pay_for_every_pair_and_for_unpacking_weights() -> None:
    model = load(CONVS, **SHAPES)
    made = plan(model, y=(A16, W8), z=(A16, W8))
    pairs = pair(32 * 256, "quantize 16") + 2 * pair(OUT, "quantize 16")
    assert nanoseconds(model, made) == pytest.approx(convs("unpacked") + pairs)


@pytest.mark.parametrize(
    ("shape", "group", "kind"),
    [((64, 1, 3, 3), 64, "depthwise"), ((64, 64, 3, 3), 1, "conv"), ((64, 8, 3, 3), 8, "conv")],
)
def test_depthwise(shape: tuple[int, ...], group: int, kind: str) -> None:
    text = f"(float[1,64,16,16] x) => (float[1,64,16,16] y) {{ y = Conv<pads=[1,1,1,1],group={group}>(x, w) }}"
    model, rate = load(text, w=shape), TABLE[f"{kind} float"]
    terms = shape[1] * 9
    assert nanoseconds(model, plan(model, floats="y")) == pytest.approx(
        CALL + (rate.product * terms + rate.value) * OUT
    )


@pytest.mark.parametrize(
    ("op", "wish", "kind"),
    [
        ("MatMul(x, w)", (A8, W8, None, "", "always"), "dynamic"),
        ("MatMul(x, w)", (None, W8), "nbits8"),
        ("MatMul(x, w)", (None, W4), "nbits4"),
        ("Gemm(x, w)", (None, W4), "nbits4"),
        ("Gemm<transB=1>(x, w)", (None, W4), "unpacked"),
    ],
)
@pytest.mark.parametrize("rows", [1, 64])
def test_forms_of_a_product(op: str, wish: tuple[Any, ...], kind: str, rows: int) -> None:
    model, rate = (
        load(f"(float[{rows},96] x) => (float[{rows},96] y) {{ y = {op} }}", w=(96, 96)),
        TABLE[f"matmul {kind}"],
    )
    wanted = CALL + (rate.product * 96 + rate.value) * rows * 96 + rate.weight * 96 * 96
    assert nanoseconds(model, plan(model, y=wish)) == pytest.approx(wanted)


def test_one_row_of_a_large_product_is_bound_by_the_weight() -> None:
    """Where float reads 16 MB, 4 bits read 2: the order is that of the measured table, for one row and for many."""
    forms = {"float": [], "y": [(A8, W8, None, "", "always"), (None, W8), (None, W4)]}
    for rows, order in ((1, [3, 1, 2, 0]), (256, [1, 0, 2, 3])):
        model = load(f"(float[{rows},2048] x) => (float[{rows},2048] y) {{ y = MatMul(x, w) }}", w=(2048, 2048))
        found = [
            nanoseconds(model, plan(model, floats="y")),
            *(nanoseconds(model, plan(model, y=w)) for w in forms["y"]),
        ]
        fastest = sorted(range(4), key=found.__getitem__)
        assert (fastest[0] == order[0]) or rows == 1
        assert found[1] < found[0], "8 bits at run time are faster than float"
        assert (found[3] < found[0]) is (rows == 1), "4 bits pay with one row only"


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_sizes_are_those_of_written_files(weights: str) -> None:
    model = onnxq.run("prepare", LENET).model
    prepared = ir.from_proto(model)
    wish = Wish(None, W8 if weights == "int8" else W4)
    layers = [n for n in prepared.graph if n.op_type in ("Conv", "Gemm")]
    made = Planner(TARGET, Wishes(A8, wish.weight, nodes=dict.fromkeys(layers, wish), weight_only=True)).make(prepared)
    options: dict[str, Any] = {"recipe": "w8"} if weights == "int8" else {"recipe": "w4-blocked", "block_size": 32}
    written = ir.from_proto(onnxq.quantize(LENET, **options).model)
    size = sum(nbytes(tensor) for _, tensor in constants_of(written.graph))
    assert Costs(prepared, {}, {}).size(made) == pytest.approx(size, rel=0.03)
    nothing = Planner(TARGET, Wishes(A8, W8, banned={n: Decision("float", "x", "x") for n in prepared.graph}))
    assert Costs(prepared, {}, {}).size(nothing.make(prepared)) == sum(
        nbytes(t) for _, t in constants_of(prepared.graph)
    )


def test_elementwise_integers_and_bridges() -> None:
    text = """(float[1,32,16,16] x) => (float[1,32,16,16] z)
      { a = Conv<pads=[1,1,1,1]>(x, w1) b = Conv<pads=[1,1,1,1]>(a, w2)
        c = Add(a, b) z = Conv<pads=[1,1,1,1]>(c, w3) }"""
    model = load(text, w1=(32, 32, 3, 3), w2=(32, 32, 3, 3), w3=(32, 32, 3, 3))
    whole, no_add = nanoseconds(model, plan(model)), nanoseconds(model, plan(model, floats="c"))
    values = 32 * 256
    more = 2 * (CALL + TABLE["dequantize"].value * values) + CALL + TABLE["quantize 8"].value * values
    more += (TABLE["float"].value - TABLE["int8"].value) * values
    assert no_add - whole == pytest.approx(more)
    mixed = plan(model, b=(A16, W8))
    assert mixed.bridges and nanoseconds(model, mixed) > whole
