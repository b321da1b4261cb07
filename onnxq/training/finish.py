"""Trained parameters back in an ordinary Q/DQ model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from onnxq.context import Context
from onnxq.edit import Namer, replace_initializer
from onnxq.look import Array, constant_tensor
from onnxq.passes.freeze import Freeze
from onnxq.training.requantize import encode_bias, raise_weights, readers_of, stored_biases
from onnxq.training.twin import Parameter


def finished(
    base: ir.Model, sources: Mapping[str, Parameter], values: Mapping[str, Array], frozen: bool, ctx: Context
) -> ir.Model:
    """The model with parameters in place; what was passed stays as it is.

    Weights, float biases and learned scales get the values, copied. Int32 biases are rounded to float32(s_x * s_w) if
    that was their scale, else to their own; where scales are learned, biases that are not trained follow them, too.

    Args:
        base: The Q/DQ model that the twin was made of, weights float in front of pairs.
        sources: What each parameter stands for.
        values: Parameters.
        frozen: Whether weights become integers.
        ctx: Takes notes.
    """
    model = base.clone()
    namer = Namer(model)
    made = {out.name: node for node in model.graph for out in node.outputs}
    biases = {
        made[source.held[0]]: np.asarray(values[name], np.float64) for name, source in sources.items() if source.integer
    }
    if any(source.kind == "scale" for source in sources.values()):
        biases |= {dq: bias for dq, bias in stored_biases(model) if dq not in biases}
    before = {dq: next((r.product() for r in readers_of(dq, bias)), None) for dq, bias in biases.items()}
    for name, source in sources.items():
        for held in () if source.integer else source.held:
            old = model.graph.initializers[held]
            tensor = constant_tensor(old)
            assert tensor is not None
            replace_initializer(old, np.array(values[name], np.float32).reshape(tensor.shape.numpy()), namer)
    for dq, bias in biases.items():
        raise_weights(list(readers_of(dq, bias)), namer, ctx)
    for dq, bias in biases.items():
        encode_bias(dq, bias, before[dq], namer, ctx)
    if frozen:
        Freeze().run(model, ctx)
    return model
