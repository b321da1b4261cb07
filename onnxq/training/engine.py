"""A quantized model that can be trained: loss and gradients of its parameters, in one onnxruntime session."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import onnx
import onnx_ir as ir

from onnxq.border import to_proto
from onnxq.context import Context
from onnxq.edit import plain_initializers
from onnxq.errors import DataError, OptionError, UnsupportedError
from onnxq.look import Array, attr_int
from onnxq.passes.infer_shapes import InferShapes
from onnxq.passes.inline_functions import InlineFunctions
from onnxq.passes.lift_constants import LiftConstants
from onnxq.passes.thaw import Thaw
from onnxq.passes.upgrade_opset import UpgradeOpset
from onnxq.session import Runtime, Session
from onnxq.training.finish import finished
from onnxq.training.fused import fused
from onnxq.training.gradients import derivative, settle
from onnxq.training.losses import LOSS, TARGET, Head, Loss, append_loss, check_loss, final_softmax, float_outputs
from onnxq.training.shapes import declare, fixed_shapes
from onnxq.training.sites import Kind
from onnxq.training.twin import Parameter, make_twin, residues_of
from onnxq.training.units import unit

_OLDEST = 16  # first opset whose ScatterND adds, which gradients of MaxPool and Gather are made of


@dataclass
class Trainable:
    """A quantized model with float parameters.

    Attributes:
        proto: Inputs: the model's inputs, targets ``target.<output>``, parameters. Outputs: the model's outputs,
            ``loss``, ``grad.<parameter>``.
        parameters: Master weights, biases (and what normalizations scale and add) and learned scales, each float32 and
            C-contiguous. To be changed in place; scales stay positive.
        kinds: What each parameter is.
        gradient_scale: Factors of the gradient of log s, for optimizers that depend on its size, at which a scale takes
            LSQ's steps.
        units: How large each weight and bias was at first, float32 that broadcasts over it.
    """

    proto: onnx.ModelProto
    parameters: dict[str, Array]
    kinds: dict[str, Kind]
    gradient_scale: dict[str, float]
    units: dict[str, Array]
    _sources: dict[str, Parameter] = field(repr=False)
    _base: ir.Model = field(repr=False)
    _primal: onnx.ModelProto = field(repr=False)
    _frozen: bool
    _runtime: Runtime
    _ctx: Context = field(repr=False)

    def step(self, feeds: Mapping[str, Array], targets: Mapping[str, Array]) -> tuple[float, dict[str, Array]]:
        """Loss and gradients of one batch.

        Args:
            feeds: The model's inputs, in the shapes of the batch that `trainable` was given.
            targets: By output of the model: values to come near to, float32 in the output's shape (with ``distill``
                those of `compared`), or with ``cross-entropy`` class indices, int64 [N, ...].

        Returns:
            The loss, and by parameter its gradient, float32 in its shape.

        Raises:
            DataError: A target is missing or belongs to no output.
            InputError: Feeds or targets of another shape or type.
        """
        named = {TARGET + name: array for name, array in targets.items()}
        wanted = {name for name in self._trainer.inputs if name.startswith(TARGET)}
        if wanted != set(named):
            expected = ", ".join(sorted(name.removeprefix(TARGET) for name in wanted))
            raise DataError(f"targets are needed for {expected}; got {', '.join(sorted(targets)) or 'none'}")
        loss, *gradients = self._trainer.run(
            {**feeds, **named, **self.parameters}, [LOSS, *(f"grad.{name}" for name in self.parameters)]
        )
        return float(loss), dict(zip(self.parameters, gradients, strict=True))

    def evaluate(self, feeds: Mapping[str, Array]) -> list[Array]:
        """The quantized model's outputs with the current parameters, for a batch of any size."""
        known = self._evaluator.inputs
        return self._evaluator.run({k: v for k, v in {**feeds, **self.parameters}.items() if k in known})

    def finish(self) -> ir.Model:
        """An ordinary Q/DQ model of the current parameters, in the form the model came in."""
        return finished(self._base, self._sources, self.parameters, self._frozen, self._ctx)

    @cached_property
    def _trainer(self) -> Session:
        return Session(self.proto.SerializeToString(), {}, self._runtime)

    @cached_property
    def _evaluator(self) -> Session:
        return Session(self._primal.SerializeToString(), {}, self._runtime)


def every(value: ir.Value) -> bool:
    """Train all parameters."""
    return True


def trainable(
    model: ir.Model,
    loss: Loss,
    *,
    batch: Mapping[str, Array],
    train: Callable[[ir.Value], bool] = every,
    scales: bool = False,
    threads: int = 0,
    ctx: Context | None = None,
) -> Trainable:
    """Make a Q/DQ model trainable; the model stays as it is.

    Args:
        model: Weights as integers behind DequantizeLinear, or as floats in front of pairs.
        loss: What to minimise.
        batch: Feeds of one batch, for their shapes: all batches have the same.
        train: Which constants to train: asked for weights, biases and parameters of normalizations, and with ``scales``
            for each quantized activation, too. It sees values of a copy of the model, of the same names (float weights
            in front of pairs).
        scales: Whether to learn scales, too (LSQ). Those of a frozen weight stay.
        threads: Threads of onnxruntime; 0 leaves it to onnxruntime.
        ctx: Takes notes: pairs and biases that are not trained.

    Raises:
        OptionError: Unknown loss, or outputs that do not go with it; nothing to train.
        UnsupportedError: Nodes between the parameters and the loss have no gradient; all are named.
        DataError: The batch lacks an input.
        CapabilityError: onnx-ad is not installed.
    """
    check_loss(loss)
    ctx = Context() if ctx is None else ctx
    work = model.clone()
    plain_initializers(work)
    InlineFunctions().run(work, ctx)
    LiftConstants().run(work, ctx)
    frozen = Thaw(form="fake-quant", zero_point="keep").run(work, ctx)
    base = work.clone()
    if work.opset_imports.get("", 0) < _OLDEST:
        UpgradeOpset(required=True).run(work, ctx)
    for value in work.graph.initializers.values():
        if value.const_value is not None:
            value.type, value.shape = ir.TensorType(value.const_value.dtype), ir.Shape(value.const_value.shape.numpy())
    InferShapes().run(work, ctx)
    lasts = {out.name or "": None if loss == "mse" else final_softmax(out) for out in float_outputs(work, loss)}
    sources = make_twin(work, train, scales, ctx)
    if not sources:
        raise OptionError("nothing to train: no weight, bias or scale was chosen")
    initial = {name: source.initial.copy() for name, source in sources.items()}
    primal = to_proto(work)
    settled = settle(primal)
    shapes = fixed_shapes(settled, batch, initial)
    unknown = [c for c, _ in residues_of(primal.graph) if c not in shapes]
    if unknown:
        raise UnsupportedError(f"the shape of '{unknown[0]}' cannot be found: run infer-shapes, or train a part")
    declare(primal.graph, shapes | {r: shapes[c] for c, r in residues_of(primal.graph)})
    heads = {name: _head(name, last, shapes) for name, last in lasts.items()}
    append_loss(primal.graph, loss, heads)
    return Trainable(
        fused(derivative(primal, list(sources), LOSS)),
        initial,
        {name: source.kind for name, source in sources.items()},
        {name: _gradient_scale(source, shapes, sources) for name, source in sources.items() if source.kind == "scale"},
        {name: unit(source.initial, source.granularity) for name, source in sources.items() if source.kind != "scale"},
        sources,
        base,
        fused(settled),
        frozen,
        Runtime(
            threads=threads, lean=True, true_semantics=True
        ),  # the memory pattern of the first run comes on top: 1.9 GB for 1.0 GB
        ctx,
    )


def _head(output: str, last: ir.Node | None, shapes: Mapping[str, tuple[int, ...]]) -> Head:
    """What is compared with the target of an output, behind which a Softmax may be the last node."""
    logits = last.inputs[0] if last is not None else None
    if last is None or logits is None or logits.name is None:
        return Head(output, shapes[output])
    return Head(logits.name, shapes[logits.name], attr_int(last, "axis", -1))


def _gradient_scale(scale: Parameter, shapes: Mapping[str, tuple[int, ...]], sources: Mapping[str, Parameter]) -> float:
    """``g / s²``, with ``g = 1 / sqrt(values * qmax)`` for the values behind one scale: of a weight, or of one sample.

    LSQ moves s by ``rate * g * dL/ds`` (Esser et al., Learned Step Size Quantization, 2020, section 2.2), so log s by
    ``rate * g / s² * dL/dlog s``.
    """
    sizes = [math.prod(shapes[n] if n in sources else shapes[n][1:]) for n in scale.data if n in shapes]
    values = max(max(sizes, default=1) / scale.initial.size, 1)
    return float(1 / (math.sqrt(values * scale.qmax) * np.mean(scale.initial.astype(np.float64) ** 2)))
