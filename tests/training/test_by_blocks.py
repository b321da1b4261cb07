"""`onnxq.train` with ``mode="blocks"`` on the committed LeNet."""

import json

import numpy as np
import onnx
import pytest

import onnxq
from models.fetch import ROOT
from onnxq.border import open_model
from onnxq.errors import OptionError
from onnxq.report import train as report
from onnxq.session import Runtime, open_session

LENET = ROOT / "models" / "lenet"
HOW = {
    "recipe": "a8w4", "target": "ort-cpu", "rounding": "nearest", "weights": "int4", "threads": 1, "epochs": 8,
    "batch": 16, "lr": 0.02, "mode": "blocks",
}  # fmt: skip


def digits(name, count):
    with np.load(LENET / f"{name}.npz") as stored:
        return stored["pixels"][:count, None].astype(np.float32) / 255


def logits(model, images):
    with open_session(open_model(model).model, Runtime(true_semantics=True, threads=1)) as session:
        return session.run({"image": images})[0]


@pytest.fixture(scope="module")
def trained():
    return onnxq.train(LENET / "lenet.onnx", [digits("training", 200)], **HOW)


def test_a_few_samples_bring_the_outputs_nearer_to_the_float_model(trained):
    images = digits("digits", 200)  # nobody has seen them
    start = onnxq.quantize(
        LENET / "lenet.onnx",
        [digits("training", 200)],
        **{k: HOW[k] for k in ("recipe", "target", "rounding", "weights")},
    ).model
    wanted, before, after = (logits(m, images) for m in (LENET / "lenet.onnx", start, trained.model))
    assert ((after - wanted) ** 2).mean() < 0.3 * ((before - wanted) ** 2).mean()
    types = {t.data_type for t in trained.model.graph.initializer if t.name.endswith("weight_quantized")}
    assert types == {onnx.TensorProto.INT4}


def test_the_table_has_a_row_for_each_block(trained):
    table = trained.report.tables["training"]
    assert [len(block["layers"]) for block in table["blocks"]] == [1, 1, 1, 1]
    assert [block["end"] is None for block in table["blocks"]] == [False, False, False, True]
    assert all(block["after"] <= block["before"] for block in table["blocks"])
    assert table["after"]["loss"] < table["before"]["loss"]
    assert table["after"]["sqnr_db"] > table["before"]["sqnr_db"] + 5
    assert table["steps"] == 4 * HOW["epochs"] * (table["samples"]["train"] // table["samples"]["batch"])
    json.dumps(table)
    text = report.to_text(trained.report)
    assert "4 blocks trained" in text and "blocks, adam" in text


def test_layers_of_a_block(trained):
    result = onnxq.train(LENET / "lenet.onnx", [digits("training", 200)], **HOW | {"epochs": 1}, block_layers=2)
    assert [len(block["layers"]) for block in result.report.tables["training"]["blocks"]] == [2, 2]


def test_a_result_that_is_no_better_is_not_taken():
    how = HOW | {"lr": 1e-9, "epochs": 1}
    result = onnxq.train(LENET / "lenet.onnx", [digits("training", 64)], **how)
    table = result.report.tables["training"]
    assert table["after"] == table["before"]
    assert len(result.report.of("training-no-help")) == 1
    assert "kept as it was" in report.to_text(result.report)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "block"}, "unknown mode 'block'; did you mean blocks"),
        ({"loss": "mse"}, "learns from the float model"),
        ({"checkpoint": "folder"}, "no checkpoints"),
        ({"block_layers": 0}, "at least 1 wanted"),
    ],
)
def test_what_does_not_go_together(options, message):
    with pytest.raises(OptionError, match=message):
        onnxq.train(LENET / "lenet.onnx", [digits("training", 64)], **HOW | options)
