"""The Python door to training: `train`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnxq import api
from onnxq.border import open_model
from onnxq.calibration.feeds import port_of
from onnxq.calibration.sources import Data, open_source
from onnxq.context import Context, Progress
from onnxq.errors import InputError, OptionError
from onnxq.look import all_nodes
from onnxq.recipe_text import find_recipe
from onnxq.registry import Registry
from onnxq.states import DEQUANTIZE, INTEGER_OPS, QUANTIZE, is_q
from onnxq.training.by_blocks import BlockJob, Mode, check_mode
from onnxq.training.data import read
from onnxq.training.job import Job
from onnxq.training.losses import Loss, float_outputs
from onnxq.training.optimizers import Kind
from onnxq.training.options import Options
from onnxq.training.samples import Taker
from onnxq.training.schedules import Shape
from onnxq.training.shares import calibration_source, divide

if TYPE_CHECKING:
    from onnx import ModelProto

    from onnxq.targets import Target

    Model = ModelProto | bytes | str | Path


def train(
    model: Model,
    data: Data,
    *,
    loss: Loss = "distill",
    mode: Mode = "whole",
    block_layers: int = 1,
    teacher: Model | None = None,
    recipe: str | Path = "int8",
    target: str | Path | Target | None = None,
    output: str | Path | None = None,
    epochs: int = 10,
    batch: int | None = None,
    lr: float | None = None,
    optimizer: str = "adam",
    schedule: Shape = "cosine",
    warmup: float = 0.05,
    weight_decay: float = 0.0,
    lr_factors: Mapping[Kind, float] | None = None,
    freeze: Sequence[str] = (),
    scales: bool = False,
    held_out: float = 0.1,
    samples: int | None = None,
    calibration: Data | None = None,
    preprocessing: str | Path | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = True,
    threads: int = 0,
    progress: Progress | None = None,
    custom_op_library: str | None = None,
    seed: int = 0,
    **parameters: Any,
) -> api.Result:
    """Train a quantized model: weights and activations rounded as the file rounds them, gradients straight through.

    A float model is quantized by a recipe first; a Q/DQ model is trained as it is. What comes back is an ordinary Q/DQ
    model, and never one with a larger loss on held-out samples than the one that training began with.

    Args:
        model: A float or a Q/DQ model.
        data: Samples, as for `quantize`; for ``mse`` and ``cross-entropy`` with targets: pairs ``(feeds, targets)``, or
            arrays ``target.<output>`` beside the inputs. A sample of several entries along axis 0 is taken apart.
        loss: ``distill`` (outputs come near to the teacher's), ``mse`` (to targets), ``cross-entropy`` (to labels).
        mode: ``whole``: all layers together, by the loss. ``blocks``: one block (a residual block, or a single layer)
            after the other keeps the output it has in the float model, on what the blocks before it really give it;
            for some hundred samples, and with little memory. ``epochs`` are of each block, ``loss`` is ``distill``.
        block_layers: With ``blocks``: layers with weights that a block has at least.
        teacher: The float model to learn from; ``model`` itself if that is a float model.
        recipe: What quantizes a float model.
        target: As for `quantize`.
        output: Where to write the result; without it `Result.model` holds a message.
        epochs: How many times to go through the samples.
        batch: Samples in a batch; None: 32, or fewer where there are few samples.
        lr: Learning rate, relative: at 0.001 a parameter moves by about a thousandth of its size in a step; None: the
            optimizer's own.
        optimizer: ``adam`` or ``sgd`` (momentum 0.9).
        schedule: Course of the learning rate: ``cosine``, ``constant`` or ``step``.
        warmup: Share of the steps in which the learning rate rises.
        weight_decay: Decoupled weight decay.
        lr_factors: Learning rate of ``weight``, ``bias`` or ``scale`` as a multiple of ``lr``.
        freeze: Selectors of nodes whose weights and biases stay as they are.
        scales: Learn the scales of weights and activations, too (LSQ).
        held_out: Share of the samples that only tell whether training helps; at least one batch.
        samples: Use at most this many samples of ``data``.
        calibration: Samples for a recipe that calibrates; None: up to 512 of those that are trained on.
        preprocessing: YAML file that says how images become inputs.
        checkpoint: Folder that the state of the training is written to, after each epoch and each minute.
        resume: Go on from the checkpoint in that folder, if there is one.
        threads: Threads of onnxruntime; 0: all cores. One is faster for small models, and on a busy machine.
        progress: Called with (label, done, total).
        custom_op_library: Shared library with kernels of custom ops.
        seed: Seed of everything random: the same one gives the same bytes.
        **parameters: Parameters of the recipe, with _ for -. Where the recipe has a parameter ``dynamic``, it is
            ``never``: quantization at run time has no gradient.

    Returns:
        The result; ``report.tables["training"]`` holds losses, SQNR and times.

    Raises:
        TrainingError: Loss or gradients are not finite any more.
        OnnxqError: Bad model, data, options; operators without a gradient. Nothing is written then.
    """
    options = Options(
        loss=loss, epochs=epochs, lr=lr, optimizer=optimizer, schedule=schedule, warmup=warmup,
        weight_decay=weight_decay, lr_factors=dict(lr_factors or {}), scales=scales, freeze=tuple(freeze),
    )  # fmt: skip
    check_mode(mode, options, block_layers, checkpoint is not None)
    ctx = Context(seed=seed, progress=progress or (lambda *_: None), custom_op_library=custom_op_library)
    opened = open_model(model)
    quantized = _quantized(opened.model)
    if quantized:
        others = {"target": target, "calibration": calibration, **parameters}
        if wrong := [name for name, value in others.items() if value is not None]:
            raise OptionError(f"{', '.join(wrong)}: for float models, which are quantized first; this one already is")
        if teacher is None and loss == "distill":
            raise OptionError("loss distill: a model that is quantized already learns from its float model: --teacher")
    source = open_source(data, opened.model, preprocessing=preprocessing, samples=samples, seed=seed)
    outputs = [port_of(value) for value in float_outputs(opened.model, loss)]
    examples = read(source, Taker(source.ports, outputs, loss), ctx)
    shares = divide(examples, batch, held_out, ctx)
    if quantized:
        start = api.Result(ctx.report, None, _crossing=opened)
    else:
        start = api.run(
            recipe, model, calibration_source(source, examples, shares) if calibration is None else calibration,
            target=target, parameters=_static(recipe, parameters), progress=progress, seed=seed,
            preprocessing=None if calibration is None else preprocessing, custom_op_library=custom_op_library,
        )  # fmt: skip
        ctx.report.notes += start.report.notes
        ctx.report.seconds += start.report.seconds
        ctx.report.tables |= start.report.tables
    wise = open_model(teacher) if teacher is not None else None if quantized else opened
    folder = Path(checkpoint) if checkpoint is not None else None
    crossing = start._crossing
    assert crossing is not None
    if mode == "blocks":
        assert wise is not None
        BlockJob(options, examples, shares, ctx, threads, block_layers).run(crossing, wise)
    else:
        Job(options, examples, shares, ctx, folder, resume, threads).run(crossing, wise)
    path = Path(output) if output is not None else None
    if path is not None:
        crossing.save(path)
    return api.Result(ctx.report, path, start.plan, start.ranges, None if path else crossing)


def _quantized(model: ir.Model) -> bool:
    """Whether a model is in Q/DQ form.

    Raises:
        InputError: It has integer operators.
    """
    found = False
    for node in all_nodes(model):
        kind = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        if kind in INTEGER_OPS or node.op_type.startswith("QLinear"):
            text = "bring it to Q/DQ form first (onnxq run qoperator-to-qdq)"
            raise InputError(f"'{node.name}' ({node.op_type}) computes with integers, which have no gradient: {text}")
        found |= is_q(node, QUANTIZE) or is_q(node, DEQUANTIZE)
    return found


def _static(recipe: str | Path, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of a recipe, without quantization at run time."""
    found = find_recipe(recipe, Registry())
    own = {"dynamic": "never"} if found is not None and "dynamic" in found.parameters else {}
    return {**own, **{name.replace("_", "-"): value for name, value in parameters.items()}}
