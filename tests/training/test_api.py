"""`onnxq.train` as a whole: the committed LeNet at 4 and 2 bits, and what it promises, on a net of two layers."""

import json

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import onnxq
from models.fetch import ROOT
from onnxq.border import open_model
from onnxq.context import Context
from onnxq.errors import DataError, InputError, OptionError, TrainingError, UnsupportedError
from onnxq.report import run as run_report
from onnxq.report import train as train_report
from onnxq.session import Runtime, open_session
from onnxq.training.shares import divide

LENET = ROOT / "models" / "lenet"


def outputs(model, feeds):
    with open_session(open_model(model).model, Runtime(true_semantics=True, threads=1)) as session:
        return session.run(feeds)


def digits(name):
    """Digits as float32 [N, 1, 28, 28] in 0..1, and labels."""
    with np.load(LENET / f"{name}.npz") as stored:
        return stored["pixels"][:, None].astype(np.float32) / 255, stored["labels"].astype(np.int64)


def moved(images, labels, times):
    """Copies that are shifted by up to two pixels, as LeNet itself was trained on."""
    rng = np.random.default_rng(0)
    copies = [np.roll(image, rng.integers(-2, 3, 2), (1, 2)) for _ in range(times) for image in images]
    return np.stack(copies), np.tile(labels, times)


def accuracy(model):
    """In percent, of 500 digits that neither LeNet nor any training here has seen."""
    images, labels = digits("digits")
    return 100 * float((outputs(model, {"image": images})[0].argmax(1) == labels).mean())


def train_lenet(loss, **options):
    """LeNet rounded to nearest and then trained for 300 steps; returns table, types of the weights, accuracy."""
    result = onnxq.train(
        LENET / "lenet.onnx", [moved(*digits("training"), 2)], loss=loss, epochs=5, batch=16, lr=0.01, threads=1,
        recipe="a8w4", rounding="nearest", **options,
    )  # fmt: skip
    types = {t.data_type for t in result.model.graph.initializer if t.name.endswith("weight_quantized")}
    return result.report.tables["training"], types, accuracy(result.model)


def test_lenet_with_weights_of_4_bits():
    table, types, reached = train_lenet("distill", weights="int4", target="ort-cpu")
    assert types == {onnx.TensorProto.INT4} and table["steps"] == 280
    assert reached >= accuracy(LENET / "lenet.onnx") - 0.5
    assert table["after"]["loss"] < table["before"]["loss"] / 5
    assert table["after"]["sqnr_db"] > table["before"]["sqnr_db"] + 6


@pytest.mark.parametrize("loss", ["distill", "cross-entropy"])
def test_lenet_with_weights_of_2_bits(loss, runs_opset):
    if not runs_opset(25):
        pytest.skip("this onnxruntime has no pairs of 2 bits")
    options = {"weights": "int2", "target": "onnx", "opset": 25}
    table, types, reached = train_lenet(loss, **options)
    assert types == {onnx.TensorProto.INT2} and table["after"]["loss"] < table["before"]["loss"] / 3
    limit = accuracy(LENET / "lenet.onnx") - 3
    images = moved(*digits("training"), 1)[0][:256]
    start = onnxq.quantize(LENET / "lenet.onnx", [{"image": images}], recipe="a8w4", rounding="nearest", **options)
    assert accuracy(start.model) < limit <= reached
    assert loss == "distill" or table["after"]["accuracy"] > 0.9


W1 = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)
W2 = np.random.default_rng(2).normal(size=(6, 3)).astype(np.float32)


def net(tail="", out="h", batch="N", head='<ir_version: 10, opset_import: ["": 21]>'):
    """x [N, 4] -> Gemm -> Relu -> Gemm -> h [N, 3]."""
    model = parser.parse_model(
        f"""{head} g (float[{batch}, 4] x) => (float[{batch}, 3] {out}) {{
        a = Gemm<transB = 1>(x, w1, b1)  r = Relu(a)  h = Gemm(r, w2, b2) {tail} }}"""
    )
    constants = {"w1": W1, "b1": np.linspace(-0.5, 0.5, 6), "w2": W2, "b2": np.linspace(0.2, 0, 3)}
    model.graph.initializer.extend(numpy_helper.from_array(v.astype(np.float32), k) for k, v in constants.items())
    for node, name in zip(model.graph.node, ("first", "relu", "second"), strict=False):
        node.name = name
    return model


def x(rows, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, 4)).astype(np.float32)


def train(model, data, **options):
    """Two epochs of small batches at 4 bits, unless said otherwise."""
    base = {"epochs": 2, "batch": 8, "threads": 1, "lr": 0.01}
    if "teacher" not in options and "QuantizeLinear" not in {n.op_type for n in model.graph.node}:
        base |= {"weights": "int4", "search": False, "rounding": "nearest"}
    return onnxq.train(model, data, **{**base, **options})


def quantized(data=None):
    options = {"weights": "int4", "search": False, "rounding": "nearest"}
    return onnxq.quantize(net(), [{"x": x(64) if data is None else data}], **options).model


class Sized:
    """As many examples as are asked for, for `divide`."""

    joins = True

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count


def constants(model):
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def test_comes_nearer_to_the_float_model_and_is_an_ordinary_file(tmp_path):
    model = net()
    before = model.SerializeToString()
    start = quantized(x(128))
    result = train(model, [x(128)], calibration=[x(128)], epochs=10, lr=3e-3, output=tmp_path / "out.onnx")
    assert model.SerializeToString() == before and result.path == tmp_path / "out.onnx"
    onnx.checker.check_model(onnx.load(result.path), full_check=True)
    # the loss in the report is that of the file, on samples that nobody trained on
    held = np.concatenate([x(128)[i : i + 1] for i in divide(Sized(128), 8, 0.1, Context()).held])
    (wanted,) = outputs(model, {"x": held})
    losses = [float(((outputs(m, {"x": held})[0] - wanted) ** 2).mean() / wanted.var()) for m in (start, result.model)]
    table = result.report.tables["training"]
    assert losses == pytest.approx([table["before"]["loss"], table["after"]["loss"]], rel=1e-3)
    assert losses[1] < losses[0] / 1.5
    assert result.model.graph.node[0].op_type == "QuantizeLinear" and result.plan and result.ranges
    assert {p.key: p.value for p in result.model.metadata_props}["onnxq.training"].startswith("distill, ")


def test_a_seed_is_a_file():
    files = [train(net(), [x(64)], seed=seed).model.SerializeToString() for seed in (0, 0, 1)]
    assert files[0] == files[1] != files[2]


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("at", [3, 7, 11])
def test_resumed_is_the_same_file(tmp_path, at, optimizer, monkeypatch):
    monkeypatch.setattr("onnxq.training.trainer.SECONDS", -1.0)
    options = {"optimizer": optimizer, "scales": True}
    whole = train(net(), [x(64)], **options)

    def interrupt(label, done, total):
        if label.startswith("train") and done == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(net(), [x(64)], checkpoint=tmp_path, progress=interrupt, output=tmp_path / "no.onnx", **options)
    assert not (tmp_path / "no.onnx").exists()
    again = train(net(), [x(64)], checkpoint=tmp_path, **options)
    assert again.report.tables["training"]["resumed_steps"] == at - 1
    assert again.model.SerializeToString() == whole.model.SerializeToString()


def test_another_checkpoint_is_refused(tmp_path):
    train(net(), [x(64)], checkpoint=tmp_path)
    other = net()
    other.graph.initializer[2].CopyFrom(numpy_helper.from_array(W2 + 1, "w2"))
    for model, data, options, text in (
        (other, x(64), {}, "the model is another"),
        (net(), x(64, 1), {}, "the data is another"),
        (net(), x(64), {"epochs": 3}, "epochs 2 there, 3 now"),
        (net(), x(64), {"seed": 1}, "seed 0 there, 1 now"),
    ):
        with pytest.raises(OptionError, match=text):
            train(model, [data], checkpoint=tmp_path, **options)
    train(other, [x(64)], checkpoint=tmp_path, resume=False)


def test_a_quantized_model_learns_from_its_float_model():
    start = quantized()
    result = train(start, [x(128)], teacher=net(), epochs=6)
    table = result.report.tables["training"]
    assert table["after"]["loss"] < table["before"]["loss"] and table["after"]["sqnr_db"] > table["before"]["sqnr_db"]
    assert [n.op_type for n in result.model.graph.node] == [n.op_type for n in start.graph.node]
    with pytest.raises(OptionError, match="learns from its float model: --teacher"):
        train(start, [x(128)])


def test_targets_take_the_place_of_a_teacher():
    wanted = np.maximum(x(128) @ W1.T, 0) @ W2 + 0.5
    result = train(quantized(), [(x(128), wanted)], loss="mse", epochs=6)
    table = result.report.tables["training"]
    assert table["after"]["loss"] < table["before"]["loss"] / 1.5
    assert table["before"]["sqnr_db"] is None  # there is no teacher
    with pytest.raises(DataError, match="sample 0 has no target, which loss mse needs"):
        train(quantized(), [x(128)], loss="mse")


def test_logits_in_front_of_a_softmax():
    model = net("  y = Softmax(h)", out="y")
    table = train(model, [x(128)], epochs=6).report.tables["training"]
    assert table["after"]["loss"] < table["before"]["loss"] and table["after"]["sqnr_db"] is not None
    labels = x(128)[:, 0].astype(int) % 3
    found = train(model, [(x(128), labels)], loss="cross-entropy", epochs=6).report.tables["training"]
    assert found["after"]["loss"] < found["before"]["loss"] and 0 < found["after"]["accuracy"] <= 1


def test_frozen_layers_stay():
    start, images = quantized(), x(128)
    data = [(images, (np.maximum(images @ W1.T, 0) @ W2 * 0.6).astype(np.float32))]
    for freeze, stay, move in ((["first"], "w1", "w2"), (["re:sec.*"], "w2", "w1")):
        end, before = constants(train(start, data, loss="mse", freeze=freeze).model), constants(start)
        np.testing.assert_array_equal(end[f"{stay}_quantized"], before[f"{stay}_quantized"])
        assert (end[f"{move}_quantized"] != before[f"{move}_quantized"]).any()
    with pytest.raises(OptionError, match="'frist' matches no node; did you mean first"):
        train(net(), [x(64)], freeze=["frist"])


def test_learned_scales_move_alone_where_weights_may_not():
    start = constants(quantized())
    end = constants(train(net(), [x(64)], calibration=[x(64)], scales=True).model)
    scales = [k for k in start if "scale" in k]
    assert any((end[k] != start[k]).any() for k in scales if k in end)
    held = constants(train(net(), [x(64)], calibration=[x(64)], scales=True, lr_factors={"scale": 0.0}).model)
    for k in scales:
        if "w2" in k or "w1" in k:
            np.testing.assert_array_equal(held[k], start[k])


def test_never_worse_than_the_start():
    result = train(net(), [x(64)], optimizer="sgd", lr=1e-12, calibration=[x(64)])
    (note,) = result.report.of("training-no-help")
    assert "no epoch had a held-out loss below that of the start" in note.message
    assert result.report.tables["training"]["best_epoch"] == 0
    start, end = constants(quantized()), constants(result.model)
    assert start.keys() == end.keys() and all((start[k] == end[k]).all() for k in start)
    assert "kept as it was" in train_report.to_text(result.report)


def test_divergence_stops_and_writes_nothing(tmp_path):
    with pytest.raises(
        TrainingError, match=r"step \d+ of 14 \(epoch \d\): the loss is .* a lower learning rate may help"
    ):
        train(net(), [x(64)], optimizer="sgd", lr=1e20, output=tmp_path / "out.onnx")
    assert not list(tmp_path.iterdir())


def test_a_fixed_batch():
    table = train(net(batch="8"), [x(8, i) for i in range(12)], batch=None, epochs=4).report.tables["training"]
    assert table["samples"] == {"train": 11, "held_out": 1, "batch": 1} and table["steps"] == 44
    assert table["after"]["loss"] < table["before"]["loss"]


def test_what_is_refused_before_the_first_step():
    integer = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (uint8[2, 2] x) => (int32[2, 2] y) { y = MatMulInteger(x, x) }'
    )
    with pytest.raises(InputError, match=r"MatMulInteger.*qoperator-to-qdq"):
        train(integer, [np.zeros((2, 2), np.uint8)], teacher=net())
    with pytest.raises(OptionError, match="target, weights: for float models"):
        train(quantized(), [x(64)], teacher=net(), weights="int4", target="onnx")
    with pytest.raises(OptionError, match="the teacher has no output 'h'; known: y"):
        train(quantized(), [x(64)], teacher=net("  y = Softmax(h)", out="y"))
    with pytest.raises(UnsupportedError, match="Mod"):
        train(net("  s = Mod(h, h)  y = Mul(s, h)", out="y"), [x(64)])
    for options, text in (
        ({"loss": "msee"}, "unknown loss 'msee'; did you mean mse"),
        ({"optimizer": "adma"}, "unknown optimizer 'adma'; did you mean adam"),
        ({"schedule": "cos"}, "unknown schedule 'cos'; did you mean cosine"),
        ({"epochs": 0}, "epochs: at least 1"),
        ({"lr": 0.0}, "lr: a positive number"),
        ({"warmup": 1.0}, "warmup: a share"),
        ({"weight_decay": -1.0}, "weight decay: 0 or more"),
        ({"lr_factors": {"scales": 1.0}}, "learning rates are of weight, bias, scale, not 'scales'"),
        ({"held_out": 1.0}, "held-out share"),
        ({"batch": 64}, "64 samples to train on: in batches of 64 at least 128"),
    ):
        with pytest.raises((OptionError, DataError), match=text):
            train(net(), [x(64)], **options)


def test_report_tells_before_and_after():
    result = train(net(), [x(64)])
    text = train_report.to_text(result.report)
    assert "Training on 56 samples, judged on 8 held-out ones" in text and "SQNR, dB" in text
    assert "24 in 1 weight" not in text and "42 in 2 weights" in text and "14 steps of 8 samples" in text
    table = json.loads(json.dumps(run_report.to_json(result.report)))["tables"]["training"]
    assert len(table["epochs"]) == 2 and table["options"]["loss"] == "distill"
