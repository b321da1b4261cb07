"""EfficientNet-Lite0 as ONNX, from the released torch weights (Tan & Le 2019; "lite": no squeeze-excite, ReLU6)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from models.fetch import cache_dir, fetch
from models.graph import GraphBuilder, info
from models.weights import Array, cached_build, torch_state

SIDE = 224
# repeats, kernel, stride, expansion, channels in, channels out
STAGES = (
    (1, 3, 1, 1, 32, 16),
    (2, 3, 2, 6, 16, 24),
    (2, 5, 2, 6, 24, 40),
    (3, 3, 2, 6, 40, 80),
    (3, 5, 1, 6, 80, 112),
    (4, 5, 2, 6, 112, 192),
    (1, 3, 1, 6, 192, 320),
)


class _Builder(GraphBuilder):
    """Knows the weights; ``side`` is the current spatial size."""

    def __init__(self, state: dict[str, Array]) -> None:
        super().__init__()
        self.state = state
        self.side = SIDE

    def conv(self, x: str, conv: str, norm: str, *, stride: int = 1, group: int = 1, relu6: bool = True) -> str:
        """Conv with TensorFlow's SAME padding, BatchNormalization, ReLU6."""
        weight = self.state[f"{conv}.weight"]
        kernel = weight.shape[2]
        out = -(-self.side // stride)
        pad = max((out - 1) * stride + kernel - self.side, 0)
        self.side = out
        name, norm_name = conv.strip("_").replace(".", "_"), norm.strip("_").replace(".", "_")
        y = self.node(
            "Conv",
            [x, self.constant(f"{name}.weight", weight)],
            name,
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[pad // 2, pad // 2, pad - pad // 2, pad - pad // 2],
            group=group,
        )
        parts = ("weight", "bias", "running_mean", "running_var")
        statistics = [self.constant(f"{norm_name}.{part}", self.state[f"{norm}.{part}"]) for part in parts]
        y = self.node("BatchNormalization", [y, *statistics], norm_name, epsilon=1e-3)
        return self.node("Clip", [y, "zero", "six"], f"{name}_relu6") if relu6 else y


def build(target: Path) -> None:
    """Write the model: ``image`` float[N, 3, 224, 224] (RGB, (x - 127) / 128) -> ``logits`` float[N, 1000]."""
    b = _Builder(torch_state(fetch("efficientnet-lite0-weights")))
    b.constant("zero", np.array(0, np.float32))
    b.constant("six", np.array(6, np.float32))
    x = b.conv("image", "_conv_stem", "_bn0", stride=2)
    index = 0
    for repeats, _kernel, first_stride, expansion, channels_in, channels_out in STAGES:
        for repeat in range(repeats):
            p = f"_blocks.{index}."
            stride = first_stride if repeat == 0 else 1
            channels = channels_in if repeat == 0 else channels_out
            shortcut = x
            if expansion != 1:
                x = b.conv(x, f"{p}_expand_conv", f"{p}_bn0")
            x = b.conv(x, f"{p}_depthwise_conv", f"{p}_bn1", stride=stride, group=channels * expansion)
            x = b.conv(x, f"{p}_project_conv", f"{p}_bn2", relu6=False)
            if stride == 1 and channels == channels_out:
                x = b.node("Add", [x, shortcut], f"blocks_{index}_add")
            index += 1
    x = b.conv(x, "_conv_head", "_bn1")
    x = b.node("GlobalAveragePool", [x], "pool")
    x = b.node("Flatten", [x], "features")
    weight, bias = b.constant("fc.weight", b.state["_fc.weight"]), b.constant("fc.bias", b.state["_fc.bias"])
    b.node("Gemm", [x, weight, bias], "logits", transB=1)
    inputs = [info("image", ("N", 3, SIDE, SIDE))]
    b.save(target, "efficientnet-lite0", inputs, info("logits", ("N", 1000)), opset=13)


def efficientnet() -> Path:
    """The built model in the cache."""
    return cached_build(cache_dir() / "built" / "efficientnet_lite0.onnx", build)
