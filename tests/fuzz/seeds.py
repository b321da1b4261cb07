"""Small models that together have nearly every construct of ONNX and of quantization in them; fuzzing starts here."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser

EXTERNAL, EXTERNAL_BYTES = "weights.bin", 64
"""File and size of the external data of one of them."""

LENET = Path(__file__).parents[2] / "models" / "lenet" / "lenet.onnx"

TEXTS = {
    "pairs": """
        <ir_version: 10, opset_import: ["": 21], metadata_props: ["made": "by hand"]>
        g (float[1, 2, 6, 6] x) => (float[1, 4] y)
          <float s = {0.05}, uint8 z = {128}, int8[4, 2, 3, 3] w, float[4] ws = {0.1, 0.2, 0.3, 0.4},
           int8[4] wz = {0, 0, 0, 0}, int32[4] b = {1, 2, 3, 4}, float[4] bs = {0.005, 0.01, 0.015, 0.02},
           int8[4, 4] fw, float fs = {0.02}, float[4] fb = {0.1, 0.2, 0.3, 0.4}, float hs = {0.1}, uint8 hz = {0}>
        {
          xq = QuantizeLinear(x, s, z)
          xd = DequantizeLinear(xq, s, z)
          wd = DequantizeLinear<axis = 0>(w, ws, wz)
          bd = DequantizeLinear<axis = 0>(b, bs)
          c = Conv<pads = [1, 1, 1, 1]>(xd, wd, bd)
          r = Relu(c)
          rq = QuantizeLinear(r, hs, hz)
          rd = DequantizeLinear(rq, hs, hz)
          p = GlobalAveragePool(rd)
          pq = QuantizeLinear(p, hs, hz)
          pd = DequantizeLinear(pq, hs, hz)
          f = Flatten(pd)
          fwd = DequantizeLinear(fw, fs)
          y = Gemm<transB = 1>(f, fwd, fb)
        }""",
    "blocks": """
        <ir_version: 10, opset_import: ["": 21]>
        g (float[N, 8] x, int64[2] ids) => (float[N, 6] y, float[2, 6] e)
          <int4[8, 6] w, float16[2, 6] s, int4[2, 6] z, uint16 az = {32768}, float as = {0.001}>
        {
          h = Cast<to = 10>(x)
          wd = DequantizeLinear<axis = 0, block_size = 4>(w, s, z)
          m = MatMul(h, wd)
          f = Cast<to = 1>(m)
          q = QuantizeLinear(f, as, az)
          y = DequantizeLinear(q, as, az)
          t = Gather(wd, ids)
          e = Cast<to = 1>(t)
        }""",
    "integers": """
        <ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g (float[1, 2, 6, 6] x, float[3, 4] a) => (float y, float b, float n, float l)
          <float s = {0.1}, uint8 z = {3}, int8[4, 2, 3, 3] w, float[4] ws = {0.1, 0.2, 0.3, 0.4},
           int8[4] wz = {0, 0, 0, 0}, int32[4] bias = {1, 2, 3, 4}, uint8[4, 5] mw, uint8 mz = {9},
           uint8[8, 1, 2] nw, float[8] ns, int8[1, 4, 8] iw, int8[1, 2, 8] rw, float[1, 8] is, int8[1, 8] iz>
        {
          q = QuantizeLinear(x, s, z)
          c = QLinearConv(q, s, z, w, ws, wz, s, z, bias)
          d = com.microsoft.QLinearAdd(c, s, z, c, s, z, s, z)
          y = DequantizeLinear(d, s, z)
          aq, as, az = DynamicQuantizeLinear(a)
          i = MatMulInteger(aq, mw, az, mz)
          k = Cast<to = 1>(i)
          scale = Mul(as, s)
          b = Mul(k, scale)
          n = com.microsoft.MatMulNBits<K = 4, N = 8, bits = 4, block_size = 16, accuracy_level = 4>(a, nw, ns)
          u = Unsqueeze(a, one)
          l, lh, lc = com.microsoft.DynamicQuantizeLSTM<hidden_size = 2>(u, iw, rw, , , , , , is, iz, is, iz)
          one = Constant<value_ints = [1]>()
          v = ConvInteger(q, q)
        }""",
    "bodies": """
        <ir_version: 9, opset_import: ["": 19]>
        g (float[4, 4] x, bool c, int64 n) => (float y, float last, float scanned)
          <float s = {0.1}, uint8 z = {7}, float[4, 4] w>
        {
          y = If(c) <then_branch = t () => (float[4, 4] ty)
            { tq = QuantizeLinear(x, s, z) td = DequantizeLinear(tq, s, z) ty = MatMul(td, w) },
            else_branch = e () => (float[4, 4] ey)
            { ey = If(c) <then_branch = a () => (float[4, 4] ay) { ay = Relu(x) },
                          else_branch = b () => (float[4, 4] by) { by = Identity(x) }> }>
          last, scanned = Loop(n, c, x) <body = l (int64 i, bool go, float[4, 4] v) =>
            (bool more, float[4, 4] out, float[4, 4] each)
            { more = Identity(go) lq = QuantizeLinear(v, s, z) out = DequantizeLinear(lq, s, z) each = Add(out, w) }>
        }""",
    "functions": """
        <ir_version: 10, opset_import: ["": 21, "local": 1, "com.microsoft": 1]>
        g (float[2, 4] x) => (float[2, 4] y) <float s = {0.1}, uint8 z = {7}, int8[4, 4] w, float[1] ws = {0.25}>
        {
          a = local.Pair<axis = 1>(x, s, z)
          wd = DequantizeLinear(w, ws)
          m = MatMul(a, wd)
          y = local.Twice(m, s, z)
        }
        <domain: "local", opset_import: ["": 21]> Pair <axis> (v, s, z) => (o)
        { q = QuantizeLinear<axis: int = @axis>(v, s, z) o = DequantizeLinear<axis: int = @axis>(q, s, z) }
        <domain: "local", opset_import: ["": 21, "local": 1]> Twice (v, s, z) => (o)
        { t = local.Pair<axis = 0>(v, s, z) o = local.Pair<axis = 0>(t, s, z) }""",
    "shapes": """
        <ir_version: 8, opset_import: ["": 13]>
        g (float[B, 3, H, 8] x, int8[16, 4] i) => (float y, float j, float k)
          <int64[1] i0 = {0}, int64[1] i1 = {1}, int64[1] minus = {-1}, float[4] ks, float ps = {0.5}, int8 pz = {0}>
        {
          s = Shape(x)
          b = Gather(s, i0)
          n = Slice(s, i1, minus)
          p = ReduceProd<keepdims = 1>(n)
          t = Concat<axis = 0>(b, p, minus)
          r = Reshape(x, t)
          v = Transpose<perm = [0, 2, 1]>(r)
          y = Softmax(v)
          e = ConstantOfShape<value = float[1] {1.0}>(t)
          k = Expand(e, t)
          f = Cast<to = 1>(i)
          j = Mul(f, ks)
          dead = Range(one, two, one)
          one = Constant<value_int = 1>()
          two = Constant<value = int64 {5}>()
        }""",
    "joins": """
        <ir_version: 8, opset_import: ["": 17]>
        g (float[2, 4] x) => (float[2, 8] y, float[2, 4] r)
          <float s = {0.1}, uint8 z = {0}, float t = {20.0}, int8 wz = {0}, float[4, 4] w, float ws = {0.01}>
        {
          q1 = QuantizeLinear(x, s, z)
          d1 = DequantizeLinear(q1, s, z)
          q2 = QuantizeLinear(x, t, z)
          d2 = DequantizeLinear(q2, t, z)
          c = Concat<axis = 1>(d1, d2)
          q3 = QuantizeLinear(c, t, z)
          y = DequantizeLinear(q3, t, z)
          wq = QuantizeLinear(w, ws, wz)
          wd = DequantizeLinear(wq, ws, wz)
          m = MatMul(d1, wd)
          a = Add(m, d1)
          k = Clip(a)
          q4 = QuantizeLinear(k, s, z)
          r = DequantizeLinear(q4, s, z)
          i = Concat<axis = 0>(q1, q2)
          o = Relu(q4)
        }""",
}


@cache
def seeds() -> dict[str, bytes]:
    """Serialized models by name, the same in every run."""
    found = {name: _with_data(parser.parse_model(text)).SerializeToString() for name, text in TEXTS.items()}
    found["odds"] = _odds().SerializeToString()
    found["external"] = _external().SerializeToString()
    found["lenet"] = LENET.read_bytes()
    return found


def _with_data(model: ModelProto) -> ModelProto:
    """Turn what is only declared, a weight, into an initializer of random data."""
    rng = np.random.default_rng(0)
    made = {name for node in model.graph.node for name in node.output}
    for info in [v for v in model.graph.value_info if v.name not in made]:
        kind = info.type.tensor_type
        shape = [d.dim_value for d in kind.shape.dim]
        values = rng.integers(1, 4, shape).astype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
        model.graph.initializer.append(numpy_helper.from_array(values, info.name))
        model.graph.value_info.remove(info)
    return model


def _odds() -> ModelProto:
    """Sparse and string tensors, sequences, optionals, float8, training parts, annotations, all kinds of attributes."""
    model = parser.parse_model("""
        <ir_version: 11, opset_import: ["": 23, "custom": 3]>
        g (seq(float[2]) many, optional(float[2]) may, sparse_tensor(float[2, 2]) sp, float[2] x) => (float[2] y)
          <float8e4m3fn z = {0}, float s = {0.5}, int2[6] tiny, float4e2m1[3] four>
        {
          q = QuantizeLinear<saturate = 0>(x, s, z)
          d = DequantizeLinear(q, s, z)
          c = custom.Anything<a = 1.5, b = "text", c = [1, 2], d = ["s", "t"], e = [1.5], f = int32[2] {1, 2}>(d)
          o = SequenceAt(many, where)
          where = Constant<value_int = 0>()
          y = Add(c, w)
        }""")
    sparse = model.graph.sparse_initializer.add(dims=[2])
    sparse.values.CopyFrom(helper.make_tensor("w", TensorProto.FLOAT, [1], [2.0]))
    sparse.indices.CopyFrom(helper.make_tensor("", TensorProto.INT64, [1], [1]))
    model.graph.initializer.append(helper.make_tensor("texts", TensorProto.STRING, [2], [b"a", b"b"]))
    annotation = model.graph.quantization_annotation.add(tensor_name="x")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="s")
    training = model.training_info.add()
    training.algorithm.node.add(op_type="Identity", input=["w"], output=["w2"])
    training.update_binding.add(key="w", value="w2")
    model.graph.node[2].metadata_props.add(key="onnxq.lint.ignore", value="OQ015, OQ7")
    model.metadata_props.add(key="onnxq.lint.ignore", value="OQ012")
    model.configuration.add(name="two", num_devices=2)
    return _with_data(model)


def _external() -> ModelProto:
    model = _with_data(
        parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]> g (float[2, 8] x) => (float[2, 8] y) <int8[8, 8] w, float s = {0.1}>
        { d = DequantizeLinear(w, s) y = MatMul(x, d) }""")
    )
    weight = next(t for t in model.graph.initializer if t.name == "w")
    onnx.external_data_helper.set_external_data(weight, EXTERNAL, offset=0, length=EXTERNAL_BYTES)
    weight.ClearField("raw_data")
    return model
