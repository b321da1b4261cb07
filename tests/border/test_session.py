"""Models for onnxruntime sessions: right results, weights used where they lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from onnxq import border

X = np.random.default_rng(1).standard_normal((2, 64), dtype=np.float32)


def outputs(model: bytes | str, entries: dict[str, str], feeds: dict[str, Any]) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, feeds)[0]


def expected(model: onnx.ModelProto, path: Path, feeds: dict[str, Any]) -> Any:
    path.write_bytes(model.SerializeToString())
    return outputs(str(path), {}, feeds)


@pytest.fixture(params=["inline", "external", "bytes", "message"])
def crossing(request: pytest.FixtureRequest, build: Any, tmp_path: Path) -> border.Crossing:
    model = build.mlp(3)
    if request.param == "bytes":
        return border.open_model(model.SerializeToString())
    if request.param == "message":
        return border.open_model(model)
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=request.param == "external", location="m.bin")
    return border.open_model(tmp_path / "m.onnx")


def test_results_and_copies(crossing: border.Crossing, build: Any, tmp_path: Path) -> None:
    folder = tmp_path / "session"
    folder.mkdir()
    want = expected(build.mlp(3), tmp_path / "want.onnx", {"x0": X})
    np.testing.assert_array_equal(outputs(*border.session_model(crossing.model, folder), {"x0": X}), want)
    copied = (folder / "weights").stat().st_size
    assert copied == (0 if crossing.source_path else 3 * 64 * 64 * 4)
    assert len(border.session_model(crossing.model, folder)[0]) < 2000


def test_changed_weights_are_written_and_the_others_stay(crossing: border.Crossing, build: Any, tmp_path: Path) -> None:
    folder = tmp_path / "session"
    folder.mkdir()
    changed = build.mlp(3)
    weight = np.full((64, 64), 0.01, np.float32)
    changed.graph.initializer[1].raw_data = weight.tobytes()
    want = expected(changed, tmp_path / "want.onnx", {"x0": X})
    crossing.model.graph.initializers["w1"].const_value = ir.tensor(weight, name="w1")
    np.testing.assert_array_equal(outputs(*border.session_model(crossing.model, folder), {"x0": X}), want)
    assert (folder / "weights").stat().st_size == (1 if crossing.source_path else 3) * weight.nbytes


def test_a_replaced_source_is_copied_from_the_mapping(build: Any, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(build.mlp(3).SerializeToString())
    crossing = border.open_model(path)
    want = expected(build.mlp(3), tmp_path / "want.onnx", {"x0": X})
    border.open_model(build.mlp(1)).save(path)
    folder = tmp_path / "session"
    folder.mkdir()
    np.testing.assert_array_equal(outputs(*border.session_model(crossing.model, folder), {"x0": X}), want)
    assert (folder / "weights").stat().st_size == 3 * 16384


def test_weights_in_constants_branches_and_functions(tmp_path: Path, build: Any) -> None:
    """onnxruntime takes external data in all of them, at odd offsets."""
    rng = np.random.default_rng(0)

    def weight(name: str = "") -> TensorProto:
        return onnx.numpy_helper.from_array(rng.standard_normal((64, 64), dtype=np.float32), name)

    info = build.info("r", "N", 64)
    then = helper.make_graph([helper.make_node("MatMul", ["h", "v"], ["r"])], "then", [], [info], [weight("v")])
    other = helper.make_graph([helper.make_node("Neg", ["h"], ["r"])], "else", [], [info])
    nodes = [
        helper.make_node("Constant", [], ["k"], value=weight()),
        helper.make_node("MatMul", ["x", "k"], ["g"]),
        helper.make_node("F", ["g"], ["h"], domain="loc"),
        helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other),
    ]
    inner = [helper.make_node("Constant", [], ["k"], value=weight()), helper.make_node("MatMul", ["a", "k"], ["b"])]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("loc", 1)]
    graph = helper.make_graph(
        nodes, "g", [build.info("x", "N", 64), helper.make_tensor_value_info("c", 9, [])], [build.info("y", "N", 64)]
    )
    functions = [helper.make_function("loc", "F", ["a"], ["b"], inner, opsets[:1])]
    model = helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10)
    feeds = {"x": X, "c": np.array(True)}
    want = expected(model, tmp_path / "m.onnx", feeds)
    folder = tmp_path / "session"
    folder.mkdir()
    made = border.session_model(border.open_model(tmp_path / "m.onnx").model, folder)
    np.testing.assert_array_equal(outputs(*made, feeds), want)
    assert (folder / "weights").stat().st_size == 0


def test_small_external_tensors_go_inside_and_training_info_stays_out(tmp_path: Path, build: Any) -> None:
    """onnxruntime wants shapes inside the model."""
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    shape = onnx.numpy_helper.from_array(np.array([4, 32], np.int64), "shape")
    graph = helper.make_graph(nodes, "g", [build.info("x", 2, 64)], [build.info("y", 4, 32)], [shape])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    model.training_info.add().algorithm.node.append(helper.make_node("Relu", ["shape"], ["s"]))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.bin", size_threshold=0)
    crossing = border.open_model(tmp_path / "m.onnx")
    folder = tmp_path / "session"
    folder.mkdir()
    made = border.session_model(crossing.model, folder)
    written = onnx.ModelProto.FromString(made[0])
    assert written.graph.initializer[0] == shape
    assert not written.training_info
    np.testing.assert_array_equal(outputs(*made, {"x": X}), X.reshape(4, 32))


def test_a_part_has_what_its_nodes_read_also_inside_bodies_and_nothing_else(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[2] x, bool c) => (float[2] y, float[2] z) <float[2] w = {1, 2}, float[2] v = {3, 4}, float[2] u = {5, 6}> {
        y = If (c) <
            then_branch = a () => (float[2] p) { p = Add(h, w) },
            else_branch = b () => (float[2] q) { q = Identity(v) }>
        h = Neg(x)
        z = Add(x, u)
    }"""
    model = ir.from_proto(onnx.parser.parse_model(text))  # y reads h, which comes later
    y = model.graph.node(0).outputs[0]
    data, entries = border.session_model(model, tmp_path, [y])
    found = onnx.load_from_string(data).graph
    assert [n.op_type for n in found.node] == ["If", "Neg"]
    assert [t.name for t in found.initializer] == ["w", "v"]
    assert [o.name for o in found.output] == ["y"]
    feeds = {"x": np.float32([1, 1]), "c": np.array(True)}
    np.testing.assert_array_equal(outputs(data, entries, feeds), [0, 1])
