import math

import pytest

from onnxq.training.schedules import SHAPES, Schedule


@pytest.mark.parametrize("shape", SHAPES)
def test_warm_up_rises_evenly_to_1(shape):
    course = Schedule(shape, 100, 4)
    assert [course(i) for i in range(5)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])


def test_cosine():
    course = Schedule("cosine", 110, 10)
    assert course(10) == 1.0
    assert course(60) == pytest.approx(0.5)
    assert course(35) == pytest.approx(0.5 + 0.5 * math.cos(math.pi / 4))
    assert 0 < course(109) < 1e-3
    assert all(course(i) > course(i + 1) for i in range(10, 109))


def test_step_and_constant():
    course = Schedule("step", 100)
    assert {i: course(i) for i in (0, 49, 50, 74, 75, 99)} == {0: 1, 49: 1, 50: 0.1, 74: 0.1, 75: 0.01, 99: 0.01}
    assert {Schedule("constant", 9)(i) for i in range(9)} == {1.0}


def test_a_training_of_one_step():
    assert all(Schedule(shape, 1)(0) == 1.0 for shape in SHAPES)
