"""Round trips of everything the onnx wheel ships."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto

from onnxq import border

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


def test_the_node_cases_of_the_wheel(normal_form: NormalForm) -> None:
    """They are built in memory, which takes most of the time of this test."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings(), np.errstate(all="ignore"):
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
