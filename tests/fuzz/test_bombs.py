"""Small files that ask for a lot: time, memory, stack, or a pipe that nobody writes into."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import FunctionProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from onnxq.linting.engine import FAILED, check
from onnxq.linting.selection import Selection
from onnxq.skeleton import Skeleton
from tests.fuzz.law import broken

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
BOMBS: dict[str, Callable[[], ModelProto]] = {}


def bomb(make: Callable[[], ModelProto]) -> Callable[[], ModelProto]:
    BOMBS[make.__name__] = make
    return make


def model(nodes: list[NodeProto], *, functions: list[FunctionProto] | None = None, **constants: object) -> ModelProto:
    """A model of one input ``x`` and the output of the last node."""
    tensors = [numpy_helper.from_array(np.array(v, np.int64), name) for name, v in constants.items()]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", FLOAT, [2, 3]), helper.make_tensor_value_info("c", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info(nodes[-1].output[0], FLOAT, None)],
        tensors,
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=functions or [], ir_version=10)


def function(name: str, *nodes: NodeProto) -> FunctionProto:
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("local", 1)]
    return helper.make_function("local", name, ["a"], ["b"], list(nodes), opsets)


def call(name: str, source: str, target: str) -> NodeProto:
    return helper.make_node(name, [source], [target], domain="local")


@bomb
def concat_of_a_shape_with_itself() -> ModelProto:
    joins = [helper.make_node("Concat", [f"v{i}", f"v{i}"], [f"v{i + 1}"], axis=0) for i in range(45)]
    return model([helper.make_node("Shape", ["x"], ["v0"]), *joins])


@bomb
def concat_of_a_constant_in_functions() -> ModelProto:
    double = function("f", helper.make_node("Concat", ["a", "a"], ["b"], axis=0))
    begin = helper.make_node("Constant", [], ["v0"], value_ints=[1, 2])
    return model([begin, *(call("f", f"v{i}", f"v{i + 1}") for i in range(45))], functions=[double])


@bomb
def concat_in_branches() -> ModelProto:
    nodes = [helper.make_node("Shape", ["x"], ["v0"])]
    for i in range(45):
        join = helper.make_node("Concat", [f"v{i}", f"v{i}"], [f"w{i}"], axis=0)
        branch = helper.make_graph([join], "b", [], [helper.make_tensor_value_info(f"w{i}", INT64, None)])
        nodes.append(helper.make_node("If", ["c"], [f"v{i + 1}"], then_branch=branch, else_branch=branch))
    return model(nodes)


@bomb
def function_that_calls_itself() -> ModelProto:
    return model([call("f", "x", "y")], functions=[function("f", call("f", "a", "b"))])


@bomb
def functions_that_call_each_other() -> ModelProto:
    both = [function("f", call("g", "a", "b")), function("g", call("f", "a", "b"))]
    return model([call("f", "x", "y")], functions=both)


@bomb
def functions_that_call_another_twice() -> ModelProto:
    functions = [function("f0", helper.make_node("Relu", ["a"], ["b"]))]
    for i in range(1, 45):
        functions.append(function(f"f{i}", call(f"f{i - 1}", "a", "t"), call(f"f{i - 1}", "t", "b")))
    return model([call("f44", "x", "y")], functions=functions)


@bomb
def functions_in_a_long_row() -> ModelProto:
    functions = [function("f0", helper.make_node("Relu", ["a"], ["b"]))]
    functions += [function(f"f{i}", call(f"f{i - 1}", "a", "b")) for i in range(1, 400)]
    return model([call("f399", "x", "y")], functions=functions)


EXPLOSIVE = tuple(BOMBS)


@bomb
def branches_in_branches() -> ModelProto:
    def graph(node: NodeProto) -> object:
        return helper.make_graph([node], "b", [], [helper.make_tensor_value_info("y", FLOAT, None)])

    leaf = helper.make_node("Relu", ["x"], ["y"])
    node = leaf
    for _ in range(30):
        node = helper.make_node("If", ["c"], ["y"], then_branch=graph(node), else_branch=graph(leaf))
    return model([node])


@bomb
def rank_of_a_huge_dimension() -> ModelProto:
    shape = helper.make_node("Reshape", ["x", "k"], ["s"])
    return model([shape, helper.make_node("ConstantOfShape", ["s"], ["y"])], k=[10**9])


@bomb
def a_constant_of_huge_shape() -> ModelProto:
    return model([helper.make_node("ConstantOfShape", ["s"], ["y"])], s=[2**40, 2**40, 2**40])


@bomb
def a_range_without_end() -> ModelProto:
    return model([helper.make_node("Range", ["a", "b", "d"], ["y"])], a=0, b=2**62, d=1)


@bomb
def a_range_of_no_steps() -> ModelProto:
    return model([helper.make_node("Range", ["a", "b", "d"], ["y"])], a=0, b=2**62, d=0)


@bomb
def division_by_zero_and_out_of_range() -> ModelProto:
    by_zero = helper.make_node("Div", ["a", "z"], ["d"])
    least = helper.make_node("Div", ["low", "minus"], ["e"])
    return model(
        [by_zero, least, helper.make_node("Concat", ["d", "e"], ["y"])], a=[1], z=[0], low=[-(2**63)], minus=[-1]
    )


@bomb
def attributes_of_zero() -> ModelProto:
    convolution = helper.make_node("Conv", ["x", "x"], ["v"], strides=[0, 0], kernel_shape=[0, -1], group=0)
    depth = helper.make_node("SpaceToDepth", ["x"], ["w"], blocksize=0)
    turned = helper.make_node("Transpose", ["x"], ["t"], perm=[2**40, -5])
    return model([convolution, depth, turned, helper.make_node("Split", ["x"], ["y"], num_outputs=2**40)])


@bomb
def a_node_of_many_inputs() -> ModelProto:
    return model([helper.make_node("Concat", ["x"] * 50_000, ["y"], axis=0)])


def chain(op_type: str, length: int = 1100) -> ModelProto:
    """A weight, an activation and a bias that go a long way between their pairs and their layer."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["x0"]),
        helper.make_node("DequantizeLinear", ["w", "s"], ["w0"]),
        helper.make_node("DequantizeLinear", ["b", "s"], ["b0"]),
    ]
    for name in "xwb":
        nodes += [helper.make_node(op_type, [f"{name}{i}"], [f"{name}{i + 1}"]) for i in range(length)]
    nodes.append(helper.make_node("Gemm", [f"{name}{length}" for name in "xwb"], ["g0"]))
    nodes += [helper.make_node(op_type, [f"g{i}"], [f"g{i + 1}"]) for i in range(length)]
    nodes += [
        helper.make_node("QuantizeLinear", [f"g{length}", "s", "z"], ["gq"]),
        helper.make_node("DequantizeLinear", ["gq", "s", "z"], ["y"]),
    ]
    made = model(nodes)
    tensors = {"w": np.ones((3, 3), np.int8), "b": np.ones((3, 3), np.int32), "s": np.float32(0.1), "z": np.uint8(3)}
    made.graph.initializer.extend(numpy_helper.from_array(np.array(v), name) for name, v in tensors.items())
    return made


BOMBS.update({f"a_long_row_of_{op}": (lambda op=op: chain(op)) for op in ("Identity", "Relu", "Transpose", "MaxPool")})  # type: ignore[misc]


def quantized(scale: TensorProto) -> ModelProto:
    made = model([helper.make_node("QuantizeLinear", ["x", "s"], ["y"])])
    made.graph.initializer.append(scale)
    return made


@bomb
def a_scale_of_huge_shape() -> ModelProto:
    return quantized(TensorProto(name="s", data_type=FLOAT, dims=[2**40, 2**20], raw_data=b"1234"))


@bomb
def a_scale_of_many_dimensions() -> ModelProto:
    return quantized(TensorProto(name="s", data_type=FLOAT, dims=[1] * 100, raw_data=bytes(4)))


@bomb
def a_scale_of_overflowing_shape() -> ModelProto:
    return quantized(TensorProto(name="s", data_type=FLOAT, dims=[2**32, 2**32], raw_data=b""))


@bomb
def a_sparse_scale_of_huge_shape() -> ModelProto:
    made = model([helper.make_node("QuantizeLinear", ["x", "s"], ["y"])])
    sparse = made.graph.sparse_initializer.add(dims=[2**50])
    sparse.values.CopyFrom(helper.make_tensor("s", FLOAT, [1], [1.0]))
    sparse.indices.CopyFrom(helper.make_tensor("", INT64, [1], [2**49]))
    return made


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("target", [None, "ort-cpu"])
def test_small_files_take_little(name: str, target: str | None, tmp_path: Path) -> None:
    assert broken(BOMBS[name]().SerializeToString(), tmp_path, target) == ""


@pytest.mark.parametrize("name", EXPLOSIVE)
def test_explosions_are_not_waited_for(name: str) -> None:
    outcome = check(BOMBS[name](), Selection(("ALL",)), graph=True)
    assert outcome.model is not None and outcome.subject is not None
    assert outcome.subject.inferred == {}
    with pytest.raises(Exception, match=r"steps|calls|Cycle|depth"):
        Skeleton(outcome.model).infer()


@pytest.mark.parametrize("place", ["pipe", "folder", "loop", "/dev/zero", "/dev/tty"])
def test_external_data_that_are_no_file_are_not_read(place: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    scale = TensorProto(name="s", data_type=FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    scale.external_data.add(key="location", value=place)
    path = tmp_path / "model.onnx"
    path.write_bytes(quantized(scale).SerializeToString())
    codes = {d.code for d in check(path, Selection()).diagnostics}
    assert "OQ009" in codes and FAILED not in codes
