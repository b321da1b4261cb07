"""Small models as text, and what onnxruntime makes of them."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import GraphProto, ModelProto, numpy_helper, parser

from onnxq import lint
from onnxq.diagnostics import Diagnostic, Severity

Array = np.ndarray[Any, Any]
_KINDS: dict[str, Any] = {"tensor(float16)": np.float16, "tensor(bool)": np.bool_, "tensor(int8)": np.int8}

DATA: dict[str, Any] = {
    "s": np.float32(0.01),
    "s2": np.float32(0.05),
    "z": np.uint8(100),
    "z0": np.uint8(0),
    "z8": np.int8(3),
    "z16": np.uint16(30000),
}
"""Scales and zero points that every text may name."""


def array(*shape: int, kind: Any = np.int8, low: int = -100, high: int = 100) -> Array:
    """Random integers of a type."""
    return np.random.default_rng(0).integers(low, high, shape).astype(kind)


def model(text: str, opset: int = 21, functions: str = "", **tensors: Any) -> ModelProto:
    """A model of ONNX's text form, with those of `DATA` and ``tensors`` that it names.

    Args:
        text: ``(inputs) => (outputs) { nodes }``.
        opset: Of ai.onnx.
        functions: Local functions of domain ``l``, in text form, which have their constants as nodes.
        tensors: Initializers by name.
    """
    extra = ', "l": 1' if functions else ""
    proto = parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}{extra}]> g {text}\n{functions}')
    if opset >= 25:
        proto.ir_version = 13
    names = _names(proto.graph)
    for name, value in {**DATA, **tensors}.items():
        if name in names:
            proto.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return proto


def _names(graph: GraphProto) -> set[str]:
    found = {name for node in graph.node for name in node.input}
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found |= _names(attribute.g)
    return found


def found(proto: ModelProto, code: str, target: str | None = "ort-cpu") -> list[Diagnostic]:
    """What a rule finds; no rule fails."""
    diagnostics = lint(proto, target=target)
    assert not [d for d in diagnostics if d.code == "OQ900"], diagnostics
    return [d for d in diagnostics if d.code == code]


def places(proto: ModelProto, code: str, target: str | None = "ort-cpu") -> list[str]:
    """Where a rule finds something: path, and node or value."""
    rows = [d.place for d in found(proto, code, target)]
    return ["/".join(part for part in (p.graph, p.node or p.value) if part) for p in rows]


def errors(proto: ModelProto, target: str = "ort-cpu") -> list[str]:
    """Codes of the errors in a model."""
    return sorted({d.code for d in lint(proto, target=target) if d.severity is Severity.ERROR})


@cache
def _options(level: str) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    return options


def session(proto: ModelProto, level: str = "ORT_ENABLE_ALL") -> ort.InferenceSession:
    """A session of the CPU provider."""
    return ort.InferenceSession(proto.SerializeToString(), _options(level), providers=["CPUExecutionProvider"])


def loads(proto: ModelProto) -> bool:
    """Whether the default session loads a model and runs it; the unoptimized one does."""
    run(session(proto, "ORT_DISABLE_ALL"))
    try:
        run(session(proto))
    except Exception as error:  # onnxruntime's own types
        assert any(word in str(error) for word in ("INT8", "invalid model", "Missing required", "Non-zero")), error
        return False
    return True


def run(one: ort.InferenceSession) -> list[Array]:
    """Outputs for random numbers."""
    rng, feeds = np.random.default_rng(1), {}
    for value in one.get_inputs():
        shape = [d if isinstance(d, int) else 4 for d in value.shape]
        kind = _KINDS.get(value.type, np.float32)
        feeds[value.name] = np.asarray(rng.uniform(-1, 1, shape)).astype(kind)
    return list(one.run(None, feeds))


def gap(proto: ModelProto) -> float:
    """Largest difference between default and unoptimized session, relative to the largest output."""
    one, other = run(session(proto)), run(session(proto, "ORT_DISABLE_ALL"))
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(one, other, strict=True))


def kernels(proto: ModelProto) -> Counter[str]:
    """Operators of the graph that onnxruntime makes of a model, in all bodies."""
    with TemporaryDirectory() as folder:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(Path(folder) / "made.onnx")
        ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return Counter(_ops(onnx.load(options.optimized_model_filepath).graph))


def _ops(graph: GraphProto) -> list[str]:
    inner = [op for node in graph.node for a in node.attribute if a.HasField("g") for op in _ops(a.g)]
    return [node.op_type for node in graph.node] + inner
