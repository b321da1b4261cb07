"""What wire rules read, of messages, bytes and files, valid or not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper

from onnxq.border import incoming
from onnxq.linting.wire import NO_RAW, Scope, Wire
from tests.rules.lab import build, in_branch

FUNCTION = """<domain: "local", opset_import: ["" : 20]> op (a) => (b) { b = Relu(a) }"""


def scopes(model: ModelProto) -> dict[str, Scope]:
    return {scope.path: scope for scope in Wire(model).scopes}


def test_scopes() -> None:
    model = build(in_branch("p = local.op(x)", "p"), imports=', "local" : 1', functions=FUNCTION)
    found = scopes(model)
    assert list(found) == ["", "y/then_branch", "y/else_branch", "local::op"]
    main, branch, function = found[""], found["y/then_branch"], found["local::op"]
    assert main.outer is None and main.inputs == ["x"] and main.outputs == ["y"] and main.holder == -1
    assert branch.outer is main and main.names[branch.holder] == "y" and branch.imports == {"": 21, "local": 1}
    assert function.outer is None and function.imports == {"": 20} and function.initializers == []
    assert branch.ops == [("local", "op"), ("", "Identity")] and branch.reads == [["x"], ["p"]]
    assert branch.makes == [["p"], ["p_in"]] and branch.defined == {"p", "p_in"} and branch.read == {"x", "p"}
    assert branch.sees("x") and branch.sees("p") and not main.sees("p") and not function.sees("x")


def test_what_bodies_need_of_graphs_around_them() -> None:
    wire = Wire(build(in_branch("p = Add(x, w)", "p"), {"w": np.float32(1)}))
    main, branch, other = wire.scopes
    assert wire.wanted[branch] == {"x", "w", "p"} and {"x", "w", "p_in", "e_in"} <= wire.wanted[main]
    assert wire.wanted[other] == {"x"}


def test_places() -> None:
    scope = scopes(build(in_branch("p = Relu(x)", "p")))["y/then_branch"]
    assert str(scope.place(0)) == "y/then_branch/p (Relu)" and str(scope.place(value="p")) == "y/then_branch/p"
    scope.names[0] = ""
    assert scope.place(0).value == "p", "a node without a name is found by what it makes"


def test_bodies_of_nodes_without_a_name_have_paths_of_their_own() -> None:
    model = build(in_branch("p = Relu(x)", "p"))
    model.graph.node[2].name = ""
    assert "y/then_branch" in scopes(model)


def test_the_domain_ai_onnx_is_the_empty_one() -> None:
    model = build("y = Relu(x)")
    model.graph.node[0].domain, model.opset_import[0].domain = "ai.onnx", "ai.onnx"
    (scope,) = Wire(model).scopes
    assert scope.ops == [("", "Relu")] and scope.imports == {"": 21}


def test_signatures() -> None:
    (scope,) = Wire(build("a = Clip(x, , m) b = Clip(a, , m) y = Concat<axis=1>(a, b)")).scopes
    clip, concat = scope.kinds[scope.signatures[0]], scope.kinds[scope.signatures[2]]
    assert scope.signatures[0] == scope.signatures[1] and len(scope.kinds) == 2
    assert (clip.domain, clip.op_type, clip.inputs, clip.outputs, clip.absent) == ("", "Clip", 3, 1, (1,))
    assert concat.attributes == (("axis", onnx.AttributeProto.INT, ""),)


def test_references_to_attributes() -> None:
    function = (
        """<domain: "local", opset_import: ["" : 21]> op <axis> (a) => (b) { b = Softmax<axis : int = @axis>(a) }"""
    )
    found = scopes(build("y = local.op<axis=1>(x)", imports=', "local" : 1', functions=function))
    assert found["local::op"].signatures[0][-1] == (("axis", onnx.AttributeProto.INT, "axis"),)


def test_names_that_are_no_text() -> None:
    data = build("abc = Relu(x) y = Neg(abc)").SerializeToString().replace(b"abc", b"\xff\xfeb")
    (scope,) = Wire(ModelProto.FromString(data)).scopes
    assert scope.names[0] == scope.makes[0][0] == scope.reads[1][0] == "\\xff\\xfeb"


def test_deep_nesting() -> None:
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [], [])
    for _ in range(30):  # protobuf takes 100 messages in messages
        graph = helper.make_graph([helper.make_node("If", ["c"], ["y"], "if", then_branch=graph)], "g", [], [])
    found = Wire(helper.make_model(graph)).scopes
    assert len(found) == 31 and found[-1].path.count("/") == 59


def test_tensors_in_all_places(tmp_path: Path) -> None:
    body = in_branch("k = Constant<value = float[2] {1, 2}>() p = Add(x, k)", "p")
    model = build(body, {"w": np.zeros((64, 64), "f"), "v": np.zeros(3, np.int8)})
    onnx.save(model, tmp_path / "m.onnx")
    shell = incoming.read_file(tmp_path / "m.onnx")
    for wire in (Wire(model), Wire(shell.shell, tmp_path / "m.onnx", shell)):
        tensors = wire.tensors
        sizes = {tensors.name(i): size for i, size in enumerate(tensors.sizes) if tensors.name(i) in ("w", "v")}
        assert sizes == {"w": 64 * 64 * 4, "v": 3}, "also where the data stayed in the file"
        (constant,) = [i for i, (scope, _) in enumerate(tensors.owners) if scope.path == "y/then_branch"]
        assert str(tensors.place(constant)) == "y/then_branch/k (Constant)"
        assert tensors.sizes[constant] == NO_RAW and tensors.dims[constant] == [2]
        large = tensors.protos[next(i for i in range(len(tensors.sizes)) if tensors.name(i) == "w")]
        data = wire.data(large)
        assert data is not None and len(data) == 64 * 64 * 4 and not any(data)
        assert wire.data(tensors.protos[constant]) is None
    assert tensors.of([TensorProto.INT8, TensorProto.INT4]) == [i for i, t in enumerate(tensors.types) if t == 3]


def test_the_message_is_left_as_it_is() -> None:
    model = build(in_branch("p = Relu(x)", "p"), {"w": np.zeros((64, 64), "f")})
    before = model.SerializeToString(deterministic=True)
    wire = Wire(model)
    assert wire.scopes and wire.tensors and wire.wanted
    assert model.SerializeToString(deterministic=True) == before


def test_an_empty_message() -> None:
    wire = Wire(ModelProto())
    assert [s.path for s in wire.scopes] == [""] and wire.tensors.protos == []
