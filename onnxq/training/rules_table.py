"""Ops whose gradients are held to finite differences by a test, with what their gradients ask for.

Other ops are differentiated as far as onnx-ad knows them (control flow among them); what has no gradient is refused
before anything runs.
"""

from __future__ import annotations

_SCATTER = "opset 16"
_RECURRENT = "without clip, input_forget and sequence_lens that differ"

SUPPORTED: dict[str, str] = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean", "Where"), "any broadcasting"),
    **dict.fromkeys(("Abs", "Celu", "Cos", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "Identity"), ""),
    **dict.fromkeys(("LeakyRelu", "Log", "Mish", "Neg", "PRelu", "Reciprocal", "Relu", "Selu", "Sigmoid"), ""),
    **dict.fromkeys(("Sin", "Softplus", "Softsign", "Sqrt", "Tanh", "Softmax", "LogSoftmax"), ""),
    "Clip": "bounds that depend on no parameter",
    "Pow": "the exponent, too, if it is of the base's type",
    "Conv": "any group, stride, dilation, pad and rank",
    "ConvTranspose": "any group, stride, dilation, pad and rank",
    "MatMul": "any rank",
    "Gemm": "",
    "Einsum": "",
    "AveragePool": "ceil_mode, too",
    "MaxPool": _SCATTER,
    "GlobalAveragePool": "",
    "GlobalMaxPool": "",
    "BatchNormalization": "inference mode; mean and variance are not trained",
    **dict.fromkeys(("LayerNormalization", "InstanceNormalization", "GroupNormalization"), ""),
    **dict.fromkeys(("RMSNormalization", "LpNormalization", "LRN"), ""),
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceL2", "ReduceMax", "ReduceMin"), "constant axes"),
    "CumSum": "constant axis",
    **dict.fromkeys(("Concat", "Flatten", "Reshape", "Transpose", "Expand", "DepthToSpace", "SpaceToDepth"), ""),
    **dict.fromkeys(("Split", "Squeeze", "Unsqueeze", "Tile"), "constant operands"),
    "Slice": "constant operands, any step",
    "Pad": "constant operands, mode constant",
    "Resize": "constant operands",
    "Gather": _SCATTER,
    "GatherElements": _SCATTER,
    "LSTM": _RECURRENT,
    "GRU": _RECURRENT,
    "RNN": _RECURRENT,
}
"""Op of the default domain -> what its gradient asks for; empty where nothing."""


def table() -> str:
    """The ops as a Markdown table: the limits, and the ops they hold for."""
    limits: dict[str, list[str]] = {}
    for op_type, limit in sorted(SUPPORTED.items()):
        limits.setdefault(limit, []).append(op_type)
    rows = [f"| {', '.join(ops)} | {limit} |" for limit, ops in limits.items()]
    return "\n".join(["| ops | limits |", "| --- | --- |", *rows]) + "\n"
