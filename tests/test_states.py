import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from onnxq.look import all_graphs
from onnxq.states import State, pairs_of, source_of, state_of
from onnxq.targets import load_target

ORT = load_target("ort-cpu")


def build(nodes, weights, inputs=("x",), outputs=("y",), opset=21):
    """A model from lines like ``y = Conv(x, w)`` and arrays by name."""
    graph = parser.parse_graph(f"g ({', '.join('float ' + i for i in inputs)}) => () {{ {nodes} }}")
    for name in outputs:
        graph.output.add(name=name)
    graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items())
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10))


def states(nodes, weights, target=ORT, **kwargs):
    model = build(nodes, weights, **kwargs)
    found = {n.outputs[0].name: state_of(n, target) for n in model.graph}
    return {name: state for name, state in found.items() if state is not None}


ACT = {"s": np.float32(0.1), "z": np.uint8(128)}
W8 = {"wq": np.ones((4, 4), np.int8), "ws": np.full(4, 0.01, np.float32), "wz": np.zeros(4, np.int8)}
X = "xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z) "
WD = "wd = DequantizeLinear<axis=1>(wq, ws, wz) "
Y = "yq = QuantizeLinear(m, s, z) y = DequantizeLinear(yq, s, z) "
WF = {"w": np.ones((4, 4), np.float32)}


def test_matmul_between_pairs_is_integer():
    assert states(X + WD + "m = MatMul(xd, wd) " + Y, ACT | W8) == {"m": State("integer")}


def test_matmul_needs_no_output_pair():
    assert states(X + WD + "y = MatMul(xd, wd)", ACT | W8) == {"y": State("integer")}


def test_conv_needs_an_output_q():
    weights = ACT | W8 | {"wq": np.ones((4, 4, 1, 1), np.int8)}
    wd = "wd = DequantizeLinear<axis=0>(wq, ws, wz) "
    assert states(X + wd + "y = Conv(xd, wd)", weights) == {"y": State("float", "no QuantizeLinear behind it")}
    folded = X + wd + "c = Conv(xd, wd) r = Relu(c) m = MaxPool<kernel_shape=[2,2]>(r) " + Y
    assert states(folded, weights) == {"c": State("integer")}


def test_float_weight_only_and_half_quantized():
    assert states("y = MatMul(x, w)", WF) == {"y": State("float", "no Q/DQ pair on input or weight")}
    assert states(WD + "y = MatMul(x, wd)", W8) == {"y": State("weight-only")}
    half = states(X + "m = MatMul(xd, w) " + Y, ACT | WF)
    assert half == {"m": State("float", "its input is quantized, its weight is not")}


def test_weight_kept_float_behind_its_own_pair():
    pair = "w8 = QuantizeLinear<axis=1>(w, ws, wz) wd = DequantizeLinear<axis=1>(w8, ws, wz) "
    assert states(X + pair + "y = MatMul(xd, wd)", ACT | WF | W8) == {"y": State("integer")}


def test_dynamic():
    dynamic = "xq, xs, xz = DynamicQuantizeLinear(x) xd = DequantizeLinear(xq, xs, xz) "
    assert states(dynamic + WD + "y = MatMul(xd, wd)", W8) == {"y": State("dynamic")}
    found = states("xq, xs, xz = DynamicQuantizeLinear(x) y = MatMulInteger(xq, wq, xz)", W8)
    assert found == {"y": State("dynamic")}


def test_elementwise_between_pairs():
    assert states(X + "m = Sigmoid(xd) " + Y, ACT) == {"m": State("integer")}
    assert states(X + "m = Tanh(xd) " + Y, ACT) == {"m": State("float", "ort-cpu has no integer kernel for Tanh")}
    assert states(X + "y = Tanh(xd)", ACT) == {}
    assert states(X + "y = Add(xd, x)", ACT) == {}


def test_indexes_and_sizes_are_no_weights():
    assert states("y = Resize(x, r, sizes)", {"r": np.ones(4, np.float32), "sizes": np.ones(4, np.float32)}) == {}
    assert states("y = Gather(w, x)", WF) == {"y": State("float", "no Q/DQ pair on input or weight")}
    assert states(X + "n = Shape(xd) m = Reshape(x, n) " + Y, ACT) == {}


def test_integer_bias_add_belongs_to_its_matmul():
    bias = {"b": np.ones(4, np.int32), "bs": np.full(4, 1e-3, np.float32)}
    nodes = X + WD + "p = MatMul(xd, wd) bd = DequantizeLinear<axis=0>(b, bs) m = Add(p, bd) " + Y
    assert states(nodes, ACT | W8 | bias) == {"p": State("integer")}


def test_attribute_and_type_reasons():
    weights = ACT | W8 | {"b": np.ones(4, np.float32)}
    found = states(X + WD + "y = Gemm<alpha=0.5>(xd, wd)", weights)
    assert found["y"] == State("float", "alpha is 0.5, the integer kernel takes 1.0")
    model = build("y = MatMul(x, w)", {"w": np.ones((4, 4), np.float16)})
    node = model.graph.node(0)
    node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT16)
    assert state_of(node, ORT) == State("float", "ort-cpu has no integer kernels for float16")


@pytest.mark.parametrize("op", ["LSTM", "ConvTranspose"])
def test_op_without_kernel(op):
    found = states(f"y = {op}(x, w)", WF)
    assert found == {"y": State("float", f"ort-cpu has no integer kernel for {op}")}


def test_contrib_and_qlinear_ops():
    model = build("y = QLinearAdd(x, s, z)", ACT)
    node = model.graph.node(0)
    node.domain = "com.microsoft"
    assert state_of(node, ORT) == State("integer")
    node.op_type = "MatMulNBits"
    assert state_of(node, ORT) == State("weight-only")


def test_weight_seen_through_carriers():
    model = build("t = Transpose(w) r = Identity(t) y = MatMul(x, r)", WF)
    tensor, path = source_of(model.graph.node(2).inputs[1])
    assert tensor.name == "w" and [n.op_type for n in path] == ["Identity", "Transpose"]
    assert source_of(model.graph.inputs[0]) == (None, [])


def pairs(nodes, weights):
    model = build(nodes, weights, outputs=())
    return [(p.role, p.spec) for g in all_graphs(model) for p in pairs_of(g)]


def test_pairs_by_role_and_spec():
    bias = {"b": np.ones(4, np.int32), "bs": np.full(4, 1e-3, np.float32)}
    nodes = X + WD + "bd = DequantizeLinear<axis=0>(b, bs) p = MatMul(xd, wd) m = Add(p, bd) " + Y
    assert sorted(pairs(nodes, ACT | W8 | bias)) == [
        ("activation", "uint8 symmetric per-tensor"),
        ("activation", "uint8 symmetric per-tensor"),
        ("bias", "int32 symmetric per-channel(axis=0)"),
        ("weight", "int8 symmetric per-channel(axis=1)"),
    ]


def test_pairs_of_other_shapes():
    assert pairs("y = QuantizeLinear<output_dtype=3>(x, s)", ACT) == [("Q without DQ", "int8 symmetric per-tensor")]
    assert pairs("y = QuantizeLinear(x, s)", ACT) == [("Q without DQ", "uint8 asymmetric per-tensor")]
    assert pairs("y = DequantizeLinear(x, s)", ACT)[0][0] == "DQ without Q"
    blocked = {"wq": np.ones((4, 4), np.int8), "bs": np.ones((2, 4), np.float32)}
    assert pairs("y = DequantizeLinear<axis=0, block_size=2>(wq, bs)", blocked) == [
        ("weight", "int8 symmetric blocked(2)")
    ]
    shifted = ACT | {"z": np.uint8(3)}
    assert pairs(X, shifted) == [("activation", "uint8 asymmetric per-tensor")]
    dynamic = "xq, xs, xz = DynamicQuantizeLinear(x) y = DequantizeLinear(xq, xs, xz)"
    assert pairs(dynamic, {}) == [("dynamic", "uint8 dynamic per-tensor")]


def test_four_bit_zero_points():
    tensor = helper.make_tensor("wq", TensorProto.UINT4, [4, 4], [8] * 16)
    model = build("y = DequantizeLinear(wq, s, z)", {"s": np.float32(1)})
    graph = ir.to_proto(model).graph
    graph.initializer.extend([tensor, helper.make_tensor("z", TensorProto.UINT4, [], [8])])
    model = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    assert [p.spec for p in pairs_of(model.graph)] == ["uint4 symmetric per-tensor"]
