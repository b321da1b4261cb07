"""Round trips of everything the onnx wheel ships."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto

from onnxq import border

Array = np.ndarray[Any, Any]
NormalForm = Callable[[ModelProto], ModelProto]
WHEEL_FILES = sorted((Path(onnx.__file__).parent / "backend/test/data").rglob("*.onnx"))


def test_the_files_of_the_wheel(normal_form: NormalForm, tmp_path: Path) -> None:
    assert len(WHEEL_FILES) >= 149
    for path in WHEEL_FILES:
        source = onnx.load(path)
        result = border.open_model(path).give_back()
        assert isinstance(result, ModelProto)
        assert normal_form(result) == normal_form(source), path
        saved = tmp_path / "m.onnx"
        border.open_model(source).save(saved)
        assert saved.read_bytes() == result.SerializeToString(deterministic=True), path


def _zeros(padded: Array, x_shape: Sequence[int], *args: Any, **kwargs: Any) -> Array:
    """Stands in for pooling, which takes seconds in Python: the right shape, and values that no model holds."""
    out_shape = args[2]  # behind kernel and strides
    return np.zeros((*x_shape[:2], *out_shape), padded.dtype)


def test_the_node_cases_of_the_wheel(normal_form: NormalForm, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are built in memory, without the expected outputs and the documentation that make that slow."""
    from onnx.backend.test.case.node import collect_testcases

    with monkeypatch.context() as fast, warnings.catch_warnings(), np.errstate(all="ignore"):
        fast.setattr("onnx.reference.ops.op_pool_common.pool", _zeros, raising=False)
        fast.setattr("onnx.backend.test.case.base.process_snippet", lambda *_: ("", ""), raising=False)
        warnings.simplefilter("ignore")  # about values that the cases are meant to have
        models = [case.model for case in collect_testcases(None) if case.model is not None]
    assert len(models) >= 1884
    equal = 0
    for source in models:
        data = source.SerializeToString(deterministic=True)
        result = border.open_model(source).give_back()
        assert isinstance(result, ModelProto)
        assert source.SerializeToString(deterministic=True) == data
        if result.SerializeToString(deterministic=True) == data:
            equal += 1
        else:
            assert normal_form(result) == normal_form(source), source.graph.name
    assert equal >= 1400  # the rest has explicit empty node domains
