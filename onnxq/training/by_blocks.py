"""`onnxq.train` with ``mode="blocks"``: from a quantized model to a better one, block by block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import onnx_ir as ir

import onnxq
from onnxq.border import Crossing
from onnxq.context import Context
from onnxq.diagnostics import Severity
from onnxq.errors import OptionError, near
from onnxq.look import Array
from onnxq.passes.validate_qdq import ValidateQdq
from onnxq.session import Runtime
from onnxq.training.blocks import Block
from onnxq.training.data import Examples
from onnxq.training.freezing import trained
from onnxq.training.losses import float_outputs
from onnxq.training.options import Options
from onnxq.training.reconstruct import reconstruct
from onnxq.training.scores import Judge, Score
from onnxq.training.shares import Shares
from onnxq.training.teacher import Teacher, open_teacher
from onnxq.training.trainer import Outcome
from onnxq.wording import plural

Mode = Literal["whole", "blocks"]


def check_mode(mode: str, options: Options, layers: int, checkpoint: bool) -> None:
    """Refuse what does not go together.

    Raises:
        OptionError: An unknown mode; with ``blocks``: another loss than ``distill``, a checkpoint, no layer in a block.
    """
    if mode not in get_args(Mode):
        raise OptionError(f"unknown mode '{mode}'{near(mode, get_args(Mode))}")
    if layers < 1:
        raise OptionError(f"block layers: at least 1 wanted, got {layers}")
    if mode == "blocks" and options.loss != "distill":
        raise OptionError(f"mode blocks: each block learns from the float model (loss distill), not by {options.loss}")
    if mode == "blocks" and checkpoint:
        raise OptionError("mode blocks has no checkpoints: leave the checkpoint out, or train the model as a whole")


@dataclass
class BlockJob:
    """One training of one model, block by block.

    Attributes:
        options: What was asked for.
        examples: Samples.
        shares: Which of them are trained on, which are held out.
        ctx: Notes, progress, tables.
        threads: Threads of onnxruntime; 0: all cores.
        layers: Layers with weights that a block has at least.
    """

    options: Options
    examples: Examples
    shares: Shares
    ctx: Context
    threads: int
    layers: int

    def run(self, crossing: Crossing, teacher: Crossing) -> None:
        """Train the model of a crossing, and put the trained one in its place if its outputs are nearer to the float
        model's on held-out samples. No gradient goes through more than a block, so memory is that of the largest one.
        """
        start, options, ctx = crossing.model, self.options, self.ctx
        before = self._score(start, teacher.model)
        made, outcomes = reconstruct(
            start, teacher.model, self.examples, self.shares, options, ctx,
            layers=self.layers, train=trained(options.freeze, start), threads=self.threads,
        )  # fmt: skip
        ValidateQdq().run(made, ctx)
        after = self._score(made, teacher.model)
        better = after.loss < before.loss
        if better:
            crossing.model = made
        else:
            text = f"the held-out loss is not below that of the start ({before.loss:.4g}), which is the result"
            remedy = "another learning rate, more samples, larger blocks or more epochs may do"
            ctx.note("training-no-help", None, f"{text}; {remedy}", Severity.WARNING, loss=before.loss)
        props = crossing.model.metadata_props
        props["onnxq.version"] = onnxq.__version__
        props["onnxq.training"] = f"blocks, {plural(options.epochs, 'epoch')} each"
        seconds = sum(outcome.seconds for _, outcome in outcomes)
        steps = sum(outcome.steps for _, outcome in outcomes)
        ctx.report.seconds.append(("train", seconds))
        ctx.report.tables["training"] = {
            "options": options.identity() | {"mode": "blocks", "layers": self.layers},
            "samples": {"train": len(self.shares.train), "held_out": len(self.shares.held), "batch": self.shares.batch},
            "before": before.to_json(),
            "after": (after if better else before).to_json(),
            "parameters": {},
            "blocks": [_row(block, outcome) for block, outcome in outcomes],
            "steps": steps,
            "resumed_steps": 0,
            "seconds": seconds,
            "steps_per_second": steps / seconds if seconds else None,
        }

    def _score(self, model: ir.Model, teacher: ir.Model) -> Score:
        """Of a whole model, on held-out samples."""
        names = [value.name or "" for value in float_outputs(model, "distill")]
        inputs = [value.name or "" for value in model.graph.inputs]
        library = self.ctx.custom_op_library
        runtime = Runtime(true_semantics=True, threads=self.threads, custom_op_library=library)
        with open_teacher(model, names, inputs, runtime) as own, open_teacher(teacher, names, inputs, runtime) as wise:
            judged = _Judged(own)
            return Judge(judged, names, self.examples, self.shares, lambda _, e: wise.targets(e.feeds), wise.outputs)()


@dataclass
class _Judged:
    """A finished model, to be asked for its loss; none of it is a twin."""

    opened: Teacher

    def step(self, feeds: Mapping[str, Array], targets: Mapping[str, Array]) -> tuple[float, dict[str, Array]]:
        """What `distill` computes; no gradients."""
        made, loss = self.opened.targets(dict(feeds)), 0.0
        for name, target in targets.items():
            error, variance = np.mean((made[name] - target) ** 2), np.var(target)
            loss += float(error / max(variance, np.finfo(np.float32).tiny))
        return loss, {}

    def evaluate(self, feeds: Mapping[str, Array]) -> list[Array]:
        return list(self.opened.outputs(dict(feeds)).values())


def _row(block: Block, outcome: Outcome) -> dict[str, Any]:
    return {
        "end": block.end.name if block.end else None,
        "layers": [node.name for node in block.layers],
        "before": outcome.start.loss,
        "after": outcome.end.loss,
        "best_epoch": outcome.best,
    }
