"""Ops that only move their data: what they do to integers they do to the floats these stand for."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.look import attr_str, onnx_op
from onnxq.pairs import parameter

_FIRST = [
    "DepthToSpace",
    "Dropout",
    "Expand",
    "Flatten",
    "Gather",
    "GatherElements",
    "GatherND",
    "Identity",
    "MaxPool",
    "Reshape",
    "Slice",
    "SpaceToDepth",
    "Split",
    "Squeeze",
    "Tile",
    "Transpose",
    "Unsqueeze",
]
_DATA: dict[str, tuple[int, ...]] = {**dict.fromkeys(_FIRST, (0,)), "Where": (1, 2), "Pad": (0, 2), "Resize": (0,)}


def moved(node: ir.Node | None) -> tuple[int, ...]:
    """The inputs whose numbers an op only moves, picks or repeats; empty if it computes something.

    MaxPool picks the largest, which dequantizing with a positive scale does not change.
    """
    if node is None or node.domain:
        return ()
    if node.op_type == "Concat":
        return tuple(range(len(node.inputs)))
    if onnx_op(node, "Resize") and (
        attr_str(node, "mode", "nearest") != "nearest"
        or attr_str(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    ):
        return ()
    if onnx_op(node, "Dropout") and len(node.inputs) > 2:
        return ()  # in training mode, perhaps
    if onnx_op(node, "Pad") and attr_str(node, "mode", "constant") == "constant" and parameter(node, 2) is None:
        return ()  # fills in the number 0, which integers and floats write differently
    return tuple(i for i in _DATA.get(node.op_type, ()) if i < len(node.inputs) and node.inputs[i] is not None)
