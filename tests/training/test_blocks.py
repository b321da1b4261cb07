import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

import onnxq
from onnxq.session import Runtime, open_session
from onnxq.training.blocks import blocks, quantized_weights

TRUE = Runtime(true_semantics=True, threads=1)
BODY = """<ir_version: 10, opset_import: ["": 21]> g (float[n, 4, 6, 6] x, float[n, 4, 1, 1] mask) => (float[n, 4] y) {
    m = Mul(mask, two)
    a = Conv<pads = [1, 1, 1, 1]>(x, w0, b0)  b = Relu(a)
    c = Conv(b, w1, b1)  d = Relu(c)  e = Conv(d, w2, b2)  gated = Mul(e, m)  s = Add(b, gated)
    f = Relu(s)  g0 = Mul(f, m)
    h = GlobalAveragePool(g0)  k = Flatten(h)  y = Gemm<transB = 1>(k, w3, b3)
}"""


def float_model():
    rng = np.random.default_rng(0)
    proto = parser.parse_model(BODY)
    shapes = {"w0": (4, 4, 3, 3), "w1": (8, 4, 1, 1), "w2": (4, 8, 1, 1), "w3": (4, 4)}
    arrays = {name: rng.normal(size=shape) * (2 / np.prod(shape[1:])) ** 0.5 for name, shape in shapes.items()}
    arrays |= {f"b{i}": rng.normal(size=n) * 0.1 for i, n in enumerate((4, 8, 4, 4))}
    arrays["two"] = np.array(2.0)
    proto.graph.initializer.extend(numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items())
    return proto


def samples(count=2, batch=2):
    rng = np.random.default_rng(1)
    return [
        {
            "x": rng.normal(size=(batch, 4, 6, 6)).astype(np.float32),
            "mask": rng.uniform(size=(batch, 4, 1, 1)).astype(np.float32),
        }
        for _ in range(count)
    ]


@pytest.fixture(scope="module")
def models():
    proto = float_model()
    quantized = onnxq.quantize(
        proto, samples(), recipe="a8w4", target="ascend", pack_axis="flat", rounding="nearest"
    ).model
    return ir.from_proto(quantized), ir.from_proto(proto)


def outline(found):
    ends = [(b.begin and b.begin.name, b.end and b.end.name) for b in found]
    return [(*end, len(block.layers)) for end, block in zip(ends, found, strict=True)]


def test_a_shortcut_makes_one_block_and_what_has_no_weights_goes_with_the_layer_before(models):
    assert outline(blocks(*models)) == [(None, "b", 1), ("b", "k", 2), ("k", None, 1)]


def test_layers_joins_neighbours(models):
    assert outline(blocks(*models, layers=2)) == [(None, "k", 3), ("k", None, 1)]
    assert outline(blocks(*models, layers=9)) == [(None, None, 4)]


def test_layers_of_the_blocks_are_those_with_quantized_weights(models):
    assert [node.op_type for block in blocks(*models) for node in block.layers] == ["Conv", "Conv", "Conv", "Gemm"]
    for block in blocks(*models):
        for node in block.layers:
            (weight,) = quantized_weights(node)  # the int32 bias is none
            assert weight.producer().inputs[0].dtype == ir.DataType.INT4


def test_parts_read_only_what_they_need(models):
    quantized, reference = models
    inputs = []
    for block in blocks(quantized, reference):
        cut = block.quantized(quantized)
        inputs.append({value.name: value.shape for value in cut.graph.inputs})
    assert [list(names) for names in inputs] == [["x"], ["b", "mask"], ["k"]]
    assert inputs[1]["b"] is None  # whatever batch is fed
    assert inputs[1]["mask"] is not None


def test_parts_one_after_the_other_give_what_the_whole_gives(models):
    for side, model in enumerate(models):
        sample = samples()[0]
        with open_session(model, TRUE) as session:
            whole = session.run(sample)
        value = None
        for block in blocks(*models):
            cut = block.exact(model) if side else block.quantized(model, before_pair=True)
            begin = block.begin and (block.begin.reference if side else block.begin.computed)
            feeds = sample | ({} if begin is None else {begin.name: value})
            with open_session(cut, TRUE) as session:
                (value,) = session.run({name: feeds[name] for name in session.inputs})
        np.testing.assert_array_equal(value, whole[0])


def test_the_model_stays_as_it_is(models):
    quantized, _ = models
    before = ir.to_proto(quantized).SerializeToString(deterministic=True)
    for block in blocks(*models):
        block.quantized(quantized)
    assert ir.to_proto(quantized).SerializeToString(deterministic=True) == before


def test_a_value_that_several_pairs_read_is_a_cut():
    proto = float_model()
    reference = ir.from_proto(proto)
    quantized = ir.from_proto(
        onnxq.quantize(proto, samples(), recipe="a8w4", target="ascend", pack_axis="flat", rounding="nearest").model
    )
    (dq,) = [n for n in quantized.graph if n.op_type == "DequantizeLinear" and n.outputs[0].name == "b_dequantized"]
    q = dq.inputs[0].producer()
    twins = [ir.Node("", n.op_type, list(n.inputs), list(n.attributes.values())) for n in (q, dq)]
    for node in twins:
        node.outputs[0].name = f"{node.op_type}_twin"
    twins[1].replace_input_with(0, twins[0].outputs[0])
    quantized.graph.insert_after(dq, twins)
    add = next(n for n in quantized.graph if n.op_type == "Add")
    add.replace_input_with(next(i for i, v in enumerate(add.inputs) if v is q.inputs[0]), twins[1].outputs[0])
    assert outline(blocks(quantized, reference)) == [(None, "b", 1), ("b", "k", 2), ("k", None, 1)]


def test_no_quantized_weights_no_blocks():
    model = ir.from_proto(float_model())
    assert blocks(model, model) == []
