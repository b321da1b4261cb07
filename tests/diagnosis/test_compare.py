import json
import math

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import numpy_helper, parser

from onnxq.diagnosis.comparing import compare, race
from onnxq.diagnosis.comparison import Comparison, Output
from onnxq.errors import DataError, InputError, OptionError
from onnxq.numerics.similarity import Agreement
from onnxq.report.compare import to_text
from onnxq.session import Runtime, open_session

RNG = np.random.default_rng(0)
HEAD = '<ir_version: 10, opset_import: ["": 21]>'
WEIGHT = RNG.normal(size=(8, 5)).astype(np.float32)
SAMPLES = [{"x": RNG.normal(size=(2, 8)).astype(np.float32)} for _ in range(4)]


def model(text, **arrays):
    out = parser.parse_model(f"{HEAD} {text}")
    out.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items())
    return out


def float_model(weight=WEIGHT):
    return model("g (float[n, 8] x) => (float[n, 5] y) { y = MatMul(x, w) }", w=weight)


def quant_model(scale=0.02, weight=WEIGHT):
    ws = (np.abs(weight).max(axis=0) / 127).astype(np.float32)
    return model(
        """g (float[n, 8] x) => (float[n, 5] y) {
            xq = QuantizeLinear(x, xs, xz)  xd = DequantizeLinear(xq, xs, xz)
            wd = DequantizeLinear<axis = 1>(wq, ws, wz)  m = MatMul(xd, wd)
            yq = QuantizeLinear(m, ys, yz)  y = DequantizeLinear(yq, ys, yz)
        }""",
        xs=np.float32(scale),
        xz=np.uint8(128),
        ys=np.float32(0.05),
        yz=np.uint8(128),
        wq=np.rint(weight / ws).astype(np.int8),
        ws=ws,
        wz=np.zeros(5, np.int8),
    )


def run(proto, *config):
    options = ort.SessionOptions()
    for key in config:
        options.add_session_config_entry(key, "1")
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, feeds)[0] for feeds in SAMPLES])


def test_numbers_are_those_of_onnxruntime():
    found = compare(float_model(), quant_model(), SAMPLES, latency=False)
    reference = run(float_model()).astype(np.float64)
    for name, config in (
        ("default", ()),
        ("true", ("session.disable_quant_qdq", "session.disable_double_qdq_remover")),
    ):
        other = run(quant_model(), *config).astype(np.float64)
        got = found.outputs[0].sessions[name]
        norms = np.linalg.norm(reference) * np.linalg.norm(other)
        assert got.cosine == pytest.approx(np.sum(reference * other) / norms, abs=1e-12)
        noise = np.sum((reference - other) ** 2)
        assert got.sqnr_db == pytest.approx(10 * np.log10(np.sum(reference**2) / noise), abs=1e-9)
        assert got.max_abs_error == np.abs(reference - other).max()
        assert got.top1 == np.mean(reference.argmax(-1) == other.argmax(-1))
        assert (got.samples, got.values) == (4, 40)
    assert found.samples == 4 and found.outputs[0].gap.samples == 4


def test_a_model_equals_itself():
    found = compare(float_model(), float_model(), SAMPLES, latency=False)
    for agreement in found.outputs[0].sessions.values():
        assert (agreement.cosine, agreement.sqnr_db, agreement.equal, agreement.top1) == (1.0, None, 1.0, 1.0)
    assert found.beyond(1.0, 1000.0) == [] and found.gaps() == []


def square_axis_model():
    """Per-channel axis on the wrong side of a square weight: onnxruntime ignores it, the file means it."""
    weight = (RNG.normal(size=(5, 5)) * [[1], [10], [100], [1], [10]]).astype(np.float32)
    ws = (np.abs(weight).max(axis=1) / 127).astype(np.float32)
    quantized = model(
        """g (float[n, 5] x) => (float[n, 5] y) {
            xq = QuantizeLinear(x, xs, xz)  xd = DequantizeLinear(xq, xs, xz)
            wd = DequantizeLinear<axis = 0>(wq, ws, wz)  y = MatMul(xd, wd)
        }""",
        xs=np.float32(0.03),
        xz=np.uint8(128),
        wq=np.rint(weight / ws[:, None]).astype(np.int8),
        ws=ws,
        wz=np.zeros(5, np.int8),
    )
    return model("g (float[n, 5] x) => (float[n, 5] y) { y = MatMul(x, w) }", w=weight), quantized


def test_a_gap_between_the_sessions_is_a_finding():
    reference, quantized = square_axis_model()
    data = [{"x": RNG.normal(size=(4, 5)).astype(np.float32)}]
    found = compare(reference, quantized, data, latency=False)
    assert found.outputs[0].sessions["true"].sqnr_db > 30 > 10 > found.outputs[0].sessions["default"].sqnr_db
    assert len(found.gaps()) == 1 and "dB worse than what the file says" in found.gaps()[0]
    assert found.gaps()[0] in to_text(found, width=1000)
    assert [line for line in found.beyond(min_sqnr=20) if "(default)" in line] == found.beyond(min_sqnr=20)


def test_one_session_only():
    found = compare(float_model(), quant_model(), SAMPLES, sessions=["true"], latency=True)
    assert list(found.outputs[0].sessions) == ["true"] and found.outputs[0].gap is None
    assert found.float_ms is None and found.quant_ms is None and found.gaps() == []


def test_samples_of_other_shapes_and_a_limit():
    mixed = [{"x": RNG.normal(size=(n, 8)).astype(np.float32)} for n in (1, 3, 2)]
    found = compare(float_model(), quant_model(), mixed, samples=2, latency=False)
    assert found.samples == 2 and found.outputs[0].sessions["default"].values == 20


def test_outputs_are_streamed():
    """An endless source is read one sample at a time and no further than asked."""
    made = []

    class Endless:
        def __iter__(self):
            while True:
                made.append(1)
                yield SAMPLES[0]

    found = compare(float_model(), quant_model(), Endless(), samples=3, latency=False)
    assert found.samples == 3 and len(made) <= 4


def test_integer_and_several_outputs():
    head = "g (float[n, 8] x) => (float[n, 5] y, int64[n] best)"
    best = "best = ArgMax<axis = 1, keepdims = 0>"
    reference = model(f"{head} {{ y = MatMul(x, w) {best}(y) }}", w=WEIGHT)
    other = model(f"{head} {{ y = MatMul(x, w) z = Neg(y) {best}(z) }}", w=WEIGHT)
    found = compare(reference, other, SAMPLES, latency=False)
    assert [output.name for output in found.outputs] == ["y", "best"]
    answer = found.outputs[1].sessions["default"]
    expected = np.mean(run(reference).argmax(1) == run(reference).argmin(1))
    assert answer.cosine is None and answer.equal == expected
    assert found.beyond(min_cosine=0.5) == [f"best ({s}): 100 % of the values differ" for s in ("default", "true")]


def test_latency_sizes_and_text():
    found = compare(float_model(), quant_model(), SAMPLES[:1])
    assert found.float_ms > 0 and found.quant_ms > 0
    assert (found.float_bytes, found.quant_bytes) == (float_model().ByteSize(), quant_model().ByteSize())
    text = to_text(found)
    assert "default : true" in text and "Latency" in text and "cosine" in text


def test_race_measures_each_model_as_often():
    with open_session(ir.from_proto(float_model()), Runtime(threads=1)) as session:
        left, right = race(session, session, SAMPLES[0], seconds=0.0)
    assert 0.1 < left / right < 10


def test_files_with_external_data(tmp_path):
    onnx.save(float_model(), tmp_path / "f.onnx")
    onnx.save(quant_model(), tmp_path / "q.onnx", save_as_external_data=True, location="q.data", size_threshold=0)
    found = compare(tmp_path / "f.onnx", str(tmp_path / "q.onnx"), SAMPLES, latency=False)
    stored = sum(len(t.raw_data) for t in quant_model().graph.initializer)
    assert found.quant_bytes == (tmp_path / "q.onnx").stat().st_size + stored
    again = compare(float_model().SerializeToString(), quant_model(), SAMPLES, latency=False)
    assert again.outputs == found.outputs


@pytest.mark.parametrize(
    ("inputs", "outputs", "nodes", "words"),
    [
        ("float[n, 8] a", "float[n, 5] y", "y = MatMul(a, w)", "input 'x' is missing in the quantized model"),
        ("float[n, 8] x", "float[n, 5] z", "z = MatMul(x, w)", "output 'z' is missing in the float model"),
        (
            "float[n, 8] x",
            "float[n, 8] y",
            "y = Relu(x)",
            "float32[?, 5] in the float model, float32[?, 8]",
        ),
        ("float[n, 8] x", "double[n, 5] y", "m = MatMul(x, w) y = Cast<to = 11>(m)", "float64[?, 5] in the quantized"),
    ],
)
def test_other_inputs_or_outputs_are_an_error(inputs, outputs, nodes, words):
    with pytest.raises(InputError, match="the models do not match") as caught:
        compare(float_model(), model(f"g ({inputs}) => ({outputs}) {{ {nodes} }}", w=WEIGHT), SAMPLES)
    assert words in str(caught.value)


@pytest.mark.parametrize("declared", ["float[5]", "float[n, 4]", "float[n, 5, 1]"])
def test_an_output_declared_wrong_in_one_model(declared):
    """Exporters declare shapes that the nodes do not make; preparation puts that right."""
    wrong = model(f"g (float[n, 8] x) => ({declared} y) {{ y = MatMul(x, w) }}", w=WEIGHT)
    found = compare(wrong, quant_model(), SAMPLES, latency=False)
    assert found.outputs == compare(float_model(), quant_model(), SAMPLES, latency=False).outputs
    (note,) = found.notes
    assert "output 'y' is float32[" in note and "float32[?, 5] in the quantized one" in note
    assert note in to_text(found, 300) and found.to_json()["notes"] == [note]


def test_the_order_of_outputs_counts():
    left, right = (
        model(f"g (float[n, 8] x) => (float[n, 8] {a}, float[n, 8] {b}) {{ a = Relu(x) b = Neg(x) }}")
        for a, b in ("ab", "ba")
    )
    with pytest.raises(InputError, match="another order"):
        compare(left, right, SAMPLES)


def test_outputs_that_are_no_tensors():
    sequence = model("g (float[n, 8] x) => (seq(float) y) { y = SequenceConstruct(x) }")
    with pytest.raises(InputError, match=r"output 'y' is a Sequence.*only tensors can be compared"):
        compare(sequence, sequence, SAMPLES)


def test_a_session_that_fails_names_model_and_session(tmp_path):
    """int8 zero point next to output_dtype is valid ONNX, and onnxruntime's default session refuses it."""
    text = """g (float[n, 8] x) => (float[n, 8] y) {
        q = QuantizeLinear<output_dtype = 3>(x, s, z)  y = DequantizeLinear(q, s, z)
    }"""
    onnx.save(model(text, s=np.float32(0.1), z=np.int8(0)), tmp_path / "q.onnx")
    reference = model("g (float[n, 8] x) => (float[n, 8] y) { y = Identity(x) }")
    with pytest.raises(
        InputError, match=r"q\.onnx \(quantized model, onnxruntime's default session\): onnxruntime cannot"
    ):
        compare(reference, tmp_path / "q.onnx", SAMPLES)
    assert compare(reference, tmp_path / "q.onnx", SAMPLES, sessions=["true"]).samples == 4


def test_a_model_that_cannot_run_is_named():
    broken = model(
        "g (float[n, 8] x) => (float[n, 5] y) { z = Reshape(x, s) y = MatMul(z, w) }", s=np.array([3, 8]), w=WEIGHT
    )
    with pytest.raises(
        InputError, match=r"^quantized model, .*: onnxruntime cannot run the model with x float32\[2, 8\]"
    ):
        compare(float_model(), broken, SAMPLES)


def test_no_samples():
    with pytest.raises(DataError):
        compare(float_model(), quant_model(), [])


def test_unknown_session():
    with pytest.raises(OptionError, match="unknown session 'defalt'; did you mean default"):
        compare(float_model(), quant_model(), SAMPLES, sessions=["defalt"])


def agreement(**values):
    return Agreement(
        **{"samples": 1, "values": 4, "equal": 0.0, "broken": 0, "cosine": 0.99, "sqnr_db": 20.0, **values}
    )


def test_bounds():
    found = Comparison("d", 1, [Output("y", {"default": agreement()})])
    assert found.beyond() == [] and found.beyond(0.99, 20.0) == []
    assert found.beyond(min_cosine=0.995) == ["y (default): cosine 0.990000 is below 0.995"]
    assert found.beyond(min_sqnr=25) == ["y (default): SQNR 20.0 dB is below 25 dB"]
    assert Comparison("d", 1, [Output("y", {"true": agreement(sqnr_db=None, cosine=1.0)})]).beyond(1.0, 99.0) == []
    broken = Comparison("d", 1, [Output("y", {"true": agreement(broken=2)})])
    assert broken.beyond() == ["y (true): 2 of 4 values finite in only one of the models"]
    # A NaN misses every bound.
    not_a_number = Comparison("d", 1, [Output("y", {"true": agreement(cosine=math.nan)})])
    assert not_a_number.beyond(min_cosine=0.5)


def test_json_is_plain():
    data = json.loads(
        json.dumps(compare(float_model(), quant_model(), SAMPLES, latency=False).to_json(), allow_nan=False)
    )
    assert data["format"] == "onnxq-compare-1" and data["samples"] == 4 and data["gaps"] == []
    assert set(data["outputs"][0]["sessions"]) == {"default", "true"}


def test_one_model_breaks():
    reference = model("g (float[n, 8] x) => (float[n, 8] y) { y = Relu(x) }")
    other = model("g (float[n, 8] x) => (float[n, 8] y) { r = Relu(x) y = Div(r, zero) }", zero=np.float32(0))
    found = compare(reference, other, SAMPLES, latency=False)
    assert found.outputs[0].sessions["default"].broken == 64
    assert "finite in only one of the models" in to_text(found)
