"""The recipe `prepare`: what holds afterwards, and that the numbers stay, on models of every age and origin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from onnxq.edit import all_graphs
from onnxq.passbase import Context, Pass, Pipeline, flatten, run_step
from onnxq.recipe import load_recipe

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
RNG = np.random.default_rng(0)


def prepare(**parameters: Any) -> Pipeline:
    return load_recipe("prepare", parameters)


def check_prepared(model: ir.Model, opset: int = 21) -> None:
    """What every later pass may rely on."""
    assert not model.functions and model.opset_imports[""] >= opset
    graphs = list(all_graphs(model))
    nodes = [n for g in graphs for n in g]
    names = [n.name for n in nodes]
    assert all(names) and len(set(names)) == len(names)
    values = [v.name for g in graphs for v in (*g.inputs, *g.initializers.values())]
    values += [v.name for n in nodes for v in n.outputs if v.name or v.uses()]
    assert all(values) and len(set(values)) == len(set(map(str, values))) == len(values)
    assert not any(v.is_initializer() for v in model.graph.inputs)
    kept = [n for n in nodes if n.op_type == "Constant" and not n.outputs[0].is_graph_output()]
    assert not kept, "constants are initializers"


def old_net() -> onnx.ModelProto:
    """Opset 7, IR 3: no node names, weights among the inputs and in Constants, batch -1, BatchNorm, Dropout."""
    rng = np.random.default_rng(1)

    def node(op: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
        return helper.make_node(op, inputs.split(), [output], **attributes)

    tensors = {
        "w": rng.standard_normal((6, 3, 3, 3)),
        "gamma": rng.standard_normal(6),
        "beta": rng.standard_normal(6),
        "mean": rng.standard_normal(6),
        "var": rng.random(6) + 0.5,
    }
    weights = [numpy_helper.from_array(v.astype(np.float32), k) for k, v in tensors.items()]
    weights.append(numpy_helper.from_array(np.array([0, -1], np.int64), "shape"))
    fc = numpy_helper.from_array(rng.standard_normal((4, 96)).astype(np.float32))
    graph = helper.make_graph(
        [
            node("Conv", "x w", "c", pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
            node("BatchNormalization", "c gamma beta mean var", "n", spatial=1),
            node("Relu", "n", "r"),
            node("Identity", "r", "i"),
            node("MaxPool", "i", "p", kernel_shape=[2, 2], strides=[2, 2]),
            node("Dropout", "p", "d", ratio=0.5),
            node("Reshape", "d shape", "f"),
            node("Constant", "", "fc", value=fc),
            node("Transpose", "fc", "fct", perm=[1, 0]),
            node("MatMul", "f fct", "m"),
            node("Clip", "m", "k", min=-1.0, max=1.0),
            node("Softmax", "k", "y"),
        ],
        "old",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [-1, 3, 8, 8]),
            *(helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in weights),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [-1, 4])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 7)], ir_version=3)
    model.metadata_props.add(key="author", value="me")
    return model


def test_an_old_model(run_passes: Callable[..., Any], same_numbers: Callable[..., None]) -> None:
    proto = old_net()
    out = run_passes(proto, prepare())
    check_prepared(out.model)
    assert out.ops() == ["Conv", "Relu", "MaxPool", "Reshape", "MatMul", "Clip", "Softmax"]
    assert [n.name for n in out.proto.graph.node][:2] == ["Conv_c", "Relu_r"]
    assert out.initializers()["fct"].shape == (96, 4), "a weight behind Transpose is a weight"
    assert [v.name for v in out.proto.graph.input] == ["x"] and out.proto.ir_version == 10
    assert {p.key: p.value for p in out.proto.metadata_props} == {"author": "me"}
    same_numbers(proto, out.proto, {"x": RNG.standard_normal((3, 3, 8, 8)).astype("f")})


def test_functions_bodies_and_half_floats(run_passes: Callable[..., Any], same_numbers: Callable[..., None]) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 13, "local" : 1, "com.microsoft" : 1]>
    main (bool c, float[2,3] x) => (float[a,b] y) {
      h = Cast<to = 10>(x)
      z = local.block(h)
      f = Cast<to = 1>(z)
      y = If(c) <
        then_branch = t () => (float[a,b] p) { k = Constant<value_float = 2.0>() m = Mul(f, k) p = Identity(m) },
        else_branch = e () => (float[a,b] p) { k = Constant<value_float = 3.0>() m = Div(f, k) p = Identity(m) }
      >
    }
    <domain: "local", opset_import: ["" : 13]>
    block (a) => (b) {
      w = Constant<value_floats = [0.5, -0.25, 1.0, 2.0, -1.5, 0.75]>()
      s = Constant<value_ints = [2, 3]>()
      r = Reshape(w, s)
      t = Transpose(r)
      h = Cast<to = 10>(t)
      b = MatMul(a, h)
    }
    """
    out = run_passes(text, prepare())
    check_prepared(out.model)
    assert [n.op_type for n in out.model.graph.all_nodes()] == ["Cast", "MatMul", "Cast", "If", "Mul", "Div"]
    assert {o.domain for o in out.proto.opset_import} == {""}
    assert {k: v.dtype.name for k, v in out.initializers().items()} == {"block_z/h": "float16"}
    for flag in (True, False):
        feeds = {"c": np.array(flag), "x": RNG.standard_normal((2, 3)).astype("f")}
        same_numbers(text, out.proto, feeds, rtol=1e-3, atol=1e-3)


def test_a_quantized_model_keeps_its_pairs(run_passes: Callable[..., Any], same_numbers: Callable[..., None]) -> None:
    proto = parser.parse_model("""
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[1,4,6,6] x) => (float[a,b,c,d] y)
    <float sx = {0.05}, uint8 zx = {128}, float sw = {0.02}, int8 zw = {0}, float sy = {0.1}, uint8 zy = {10},
     float[4] g = {1,2,0.5,1}, float[4] b = {0,1,0,-1}, float[4] m = {0,0,0.5,0}, float[4] v = {1,1,2,1}> {
      qx = QuantizeLinear(x, sx, zx)  dx = DequantizeLinear(qx, sx, zx)
      dw = DequantizeLinear(w, sw, zw)
      fw = Identity(f)  qf = QuantizeLinear(fw, sw, zw)  df = DequantizeLinear(qf, sw, zw)
      c = Conv(dx, dw)  n = BatchNormalization(c, g, b, m, v)
      q = QuantizeLinear(n, sy, zy)  d = DequantizeLinear(q, sy, zy)
      y = Conv(d, df)
    }
    """)
    proto.graph.initializer.append(numpy_helper.from_array(RNG.integers(-100, 100, (4, 4, 3, 3)).astype(np.int8), "w"))
    proto.graph.initializer.append(numpy_helper.from_array(RNG.standard_normal((4, 4, 1, 1)).astype(np.float32), "f"))
    out = run_passes(proto, prepare())
    pairs = ("QuantizeLinear", "DequantizeLinear")
    before = Counter(n.op_type for n in proto.graph.node if n.op_type in pairs)
    assert Counter(op for op in out.ops() if op in pairs) == before and "BatchNormalization" in out.ops()
    same_numbers(proto, out.proto)


@pytest.mark.parametrize("step", list(flatten(prepare())), ids=str)
def test_every_step_works_alone(
    step: Pass, run_passes: Callable[..., Any], same_numbers: Callable[..., None], tmp_path: Path
) -> None:
    """On a model of opset 7 nothing has been done to; and from a file with external data to a file."""
    proto = old_net()
    feeds = {"x": RNG.standard_normal((3, 3, 8, 8)).astype("f")}
    same_numbers(proto, run_passes(proto, step).proto, feeds)
    onnx.save(proto, tmp_path / "old.onnx", save_as_external_data=True, size_threshold=0, convert_attribute=True)
    after = step.apply(tmp_path / "old.onnx")
    onnx.save(after, tmp_path / "new.onnx")
    same_numbers(old_net(), onnx.load(tmp_path / "new.onnx"), feeds)


SOME = (
    "pytorch-converted/test_BatchNorm3d_momentum_eval",
    "pytorch-converted/test_ConvTranspose2d",
    "pytorch-converted/test_Conv2d_groups",
    "pytorch-converted/test_Embedding",
    "pytorch-converted/test_PReLU_3d_multiparam",
    "pytorch-converted/test_ReflectionPad2d",
    "pytorch-operator/test_operator_addmm",
    "pytorch-operator/test_operator_lstm",
    "pytorch-operator/test_operator_repeat",
    "pytorch-operator/test_operator_non_float_params",
    "simple/test_sign_model",
    "simple/test_single_relu_model",
)


def recorded(folder: Path, run_model: Callable[..., list[Any]]) -> int:
    """Prepare one model of the onnx wheel and compare with the outputs recorded beside it."""
    proto = onnx.load(folder / "model.onnx")
    model = ir.from_proto(proto)
    run_step(prepare(), model, Context())
    check_prepared(model)
    after = ir.to_proto(model)
    onnx.checker.check_model(after, full_check=True)
    known = {t.name for t in proto.graph.initializer}
    inputs = [v.name for v in proto.graph.input]
    compared = 0
    for data in sorted(folder.glob("test_data_set_*")):
        files = sorted(data.glob("input_*.pb"), key=lambda p: int(p.stem.split("_")[1]))
        names = inputs if len(files) == len(inputs) else [n for n in inputs if n not in known]
        arrays = [numpy_helper.to_array(TensorProto.FromString(p.read_bytes())) for p in files]
        feeds = {n: a for n, a in zip(names, arrays, strict=True) if n not in known}
        for i, got in enumerate(run_model(after, feeds)):
            wanted = numpy_helper.to_array(TensorProto.FromString((data / f"output_{i}.pb").read_bytes()))
            np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-5, err_msg=str(folder))
            compared += 1
    return compared


@pytest.mark.parametrize("name", [n for n in SOME if (DATA / n).exists()])
def test_models_of_the_onnx_wheel(name: str, run_model: Callable[..., list[Any]]) -> None:
    assert recorded(DATA / name, run_model)


@pytest.mark.slow
def test_all_models_of_the_onnx_wheel(run_model: Callable[..., list[Any]]) -> None:
    assert sum(recorded(p.parent, run_model) for p in sorted(DATA.glob("pytorch-*/*/model.onnx"))) > 100


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((DATA / "light").glob("*.onnx")), ids=lambda p: p.stem)
def test_light_models(path: Path, run_model: Callable[..., list[Any]], random_feeds: Callable[..., Any]) -> None:
    """Whole networks whose weights are made by ConstantOfShape: the file must not blow up."""
    proto = onnx.load(path)
    model = ir.from_proto(proto)
    run_step(prepare(), model, Context())
    check_prepared(model)
    after = ir.to_proto(model)
    assert after.ByteSize() < 4 << 20
    feeds = random_feeds(proto)
    for a, b in zip(run_model(proto, feeds), run_model(after, feeds), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


REAL: dict[str, tuple[dict[str, tuple[int, ...]], set[str]]] = {
    "orientation": ({"x": (1, 3, 224, 224)}, {"BatchNormalization", "Identity"}),
    "ocr-rec": ({"x": (1, 3, 48, 160)}, {"BatchNormalization", "Constant", "Clip"}),
    "ocr-det": ({"x": (1, 3, 160, 160)}, {"BatchNormalization", "Constant", "Clip"}),
    "magika": ({"bytes": (2, 2048)}, {"Constant"}),
    "ddddocr": ({"input1": (1, 1, 64, 96)}, {"Constant"}),
}


@pytest.mark.real
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in ("ocr-det", "ddddocr") else n for n in REAL]
)
def test_real_models(name: str, real_model: Callable[[str], Path], run_model: Callable[..., list[Any]]) -> None:
    proto = onnx.load(real_model(name))
    shapes, gone = REAL[name]
    model = ir.from_proto(proto)
    run_step(prepare(), model, Context())
    check_prepared(model)
    assert not gone & {n.op_type for n in model.graph.all_nodes()}
    after = ir.to_proto(model)
    onnx.checker.check_model(after, full_check=True)
    kind = proto.graph.input[0].type.tensor_type.elem_type
    rng = np.random.default_rng(0)
    feeds = {
        v: rng.random(s).astype("f") if kind == TensorProto.FLOAT else rng.integers(0, 255, s).astype(np.int32)
        for v, s in shapes.items()
    }
    for a, b in zip(run_model(proto, feeds), run_model(after, feeds), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5 * float(np.abs(a).max()) + 1e-6)
