import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

import onnxq
from onnxq.context import Context
from onnxq.errors import OptionError
from onnxq.passes.thaw import Thaw
from onnxq.session import Runtime, open_session
from onnxq.training.data import Examples
from onnxq.training.options import Options
from onnxq.training.reconstruct import reconstruct
from onnxq.training.samples import Example
from onnxq.training.shares import Shares

BODY = """<ir_version: 10, opset_import: ["": 21]> g (float[n, 4, 6, 6] x) => (float[n, 4] y) {
    a = Conv<pads = [1, 1, 1, 1]>(x, w0, b0)  b = Relu(a)
    c = Conv(b, w1, b1)  d = Relu(c)  e = Conv(d, w2, b2)  s = Add(b, e)  f = Relu(s)
    h = GlobalAveragePool(f)  k = Flatten(h)  l = Gemm<transB = 1>(k, w3, b3)  y = Softmax(l)
}"""
SHARES = Shares(range(24), range(24, 32), 8, 0)
OPTIONS = Options(epochs=12, lr=0.006, lr_factors={"bias": 5.0})


def float_model():
    rng = np.random.default_rng(0)
    proto = parser.parse_model(BODY)
    shapes = {"w0": (4, 4, 3, 3), "w1": (8, 4, 1, 1), "w2": (4, 8, 1, 1), "w3": (4, 4)}
    arrays = {name: rng.normal(size=shape) * (2 / np.prod(shape[1:])) ** 0.5 for name, shape in shapes.items()}
    arrays |= {f"b{i}": rng.normal(size=n) * 0.1 for i, n in enumerate((4, 8, 4, 4))}
    proto.graph.initializer.extend(numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items())
    return proto


def draw(count, seed):
    return np.random.default_rng(seed).normal(size=(count, 4, 6, 6)).astype(np.float32)


def examples(count=32):
    out = Examples(joins=True)
    for row in draw(count, 1):
        out.append(Example({"x": row[None]}, {}))
    return out


@pytest.fixture(scope="module")
def models():
    proto = float_model()
    quantized = onnxq.quantize(
        proto, [{"x": draw(8, 1)}], recipe="a8w4", target="ascend", pack_axis="flat", rounding="nearest"
    ).model
    return ir.from_proto(quantized), ir.from_proto(proto)


def noise(quantized, reference, value="l"):
    """Share of the logits' variance that is error, on samples that nobody trained on."""
    feeds, found = {"x": draw(64, 9)}, []
    for model in (quantized, reference):
        (at,) = [out for node in model.graph for out in node.outputs if out.name == value]
        with open_session(model, Runtime(true_semantics=True, threads=1), outputs=[at]) as session:
            found += session.run(feeds)
    return float(((found[0] - found[1]) ** 2).mean() / found[1].var())


def saved(model):
    return ir.to_proto(model).SerializeToString(deterministic=True)


@pytest.fixture(scope="module")
def trained(models):
    before = [saved(model) for model in models]
    ctx = Context()
    result = reconstruct(*models, examples(), SHARES, OPTIONS, ctx, threads=1)
    assert [saved(model) for model in models] == before
    return (*result, ctx)


def test_the_trained_model_is_nearer_to_the_float_model(models, trained):
    model, _, _ = trained
    assert noise(model, models[1]) < 0.5 * noise(*models)


def test_no_block_has_a_larger_error_than_before(trained):
    _, outcomes, ctx = trained
    assert [block.end and block.end.name for block, _ in outcomes] == ["b", "k", None]
    assert all(outcome.end.loss <= outcome.start.loss for _, outcome in outcomes)
    notes = ctx.report.of("block-trained")
    assert [(n.numbers["before"], n.numbers["after"]) for n in notes] == [
        (outcome.start.loss, outcome.end.loss) for _, outcome in outcomes
    ]


def test_the_error_of_the_last_block_is_that_of_the_logits(models, trained):
    """With all that is held out in one batch; kernels differ in the last bit, so some values round otherwise."""
    model, outcomes, _ = trained
    held = {"x": np.concatenate([examples()[i].feeds["x"] for i in range(24, 32)])}
    found = []
    for side in (model, models[1]):
        (at,) = [out for node in side.graph for out in node.outputs if out.name == "l"]
        with open_session(side, Runtime(true_semantics=True, threads=1), outputs=[at]) as session:
            found += session.run(held)
    expected = ((found[0] - found[1]) ** 2).mean() / found[1].var()
    assert outcomes[-1][1].end.loss == pytest.approx(expected, rel=0.02)


def test_weights_come_back_in_the_form_they_came_in(models, trained):
    def form(model):
        return sorted((v.name, v.const_value.dtype) for v in model.graph.initializers.values())

    assert form(trained[0]) == form(models[0])
    thawed = models[0].clone()
    Thaw(form="fake-quant").run(thawed, Context())
    again, _ = reconstruct(thawed, models[1], examples(), SHARES, Options(epochs=1, lr=3e-3), Context(), threads=1)
    assert form(again) == form(thawed)


def test_the_same_seed_gives_the_same_bytes(models):
    options = Options(epochs=1, lr=3e-3)
    once, twice = (reconstruct(*models, examples(), SHARES, options, Context(), threads=1)[0] for _ in range(2))
    assert saved(once) == saved(twice)


def test_what_is_not_to_be_trained_stays(models):
    def constants(model):
        return {v.name: v.const_value.numpy() for v in model.graph.initializers.values()}

    ctx = Context()
    model, outcomes = reconstruct(
        *models, examples(), SHARES, OPTIONS, ctx, train=lambda v: "w2" in v.name or "b2" in v.name, threads=1
    )
    before, after = constants(models[0]), constants(model)
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed
    assert all("w2" in name or "b2" in name for name in changed)
    assert [block.end.name for block, _ in outcomes] == ["k"]
    assert len(ctx.report.of("block-kept")) == 2


def test_progress_goes_through_all_blocks(models):
    told = []
    ctx = Context(progress=lambda label, done, total: told.append((label.split(":")[0], done, total)))
    reconstruct(*models, examples(), SHARES, Options(epochs=1, lr=1e-3), ctx, threads=1)
    steps = [t for t in told if t[0].startswith("block")]
    assert [done for _, done, _ in steps] == list(range(1, 10))
    assert {total for _, _, total in steps} == {9}


def test_a_model_without_quantized_weights_is_refused(models):
    with pytest.raises(OptionError, match="no node has quantized weights"):
        reconstruct(models[1], models[1], examples(), SHARES, OPTIONS, Context())
