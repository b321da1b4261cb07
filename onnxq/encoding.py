"""Encodings of planned edges: activations from ranges, weights from their values. Used by `encode` and by trials."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnxq.errors import DataError
from onnxq.facts import Edge, Encodings, Plan, Range
from onnxq.layers import clip_limit
from onnxq.numerics.encodings import WeightMethod, from_range, from_values
from onnxq.numerics.spec import Encoding, TensorSpec
from onnxq.weights import weight_tensor


def weight_encoding(edge: Edge, spec: TensorSpec, method: WeightMethod = "minmax") -> Encoding:
    """Scale and zero point of one use of a weight.

    Raises:
        DataError: The weight holds NaN or infinity; names node and weight.
    """
    tensor = weight_tensor(edge.value)
    assert tensor is not None
    weight = tensor.numpy()
    dtype = np.float16 if weight.dtype == np.float16 else np.float32
    try:
        return from_values(weight, spec, method=method, dtype=dtype)
    except DataError as error:
        raise DataError(f"{edge.node.name} ({edge.node.op_type}), weight '{edge.value.name}': {error}") from error


def activation_encoding(group: list[ir.Value], spec: TensorSpec, ranges: Mapping[ir.Value, Range]) -> Encoding:
    """The encoding of values that share one, over the union of their ranges; never beyond a Clip in front of them."""
    lo, hi = min(ranges[v].lo for v in group), max(ranges[v].hi for v in group)
    dtype = np.float16 if any(v.dtype == ir.DataType.FLOAT16 for v in group) else np.float32
    encoding = from_range(lo, hi, spec, dtype=dtype)
    limit = min((c for c in map(clip_limit, group) if c is not None), default=None)
    return encoding if limit is None or lo < 0 else _within(encoding, limit)


def activation_encodings(plan: Plan, ranges: Mapping[ir.Value, Range]) -> Encodings:
    """Encodings of all planned activations and of the bridges between their regions, over the same ranges."""
    out, found = Encodings(), groups(plan)
    number = {value: i for i, group in enumerate(found) for value in group}
    for group in found:
        encoding = activation_encoding(group, plan.activations[group[0]], ranges)
        out.activations.update(dict.fromkeys(group, encoding))
    bridges: dict[tuple[int, TensorSpec], Encoding] = {}
    for edge, spec in plan.bridges.items():
        key = (number[edge.value], spec)
        if key not in bridges:
            bridges[key] = activation_encoding(found[key[0]], spec, ranges)
        out.bridges[edge] = bridges[key]
    return out


def _within(encoding: Encoding, limit: float) -> Encoding:
    """Lower the scale by one unit in the last place where its top would lie above a Clip's bound."""
    q = encoding.spec.qtype
    top = encoding.scale * encoding.scale.dtype.type(q.qmax - int(encoding.zero_point))
    if limit > 0 and top > limit:
        return replace(encoding, scale=np.asarray(np.nextafter(encoding.scale, encoding.scale.dtype.type(0))))
    return encoding


def groups(plan: Plan) -> list[list[ir.Value]]:
    """The planned values in order, those that must share one encoding together (union of overlapping groups)."""
    parent: dict[ir.Value, ir.Value] = {v: v for v in plan.activations}

    def root(v: ir.Value) -> ir.Value:
        while parent[v] is not v:
            parent[v] = parent[parent[v]]
            v = parent[v]
        return v

    for group in plan.shared:
        planned = [v for v in group if v in parent]
        for other in planned[1:]:
            parent[root(other)] = root(planned[0])
    out: dict[ir.Value, list[ir.Value]] = {}
    for value in plan.activations:
        out.setdefault(root(value), []).append(value)
    return list(out.values())
