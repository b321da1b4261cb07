"""onnxq: quantize, lint and transform ONNX graphs with pure graph passes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from onnxq.api import Result as Result
    from onnxq.api import quantize as quantize
    from onnxq.api import run as run
    from onnxq.diagnosis.comparing import compare as compare
    from onnxq.diagnosis.debugging import debug as debug
    from onnxq.diagnosis.sessions import verify as verify
    from onnxq.foreign import proto_pass as proto_pass
    from onnxq.linting.api import lint as lint
    from onnxq.passbase import Context as Context
    from onnxq.passbase import Pass as Pass
    from onnxq.passbase import Pipeline as Pipeline
    from onnxq.training.api import train as train
    from onnxq.tuning import Tuning as Tuning
    from onnxq.tuning import tune as tune

# Public names and where they live; imported on first use so that `import onnxq` costs nothing.
_HOME = {
    "Result": "onnxq.api",
    "quantize": "onnxq.api",
    "run": "onnxq.api",
    "compare": "onnxq.diagnosis.comparing",
    "debug": "onnxq.diagnosis.debugging",
    "verify": "onnxq.diagnosis.sessions",
    "lint": "onnxq.linting.api",
    "Context": "onnxq.passbase",
    "Pass": "onnxq.passbase",
    "Pipeline": "onnxq.passbase",
    "proto_pass": "onnxq.foreign",
    "train": "onnxq.training.api",
    "Tuning": "onnxq.tuning",
    "tune": "onnxq.tuning",
}

__all__ = [*sorted(_HOME), "__version__"]


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _HOME:
        raise AttributeError(f"module 'onnxq' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
