"""onnxruntime sessions: outputs of one's choice, true semantics, clear errors, nothing left on disk."""

import tempfile

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper as oh
from onnx import parser

from onnxq.errors import InputError, OptionError
from onnxq.session import Runtime, open_session


def load(text):
    return ir.from_proto(parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21, "my" : 1]> {text}'))


CHAIN = "agraph (float[N] x, float[N] z) => (float[N] c, float[N] d) { a = Neg(x) b = Abs(a) c = Exp(b) d = Neg(z) }"
X = {"x": np.float32([1, -2])}


def test_own_outputs_leave_the_model_as_it_is():
    model = load(CHAIN)
    nodes = list(model.graph)
    before = ir.to_proto(model).SerializeToString()
    values = [nodes[1].outputs[0], nodes[0].outputs[0]]
    with open_session(model, outputs=values) as session:
        b, a = session.run({**X, "z": X["x"]})
        assert session.outputs == ["b", "a"]
    assert (a.tolist(), b.tolist()) == ([-1, 2], [1, 2])
    assert ir.to_proto(model).SerializeToString() == before


def test_declared_shapes_of_watched_values_do_not_bind():
    model = load("agraph (float[N] x) => (float[N] y) { a = Neg(x) y = Abs(a) }")
    a = next(iter(model.graph)).outputs[0]
    a.shape = ir.Shape([7])
    with open_session(model, outputs=[a]) as session:
        assert session.run(X)[0].shape == (2,)


@pytest.mark.parametrize("optimization", ["none", "basic", "extended", "all"])
@pytest.mark.parametrize("lean", [True, False])
def test_levels_and_lean_give_the_same_numbers(optimization, lean):
    with open_session(load(CHAIN), Runtime(optimization=optimization, lean=lean, threads=1)) as session:
        c, d = session.run({**X, "z": X["x"]})
    np.testing.assert_allclose(c, np.exp([1, 2]), rtol=1e-6)
    assert d.tolist() == [-1, 2]


def test_a_path_is_used_where_it_lies(tmp_path):
    onnx.save(ir.to_proto(load(CHAIN)), tmp_path / "m.onnx")
    with open_session(tmp_path / "m.onnx") as session:
        assert session.inputs == ["x", "z"]
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


def double_pairs():
    """A model with two pairs of unlike scale in a row, of which onnxruntime removes one by default."""
    scales = [onnx.numpy_helper.from_array(np.float32(v), n) for n, v in (("s1", 0.5), ("s2", 0.3))]
    zero = onnx.numpy_helper.from_array(np.uint8(0), "z")
    nodes = []
    for i, (a, b) in enumerate((("x", "y1"), ("y1", "y"))):
        nodes.append(oh.make_node("QuantizeLinear", [a, f"s{i + 1}", "z"], [f"q{i}"]))
        nodes.append(oh.make_node("DequantizeLinear", [f"q{i}", f"s{i + 1}", "z"], [b]))
    info = [oh.make_tensor_value_info(n, 1, ["N"]) for n in "xy"]
    graph = oh.make_graph(nodes, "g", info[:1], info[1:], [*scales, zero])
    return ir.from_proto(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 21)], ir_version=10))


def test_true_semantics_computes_q_and_dq_as_written():
    x = np.linspace(0, 20, 200, dtype=np.float32)
    once = np.rint(x / np.float32(0.5)) * np.float32(0.5)
    literal = np.rint(once / np.float32(0.3)) * np.float32(0.3)
    with open_session(double_pairs(), Runtime(true_semantics=True)) as session:
        np.testing.assert_allclose(session.run({"x": x})[0], literal, rtol=1e-6)
    with open_session(double_pairs()) as session:
        assert np.abs(session.run({"x": x})[0] - literal).max() > 0.1


def test_nothing_is_left_on_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with open_session(load(CHAIN)):
        assert len(list(tmp_path.iterdir())) == 1
    assert not list(tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt), open_session(load(CHAIN)):
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_weights_are_read_by_the_session():
    w = np.random.default_rng(0).standard_normal((300, 300)).astype(np.float32)
    info = [oh.make_tensor_value_info(n, 1, ["N", 300]) for n in "xy"]
    node = oh.make_node("MatMul", ["x", "w"], ["y"])
    graph = oh.make_graph([node], "g", info[:1], info[1:], [onnx.numpy_helper.from_array(w, "w")])
    model = ir.from_proto(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 21)], ir_version=10))
    with open_session(model, Runtime(lean=True)) as session:
        np.testing.assert_allclose(session.run({"x": w[:2]})[0], w[:2] @ w, rtol=1e-4, atol=1e-4)


def test_unknown_operator_names_the_remedy():
    with (
        pytest.raises(InputError, match=r"onnxruntime cannot load the model: .*my.*--custom-op-library"),
        open_session(load("agraph (float[N] x) => (float[N] y) { y = my.Strange(x) }")),
    ):
        pass


def test_custom_op_library_that_is_none(tmp_path):
    library = tmp_path / "ops.so"
    library.write_text("no library")
    with (
        pytest.raises(OptionError, match=r"cannot load the custom-op library .*ops\.so"),
        open_session(load(CHAIN), Runtime(custom_op_library=str(library))),
    ):
        pass


def test_a_failing_run_tells_the_feeds():
    with (
        open_session(load("agraph (float[N] x, float[N] z) => (float[N] y) { y = Add(x, z) }")) as session,
        pytest.raises(InputError, match=r"cannot run the model with x float32\[2\], z float32\[3\]"),
    ):
        session.run({"x": np.zeros(2, np.float32), "z": np.zeros(3, np.float32)})


def test_a_file_that_is_no_model(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"nonsense")
    with pytest.raises(InputError, match="onnxruntime cannot load the model"), open_session(tmp_path / "m.onnx"):
        pass
