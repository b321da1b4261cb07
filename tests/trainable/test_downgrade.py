"""Opset downgrade: the same nodes, or a refusal that says which and why."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from onnx import parser

from onnxq.opsets.upgrade import Obstacle
from onnxq.trainable.downgrade import downgrade, restore


def model(body: str, opset: int = 21, types: str = "float[1, 3, 4, 4] x", out: str = "float y") -> ir.Model:
    version = 10 if opset < 23 else 12
    text = f'<ir_version: {version}, opset_import: ["": {opset}]> g ({types}) => ({out}) {{ {body} }}'
    return ir.from_proto(parser.parse_model(text))


def lowered(body: str, to: int = 18, **about: object) -> onnx.ModelProto:
    made = model(body, **about)  # type: ignore[arg-type]
    downgrade(made, to)
    made.ir_version = 9
    proto = ir.to_proto(made)
    onnx.checker.check_model(proto)
    assert proto.opset_import[0].version == to
    return proto


@pytest.mark.parametrize(
    "body",
    [
        "y = Cast <to = 1> (x)",
        "y = Resize <mode = \"linear\"> (x, , , n)",
        "y = AveragePool <kernel_shape = [2, 2]> (x)",
        "y = ReduceMean (x, n)",
        "y = Pad <mode = \"reflect\"> (x, n)",
        "y = LayerNormalization (x, x)",
    ],
)  # fmt: skip
def test_nodes_that_mean_the_same_stay(body: str) -> None:
    for opset in (19, 21, 24):
        types = "float[1, 3, 4, 4] x, int64[1] n" if "n)" in body else "float[1, 3, 4, 4] x"
        before = ir.to_proto(model(body, opset, types))
        assert list(lowered(body, opset=opset, types=types).graph.node) == list(before.graph.node)


def test_attributes_at_their_default_go_and_come_back() -> None:
    made = model("q = QuantizeLinear <saturate = 1, axis = 0> (x, s, z)  y = Cast <to = 1, saturate = 1> (q)",
                 types="float[3] x, float s, int8 z")  # fmt: skip
    before = [dict(n.attributes.items()) for n in made.graph]
    assert downgrade(made, 18) == 2
    assert [set(n.attributes) for n in made.graph] == [{"axis"}, {"to"}]
    assert restore(made) == 2
    assert [{k: a.value for k, a in n.attributes.items()} for n in made.graph] == [
        {k: a.value for k, a in known.items()} for known in before
    ]


@pytest.mark.parametrize(
    ("body", "opset", "to", "types", "why"),
    [
        ("y = Gelu (x)", 20, 18, "float[3] x", "it came with opset 20"),
        ("y = Pad <mode = \"wrap\"> (x, n)", 19, 18, "float[3] x, int64[2] n", "mode='wrap' came later"),
        ("y = Cast <to = 1, saturate = 0> (x)", 21, 18, "float[3] x", "saturate=0 came later"),
        ("y = GridSample (x, x)", 20, 18, "float[1, 3, 4, 2] x", "it changed its meaning at opset 20"),
        ("y = ReduceMean (x, n)", 21, 17, "float[3] x, int64[1] n", "it changed its meaning at opset 18"),
        ("y = QuantizeLinear (x, s, z)", 21, 18, "float[3] x, float s, int16 z", "its input 'z' is int16"),
        ("y = QuantizeLinear (x, s, z)", 19, 18, "float16[3] x, float16 s, int8 z", "its input 'x' is float16"),
        ("y = DequantizeLinear <block_size = 2, axis = 0> (x, s)", 21, 18, "int8[4] x, float[2] s", "block_size=2"),
        ("y = Identity (x)", 21, 18, "int4[3] x", "its input 'x' is int4"),
        ("y = Bogus (x)", 21, 18, "float[3] x", "it is no operator of opset 21"),
    ],
)  # fmt: skip
def test_refused(body: str, opset: int, to: int, types: str, why: str) -> None:
    made = model(body, opset, types)
    made.graph[0].name = "n"
    before = ir.to_proto(made).SerializeToString(deterministic=True)
    with pytest.raises(Obstacle) as error:
        downgrade(made, to)
    assert why in error.value.why and error.value.node.name == "n"
    assert ir.to_proto(made).SerializeToString(deterministic=True) == before, "all or nothing"


def test_bodies_are_looked_at() -> None:
    with pytest.raises(Obstacle, match="opset 20"):
        downgrade(
            model(
                "y = If (c) <then_branch = t () => (float[3] a) { a = Gelu (x) }, "
                "else_branch = e () => (float[3] b) { b = Identity (x) }>",
                20, "float[3] x, bool c",
            ),
            18,
        )  # fmt: skip


def test_functions_follow() -> None:
    made = ir.from_proto(
        parser.parse_model("""
        <ir_version: 10, opset_import: ["": 21, "own": 1]> g (float[3] x) => (float[3] y) { y = own.f (x) }
        <domain: "own", opset_import: ["": 21]> f (a) => (b) { b = Abs (a) }""")
    )
    downgrade(made, 17)
    (function,) = made.functions.values()
    assert function.opset_imports[""] == made.opset_imports[""] == 17
