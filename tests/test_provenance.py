import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper, parser

import onnxq
from onnxq import border, provenance
from onnxq.diagnosis.matching import match
from onnxq.edit import Namer, replace_uses

HEAD = '<ir_version: 10, opset_import: ["": 21]>'
RNG = np.random.default_rng(0)


def model(text, **arrays):
    out = parser.parse_model(f"{HEAD} g {text}")
    out.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items())
    return out


def conv_bn():
    n = {k: np.abs(RNG.normal(size=4)).astype(np.float32) + 0.5 for k in ("g", "b", "m", "v")}
    text = """(float[1, 3, 5, 5] x) => (float[1, 4, 3, 3] y) {
        c = Conv(x, w) n = BatchNormalization(c, g, b, m, v) d = Identity(n) y = Relu(d) }"""
    return model(text, w=RNG.normal(size=(4, 3, 3, 3)).astype(np.float32), **n)


def marks(proto):
    infos = (*proto.graph.input, *proto.graph.output, *proto.graph.value_info)
    return {i.name: p.value for i in infos for p in i.metadata_props if p.key == provenance.SOURCE_KEY}


def matched(reference, candidate):
    found = match(border.open_model(reference).model, border.open_model(candidate).model)
    return found.how, {m.name: m.computed.name for m in found.matches}, found.alone


def test_a_value_that_holds_something_else_leads_to_what_it_holds():
    """BatchNormalization goes into the Conv: the Conv's output is what the BatchNormalization's was."""
    reference = conv_bn()
    prepared = onnxq.run("prepare", reference).model
    assert marks(prepared) == {"c": "n"}
    assert matched(reference, prepared) == ("provenance", {"x": "x", "n": "c", "y": "y"}, ("c", "d"))


def test_a_second_run_leads_to_the_first_model():
    reference = conv_bn()
    prepared = onnxq.run("prepare", reference).model
    data = [{"x": RNG.normal(size=(1, 3, 5, 5)).astype(np.float32)}]
    quantized = onnxq.quantize(prepared, data, rounding="nearest").model
    assert marks(quantized)["c"] == "n"
    how, pairs, _ = matched(reference, quantized)
    assert how == "provenance" and pairs["n"] == "c"
    assert matched(prepared, quantized)[1]["c"] == "c", "both lead to the same value of the first model"


def test_nothing_is_written_where_names_tell_it_all():
    reference = model("(float[2] x) => (float[2] y) { a = Tanh(x) y = Exp(a) }")
    prepared = onnxq.run("prepare", reference).model
    assert marks(prepared) == {} and marks(reference) == {}


def test_names_are_all_there_is_without_onnxq():
    reference = model("(float[2] x) => (float[2] y) { a = Tanh(x) y = Exp(a) }")
    other = model("(float[2] x) => (float[2] y) { b = Tanh(x) y = Exp(b) }")
    assert matched(reference, other) == ("names", {"x": "x", "y": "y"}, ("a",))


def test_values_are_followed_through_their_pairs():
    reference = model("(float[2] x) => (float[2] y) { a = Tanh(x) y = Exp(a) }")
    quantized = model(
        """(float[2] x) => (float[2] y) {
            a = Tanh(x) aq = QuantizeLinear(a, s, z) ad = DequantizeLinear(aq, s, z)
            b = Exp(ad) bq = QuantizeLinear(b, s, z) y = DequantizeLinear(bq, s, z)
        }""",
        s=np.float32(1),
        z=np.uint8(0),
    )
    found = match(*(border.open_model(m).model for m in (reference, quantized)))
    assert {m.name: (m.computed.name, m.seen.name) for m in found.matches} == {
        "x": ("x", "x"),
        "a": ("a", "ad"),
        "y": ("b", "y"),
    }


def test_a_fresh_name_that_was_in_use_stands_for_nothing():
    graph = border.open_model(model("(float[2] x) => (float[2] y) { a = Tanh(x) y = Exp(a) }")).model
    names = provenance.start(graph)
    old = graph.graph[0].outputs[0]
    new = ir.node("Sigmoid", [graph.graph.inputs[0]])
    graph.graph.insert_before(graph.graph[0], new)
    for edge in list(old.uses()):
        edge.node.replace_input_with(edge.idx, new.outputs[0])
    graph.graph.remove(graph.graph[1], safe=True)
    new.outputs[0].name = "a"
    provenance.finish(graph, names)
    assert provenance.source_of(new.outputs[0]) == "" and provenance.source_of(graph.graph.outputs[0]) == "y"


def test_a_stand_in_keeps_a_mark_of_its_own():
    graph = border.open_model(model("(float[2] x) => (float[2] y) { a = Tanh(x) b = Identity(a) y = Exp(b) }")).model
    names = provenance.start(graph)
    a, b = graph.graph[0].outputs[0], graph.graph[1].outputs[0]
    replace_uses(b, a, Namer(graph))
    provenance.finish(graph, names)
    assert provenance.source_of(a) == "a"


def test_marks_survive_a_file(tmp_path):
    onnxq.run("prepare", conv_bn(), output=tmp_path / "m.onnx")
    assert marks(onnx.load(tmp_path / "m.onnx")) == {"c": "n"}
