"""Small models with integer operators, and how close a model with pairs must come to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser

from onnxq.passes.qoperator_to_qdq import QoperatorToQdq

Array = np.ndarray[Any, Any]
Agree = Callable[..., Any]

SESSIONS: tuple[dict[str, bool], ...] = ({"true": True}, {"optimised": False}, {})
"""True semantics, node by node, and what users get."""


def model(
    nodes: str, fed: Mapping[str, Array], constants: Mapping[str, Any], output: str, rank: int, opset: int = 21
) -> onnx.ModelProto:
    """Nodes in ONNX text syntax; ``output`` is the element type of ``y``."""
    kinds = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in fed.items()}
    inputs = [helper.make_tensor_value_info(name, kinds[name], array.shape) for name, array in fed.items()]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(output))
    graph = helper.make_graph(
        list(parser.parse_graph(f"g (float unused) => (float y) {{ {nodes} }}").node),
        "g",
        inputs,
        [helper.make_tensor_value_info("y", kind, [f"d{i}" for i in range(rank)])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    imports = [helper.make_opsetid("", opset)]
    if "com.microsoft" in nodes:
        imports.append(helper.make_opsetid("com.microsoft", 1))
    return helper.make_model(graph, opset_imports=imports, ir_version=10 if opset > 20 else 8)


def agreement(run_passes: Callable[..., Any], run_model: Callable[..., list[Any]]) -> Agree:
    """A check that raises a model and runs both: integers ``steps`` apart at most, in ``share`` of the places at most.

    Floats are 1e-5 of the largest one apart at most.
    """

    def check(before: onnx.ModelProto, feeds: Mapping[str, Array], steps: int = 0, share: float = 0.0) -> Any:
        made = run_passes(before, QoperatorToQdq())
        onnx.checker.check_model(made.proto, full_check=True)
        wanted = run_model(before, feeds)[0]
        for session in SESSIONS:
            got = run_model(made.proto, feeds, **session)[0]
            assert got.dtype == wanted.dtype and got.shape == wanted.shape
            off = np.abs(got.astype(np.float64) - wanted)
            if wanted.dtype == np.float32:
                assert off.max() <= 1e-5 * max(np.abs(wanted).max(), 1e-30), (session, off.max())
            else:
                assert off.max() <= steps and (off > 0).mean() <= share, (session, off.max(), (off > 0).mean())
        return made

    return check


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    """Integers over the whole range of their type."""
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


def scales(rng: np.random.Generator, count: int | None, base: float = 0.01) -> Array:
    """One scale, or as many over a decade or two."""
    return (base * np.exp(rng.normal(size=() if count is None else count))).astype(np.float32)
