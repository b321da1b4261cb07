"""Rounding layer by layer, each on the inputs that the layers in front of it, already rounded, really give.

A layer's goal is its output in the float model. On inputs z that have drifted from x the weights that come closest are
``W + W E[(x - z) z^T] (E[z z^T] + lambda)^-1``: they take back what can be seen of the error in front of them. GPTQ
rounds these, and the bias takes up the rest of the mean, ``W E[x] - W_q E[z]``. Li et al., "GPTAQ: Efficient
Finetuning-Free Quantization for Asymmetric Calibration" (2025); Nagel et al. (2019) for the biases.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from onnxq.calibration import memory
from onnxq.calibration.moments import TwinMoments
from onnxq.calibration.sources import Source
from onnxq.context import Context
from onnxq.facts import Edge, Encodings
from onnxq.layers import Layer, read_layer
from onnxq.look import constant
from onnxq.numerics.affine import dequantize
from onnxq.numerics.gptq import DAMPING, Array, Curvature, Order
from onnxq.numerics.spec import Encoding
from onnxq.rounding.gptq import Scales, SharedWeight
from onnxq.session import Runtime, open_session

SHRINKAGE = 0.5
"""More damping for few samples: this times inputs over vectors seen."""


@dataclass
class Sequential:
    """One run through the layers of a model. A weight with several uses is rounded for the first.

    Attributes:
        model: The float model.
        encodings: What is planned.
        source: Samples.
        order: Order of the inputs.
        scales: How scales are chosen.
        ctx: Takes progress.
        memory: Bytes that values of the float model may take, over all samples.
        biases: Filled in: corrected biases, in the shape and type of the constant, by use.
    """

    model: ir.Model
    encodings: Encodings
    source: Source
    order: Order
    scales: Scales
    ctx: Context
    memory: int
    biases: dict[Edge, Array] = field(default_factory=dict)
    _exact: dict[ir.Value, list[Array]] = field(default_factory=dict)
    _rounded: dict[ir.Value, tuple[ir.TensorProtocol, ir.TensorProtocol]] = field(default_factory=dict)

    def go(self, weights: list[SharedWeight]) -> Iterator[tuple[SharedWeight, Encoding, float]]:
        """Each weight in graph order, its encoding with integers, and the share of nearest rounding's error left."""
        found = list(stages(weights, self.model))
        for i, (done, stage) in enumerate(found):
            self.ctx.progress("round weights", done, len(weights))
            self._collect([later[0].products[0].source for _, later in found[i:]])
            for weight, twin in zip(stage, self._observe(stage), strict=True):
                if twin.rows:
                    encoding, share = self._round(weight, twin)
                    yield weight, encoding, share

    def _observe(self, stage: list[SharedWeight]) -> list[TwinMoments]:
        """Moments of the stage's inputs; all its products read one value."""
        products = [weight.products[0] for weight in stage]
        source = products[0].source
        twins = {p.view: TwinMoments(p, self.encodings.activations.get(source)) for p in products}
        exact = self._exact.pop(source)
        with self._weights():
            for x, (z,) in zip(exact, self._values([source]), strict=True):
                if np.isfinite(x).all() and np.isfinite(z).all():
                    for twin in twins.values():
                        twin.add(x, z)
        return [twins[product.view] for product in products]

    def _collect(self, sources: list[ir.Value]) -> None:
        """Values of the float model: those of the next stages that fit the memory, in one run."""
        sources = list(dict.fromkeys(sources))
        if sources[0] in self._exact:
            return
        first = next(iter(self.source))
        count = self.source.size or 1
        room = float(self.memory)
        chosen: list[ir.Value] = []
        for value, size in zip(sources, memory.estimate(self.model, sources, first), strict=True):
            room -= size * count
            if chosen and room < 0:
                break
            chosen.append(value)
        found = list(self._values(chosen))
        self._exact = {value: [arrays[i] for arrays in found] for i, value in enumerate(chosen)}

    def _values(self, values: list[ir.Value]) -> Iterator[list[Array]]:
        """The values for each sample, in the model as it is now."""
        made = [value for value in values if not value.is_graph_input()]
        runtime = Runtime(optimization="none", lean=True, custom_op_library=self.ctx.custom_op_library)
        with open_session(self.model, runtime, outputs=made) if made else nullcontext() as session:
            for feeds in self.source:
                arrays = iter(session.run(feeds) if session else [])
                yield [feeds[v.name or ""] if v.is_graph_input() else next(arrays) for v in values]

    @contextmanager
    def _weights(self) -> Iterator[None]:
        """The model with the weights and biases found so far, for a while."""
        try:
            for value, pair in self._rounded.items():
                value.const_value = pair[1]
            yield
        finally:
            for value, pair in self._rounded.items():
                value.const_value = pair[0]

    def _round(self, weight: SharedWeight, twin: TwinMoments) -> tuple[Encoding, float]:
        w = weight.matrix.astype(np.float32)
        goal = w + _correction(w, twin)
        curvature = Curvature.of(twin.hessian, order=self.order)
        encoding, share = weight.round(twin.hessian, curvature, self.scales, goal)
        assert encoding.integers is not None
        rounded = dequantize(encoding.integers, encoding)
        self._put(weight.edge, rounded)
        layer = read_layer(weight.edge.node)
        if isinstance(layer, Layer) and layer.weight == weight.edge and len(weight.products) == 1:
            self._correct(layer.bias, w, weight.products[0].matrix(rounded), twin)
        return encoding, share

    def _correct(self, bias: Edge | None, w: Array, rounded: Array, twin: TwinMoments) -> None:
        old = constant(bias.value) if bias is not None and len(bias.value.uses()) == 1 else None
        if bias is None or old is None:
            return
        shift = w.astype(np.float64) @ twin.total[..., None] - rounded.astype(np.float64) @ twin.rounded[..., None]
        shift = shift.reshape(-1) / twin.rows
        new = old.astype(np.float64).reshape(-1) + shift
        self.biases[bias] = new.reshape(old.shape if old.size == new.size else new.shape).astype(old.dtype)
        self._put(bias, self.biases[bias])

    def _put(self, edge: Edge, array: Array) -> None:
        """Let later layers see what this use reads now. What stands behind carriers is not stored as it is read."""
        value = edge.value
        if value.is_initializer() and value.const_value is not None:
            tensor = ir.tensor(array.astype(value.const_value.numpy().dtype), name=value.name)
            self._rounded[value] = value.const_value, tensor


def stages(weights: list[SharedWeight], model: ir.Model) -> Iterator[tuple[int, list[SharedWeight]]]:
    """Weights in graph order, neighbours that read one value together, each with the number of those before it."""
    place = {node: i for i, node in enumerate(model.graph)}
    ordered = sorted(weights, key=lambda weight: place[weight.edge.node])
    stage: list[SharedWeight] = []
    for i, weight in enumerate(ordered):
        if stage and stage[0].products[0].source is not weight.products[0].source:
            yield i - len(stage), stage
            stage = []
        stage.append(weight)
    if stage:
        yield len(ordered) - len(stage), stage


def _correction(w: Array, twin: TwinMoments) -> Array:
    """``W D (H + lambda)^-1``."""
    diagonal = np.einsum("gii->gi", twin.hessian).mean(axis=-1)[:, None, None]
    damping = DAMPING + SHRINKAGE * w.shape[-1] / twin.rows
    damped = twin.hessian + np.where(diagonal > 0, diagonal, 1.0) * damping * np.eye(w.shape[-1])
    moved = w.astype(np.float64) @ twin.drift
    return np.linalg.solve(damped, moved.swapaxes(1, 2)).swapaxes(1, 2).astype(np.float32)
