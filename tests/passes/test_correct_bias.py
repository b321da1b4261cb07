"""correct-bias: the mean of every output channel is again that of the float layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

from onnxq.calibration.sources import open_source
from onnxq.facts import Axes, Edge, Encodings, Feeds, Plan, Wishes
from onnxq.numerics.affine import fake_quantize
from onnxq.numerics.encodings import from_range
from onnxq.numerics.spec import QTYPES, PerAxis, TensorSpec
from onnxq.ops import channel_axis
from onnxq.passbase import Context, run_step
from onnxq.passes.correct_bias import CorrectBias
from onnxq.passes.encode import Encode
from onnxq.recipe import load_recipe

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)
U8, I4 = TensorSpec(QTYPES["uint8"]), TensorSpec(QTYPES["int4"], True, PerAxis())

FORMS: dict[str, tuple[str, dict[str, Array], tuple[int, ...]]] = {
    "conv": ("y = Conv<pads=[1,1,1,1]>(x, w, b)", {"w": RNG.standard_normal((8, 4, 3, 3)), "b": np.ones(8)},
             (1, 4, 6, 6)),
    "depthwise": ("y = Conv<group=4, strides=[2,2]>(x, w, b)",
                  {"w": RNG.standard_normal((8, 1, 3, 3)), "b": np.ones(8)},
                  (1, 4, 9, 9)),
    "gemm": ("y = Gemm(x, w, b)", {"w": RNG.standard_normal((24, 8)), "b": np.ones(8)}, (16, 24)),
    "gemm-transb": ("y = Gemm<transB=1>(x, w, b)", {"w": RNG.standard_normal((8, 24)), "b": np.ones((1, 8))}, (16, 24)),
    "matmul": ("m = MatMul(x, w) y = Add(m, b)", {"w": RNG.standard_normal((24, 8)), "b": np.array(0.5)}, (2, 4, 24)),
}  # fmt: skip


def correct(text: str, constants: dict[str, Array], feeds: list[dict[str, Array]], **options: Any) -> Any:
    """The model afterwards (weights as rounded), and the context; the activation x stands in [-1, 1]."""
    proto = parser.parse_model(text)
    proto.graph.initializer.extend(numpy_helper.from_array(a.astype(np.float32), k) for k, a in constants.items())
    model, ctx = ir.from_proto(proto), Context()
    run_step(load_recipe("prepare"), model, ctx)
    plan, axes = Plan(Wishes(U8, I4)), Axes()
    for node in model.graph:
        if node.op_type in ("Conv", "Gemm", "MatMul"):
            edge = Edge(node, 1)
            plan.weights[edge] = I4
            axes.of[edge] = PerAxis(channel_axis(node, 1, len(edge.value.shape or ())))
    ctx.put(plan, axes)
    run_step(Encode(), model, ctx)
    encodings = ctx.get(Encodings)
    if options.pop("quantized_input", False):
        encodings.activations[model.graph.inputs[0]] = from_range(-1.0, 1.0, U8)
    if feeds:
        ctx.put(Feeds(open_source(feeds, model=model)))
    changed = run_step(CorrectBias(**options), model, ctx)
    assert ctx.has(Encodings) and ctx.has(Plan), "the facts stay"
    for edge, encoding in encodings.weights.items():
        value = edge.value
        assert value.const_value is not None
        value.const_value = ir.tensor(fake_quantize(value.const_value.numpy(), encoding), name=value.name)
    return proto, ir.to_proto(model), ctx, changed


def head(name: str) -> str:
    body, _, dims = FORMS[name]
    shape, out = ",".join(map(str, dims)), ",".join("abcd"[: len(dims)])
    return f'<ir_version: 8, opset_import: ["" : 17]> g (float[{shape}] x) => (float[{out}] y) {{ {body} }}'


def samples(*dims: int) -> list[dict[str, Array]]:
    rng = np.random.default_rng(1)
    return [{"x": (rng.standard_normal(dims) + 1).astype(np.float32)} for _ in range(3)]


@pytest.mark.parametrize("quantized_input", [False, True])
@pytest.mark.parametrize("name", FORMS)
def test_channel_means_are_those_of_float(name: str, quantized_input: bool, run_model: Callable[..., Any]) -> None:
    """In onnxruntime, on all samples together; before, they were off. Clipped inputs are made up for, too."""
    _, constants, dims = FORMS[name]
    feeds = samples(*dims)
    before, after, ctx, changed = correct(head(name), constants, feeds, quantized_input=quantized_input)
    assert changed and ctx.report.of("correct-bias")[0].numbers == {"layers": 1}
    encoding = from_range(-1.0, 1.0, U8)
    axis = 1 if len(dims) == 4 else len(dims) - 1
    uncorrected = onnx.ModelProto.FromString(after.SerializeToString())
    names = {t.name: i for i, t in enumerate(uncorrected.graph.initializer)}
    bias = np.broadcast_to(constants["b"], (1, 8) if name == "gemm-transb" else (8,)).astype(np.float32)
    uncorrected.graph.initializer[names["b"]].CopyFrom(numpy_helper.from_array(bias, "b"))
    means = []
    for proto, rounded in ((before, False), (after, quantized_input), (uncorrected, quantized_input)):
        ys = [run_model(proto, {"x": fake_quantize(f["x"], encoding) if rounded else f["x"]})[0] for f in feeds]
        y = np.stack(ys).astype(np.float64)
        means.append(y.mean(axis=tuple(i for i in range(y.ndim) if i != axis + 1)))
    assert np.abs(means[2] - means[0]).max() > 0.05
    np.testing.assert_allclose(means[1], means[0], atol=1e-4)


def test_a_bias_of_two_layers_is_parted() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[16,24] x) => (float[a,b] y, float[c,d] z) {
      y = Gemm(x, w, b) z = Gemm(x, v, b) }"""
    constants = {"w": RNG.standard_normal((24, 8)), "v": RNG.standard_normal((24, 8)), "b": np.ones(8)}
    _, after, ctx, _ = correct(text, constants, samples(16, 24))
    one, two = (n.input[2] for n in after.graph.node)
    assert one != two and ctx.report.of("correct-bias")[0].numbers == {"layers": 2}


def test_layers_without_a_bias_are_counted() -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[16,24] x) => (float[a,b] y) { y = MatMul(x, w) }'
    _, _, ctx, changed = correct(text, {"w": RNG.standard_normal((24, 8))}, samples(16, 24))
    assert not changed and ctx.report.of("correct-bias-none")[0].numbers == {"layers": 1}


def test_without_samples_biases_stay() -> None:
    _, constants, _ = FORMS["gemm"]
    _, after, ctx, changed = correct(head("gemm"), constants, [])
    assert not changed and len(ctx.report.of("correct-bias-skipped")) == 1
    bias = next(t for t in after.graph.initializer if t.name == "b")
    np.testing.assert_array_equal(numpy_helper.to_array(bias), np.ones(8))
