"""drop-output-dtype: the zero point alone says the type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import parser
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidGraph

from onnxq.passes.drop_output_dtype import DropOutputDtype

Run = Callable[..., Any]


def graph(attributes: str, kind: str = "int8", zero: str = ", z") -> str:
    return f"""<ir_version: 10, opset_import: ["" : 21]> g (float[2,4] x) => (float[2,4] y)
        <float s = {{0.1}}, {kind} z = {{0}}, int8[4,4] w = {{1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7}}, int8 wz = {{0}}> {{
        q = QuantizeLinear{attributes}(x, s{zero}) d = DequantizeLinear(q, s{zero}) v = DequantizeLinear(w, s, wz)
        y = MatMul(d, v) }}"""


def test_models_load_again(run_passes: Run, run_model: Run) -> None:
    text = graph("<output_dtype = 3>")
    x = {"x": np.ones((2, 4), np.float32)}
    with pytest.raises((Fail, InvalidGraph)):
        run_model(parser.parse_model(text), x)
    out = run_passes(text, DropOutputDtype())
    assert not out.node("QuantizeLinear").attribute and out.codes() == ["output-dtype-dropped"]
    wanted = run_model(parser.parse_model(text), x, optimised=False)[0]
    np.testing.assert_allclose(run_model(out.proto, x)[0], wanted, rtol=1e-6)


@pytest.mark.parametrize("text", [graph(""), graph("<output_dtype = 3>", zero=""), graph("<output_dtype = 2>")])
def test_what_stays(text: str, run_passes: Run) -> None:
    assert not run_passes(text, DropOutputDtype()).changed


def test_other_types(run_passes: Run) -> None:
    assert run_passes(graph("<output_dtype = 5>", "int16"), DropOutputDtype()).changed
