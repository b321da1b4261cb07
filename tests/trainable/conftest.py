"""The fixture that runs models in onnxruntime, without any optimization."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest


def _run(proto: onnx.ModelProto, feeds: dict[str, np.ndarray[Any, Any]]) -> list[Any]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


@pytest.fixture(scope="session")
def run() -> Callable[..., list[Any]]:
    return _run
