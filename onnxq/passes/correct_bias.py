"""`correct-bias`: take the mean error that quantization causes out of each layer's bias."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from onnxq.calibration.moments import InputMeans
from onnxq.calibration.runner import Run, Watch, each
from onnxq.edit import Namer, replace_initializer
from onnxq.facts import Axes, Edge, Encodings, Fact, Feeds, Plan, Ranges, Skips
from onnxq.layers import Layer, read_layer
from onnxq.look import constant, graph_of
from onnxq.numerics.affine import dequantize, quantize
from onnxq.passbase import Context, Pass
from onnxq.rounding.products import Product, read_product
from onnxq.wording import plural

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class CorrectBias(Pass):
    """`Encodings` -> float biases, less the mean error of each output channel on the samples.

    ``b + W E[x] - W_q E[x_q]``: rounded weights (and clipped inputs) shift the mean of a channel, and the shifts of
    many layers add up; the bias can take them back for free (Nagel et al., "Data-Free Quantization Through Weight
    Equalization and Bias Correction", 2019, there without data). For Conv, Gemm and MatMul in the main graph that have
    a constant bias; it stands before `guard-bias`, which encodes the biases.

    Attributes:
        memory: Megabytes that the observed values of one sample may take at a time.
        samples: Use at most this many samples.
    """

    name: ClassVar[str] = "correct-bias"
    reads: ClassVar[frozenset[type[Fact]]] = frozenset({Plan, Encodings})
    maybe_reads: ClassVar[frozenset[type[Fact]]] = frozenset({Feeds})
    keeps: ClassVar[frozenset[type[Fact]]] = frozenset({Plan, Axes, Skips, Ranges, Encodings})
    idempotent: ClassVar[bool] = False  # the error belongs to the weights: taken out twice, it is put in

    memory: int = 512
    samples: int = 64

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Correct the biases; True if there was one."""
        feeds, encodings = ctx.maybe(Feeds), ctx.get(Encodings)
        if feeds is None:
            ctx.note("correct-bias-skipped", None, "no samples to measure on: biases stay as they are")
            return False
        layers, without = _layers(encodings, ctx.get(Plan), model)
        if without:
            why = f"{without} layers have no constant bias that could take up their mean error"
            ctx.note("correct-bias-none", None, why, layers=without)
        if not layers:
            return False
        means = {product.view: InputMeans(product, encodings.activations.get(product.source)) for _, product in layers}
        watches: dict[ir.Value, list[Watch]] = {}
        for view, product in {product.view: product for _, product in layers}.items():
            watches.setdefault(product.source, []).append(means[view].add)
        source = replace(feeds.source, limit=min(self.samples, feeds.source.limit or self.samples))
        shown = {value: partial(each, tuple(adds)) for value, adds in watches.items()}
        Run(model, source, shown, ctx, self.memory * 10**6).go()
        namer = Namer(model)
        for layer, product in layers:
            _correct(layer, product, encodings, means[product.view], namer)
        ctx.note("correct-bias", None, f"biases of {plural(len(layers), 'layer')} corrected", layers=len(layers))
        return True


def _layers(encodings: Encodings, plan: Plan, model: ir.Model) -> tuple[list[tuple[Layer, Product]], int]:
    """Layers with a bias to correct, each bias use once, and the number of those without one."""
    out: dict[Edge, tuple[Layer, Product]] = {}
    without = 0
    for edge in encodings.weights:
        layer = read_layer(edge.node, plan.wishes.banned)
        if (
            edge.node.graph is not model.graph
            or not isinstance(layer, Layer)
            or layer.weight != edge
            or edge.index != 1
        ):
            continue
        product = read_product(edge, layer.weight_dims)
        if not isinstance(product, Product) or graph_of(product.source) is not model.graph:
            continue
        if layer.bias is None:
            without += 1
        else:
            out[layer.bias] = layer, product
    return list(out.values()), without


def _correct(layer: Layer, product: Product, encodings: Encodings, means: InputMeans, namer: Namer) -> None:
    assert layer.weight is not None and layer.bias is not None and layer.weight_tensor is not None
    bias, weight, encoding = constant(layer.bias.value), layer.weight_tensor.numpy(), encodings.weights[layer.weight]
    assert bias is not None
    integers = quantize(weight, encoding) if encoding.integers is None else encoding.integers
    rounded = dequantize(integers, encoding)
    shift = _outputs(product, weight, means.total) - _outputs(product, rounded, means.quantized)
    shift /= max(means.rows, 1)
    shape = bias.shape if bias.size == shift.size else shift.shape
    corrected = (bias.astype(np.float64).reshape(-1) + shift).reshape(shape)
    use = layer.bias
    replace_initializer(use.value, corrected.astype(bias.dtype), namer, lambda edge: edge == use)


def _outputs(product: Product, weight: Array, x: Array) -> Array:
    """The layer's output channels for one input vector, without bias: [channels] float64."""
    return np.asarray((product.matrix(weight).astype(np.float64) @ x[..., None]).reshape(-1))
