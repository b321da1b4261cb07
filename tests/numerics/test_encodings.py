"""Scale and zero point: exact values by hand, properties over twenty decades."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxq.errors import DataError, OptionError
from onnxq.numerics.affine import fake_quantize, quantize
from onnxq.numerics.encodings import from_range, from_values
from onnxq.numerics.spec import QTYPES, Blocked, PerAxis, PerTensor, TensorSpec

INTEGERS = sorted(name for name, t in QTYPES.items() if not t.is_float)
SMALL = sorted(set(INTEGERS) - {"int32"})
magnitude = st.floats(-10, 10).map(lambda e: 10.0**e)


def spec(qtype, symmetric=False, granularity=PerTensor()):  # noqa: B008
    return TensorSpec(QTYPES[qtype], symmetric, granularity)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.sampled_from(SMALL), magnitude, magnitude, st.sampled_from([np.float32, np.float16]))
def test_asymmetric_covers_the_range_and_holds_zero_exactly(qtype, a, b, dtype):
    e = from_range(-a, b, spec(qtype), dtype=dtype)
    limits = np.finfo(dtype)
    assert e.scale.dtype == dtype and e.scale.shape == () and e.zero_point.shape == ()
    assert limits.smallest_normal <= e.scale <= limits.max
    assert quantize(np.zeros(1, np.float32), e)[0] == e.zero_point
    t, s = QTYPES[qtype], float(e.scale)
    if s < float(limits.max):
        assert (t.qmin - float(e.zero_point)) * s <= -a + 0.501 * s
        assert (t.qmax - float(e.zero_point)) * s >= b - 0.501 * s
    if limits.smallest_normal < s < float(limits.max):  # and not wider than needed
        assert (t.qmax - t.qmin) * s <= (a + b) * (1.001 if dtype == np.float16 else 1.000001)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.sampled_from(SMALL), magnitude, st.floats(0, 1))
def test_non_negative_range_starts_at_qmin(qtype, high, part):
    e = from_range(high * part, high, spec(qtype))
    t = QTYPES[qtype]
    assert e.zero_point == t.qmin
    assert e.scale == np.float32(high / (t.qmax - t.qmin))
    assert from_range(-high, -high * part, spec(qtype)).zero_point == t.qmax


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.sampled_from(sorted(QTYPES)), magnitude, magnitude)
def test_symmetric_is_the_narrow_range(qtype, a, b):
    t, e = QTYPES[qtype], from_range(-a, b, spec(qtype, True))
    middle = 0 if t.signed else (t.qmax + 1) // 2
    assert e.zero_point == middle
    assert e.scale == np.float32(max(a, b) / (t.qmax - middle))


def test_known_numbers():
    e = from_range(-1.0, 3.0, spec("uint8"))
    assert (e.scale, e.zero_point) == (np.float32(4 / 255), 64)
    e = from_range(-1.0, 3.0, spec("int8"))
    assert (e.scale, e.zero_point) == (np.float32(4 / 255), -64)
    e = from_range(0, 1, spec("uint16"))  # Softmax: a fixed range goes through the same formula for every type
    assert (e.scale, e.zero_point) == (np.float32(1 / 65535), 0)
    zero_points = {t: from_range(-1, 1, spec(t, True)).zero_point for t in ("uint4", "uint8", "uint16", "int8")}
    assert zero_points == {"uint4": 8, "uint8": 128, "uint16": 32768, "int8": 0}


@pytest.mark.parametrize("qtype", INTEGERS)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_all_zero_is_scale_one_and_subnormal_is_floored(qtype, symmetric, dtype):
    t = QTYPES[qtype]
    neutral = t.qmin if not symmetric else 0 if t.signed else (t.qmax + 1) // 2
    e = from_range(0, 0, spec(qtype, symmetric), dtype=dtype)
    assert (e.scale, e.zero_point, e.dead) == (1, neutral, (0,))
    tiny = from_range(-1e-44, 1e-44, spec(qtype, symmetric), dtype=dtype)
    assert tiny.scale == np.finfo(dtype).smallest_normal and tiny.dead == (0,)


def test_float16_scale_is_rounded_up_so_that_16_bits_keep_the_end():
    """0.7 / 65535 lies in the subnormals, 700 / 65535 between two float16 numbers; rounding down would cut 30 steps."""
    e = from_range(0, 700.0, spec("uint16"), dtype=np.float16)
    assert float(e.scale) * 65535 >= 700.0
    assert from_range(0, 0.7, spec("uint16"), dtype=np.float16).scale == np.finfo(np.float16).smallest_normal


@pytest.mark.parametrize(("lo", "hi"), [(np.nan, 1), (0, np.inf), (-np.inf, 0), (2, 1), ([0, 3], [1, 1])])
def test_impossible_ranges_are_refused(lo, hi):
    with pytest.raises(DataError, match="finite and ordered"):
        from_range(lo, hi, spec("int8"))


def weight(shape=(6, 5, 4), seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_per_axis_weights(axis):
    w = weight() * 10.0 ** np.arange(-12, 8).reshape(1, 5, 4).astype(np.float32)
    e = from_values(w, spec("int8", True, PerAxis(axis)))
    other = tuple(i for i in range(3) if i != axis % 3)
    np.testing.assert_array_equal(e.scale, (np.abs(w).max(axis=other).astype(np.float64) / 127).astype(np.float32))
    assert not e.zero_point.any() and e.zero_point.dtype == np.int8
    q = quantize(w, e)
    assert q.min() >= -127
    np.testing.assert_array_equal(np.abs(q.astype(int)).max(axis=other), 127)


@pytest.mark.parametrize(("axis", "size"), [(0, 2), (0, 4), (1, 2), (2, 3), (2, 100), (1, 1)])
def test_blocked_weights_with_a_short_last_block(axis, size):
    w = weight()
    e = from_values(w, spec("uint4", False, Blocked(size, axis)))
    blocks = np.split(w, np.arange(size, w.shape[axis], size), axis)
    lo = np.concatenate([np.minimum(b.min(axis=axis, keepdims=True), 0) for b in blocks], axis)
    hi = np.concatenate([np.maximum(b.max(axis=axis, keepdims=True), 0) for b in blocks], axis)
    scale = ((hi.astype(np.float64) - lo) / 15).astype(np.float32)
    np.testing.assert_array_equal(e.scale, scale)
    np.testing.assert_array_equal(e.zero_point, np.clip(np.rint(-lo.astype(np.float64) / scale), 0, 15))
    step = np.repeat(scale, size, axis)[tuple(slice(0, n) for n in w.shape)]
    assert np.max(np.abs(fake_quantize(w, e) - w) / step) <= 1.0  # half for rounding, half for the zero point


@pytest.mark.parametrize(
    "shape", [(300, 700), (3, 2, 40000), (200000,), (7, 1, 3, 3), (1, 1), (2, 513, 9), (40, 6, 64)]
)
def test_large_and_odd_shapes_equal_a_plain_reduction(shape):
    w = weight(shape)
    for axis in range(len(shape)):
        e = from_values(w, spec("int8", True, PerAxis(axis)))
        other = tuple(i for i in range(len(shape)) if i != axis)
        np.testing.assert_array_equal(e.scale, (np.abs(w).max(axis=other) / np.float64(127)).astype(np.float32))
    assert from_values(w, spec("int8", True)).scale == np.float32(np.abs(w).max() / np.float64(127))


def test_dead_channels_are_listed():
    w = weight((5, 8))
    w[1], w[3] = 0, 1e-44
    e = from_values(w, spec("int8", True, PerAxis(0)))
    assert e.dead == (1, 3)
    assert (e.scale[1], e.scale[3]) == (1, np.finfo(np.float32).smallest_normal)
    assert not quantize(w, e)[[1, 3]].any()
    half = from_values(w * np.float32([[1], [1], [1e-4], [1], [1]]), spec("int8", True, PerAxis(0)), dtype=np.float16)
    assert half.dead == (1, 2, 3)  # channel 2 is not zero, but its scale would be subnormal in float16


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_float_types(dtype):
    w = weight().astype(dtype)
    e = from_values(w, spec("int8", True, PerAxis(0)))
    np.testing.assert_array_equal(e.scale, (np.abs(w).max(axis=(1, 2)).astype(np.float64) / 127).astype(np.float32))


def test_bfloat16_weights():
    from ml_dtypes import bfloat16

    w = weight().astype(bfloat16)
    same = from_values(w.astype(np.float32), spec("int8", True, PerAxis(0)))
    assert from_values(w, spec("int8", True, PerAxis(0))).same(same)
    np.testing.assert_array_equal(quantize(w, same), quantize(w.astype(np.float32), same))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_refused_with_their_place(bad):
    w = weight()
    w[2, 3, 1] = bad
    with pytest.raises(DataError, match=r"\[6, 5, 4\] is not finite at \[2, 3, 1\]"):
        from_values(w, spec("int8", True, PerAxis(0)))


@pytest.mark.parametrize("granularity", [PerTensor(), PerAxis(0), PerAxis(1), Blocked(50, 1)], ids=str)
@pytest.mark.parametrize(("qtype", "symmetric"), [("int4", True), ("uint4", False), ("int8", True), ("int2", True)])
def test_mse_is_never_worse_and_helps_few_bits(qtype, symmetric, granularity):
    w = weight((8, 500))
    s = spec(qtype, symmetric, granularity)
    plain, best = from_values(w, s), from_values(w, s, method="mse")
    before, after = (float(np.sum((fake_quantize(w, e) - w) ** 2)) for e in (plain, best))
    assert after <= before * 1.000001
    if granularity == PerTensor() and qtype != "int8":
        assert after < 0.8 * before


@pytest.mark.parametrize("seed", range(5))
def test_mse_is_close_to_the_best_of_all_factors(seed):
    w = weight((1, 200), seed=seed)
    errors = [
        float(
            np.sum(
                (fake_quantize(w, from_range(-np.abs(w).max() * f, np.abs(w).max() * f, spec("int4", True))) - w) ** 2
            )
        )
        for f in np.linspace(1.0, 0.2, 401)
    ]
    best = from_values(w, spec("int4", True), method="mse")
    assert float(np.sum((fake_quantize(w, best) - w) ** 2)) < 1.02 * min(errors)


def test_mse_uses_the_lowest_integer():
    """-8 steps reach as far as the largest value when the scale is max / 8."""
    w = np.float32([[-8, -7, -6, -5, -3, -2, -1, 1, 2, 3, 5, 6, 7]])
    e = from_values(w, spec("int4", True, PerAxis(0)), method="mse")
    np.testing.assert_allclose(e.scale, 1, rtol=0.02)
    assert quantize(w, e).min() == -8 and from_values(w, spec("int4", True, PerAxis(0))).scale > 1.1


def test_empty_weight_and_unknown_method():
    assert from_values(np.zeros((0, 3), np.float32), spec("int8", True, PerAxis(1))).scale.tolist() == [1, 1, 1]
    with pytest.raises(OptionError, match="known: minmax, mse, hqq"):
        from_values(weight(), spec("int8", True), method="best")
