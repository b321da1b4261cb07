import dataclasses

import pytest

from onnxq.errors import OptionError, RecipeError
from onnxq.numerics.spec import PerAxis, PerTensor
from onnxq.targets import list_targets, load_target
from onnxq.targets.loader import parse_target

OWN = """
name: mine
description: a small one
opset: {min: 13, max: 20, default: 17}
ir-version: 8
float-types: [float32]
activations: {types: [int8], default: int8, symmetric: true}
weights: {types: [int8, int4], default: int4, symmetric: true, granularity: per-channel}
bias: {type: int32, policy: raise-weight-scale}
integer-ops:
  Conv: {kind: matmul-like, per-channel: true}
  Resize: {kind: moves, where: {mode: [nearest, linear]}}
"""


@pytest.mark.parametrize("name", list_targets())
def test_built_in_targets_load(name):
    target = load_target(name)
    assert target.name == name and target.description
    assert target.activation_spec().granularity == PerTensor()
    assert target.activation_spec().symmetric == target.activations.always_symmetric == (name == "tensorrt")
    per_tensor = name == "ort-training"
    assert target.weight_spec().symmetric
    assert target.weight_spec().granularity == (PerTensor() if per_tensor else PerAxis())
    assert {"Conv", "Gemm", "MatMul"} <= set(target.integer_ops)


def test_the_set_of_built_in_targets():
    assert list_targets() == ["ascend", "onnx", "ort-cpu", "ort-training", "qnn", "tensorrt"]


def test_ort_cpu_keeps_the_measured_rules():
    target = load_target("ort-cpu")
    assert (target.opset.min, target.opset.max, target.ir_version) == (21, 27, 10)
    assert target.activation_spec().qtype.name == "uint8" and target.weight_spec().qtype.name == "int8"
    kinds = {op: rule.kind for op, rule in target.integer_ops.items()}
    assert [op for op, kind in kinds.items() if kind == "matmul-like"] == ["Conv", "Gemm", "MatMul"]
    assert [op for op, kind in kinds.items() if kind == "folds"] == ["Relu", "Clip"]
    assert kinds["Concat"] == kinds["Where"] == "join" and kinds["MaxPool"] == "moves"
    assert not {"ConvTranspose", "LSTM", "Tanh", "Pad", "Sub", "SpaceToDepth"} & set(kinds)
    assert target.integer_ops["Conv"].needs_output_q and not target.integer_ops["MatMul"].needs_output_q
    assert "dynamic" in target.integer_ops["MatMul"].forms and "dynamic" not in target.integer_ops["Conv"].forms


def test_misfit_names_the_attribute():
    ops = load_target("ort-cpu").integer_ops
    assert ops["Gemm"].misfit({"alpha": 0.5}) == "alpha is 0.5, the integer kernel takes 1.0"
    assert ops["Resize"].misfit({"mode": "linear"}) == "mode is linear, the integer kernel takes nearest"
    assert ops["Gemm"].misfit({"alpha": 1.0, "transB": 1}) == ops["Resize"].misfit({}) == ""


def test_requested_types():
    target = load_target("ort-cpu")
    assert target.activation_spec("uint16").qtype.name == "uint16"
    assert target.weight_spec("INT4").qtype.name == "int4"
    with pytest.raises(OptionError, match="ort-cpu does not take int8 activations; did you mean uint8"):
        target.activation_spec("int8")
    with pytest.raises(OptionError, match="unknown quantized type 'int9'; did you mean int8"):
        target.weight_spec("int9")


def test_own_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(OWN)
    target = load_target(path)
    assert target.name == "mine" and target.weight_spec().qtype.name == "int4"
    assert target.integer_ops["Resize"].where == {"mode": ("nearest", "linear")}
    assert load_target(str(path)) == target and load_target(target) is target


def test_targets_are_immutable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        load_target("onnx").name = "other"


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("symmetric: true}", "symetric: true}", 7, "no option 'symetric'; did you mean symmetric"),
        ("kind: moves", "kind: move", 12, "got 'move'; did you mean moves"),
        ("default: int8", "default: int88", 7, "unknown quantized type 'int88'; did you mean int8"),
        ("ir-version: 8", "ir-version: eight", 5, "expected an integer, got 'eight'"),
        ("bias: {type: int32,", "bias: {", 9, "needs type"),
        ("name: mine", "nme: mine", None, "no option 'nme'; did you mean name"),
        ("integer-ops:", "integer-ops: [Conv]\nx:", 10, "expected a mapping"),
        ("default: 17", "default: 21", None, "needs min <= default <= max"),
        ("default: int4", "default: uint8", None, "uint8 is not one of the listed types"),
        ("per-channel: true", "per-channel: 2", 11, "expected true or false"),
    ],
)
def test_mistakes_name_file_line_and_near_match(old, new, line, words):
    text = OWN.replace(old, new, 1)
    assert text != OWN
    with pytest.raises(RecipeError) as caught:
        parse_target(text, "mine.yaml")
    assert words in str(caught.value) and str(caught.value).startswith("mine.yaml")
    if line is not None:
        assert caught.value.line == line


def test_a_mistake_like_nothing_known_gets_no_hint(tmp_path):
    with pytest.raises(RecipeError, match=r"target has no option 'zzz'$"):
        parse_target(f"zzz: 1\n{OWN}", "mine.yaml")
    with pytest.raises(OptionError, match=r"^cannot read target file .*none\.yaml: No such file or directory$"):
        load_target(tmp_path / "none.yaml")


@pytest.mark.parametrize("text", ["", "- a", "a: [", "just words"])
def test_not_a_target_file(text):
    with pytest.raises(RecipeError, match=r"^f\.yaml"):
        parse_target(text, "f.yaml")


def test_unknown_names_and_missing_files(tmp_path):
    with pytest.raises(OptionError, match="unknown target 'ortcpu'; did you mean ort-cpu"):
        load_target("ortcpu")
    with pytest.raises(OptionError, match="cannot read target file"):
        load_target(tmp_path / "none.yaml")
    with pytest.raises(OptionError, match="cannot read target file"):
        (tmp_path / "folder.yaml").mkdir()
        load_target(tmp_path / "folder.yaml")
