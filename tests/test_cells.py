"""Every cell of weight op x integer type x granularity x odd/even sizes, through the recipes, on both sessions.

The oracle is NumPy: the stored integers are decoded here, must lie within half a step of the float weight, and the
float model with the decoded weights must give what the file gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper, parser

import onnxq

Array = np.ndarray[Any, Any]

# Sizes (odd, even) of the output channels; the inputs of a channel are 20 or 21, so that blocks of 16 end short.
OUT, IN = (7, 8), (21, 20)
HEAD = '<ir_version: 10, opset_import: ["": 21]> g '
BATCH = "float[2,{i},5,5] x"

# signature, call, weight shape; o: output channels, i: inputs
CELLS: dict[str, tuple[str, str, Callable[[int, int], dict[str, tuple[int, ...]]]]] = {
    "conv-1d": ("float[2,{i},6] x", "y = Conv(x, w)", lambda o, i: {"w": (o, i, 3)}),
    "conv-2d": (BATCH, "y = Conv(x, w)", lambda o, i: {"w": (o, i, 3, 3)}),
    "conv-3d": ("float[1,{i},4,4,4] x", "y = Conv(x, w)", lambda o, i: {"w": (o, i, 2, 2, 3)}),
    "grouped": ("float[2,{gi},5,5] x", "y = Conv<group=3>(x, w)", lambda o, i: {"w": (3 * o, i, 3, 3)}),
    "depthwise": (BATCH, "y = Conv<group={i}>(x, w)", lambda o, i: {"w": (i, 1, 3, 3)}),
    "transposed": (BATCH, "y = ConvTranspose(x, w)", lambda o, i: {"w": (i, o, 3, 3)}),
    "transposed-grouped": (
        "float[2,{gi},5,5] x", "y = ConvTranspose<group=3>(x, w)", lambda o, i: {"w": (3 * i, o, 2, 2)}
    ),
    "gemm": ("float[3,{i}] x", "y = Gemm(x, w)", lambda o, i: {"w": (i, o)}),
    "gemm-trans-b": ("float[3,{i}] x", "y = Gemm<transB=1>(x, w)", lambda o, i: {"w": (o, i)}),
    "matmul-2": ("float[3,{i}] x", "y = MatMul(x, w)", lambda o, i: {"w": (i, o)}),
    "matmul-3": ("float[2,3,{i}] x", "y = MatMul(x, w)", lambda o, i: {"w": (2, i, o)}),
    "matmul-4": ("float[2,2,3,{i}] x", "y = MatMul(x, w)", lambda o, i: {"w": (2, 2, i, o)}),
    "gather": ("int64[4] x", "y = Gather(w, x)", lambda o, i: {"w": (400 + o, i)}),
    "lstm": (
        "float[4,2,{i}] x", "y, h, c = LSTM<hidden_size={o}>(x, w, r)",
        lambda o, i: {"w": (1, 4 * o, i), "r": (1, 4 * o, o)},
    ),
    "gru": (
        "float[4,2,{i}] x", "y, h = GRU<hidden_size={o}>(x, w, r)",
        lambda o, i: {"w": (1, 3 * o, i), "r": (1, 3 * o, o)},
    ),
}  # fmt: skip


def build(cell: str, even: int) -> onnx.ModelProto:
    o, i = OUT[even], IN[even]
    signature, call, shapes = CELLS[cell]
    names = {"o": o, "i": i, "gi": 3 * i}
    proto = parser.parse_model(f"{HEAD} ({signature.format(**names)}) => (float y) {{ {call.format(**names)} }}")
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    rng = np.random.default_rng(even)
    for name, shape in shapes(o, i).items():
        values = rng.standard_normal(shape) * 0.3 + 0.1
        proto.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))
    return proto


def feeds_of(proto: onnx.ModelProto) -> dict[str, Array]:
    rng = np.random.default_rng(9)
    tensor = proto.graph.input[0].type.tensor_type
    shape = [d.dim_value for d in tensor.shape.dim]
    integer = tensor.elem_type == onnx.TensorProto.INT64
    return {"x": rng.integers(0, 400, shape) if integer else rng.standard_normal(shape).astype(np.float32)}


def outputs(proto: onnx.ModelProto, feeds: dict[str, Array], true: bool) -> Array:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if true:
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        options.add_session_config_entry("session.disable_double_qdq_remover", "1")
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, feeds)[0])


def spread(p: Array, shape: tuple[int, ...], axis: int, block: int) -> Array:
    """A scale or zero point for every value of the weight."""
    if p.ndim == 0:
        return np.broadcast_to(p, shape)
    if block:
        return np.repeat(p, block, axis=axis).take(range(shape[axis]), axis=axis)
    return np.broadcast_to(p.reshape([-1 if a == axis % len(shape) else 1 for a in range(len(shape))]), shape)


def decoded(made: onnx.ModelProto) -> tuple[onnx.ModelProto, list[tuple[Array, Array]]]:
    """The file with every weight pair computed here, and (values, steps) of each weight.

    Weights are read as the file stores them: of the type asked for, in their logical shape.
    """
    out = onnx.ModelProto()
    out.CopyFrom(made)
    stored = {t.name: numpy_helper.to_array(t) for t in made.graph.initializer}
    weights = []
    for node in made.graph.node:
        if node.op_type != "DequantizeLinear" or node.input[0] not in stored:
            continue
        attributes = {a.name: a.i for a in node.attribute}
        q, scale = stored[node.input[0]], stored[node.input[1]]
        axis, block = attributes.get("axis", 1), attributes.get("block_size", 0)
        steps = spread(scale, q.shape, axis, block)
        zeros = stored[node.input[2]].astype(np.int32) if len(node.input) > 2 else np.zeros(scale.shape, np.int32)
        values = (q.astype(np.int32) - spread(zeros, q.shape, axis, block)) * steps.astype(np.float32)
        out.graph.node.remove(node)
        out.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), node.output[0]))
        weights.append((values, steps))
    return out, weights


def check(cell: str, even: int, kind: str, made: onnx.ModelProto, bound: float) -> None:
    source = build(cell, even)
    reference, weights = decoded(made)
    types = {
        onnx.TensorProto.DataType.Name(t.data_type) for t in made.graph.initializer if t.name.endswith("_quantized")
    }
    assert types == {kind.upper()}
    originals = [numpy_helper.to_array(t) for t in source.graph.initializer]
    assert len(weights) == len(originals)
    for (values, steps), original in zip(weights, originals, strict=True):
        turned = original if values.shape == original.shape else original.T
        assert (np.abs(values - turned) <= 0.5001 * steps).all(), "within half a step of the float weight"
    feeds = feeds_of(source)
    wanted = outputs(reference, feeds, True)
    for true in (True, False):
        got = outputs(made, feeds, true)
        assert np.abs(got - wanted).max() <= (1e-5 if true else bound) * np.abs(wanted).max(), f"true={true}"


def granular(granularity: str) -> dict[str, Any]:
    return {"plan.granularity": granularity, "plan.block-size": 16 if granularity == "blocked" else 0}


@pytest.mark.parametrize("even", [0, 1], ids=["odd", "even"])
@pytest.mark.parametrize("granularity", ["per-tensor", "per-channel", "blocked"])
@pytest.mark.parametrize("kind", ["int8", "uint8", "int4", "uint4"])
@pytest.mark.parametrize("cell", CELLS)
def test_weight_only(cell: str, kind: str, granularity: str, even: int) -> None:
    result = onnxq.run(
        "w8", build(cell, even), target="onnx", parameters={"weights": kind, "weight-method": "minmax"},
        overrides=granular(granularity),
    )  # fmt: skip
    if cell == "gather":
        check_gather(even, kind, result)
        return
    check(cell, even, kind, result.model, 0.02)  # MatMulNBits rounds activations to int8


def check_gather(even: int, kind: str, result: onnxq.Result) -> None:
    """Rows are looked up as integers; four bits become eight, since Gather takes none, and a note says so."""
    made, source = result.model, build("gather", even)
    assert bool(result.report.of("embedding-type")) == kind.endswith("4")
    stored = {t.name: numpy_helper.to_array(t) for t in made.graph.initializer}
    table = numpy_helper.to_array(source.graph.initializer[0])
    assert stored["w_quantized"].dtype == (np.uint8 if kind == "uint8" else np.int8)
    scale = np.atleast_2d(stored["w_scale"])
    steps = np.repeat(scale, 16, axis=1)[:, : table.shape[1]] if scale.shape[1] == 2 else scale
    feeds = feeds_of(source)
    for true in (False, True):
        got = outputs(made, feeds, true)
        assert got.shape == (4, table.shape[1])
        rows = np.broadcast_to(steps, table.shape)[feeds["x"]]
        assert (np.abs(got - table[feeds["x"]]) <= 0.5001 * rows).all()


# Why a cell has no integers where activations are integers, too: a look-up computes nothing.
REFUSED = {"gather": "constant-operand"}


@pytest.mark.parametrize("granularity", ["per-tensor", "per-channel", "blocked"])
@pytest.mark.parametrize("kind", ["int8", "uint8", "int4", "uint4"])
@pytest.mark.parametrize("cell", CELLS)
def test_static(cell: str, kind: str, granularity: str) -> None:
    source = build(cell, 0)
    result = onnxq.run(
        "int8", source, data=[feeds_of(source)], target="onnx",
        parameters={"weights": kind, "search": False, "rounding": "nearest", "dynamic": "never", "force": ["*"]},
        overrides=granular(granularity),
    )  # fmt: skip
    made = result.model
    decisions = {d["op"]: d["code"] for d in result.plan["nodes"].values()}
    if cell in REFUSED:
        assert decisions[source.graph.node[0].op_type] == REFUSED[cell]
        assert not any(n.op_type == "QuantizeLinear" for n in made.graph.node)
        return
    span = float(np.abs(outputs(source, feeds_of(source), True)).max())
    step = next((float(numpy_helper.to_array(t)) for t in made.graph.initializer if t.name == "y_scale"), 1e-4 * span)
    check(cell, 0, kind, made, 1.01 * step / span)
