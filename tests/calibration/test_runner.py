"""The runner: what is in memory at a time, the memory estimate, the grouping."""

import weakref

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import parser

from onnxq.calibration import memory
from onnxq.calibration.runner import Run
from onnxq.calibration.sources import open_source
from onnxq.context import Context
from onnxq.errors import InputError


def load(text):
    return ir.from_proto(parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}'))


CHAIN = "agraph (float[N, 64] x) => (float[N, 64] c) { a = Neg(x) b = Exp(a) c = Tanh(b) }"


def values(model):
    return [v for node in model.graph for v in node.outputs]


def test_one_sample_is_in_memory_at_a_time():
    model = load(CHAIN)
    alive, most = [], []

    def watch(x, lo, hi):
        alive.append(weakref.ref(x))
        most.append(sum(r() is not None for r in alive))

    data = (np.full((100, 64), i, np.float32) for i in range(6))
    run = Run(model, open_source(data, model), dict.fromkeys(values(model), watch), Context(), 10**9)
    run.go()
    assert run.samples == 6 and len(alive) == 18
    assert max(most) <= 2  # the tensor being looked at, at most one just handed back


def test_values_arrive_in_topological_order_with_their_extremes():
    model = load(CHAIN)
    seen = []
    watches = {v: lambda x, lo, hi, name=v.name: seen.append((name, lo, hi)) for v in reversed(values(model))}
    Run(model, open_source([np.zeros((2, 64), np.float32)], model), watches, Context(), 10**9).go()
    assert seen == [("a", 0, 0), ("b", 1, 1), ("c", pytest.approx(np.tanh(1)), pytest.approx(np.tanh(1)))]


def test_estimate_infers_shapes_for_the_sample_and_guesses_the_unknown():
    model = load(
        "agraph (float[N, S] x, float16[N] h) => (float[N, S] c) {"
        " a = Neg(x) b = Concat<axis: int = 0>(a, x) g = Neg(h) n = NonZero(x) m = Cast<to: int = 1>(n) c = Abs(a) }"
    )
    feeds = {"x": np.zeros((3, 50), np.float32), "h": np.zeros(3, np.float16)}
    before = ir.to_proto(model).SerializeToString()
    by_name = {v.name: v for v in values(model)}
    sizes = memory.estimate(model, [by_name[n] for n in "abgmc"], feeds)
    assert sizes == [600, 1200, 6, 1200, 600]  # how many non-zeros there are is not known
    assert ir.to_proto(model).SerializeToString() == before


def test_estimate_of_a_model_that_cannot_be_inferred():
    model = load("agraph (float[N] x) => (float[M] y) { a = Reshape(x, x) y = Neg(a) }")
    assert memory.estimate(model, values(model), {"x": np.zeros(5, np.float32)}) == [20, 20]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 60))
def test_groups_cover_everything_once_within_the_limit(sizes, limit):
    slices = memory.groups(sizes, limit)
    assert [i for s in slices for i in range(s.start, s.stop)] == list(range(len(sizes)))
    assert all(sum(sizes[s]) <= limit or s.stop - s.start == 1 for s in slices)
    if sum(sizes) <= limit:
        assert len(slices) == 1


def test_a_sample_the_model_cannot_run_is_told():
    model = load("agraph (float[N] x, float[N] z) => (float[N] y) { y = Add(x, z) }")
    data = [{"x": np.zeros(2, np.float32), "z": np.zeros(3, np.float32)}]
    run = Run(model, open_source(data, model), dict.fromkeys(values(model), print), Context(), 10**9)
    with pytest.raises(InputError, match=r"x float32\[2\], z float32\[3\]"):
        run.go()


def test_long_chains_are_linear():
    """3 000 watched values must not cost more than a few seconds even on a busy machine."""
    body = " ".join(f"v{i + 1} = Neg(v{i})" for i in range(3000))
    model = load(f"agraph (float[4] v0) => (float[4] v3000) {{ {body} }}")
    seen = []
    watches = {v: lambda x, lo, hi: seen.append(hi) for v in values(model)}
    Run(model, open_source([np.ones(4, np.float32)], model), watches, Context(), 10**9).go()
    assert len(seen) == 3000
