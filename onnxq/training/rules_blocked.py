"""Depthwise convolution with a computed kernel, on onnxruntime's own blocked layout.

onnxruntime runs a Conv whose weight is constant in a layout of channel blocks, where a depthwise kernel of any size is
a plain loop; a computed weight it unrolls into a matrix instead. In the gradient of a depthwise weight the kernel is
as large as the image: measured, the blocked form takes a fifth of the time. The nodes that change the layout turn
[1, C, h, w] into exactly what the blocked Conv wants of a depthwise weight [C, 1, h, w].

The layout is an internal of onnxruntime. `available` tries it once and compares it with the plain Conv; where it is
missing or differs, the plain Conv is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from onnxq.training.rules import Tape

DOMAIN = "com.microsoft.nchwc"
_CHANNELS = 32  # a multiple of all block sizes there are


def fits(channels: int, kernel: Sequence[int]) -> bool:
    """Whether `depthwise` can be used: images, channels in whole blocks. The plain Conv, too, is for float32 only."""
    return len(kernel) == 2 and channels % _CHANNELS == 0 and available()


def depthwise(tape: Tape, data: str, kernel: str, shape: Sequence[int], channels: int, **attributes: Any) -> str:
    """A depthwise Conv of [n, channels, h, w].

    Args:
        tape: Where to emit.
        data: The data, of that shape.
        kernel: The kernel, [1, channels, kh, kw].
        shape: Its spatial shape ``(kh, kw)``.
        channels: A multiple of 32.
        attributes: Strides, dilations and pads.
    """
    blocked = tape.op("ReorderInput", data, domain=DOMAIN)
    weight = tape.op("ReorderInput", kernel, domain=DOMAIN)
    weight = tape.reshape(weight, [channels, 1, *shape])
    product = tape.op("Conv", blocked, weight, domain=DOMAIN, group=channels, **attributes)
    return tape.op("ReorderOutput", product, domain=DOMAIN, channels=channels)


@cache
def available() -> bool:
    """Whether this onnxruntime runs the blocked form, and to the same result."""
    import onnxruntime as ort

    rng = np.random.default_rng(0)
    feeds = {
        "x": rng.normal(size=(2, _CHANNELS, 6, 5)).astype(np.float32),
        "w": rng.normal(size=(1, _CHANNELS, 4, 3)).astype(np.float32),
    }
    shared: dict[str, Any] = {"strides": [1, 1], "dilations": [1, 1], "pads": [1, 0, 1, 1]}
    graph = helper.make_graph([], "probe", [helper.make_tensor_value_info(n, 1, a.shape) for n, a in feeds.items()], [])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    tape = Tape(graph, 17)
    plain = tape.op("Conv", "x", tape.reshape("w", [_CHANNELS, 1, 4, 3]), group=_CHANNELS, **shared)
    names = [plain, depthwise(tape, "x", "w", (4, 3), _CHANNELS, **shared)]
    graph = model.graph  # the model holds a copy
    graph.node.extend(tape.nodes)
    graph.initializer.extend(tape.initializers)
    graph.output.extend(helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in names)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        found: Sequence[Any] = session.run(names, feeds)
    except Exception:  # whatever onnxruntime says: it does not have the layout
        return False
    return found[0].shape == found[1].shape and bool(np.allclose(found[0], found[1], atol=1e-4))
