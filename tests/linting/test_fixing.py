"""Fixes: each named pass makes its finding go away, alone and with all others, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxq import border
from onnxq.linting.api import lint
from onnxq.linting.catalog import rules
from onnxq.linting.fixing import fix_files
from onnxq.linting.settings import LintSettings
from onnxq.linting.textform import text_form
from tests.linting.fixable import WHERE, Parts, Where, float_info, layer, numbers

Break = Callable[[Parts], None]


def other_scale(p: Parts) -> None:
    p.constants["y_scale_2"] = p.constants["y_scale"] * np.float32(1.5)
    p.node("DequantizeLinear_y").input[1] = "y_scale_2"


def other_zero(p: Parts) -> None:
    p.constants["x_zero_2"] = p.constants["x_zero"] - p.constants["x_zero"].dtype.type(8)
    p.node("DequantizeLinear_xd").input[2] = "x_zero_2"


def no_zero(p: Parts) -> None:
    del p.node("DequantizeLinear_xd").input[2]


def other_type(p: Parts) -> None:
    p.constants["x_zero_2"] = np.int8(0)
    p.node("DequantizeLinear_xd").input[2] = "x_zero_2"


def two_dequantizers(p: Parts) -> None:
    p.nodes[2:2] = [helper.make_node("DequantizeLinear", ["xq", "x_scale", "x_zero"], ["xd2"], "DequantizeLinear_xd2")]
    p.nodes += [helper.make_node("ReduceSum", ["xd2"], ["sum"], "ReduceSum_sum", keepdims=0)]
    p.nodes += [helper.make_node("Sub", ["sum", "sum"], ["none"], "Sub_none")]
    p.node("DequantizeLinear_y").output[0] = "last"
    p.nodes += [helper.make_node("Add", ["last", "none"], ["y"], "Add_y")]


def bias_scale(p: Parts) -> None:
    """A right DequantizeLinear at a scale that kernels do not take."""
    b = p.constants["b"].astype(np.float64)
    p.constants["b"], p.constants["b_scale"] = np.rint(b / 4).astype(np.int32), p.constants["b_scale"] * np.float32(4)


def bias_zero(p: Parts) -> None:
    p.constants["b"] = p.constants["b"] + 1000
    p.constants["b_zero"] = np.full(8, 1000, np.int32)


def bias_per_tensor(p: Parts) -> None:
    real = p.constants["b"] * p.constants["b_scale"]
    scale = np.float32(1e-4)
    p.constants |= {"b": np.rint(real / scale).astype(np.int32), "b_scale": np.array(scale), "b_zero": np.int32(0)}
    p.set("DequantizeLinear_bd", "axis", None)


def bias_axis(p: Parts) -> None:
    p.set("DequantizeLinear_bd", "axis", None)


def weight_axis(p: Parts) -> None:
    p.set("DequantizeLinear_wd", "axis", 7)


def wrong_length(p: Parts) -> None:
    axis = next(a.i for a in p.node("DequantizeLinear_wd").attribute if a.name == "axis")
    p.set("DequantizeLinear_wd", "axis", 1 - axis)


def default_axis(p: Parts) -> None:
    p.set("DequantizeLinear_wd", "axis", None)


def unsorted(p: Parts) -> None:
    p.nodes.reverse()


def stale_type(p: Parts) -> None:
    p.infos.append(float_info("xd", None, TensorProto.INT64))


def stale_shape(p: Parts) -> None:
    p.infos.append(float_info("yq", [1, 2, 3], TensorProto.UINT8))


def dead_info(p: Parts) -> None:
    p.infos.append(float_info("gone", [3]))


def unused_import(p: Parts) -> None:
    p.imports.append(("ai.onnx.ml", 3))


def unused_constant(p: Parts) -> None:
    p.constants["left"] = np.arange(4, dtype=np.float32)


def dead_nodes(p: Parts) -> None:
    p.nodes.append(helper.make_node("Neg", ["p"], ["dead"], "Neg_dead"))
    p.nodes.append(helper.make_node("Abs", ["dead"], ["deader"], "Abs_dead"))


def no_names(p: Parts) -> None:
    p.nodes[0].name = ""
    p.nodes[1].name = p.nodes[2].name


def old_ir(p: Parts) -> None:
    p.constants["w"], p.types["w"] = np.clip(p.constants["w"], -7, 7).astype(np.int8), TensorProto.INT4
    p.constants["w_zero"], p.types["w_zero"] = np.zeros(8, np.int8), TensorProto.INT4
    p.ir_version = 9


def old_opset(p: Parts) -> None:
    p.opset = 12


def same_type_twice(p: Parts) -> None:
    p.constants["x_zero"] = np.int8(int(p.constants["x_zero"]) - 128)  # the same range; uint8 loads
    p.set("QuantizeLinear_xq", "output_dtype", int(TensorProto.INT8))


def contrib(p: Parts) -> None:
    p.imports.append(("com.microsoft", 1))
    for name in ("QuantizeLinear_xq", "DequantizeLinear_xd", "DequantizeLinear_wd"):
        p.node(name).domain = "com.microsoft"


def weight_unfolded(p: Parts) -> None:
    axis = next(a.i for a in p.node("DequantizeLinear_wd").attribute if a.name == "axis")
    spread = [8 if i == axis else 1 for i in range(p.constants["w"].ndim)]
    p.constants["w"] = p.constants["w"] * p.constants["w_scale"].reshape(spread)
    q = helper.make_node("QuantizeLinear", ["w", "w_scale", "w_zero"], ["wq"], "QuantizeLinear_wq", axis=axis)
    p.nodes.insert(0, q)
    p.node("DequantizeLinear_wd").input[0] = "wq"


# Code, how to break, ops, scopes where it cannot be mended.
DEFECTS: list[tuple[str, Break, tuple[str, ...], tuple[Where, ...]]] = [
    ("OQ101", other_scale, ("Conv", "MatMul"), ()),
    ("OQ101", other_zero, ("Conv", "Gemm"), ()),
    ("OQ101", no_zero, ("Gemm",), ()),
    ("OQ102", other_type, ("Conv", "Gemm"), ()),
    ("OQ104", two_dequantizers, ("Conv", "MatMul"), ()),
    ("OQ501", bias_scale, ("Conv", "Gemm", "MatMul", "ConvTranspose"), ()),
    ("OQ501", bias_per_tensor, ("Conv", "Gemm"), ()),
    ("OQ502", bias_zero, ("Conv", "Gemm", "MatMul"), ()),
    ("OQ504", bias_axis, ("Conv", "Gemm", "MatMul"), ()),
    ("OQ301", weight_axis, ("Conv", "Gemm"), ()),
    ("OQ302", wrong_length, ("Conv", "Gemm", "MatMul", "ConvTranspose"), ()),
    ("OQ307", default_axis, ("Gemm", "MatMul"), ()),
    ("OQ302", default_axis, ("Conv",), ()),
    ("OQ006", unsorted, ("Conv",), ()),
    ("OQ010", stale_type, ("Conv",), ("function",)),
    ("OQ010", stale_shape, ("Conv",), ("function",)),
    ("OQ022", dead_info, ("Conv",), ("function",)),
    ("OQ011", unused_import, ("Conv",), ()),
    ("OQ012", unused_constant, ("Conv",), ("function",)),
    ("OQ018", dead_nodes, ("Conv",), ()),
    ("OQ005", no_names, ("Conv",), ("function",)),
    ("OQ020", old_ir, ("Conv",), ()),
    ("OQ306", old_opset, ("Conv", "Gemm"), ()),
    ("OQ612", same_type_twice, ("Conv",), ()),
    ("OQ604", contrib, ("Conv", "Gemm"), ()),
    ("OQ110", weight_unfolded, ("Conv", "MatMul"), ("function",)),
]
CASES = [
    pytest.param(code, how, op, where, id=f"{code}-{how.__name__}-{op}-{where}")
    for code, how, ops, not_in in DEFECTS
    for op in ops
    for where in WHERE
    if where not in not_in and code in rules()
]


def fixed(path: Path, **settings: object) -> onnx.ModelProto:
    done = fix_files([str(path)], LintSettings(**settings), None, unsafe=True, write=True)
    assert not done.errors
    return onnx.load(path)


@pytest.mark.parametrize(("code", "how", "op", "where"), CASES)
def test_a_fix_mends_its_finding(code: str, how: Break, op: str, where: Where, tmp_path: Path) -> None:
    healthy, parts = layer(op), layer(op)
    how(parts)
    if how is old_ir:
        healthy = layer(op)
        how(healthy)
        healthy.ir_version = 10
    broken, path = parts.build(where), tmp_path / "m.onnx"
    onnx.save(broken, path)
    options = {"select": (code,), "target": "ort-cpu"}
    found = lint(str(path), select=code, target="ort-cpu")
    assert found and all(d.fix for d in found), [str(d) for d in found]
    alone = fixed(path, **options)
    assert not lint(alone, select=code, target="ort-cpu")
    again = path.read_bytes()
    assert fixed(path, **options) == alone and path.read_bytes() == again
    onnx.checker.check_model(alone, full_check=True)
    for true in (False, True):
        wanted, got = numbers(healthy.build(where), true), numbers(alone, true)
        assert np.abs(wanted - got).max() <= (0.1001 if code == "OQ501" else 1e-6), true


def lines(model: onnx.ModelProto) -> set[str]:
    return set(text_form(border.open_model(model).model))


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("op", ["Conv", "Gemm"])
def test_all_fixes_together(op: str, where: Where, tmp_path: Path) -> None:
    parts = layer(op)
    kept = [other_scale, other_zero, bias_zero, wrong_length, unsorted, dead_info, unused_import, dead_nodes]
    kept += [stale_shape, stale_type, unused_constant, no_names] if where != "function" else []
    for how in kept:
        how(parts)
    path = tmp_path / "m.onnx"
    onnx.save(parts.build(where), path)
    mended = fixed(path)
    assert not lint(mended)
    for true in (False, True):
        assert np.abs(numbers(layer(op).build(where), true) - numbers(mended, true)).max() <= 1e-6
    before = path.read_bytes()
    assert fixed(path) == mended and path.read_bytes() == before


@pytest.mark.parametrize(
    ("how", "code"),
    [(other_scale, "OQ101"), (wrong_length, "OQ302"), (unused_constant, "OQ012"), (stale_shape, "OQ010")],
)
def test_nothing_else_changes(how: Break, code: str, tmp_path: Path) -> None:
    """The text of the mended model is that of the healthy one, with the other defects as they were."""
    one, both = layer(), layer()
    for parts in (one, both):
        dead_nodes(parts)
        unused_import(parts)
    how(both)
    path = tmp_path / "m.onnx"
    onnx.save(both.build(), path)
    mended = lines(fixed(path, select=(code,)))
    wanted = lines(one.build())
    if how is stale_shape:
        assert mended - wanted == {line for line in mended if "yq:uint8[1,8,3,3] = Quantize" in line}
    else:
        assert mended == wanted


@pytest.mark.parametrize("how", [other_scale, unused_constant, dead_nodes])
def test_suppressed_findings_stay(how: Break, tmp_path: Path) -> None:
    parts = layer()
    how(parts)
    default_axis(parts)  # a second one, which is mended
    model, path = parts.build(), tmp_path / "m.onnx"
    for node in model.graph.node:
        if node.name in ("DequantizeLinear_y", "Neg_dead", "Abs_dead"):
            node.metadata_props.add(key="onnxq.noqa", value="OQ101,OQ018")
    for tensor in model.graph.initializer:
        if tensor.name == "left":
            tensor.metadata_props.add(key="onnxq.noqa", value="OQ012")
    onnx.save(model, path)
    mended = fixed(path)
    assert len(mended.graph.node) == len(model.graph.node)
    assert len(mended.graph.initializer) == len(model.graph.initializer)
    changed = [a.name for a, b in zip(model.graph.node, mended.graph.node, strict=True) if a != b]
    assert changed == ["DequantizeLinear_wd"]


def test_names_in_functions_are_left(tmp_path: Path) -> None:
    parts = layer()
    no_names(parts)
    model = parts.build("function")
    found = lint(model, select="OQ005")
    assert len(found) == 2 and not any(d.fix for d in found)
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    assert fixed(path) == model
