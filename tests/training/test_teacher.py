"""The teacher: which values are compared, and the same targets whether they are kept or not."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx import parser

from onnxq.context import Context
from onnxq.errors import OptionError
from onnxq.session import Runtime
from onnxq.training.data import Examples
from onnxq.training.samples import Example
from onnxq.training.shares import divide
from onnxq.training.teacher import Targets, open_teacher

NET = """<ir_version: 10, opset_import: ["": 21]> g (float[N, 3] x) => (float[N, 3] p, float[N, 3] r, int64[N] k) {
    h = Mul(x, x)  p = Softmax(h)  r = Relu(x)  k = ArgMax <axis = 1, keepdims = 0>(x) }"""
RUNTIME = Runtime(threads=1)


@pytest.fixture
def model():
    return ir.from_proto(parser.parse_model(NET))


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)


def test_logits_are_what_is_compared_and_outputs_are_what_is_shown(model, x):
    with open_teacher(model, ["p", "r"], ["x"], RUNTIME) as teacher:
        targets, outputs = teacher.targets({"x": x}), teacher.outputs({"x": x})
    np.testing.assert_array_equal(targets["p"], x * x)
    np.testing.assert_array_equal(targets["r"], np.maximum(x, 0))
    exponents = np.exp(x * x)
    np.testing.assert_allclose(outputs["p"], exponents / exponents.sum(1, keepdims=True), rtol=1e-5)
    assert set(targets) == set(outputs) == {"p", "r"}


def test_kept_or_computed_anew(model, x):
    examples, ctx = Examples(True), Context()
    for i in range(24):
        examples.append(Example({"x": x[i : i + 1]}, {}))
    shares = divide(examples, 4, 0.2, Context())
    with open_teacher(model, ["p", "r"], ["x"], RUNTIME) as teacher:
        kept, anew = Targets(teacher, examples, shares, ctx), Targets(teacher, examples, shares, ctx, limit=500)
        assert len(ctx.report.of("targets-not-kept")) == 1 and kept._kept is not None and anew._kept is None
        for numbers in (*shares.epoch(0), [7]):
            example = examples.batch(numbers)
            for targets in (kept(numbers, example), anew(numbers, example)):
                np.testing.assert_array_equal(targets["p"], x[list(numbers)] ** 2)


def test_another_interface_is_refused(model):
    for outputs, inputs, text in (
        (["q"], ["x"], "the teacher has no output 'q'"),
        (["p"], ["y"], "the teacher wants an input 'x', which the model does not have; known: y"),
    ):
        with pytest.raises(OptionError, match=text), open_teacher(model, outputs, inputs, RUNTIME):
            pass
