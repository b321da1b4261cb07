"""The collector's thresholds: rarer inside, as before outside, whoever leaves last."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from onnxq.collector import THRESHOLDS, relaxed


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(700, 12, 9)
    yield
    gc.set_threshold(*before)


def test_rarer_inside_and_as_before_after_a_failure() -> None:
    with pytest.raises(KeyError), relaxed():
        assert gc.get_threshold()[:2] == (THRESHOLDS[0], 12)
        assert gc.isenabled()
        raise KeyError
    assert gc.get_threshold()[:2] == (700, 12)


def test_last_thread_out_puts_them_back() -> None:
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with relaxed():
            inside.set()
            leave.wait(5)

    thread = threading.Thread(target=other)
    with relaxed():
        thread.start()
        assert inside.wait(5)
    assert gc.get_threshold()[0] == THRESHOLDS[0]
    leave.set()
    thread.join()
    assert gc.get_threshold()[0] == 700


def test_switched_off_stays_off() -> None:
    gc.set_threshold(0)
    with relaxed():
        assert gc.get_threshold()[0] == 0
    assert gc.get_threshold()[0] == 0
