"""Small Q/DQ models from text, and what onnxruntime makes of them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
from onnx import parser

from onnxq.context import Context
from onnxq.session import Optimization, Runtime, open_session

Array = np.ndarray[Any, Any]


def model_of(text: str, opset: int = 21, **arrays: Any) -> ir.Model:
    """A model from a graph's text and its initializers."""
    proto = parser.parse_model(f'<ir_version: {10 if opset < 25 else 13}, opset_import: ["": {opset}]> g {text}')
    for name, array in arrays.items():
        proto.graph.initializer.append(ir.serde.serialize_tensor(ir.tensor(np.asarray(array), name=name)))
    return ir.from_proto(proto)


def integers(values: Any, dtype: str) -> Array:
    """An array of an integer type, those of ml_dtypes included."""
    return np.asarray(values).astype(getattr(ml_dtypes, dtype, dtype))


def run(model: ir.Model, feeds: dict[str, Array], optimization: Optimization = "none") -> list[Array]:
    """Outputs by true semantics; unoptimized, so that sums have one order."""
    with open_session(model, Runtime(true_semantics=True, threads=1, optimization=optimization)) as session:
        return session.run({name: feeds[name] for name in session.inputs})


def notes(ctx: Context, code: str) -> list[str]:
    """Texts of the notes with a code."""
    return [note.message for note in ctx.report.of(code)]
