"""Pushing a random affine map into a random linear op changes nothing but rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from onnxq.affine import Affine, linear_of, push
from onnxq.edit import Namer

OPS = st.sampled_from(["Conv", "ConvTranspose", "Gemm", "MatMul"])


def run(model: ir.Model, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), options)
    result: np.ndarray[Any, Any] = session.run(None, {"x": x})[0]
    return result


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    op=OPS,
    group=st.integers(1, 3),
    per_group=st.integers(1, 3),
    inputs=st.integers(1, 3),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    seed=st.integers(0, 2**32 - 1),
)
def test_push(op: str, group: int, per_group: int, inputs: int, flags: tuple[bool, bool, bool], seed: int) -> None:
    has_bias, transposed, uniform = flags
    rng = np.random.default_rng(seed)
    conv = op.startswith("Conv")
    group = group if conv else 1
    channels, fan = group * per_group, group * inputs
    attributes: dict[str, Any] = {"group": group} if conv else {}
    if op == "Conv":
        shape: tuple[int, ...] = (channels, inputs, 2, 2)
    elif op == "ConvTranspose":
        shape = (fan, per_group, 2, 2)
    else:
        shape = (channels, fan) if op == "Gemm" and transposed else (fan, channels)
        attributes = {"transB": int(transposed), "alpha": 0.5, "beta": 3.0} if op == "Gemm" else {}
    x = rng.standard_normal((2, fan, 3, 3) if conv else (2, fan)).astype(np.float32)
    arrays = {"w": rng.standard_normal(shape).astype(np.float32)}
    if has_bias and op != "MatMul":
        arrays["b"] = rng.standard_normal(channels).astype(np.float32)
    dims = ["n", "c", "h", "v"][: x.ndim]
    graph = helper.make_graph(
        [helper.make_node(op, ["x", *arrays], ["y"], **attributes)],
        "g",
        [helper.make_tensor_value_info("x", 1, x.shape)],
        [helper.make_tensor_value_info("y", 1, dims)],
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
    )
    model = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    count = 1 if uniform else channels
    affine = Affine(rng.standard_normal(count), rng.standard_normal(count))
    along = [-1, *[1] * (x.ndim - 2)]
    wanted = run(model, x) * affine.scale.reshape(along) + affine.offset.reshape(along)
    linear = linear_of(model.graph.outputs[0])
    assert linear is not None and linear.channels == channels
    offset = push(affine, linear, Namer(model))
    got = run(model, x).astype(np.float64)
    if offset is not None:
        assert op == "MatMul" and offset.const_value is not None
        got = got + offset.const_value.numpy()
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
