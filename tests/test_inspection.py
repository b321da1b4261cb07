import json

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper, parser

from onnxq.inspection import PARAMETERS, OpCount, PairRow, Port, WeightRow, inspect, inspect_model
from onnxq.report.inspect import to_text
from onnxq.targets import load_target

ORT = load_target("ort-cpu")

QDQ = """
<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1], producer_name: "maker", producer_version: "2">
g (float[N, 4] x) => (float[N, 8] y) {
  xq = QuantizeLinear(x, s, z)
  xd = DequantizeLinear(xq, s, z)
  wd = DequantizeLinear<axis = 1>(wq, ws, wz)
  m = MatMul(xd, wd)
  mq = QuantizeLinear(m, s, z)
  md = DequantizeLinear(mq, s, z)
  y = Gemm<transB = 1>(md, w)
}
"""


def qdq_model():
    model = parser.parse_model(QDQ)
    arrays = {
        "s": np.float32(0.1),
        "z": np.uint8(0),
        "wq": np.ones((4, 6), np.int8),
        "ws": np.full(6, 0.01, np.float32),
        "wz": np.zeros(6, np.int8),
        "w": np.ones((8, 6), np.float32),
    }
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items())
    model.metadata_props.add(key="author", value="me")
    return model


def look(model):
    return inspect_model(ir.from_proto(model), ORT)


def test_head_ports_and_ops():
    found = look(qdq_model())
    assert (found.ir_version, found.opsets, found.producer) == (10, {"ai.onnx": 21, "com.microsoft": 1}, "maker 2")
    assert found.metadata == {"author": "me"}
    assert found.inputs == [Port("x", "float32", ("N", 4))] and found.outputs == [Port("y", "float32", ("N", 8))]
    assert (found.nodes, found.subgraphs, found.functions) == (7, 0, [])
    assert found.ops[:3] == [
        OpCount("DequantizeLinear", 3, 0),
        OpCount("QuantizeLinear", 2, 0),
        OpCount("Gemm", 1, 0),
    ]


def test_weights_by_consumer_and_stored_type():
    found = look(qdq_model())
    assert found.weights == [
        WeightRow("Gemm", "float32", 1, 8 * 6 * 4),
        WeightRow(PARAMETERS, "float32", 2, 4 + 6 * 4),
        WeightRow("MatMul", "int8", 1, 24),
        WeightRow(PARAMETERS, "int8", 1, 6),
        WeightRow(PARAMETERS, "uint8", 1, 1),
    ]
    assert found.weight_bytes == 192 + 28 + 24 + 6 + 1


def test_pairs_and_layers():
    found = look(qdq_model())
    assert found.pairs == [
        PairRow("activation", "uint8 asymmetric per-tensor", 2),
        PairRow("weight", "int8 symmetric per-channel(axis=1)", 1),
    ]
    rows = {row.op: row for row in found.layers}
    assert (rows["MatMul"].integer, rows["MatMul"].float_bytes) == (1, 0)
    assert rows["Gemm"].float == 1 and rows["Gemm"].float_bytes == 192
    assert rows["Gemm"].reasons == {"its input is quantized, its weight is not": 1}
    assert [(f.op, f.bytes) for f in found.float_layers] == [("Gemm", 192)]


def test_shared_weights_count_once():
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (int64[3] i, float[3, 5] x) => (y, z)'
        "{ y = Gather(w, i) t = Transpose(w) z = MatMul(x, t) }"
    )
    model.graph.initializer.append(numpy_helper.from_array(np.ones((7, 5), np.float32), "w"))
    found = look(model)
    assert found.weights == [WeightRow("Gather + MatMul", "float32", 1, 140)]
    assert found.weight_bytes == 140 and sum(row.float_bytes for row in found.layers) == 280


def test_subgraphs_functions_and_constants_are_counted():
    model = parser.parse_model("""
    <ir_version: 8, opset_import: ["": 17, "f": 1]>
    g (bool c, float[4] x) => (float[4] y) {
      a = f.twice(x)
      y = If (c) <
        then_branch = t () => (float[4] p) { w = Constant<value = float[4] {1, 2, 3, 4}>() p = Mul(a, w) },
        else_branch = e () => (float[4] q) { q = Identity(a) }
      >
    }
    <domain: "f", opset_import: ["": 17]> twice (u) => (v) { v = Add(u, u) }
    """)
    found = look(model)
    assert (found.nodes, found.subgraphs, found.functions) == (6, 2, ["f::twice"])
    assert {op.op: (op.count, op.nested) for op in found.ops} == {
        "If": (1, 0),
        "f::twice": (1, 0),
        "Add": (1, 1),
        "Constant": (1, 1),
        "Identity": (1, 1),
        "Mul": (1, 1),
    }
    assert found.weights == [WeightRow("Mul", "float32", 1, 16)]
    assert [(f.op, f.graph) for f in found.float_layers] == [("Mul", "t")]


def test_unused_and_output_constants():
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1] x) => (float[1] y, float[2] o) { y = Relu(x) }'
    )
    for name, size in (("o", 2), ("unused", 3)):
        model.graph.initializer.append(numpy_helper.from_array(np.ones(size, np.float32), name))
    assert {(w.op, w.bytes) for w in look(model).weights} == {("graph output", 8), ("unused", 12)}


def test_weight_used_by_a_subgraph_belongs_to_the_node_there():
    model = parser.parse_model("""
    <ir_version: 8, opset_import: ["": 17]>
    g (bool c, float[1, 4] x) => (float[1, 4] y) {
      y = If (c) <
        then_branch = t () => (p) { p = MatMul(x, w) },
        else_branch = e () => (q) { q = Identity(x) }
      >
    }
    """)
    model.graph.initializer.append(numpy_helper.from_array(np.ones((4, 4), np.float32), "w"))
    assert look(model).weights == [WeightRow("MatMul", "float32", 1, 64)]


def test_json_is_stable_and_complete():
    data = look(qdq_model()).to_json()
    assert json.loads(json.dumps(data)) == json.loads(json.dumps(look(qdq_model()).to_json()))
    assert data["format"] == "onnxq-inspect-1" and data["weight_bytes"] == 251
    assert data["inputs"][0] == {"name": "x", "type": "float32", "shape": ("N", 4)}


def test_text_names_what_matters():
    text = to_text(look(qdq_model()))
    for words in (
        "IR 10, opset ai.onnx 21, com.microsoft 1, by maker 2",
        "[N, 4]",
        "Nodes  7",
        "Weights  251 B",
        "76.5 %",
        "int8 symmetric per-channel(axis=1)",
        "its input is quantized, its weight is not",
    ):
        assert words in text
    assert "\x1b" not in text and max(len(line) for line in text.splitlines()) <= 120


def test_weights_are_not_read(tmp_path, monkeypatch):
    path = tmp_path / "m.onnx"
    onnx.save(qdq_model(), path, save_as_external_data=True, location="m.data", size_threshold=100)
    (tmp_path / "m.data").write_bytes(b"\xff" * (tmp_path / "m.data").stat().st_size)
    found = inspect(path)
    assert (found.external_files, found.external_bytes) == (["m.data"], 192)
    assert found.file_bytes == path.stat().st_size and found.file == str(path)
    assert "192 B in m.data" in to_text(found)


@pytest.mark.parametrize("make", [lambda m: m, lambda m: m.SerializeToString()])
def test_message_and_bytes(make):
    assert inspect(make(qdq_model())).ops == look(qdq_model()).ops


def test_other_target_other_reasons():
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1, 4, 5] x) => (y) { y = ConvTranspose(x, w) }'
    )
    model.graph.initializer.append(numpy_helper.from_array(np.ones((4, 2, 3), np.float32), "w"))
    assert look(model).layers[0].reasons == {"ort-cpu has no integer kernel for ConvTranspose": 1}
    assert inspect(model, "onnx").layers[0].reasons == {"no Q/DQ pair on input or weight": 1}


def test_strings_and_sequences_do_not_stop_it():
    value = helper.make_tensor_sequence_value_info("x", onnx.TensorProto.FLOAT, None)
    out = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    nodes = [helper.make_node("ConcatFromSequence", ["x"], ["y"], axis=0)]
    words = helper.make_tensor("names", onnx.TensorProto.STRING, [2], [b"a", b"bc"])
    graph = helper.make_graph(nodes, "g", [value], [out], [words])
    found = look(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    assert "Sequence" in found.inputs[0].type and found.inputs[0].shape is None
    assert found.weights[0].type == "string"
