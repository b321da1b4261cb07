"""What changed in an operator when a new opset came, for opsets 7 and up: the table `ADAPTERS`.

Source: the operator texts of ONNX at both versions, and for what they leave open (how Upsample and the first Resize
sample) onnxruntime's kernels. A change that is not listed only added types, optional inputs or attributes.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.look import constant
from onnxq.opsets.rewrite import Adapter, Refused, Rewrite

INT64, FLOAT = ir.DataType.INT64, ir.DataType.FLOAT


def _drop(*names: str) -> Adapter:
    """Attributes that lost their meaning."""

    def adapter(r: Rewrite) -> None:
        if any(name in r.node.attributes for name in names):
            r.redo(drop=names)

    return adapter


def _to_input(attribute: str, index: int = 1) -> Adapter:
    """An integer attribute that became an input."""
    return lambda r: r.move_to_input(attribute, INT64, index)


def broadcast_7(r: Rewrite) -> None:
    """``axis`` said where the second operand's dims start; now shapes align at the end as in NumPy."""
    axis = r.attr("axis")
    if "broadcast" not in r.node.attributes and axis is None:
        return
    inputs = list(r.node.inputs)
    if axis is not None and r.attr("broadcast", 0):
        rank, own = len(r.dims(0)), len(r.dims(1))
        missing = rank - (axis + rank if axis < 0 else axis) - own
        if missing > 0:
            inputs[1] = r.op("Unsqueeze", [inputs[1]], axes=list(range(own, own + missing)))
    r.redo(inputs=inputs, drop=["axis", "broadcast"])


def prelu_7(r: Rewrite) -> None:
    """A slope of one value a channel now needs trailing dims of 1."""
    rank, slope = len(r.dims(0)), r.dims(1)
    if rank > 2 and len(slope) == 1 and slope[0] != 1:
        r.redo(inputs=[r.node.inputs[0], r.op("Unsqueeze", [r.node.inputs[1]], axes=list(range(1, rank - 1)))])


def upsample_7(r: Rewrite) -> None:
    """Two named scales became a list; modes other than nearest were called bilinear."""
    scales = [1.0, 1.0, float(r.attr("height_scale", 1.0)), float(r.attr("width_scale", 1.0))]
    mode = "nearest" if r.attr("mode", "nearest") == "nearest" else "linear"
    r.redo(drop=["height_scale", "width_scale"], scales=scales, mode=mode)


def batch_normalization_9(r: Rewrite) -> None:
    """Statistics for every single activation (spatial=0) are gone."""
    if r.attr("spatial", 1) != 1:
        raise Refused("spatial=0 has no equal since opset 9")
    _drop("spatial")(r)


def dropout_10(r: Rewrite) -> None:
    """The mask had the type of the data, now it is boolean."""
    if len(r.node.outputs) < 2 or not (r.node.outputs[1].uses() or r.node.outputs[1].is_graph_output()):
        return
    data, mask = r.redo()
    r.outputs = [data, r.op("Cast", [mask], to=int(r.dtype(0)))]


def slice_10(r: Rewrite) -> None:
    """starts, ends and axes became inputs."""
    inputs = [r.node.inputs[0], *(r.constant(r.attr(name), INT64, name) for name in ("starts", "ends"))]
    if r.attr("axes"):
        inputs.append(r.constant(r.attr("axes"), INT64, "axes"))
    r.redo(inputs=inputs, drop=["starts", "ends", "axes"])


def top_k_10(r: Rewrite) -> None:
    """k became an input."""
    r.redo(inputs=[r.node.inputs[0], r.constant([r.attr("k")], INT64, "k")], drop=["k"])


def upsample_9(r: Rewrite) -> None:
    """scales became an input."""
    r.redo(inputs=[r.node.inputs[0], r.constant(r.attr("scales"), FLOAT, "scales")], drop=["scales"])


def upsample_10(r: Rewrite) -> None:
    """Replaced by Resize."""
    r.redo("Resize", mode="nearest" if r.attr("mode", "nearest") == "nearest" else "linear")


def resize_11(r: Rewrite) -> None:
    """The first Resize sampled asymmetrically, from the lower neighbour (onnxruntime: the upper one when shrinking)."""
    scales = constant(r.node.inputs[1])
    shrinks = scales is not None and bool((scales < 1).any()) and bool((scales <= 1).all())
    nearest = "ceil" if shrinks else "floor"
    r.redo(
        inputs=[r.node.inputs[0], None, r.node.inputs[1]],
        coordinate_transformation_mode="asymmetric",
        nearest_mode=nearest if r.attr("mode", "nearest") == "nearest" else None,
    )


def clip_11(r: Rewrite) -> None:
    """min and max became inputs of the data's type."""
    bounds = [r.attr("min"), r.attr("max")]
    limit = float(np.finfo(np.float32).max)
    inputs = [r.node.inputs[0], None, None]
    for i, (bound, name) in enumerate(zip(bounds, ("min", "max"), strict=True)):
        if bound is not None and abs(bound) < limit:
            inputs[i + 1] = r.constant(bound, r.dtype(0), name)
    r.redo(inputs=inputs, drop=["min", "max"])


def pad_11(r: Rewrite) -> None:
    """pads and value became inputs."""
    inputs = [r.node.inputs[0], r.constant(r.attr("pads"), INT64, "pads")]
    if r.attr("value", 0.0) != 0.0:
        inputs.append(r.constant(r.attr("value"), r.dtype(0), "value"))
    r.redo(inputs=inputs, drop=["pads", "value"])


def scatter_11(r: Rewrite) -> None:
    """Got another name."""
    r.redo("ScatterElements")


def dropout_12(r: Rewrite) -> None:
    """ratio became an input."""
    if "ratio" in r.node.attributes:
        r.redo(inputs=[r.node.inputs[0], r.constant(r.attr("ratio"), FLOAT, "ratio")], drop=["ratio"])


def softmax_13(r: Rewrite) -> None:
    """It worked on all dims from ``axis`` on at once, now on that one; the default moved from 1 to the last dim."""
    axis = r.attr("axis", 1)
    if axis == -1:
        return
    try:
        dims = r.dims(0)
    except Refused:
        if axis < 0:
            raise
    else:
        axis = axis + len(dims) if axis < 0 else axis
        if all(d == 1 for d in dims[axis + 1 :]):
            r.redo(axis=axis)
            return
    source = r.node.inputs[0]
    flat = r.op("Flatten", [source], axis=axis)
    (result,) = r.redo(inputs=[flat], axis=-1)
    r.outputs = [r.op("Reshape", [result, r.op("Shape", [source])])]


def resize_13(r: Rewrite) -> None:
    """``tf_half_pixel_for_nn`` is gone; with the lower neighbour it equals half_pixel with round_prefer_ceil."""
    if r.attr("coordinate_transformation_mode") != "tf_half_pixel_for_nn":
        return
    if r.attr("mode", "nearest") != "nearest" or r.attr("nearest_mode", "round_prefer_floor") != "floor":
        raise Refused("coordinate_transformation_mode 'tf_half_pixel_for_nn' has no equal since opset 13")
    r.redo(coordinate_transformation_mode="half_pixel", nearest_mode="round_prefer_ceil")


def batch_normalization_14(r: Rewrite) -> None:
    """More than one output meant training, now an attribute does; the saved statistics are gone."""
    saved = r.node.outputs[3:]
    if any(v.uses() or v.is_graph_output() for v in saved):
        raise Refused("its saved statistics (outputs 4 and 5) are used, which opset 14 does not make")
    if len(r.node.outputs) > 1:
        r.redo(outputs=3, training_mode=1)
        r.outputs = [*r.outputs, *(ir.Value() for _ in saved)]


def roi_align_16(r: Rewrite) -> None:
    """The default of the new ``coordinate_transformation_mode`` is not what it did before."""
    r.redo(coordinate_transformation_mode="output_half_pixel")


def split_18(r: Rewrite) -> None:
    """Without sizes the number of parts must be said."""
    if not r.has(1):
        r.redo(num_outputs=len(r.node.outputs))


def grid_sample_20(r: Rewrite) -> None:
    """Two modes got other names."""
    names = {"bilinear": "linear", "bicubic": "cubic"}
    mode = r.attr("mode", "bilinear")
    r.redo(mode=names.get(mode, mode))


def dft_20(r: Rewrite) -> None:
    """axis became an input, with another default."""
    inputs = [*r.node.inputs, None][:2]
    r.redo(inputs=[*inputs, r.constant(r.attr("axis", 1), INT64, "axis")], drop=["axis"])


def group_normalization_21(r: Rewrite) -> None:
    """Scale and bias had one value a group, now one a channel."""
    groups, channels = int(r.attr("num_groups")), r.dims(0)[1]
    if channels is None:
        raise Refused("the number of channels is unknown")
    inputs = [r.node.inputs[0]]
    for value, what in zip(r.node.inputs[1:3], ("scale", "bias"), strict=True):
        column = r.op("Unsqueeze", [value, r.constant([1], INT64, f"{what}_axis")])
        spread = r.op("Expand", [column, r.constant([groups, channels // groups], INT64, f"{what}_shape")])
        inputs.append(r.op("Reshape", [spread, r.constant([-1], INT64, f"{what}_flat")]))
    r.redo(inputs=inputs)


_BROADCASTING = ("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor")
_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")

ADAPTERS: dict[tuple[str, int], Adapter] = {
    **{(op, 7): broadcast_7 for op in _BROADCASTING},
    **{(op, 7): _drop("output_sequence") for op in ("GRU", "LSTM", "RNN")},
    ("BatchNormalization", 7): _drop("is_test"),
    ("Dropout", 7): _drop("is_test"),
    ("Gemm", 7): _drop("broadcast"),
    ("PRelu", 7): prelu_7,
    ("Upsample", 7): upsample_7,
    ("BatchNormalization", 9): batch_normalization_9,
    ("Upsample", 9): upsample_9,
    ("Dropout", 10): dropout_10,
    ("Slice", 10): slice_10,
    ("TopK", 10): top_k_10,
    ("Upsample", 10): upsample_10,
    ("Clip", 11): clip_11,
    ("Pad", 11): pad_11,
    ("Resize", 11): resize_11,
    ("Scatter", 11): scatter_11,
    ("Dropout", 12): dropout_12,
    **{(op, 13): softmax_13 for op in ("Hardmax", "LogSoftmax", "Softmax")},
    **{(op, 13): _to_input("axes") for op in ("ReduceSum", "Squeeze", "Unsqueeze")},
    ("Resize", 13): resize_13,
    ("Split", 13): _to_input("split"),
    ("BatchNormalization", 14): batch_normalization_14,
    ("RoiAlign", 16): roi_align_16,
    **{(f"Reduce{op}", 18): _to_input("axes") for op in _REDUCTIONS},
    ("Split", 18): split_18,
    ("DFT", 20): dft_20,
    ("GridSample", 20): grid_sample_20,
    ("GroupNormalization", 21): group_normalization_21,
}
