"""Constants behind Transpose, Reshape, … and axes through them."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper, parser
from onnx.reference import ReferenceEvaluator

from onnxq.carry import Carried, Step, constant_behind, step
from onnxq.weights import weight_tensor

OPSETS = {17: '"": 17', 12: '"": 12'}


def parsed(body: str, shape: tuple[int, ...], opset: int = 17, dtype: str = "float32") -> onnx.ModelProto:
    text = f"<ir_version: 8, opset_import: [{OPSETS[opset]}]> g (int64[2] free) => (float y) {{ {body} }}"
    proto = parser.parse_model(text)
    array = np.arange(1, 1 + math.prod(shape)).reshape(shape).astype(dtype)
    constants = {
        "w": array, "s6x4": np.array([6, 4]), "s24": np.array([24]), "auto": np.array([0, -1]), "one": np.array([1]),
        "ends": np.array([0, -1]), "wide": np.array([2, 3, 2, 2]), "zeros": np.array([0, 0]),
    }  # fmt: skip
    for name, value in constants.items():
        proto.graph.initializer.append(numpy_helper.from_array(value, name))
    return proto


def behind(body: str, shape: tuple[int, ...], opset: int = 17, dtype: str = "float32") -> Carried | str:
    model = ir.from_proto(parsed(body, shape, opset, dtype))
    return constant_behind(model.graph.outputs[0])


# body, shape of w, axis of w to axis of y (None: nowhere)
CHAINS = [
    ("y = Transpose(w)", (4, 6), {0: 1, 1: 0}),
    ("y = Transpose<perm=[2,0,1]>(w)", (2, 3, 4), {0: 1, 1: 2, 2: 0}),
    ("y = Identity(w)", (4, 6), {0: 0, 1: 1}),
    ("y = Cast<to=10>(w)", (4, 6), {0: 0, 1: 1}),
    ("y = Reshape(w, s6x4)", (6, 2, 2), {0: 0, 1: None, 2: None}),
    ("y = Reshape(w, s6x4)", (4, 6), {0: None, 1: None}),
    ("y = Reshape(w, s24)", (4, 6), {0: None, 1: None}),
    ("y = Reshape(w, auto)", (4, 3, 2), {0: 0, 1: None, 2: None}),
    ("y = Reshape(w, wide)", (2, 3, 4), {0: 0, 1: 1, 2: None}),
    ("y = Squeeze(w, one)", (4, 1, 6), {0: 0, 2: 1}),
    ("y = Squeeze(w)", (1, 4, 1, 6), {1: 0, 3: 1}),
    ("y = Squeeze(w, ends)", (1, 4, 1), {1: 0}),
    ("y = Unsqueeze(w, ends)", (4, 6), {0: 1, 1: 2}),
    ("y = Unsqueeze(w, one)", (4, 6), {0: 0, 1: 2}),
    ("y = Flatten(w)", (4, 3, 2), {0: 0, 1: None, 2: None}),
    ("y = Flatten<axis=-1>(w)", (4, 3, 2), {0: None, 1: None, 2: 1}),
    ("y = Flatten<axis=0>(w)", (24,), {0: 1}),
    ("t = Transpose(w) u = Unsqueeze(t, one) y = Cast<to=1>(u)", (4, 6), {0: 2, 1: 0}),
    ("f = Flatten(w) y = Transpose(f)", (4, 6, 1, 1), {0: 1, 1: 0}),
]
OLD = [
    ("y = Squeeze<axes=[0,-1]>(w)", (1, 4, 1), {1: 0}),
    ("y = Unsqueeze<axes=[0]>(w)", (4, 6), {0: 1, 1: 2}),
]


@pytest.mark.parametrize(("body", "shape", "axes", "opset"), [*((*c, 17) for c in CHAINS), *((*c, 12) for c in OLD)])
def test_chains(body: str, shape: tuple[int, ...], axes: dict[int, int | None], opset: int) -> None:
    """Values and shape as the reference evaluator has them; axes forward, and back where they came from."""
    found = behind(body, shape, opset)
    assert isinstance(found, Carried)
    (wanted,) = ReferenceEvaluator(parsed(body, shape, opset)).run(None, {"free": np.zeros(2, np.int64)})
    read = found.read()
    assert tuple(read.shape.numpy()) == found.dims == wanted.shape and read.dtype.numpy() == wanted.dtype
    np.testing.assert_array_equal(read.numpy(), wanted)
    for axis, there in axes.items():
        got = found.forward(axis)
        if there is None:
            assert isinstance(got, str) and f"merges or splits axis {axis}" in got and str(list(shape)) in got
        else:
            assert got == there and found.back(there) == axis
    lost = set(range(len(found.dims))) - set(axes.values())
    assert all(isinstance(found.back(axis), str) for axis in lost if found.dims[axis] > 1)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("y = Exp(w)", "Exp '' computes it"),
        ("y = Cast<to=6>(w)", "casts to INT32"),
        ("y = Reshape(w, free)", "gets its shape or axes at run time"),
        ("y = Reshape(w, one)", "does not fit (4, 6)"),
        ("t = Add(w, w) y = Transpose(t)", "Add '' computes it"),
    ],
)
def test_refused(body: str, why: str) -> None:
    found = behind(body, (4, 6))
    assert isinstance(found, str) and why in found
    model = ir.from_proto(parsed(body, (4, 6)))
    assert weight_tensor(model.graph.outputs[0]) is None and weight_tensor(model.graph.inputs[0]) is None
    assert weight_tensor(None) is None


def test_casts_keep_values_right() -> None:
    """What the op reads counts: a double that rounds, a float that float16 does not hold."""
    found = behind("y = Cast<to=10>(w)", (3,), dtype="float64")
    assert isinstance(found, Carried) and found.read().dtype == ir.DataType.FLOAT16
    proto = parsed("c = Cast<to=10>(w) y = Cast<to=1>(c)", (3,))
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.array([0.1, 1e6, -1 / 3], np.float32), "w"))
    read = weight_tensor(ir.from_proto(proto).graph.outputs[0])
    assert read is not None and read.dtype == ir.DataType.FLOAT
    np.testing.assert_array_equal(read.numpy(), np.array([0.1, np.inf, -1 / 3], np.float16).astype(np.float32))


def test_lazy_and_without_the_graph() -> None:
    """Nothing is read before it is asked for, and the carriers may be gone by then."""
    model = ir.from_proto(parsed("t = Transpose(w) y = Flatten(t)", (4, 3, 2)))
    reads = []
    source = model.graph.initializers["w"].const_value
    assert source is not None
    lazy = ir.LazyTensor(lambda: reads.append(1) or source, dtype=source.dtype, shape=source.shape)  # type: ignore[func-returns-value]
    model.graph.initializers["w"].const_value = lazy
    read = weight_tensor(model.graph.outputs[0])
    assert read is not None and not reads
    for node in model.graph:
        node.replace_input_with(0, None)
    np.testing.assert_array_equal(read.numpy(), source.numpy().T.reshape(2, -1))
    assert reads


def test_scalars() -> None:
    found = behind("y = Squeeze(w)", (1,))
    assert isinstance(found, Carried) and found.read().numpy().shape == () == found.dims
    assert isinstance(found.forward(0), str)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data(), st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_axes_follow_the_values(data: st.DataObject, shape: list[int]) -> None:
    """Through a random Transpose and a cut into two axes: slices hold the same values there, and nowhere else."""
    perm = data.draw(st.permutations(range(len(shape))))
    cut = data.draw(st.integers(0, len(shape)))
    found = behind(f"t = Transpose<perm={list(perm)}>(w) y = Flatten<axis={cut}>(t)", tuple(shape))
    assert isinstance(found, Carried)
    before, after = np.arange(1, 1 + math.prod(shape)).reshape(shape), found.read().numpy()

    def same(axis: int, there: int) -> bool:
        slices = [set(before.take(i, axis).flat) for i in range(shape[axis])]
        return slices == [set(after.take(i, there).astype(int).flat) for i in range(after.shape[there])]

    for axis, length in enumerate(shape):
        there = found.forward(axis)
        if isinstance(there, int):
            assert same(axis, there)
        elif length > 1:
            assert not any(same(axis, i) for i in range(after.ndim))


def test_attributes_of_function_calls() -> None:
    node = ir.Node("", "Transpose", [ir.Value(name="w")], [ir.RefAttr("perm", "outer", ir.AttributeType.INTS)])
    assert isinstance(step(node, (2, 3)), str)
    assert isinstance(step(ir.node("Transpose", [ir.Value(name="w")]), (2, 3)), Step)
