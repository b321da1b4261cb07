"""What this machine has: real models for tests marked ``real``, and how new its onnxruntime is."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import onnxruntime as ort
import pytest
from onnx import helper, parser
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from models.fetch import NotServed, cached, fetch


@pytest.fixture(scope="session")
def real_model() -> Callable[[str], Path]:
    """Gives the file of a name in `models/zoo.yaml`.

    Skips the test when the file is not in the cache, unless ``ONNXQ_FETCH=1`` says that it may be downloaded.
    """

    def find(name: str) -> Path:
        if not cached(name) and os.environ.get("ONNXQ_FETCH") != "1":
            pytest.skip(f"'{name}' is not in the cache; ONNXQ_FETCH=1 downloads it")
        try:
            return fetch(name)
        except NotServed as why:
            pytest.skip(str(why))

    return find


@pytest.fixture(scope="session")
def runs_opset() -> Callable[[int], bool]:
    """Whether the installed onnxruntime runs models of an opset; the one for Python 3.10 stops at 23."""

    @cache
    def runs(opset: int) -> bool:
        proto = parser.parse_model('<ir_version: 8, opset_import: ["": 8]> g (float x) => (float y) { y = Abs(x) }')
        proto.opset_import[0].version = opset
        proto.ir_version = helper.find_min_ir_version_for(proto.opset_import)
        try:
            ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        except Fail:
            return False
        return True

    return runs
