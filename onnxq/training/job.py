"""One training from a quantized model to a better one: teacher, twin, loop, result."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxq
from onnxq.border import Crossing
from onnxq.calibration.feeds import ports_of
from onnxq.context import Context
from onnxq.diagnostics import Severity
from onnxq.passes.validate_qdq import ValidateQdq
from onnxq.training.data import Examples
from onnxq.training.engine import Trainable, trainable
from onnxq.training.freezing import trained
from onnxq.training.losses import float_outputs
from onnxq.training.options import Options
from onnxq.training.scores import Judge
from onnxq.training.shares import Shares
from onnxq.training.teacher import Targets, Teacher, given, open_teacher
from onnxq.training.trainer import Outcome, Trainer


@dataclass
class Job:
    """One training of one model.

    Attributes:
        options: What was asked for.
        examples: Samples.
        shares: Which of them are trained on, which are held out.
        ctx: Notes, progress, tables.
        folder: Where checkpoints go.
        resume: Whether to go on from the one that is there.
    """

    options: Options
    examples: Examples
    shares: Shares
    ctx: Context
    folder: Path | None
    resume: bool

    def run(self, crossing: Crossing, teacher: Crossing | None) -> None:
        """Train the model of a crossing, and put the trained one in its place if that is better."""
        start, options, ctx = crossing.model, self.options, self.ctx
        shapes = self.examples.batch(self.shares.train[: self.shares.batch]).feeds
        trainee = trainable(
            start, options.loss, batch=shapes, train=trained(options.freeze, start), scales=options.scales, ctx=ctx
        )
        names = [value.name or "" for value in float_outputs(start, options.loss)]
        inputs = [port.name for port in ports_of(start)]
        opened = open_teacher(teacher.model, names, inputs, ctx.custom_op_library) if teacher else nullcontext()
        with opened as wise:
            outcome = self._train(trainee, wise, [value.name or "" for value in start.graph.outputs])
        if outcome.best:
            crossing.model = trainee.finish()
            ValidateQdq().run(crossing.model, ctx)
        else:
            before = outcome.start.loss
            text = f"no epoch had a held-out loss below that of the start ({before:.4g}), which is the result"
            remedy = "another learning rate, more samples or more epochs may do"
            ctx.note("training-no-help", None, f"{text}; {remedy}", Severity.WARNING, loss=before)
        crossing.model.metadata_props["onnxq.version"] = onnxq.__version__
        crossing.model.metadata_props["onnxq.training"] = f"{options.loss}, {outcome.best} of {options.epochs} epochs"
        ctx.report.seconds.append(("train", outcome.seconds))
        ctx.report.tables["training"] = self._table(outcome, trainee)

    def _train(self, trainee: Trainable, teacher: Teacher | None, outputs: Sequence[str]) -> Outcome:
        distill = self.options.loss == "distill"
        assert teacher is not None or not distill
        targets = Targets(teacher, self.examples, self.shares, self.ctx) if teacher and distill else given
        judge = Judge(
            trainee, outputs, self.examples, self.shares, targets,
            teacher.outputs if teacher else None, self.options.loss == "cross-entropy",
        )  # fmt: skip
        optimizer = self.options.make(trainee.parameters, trainee.kinds, trainee.gradient_scale)
        identity = {
            **self.options.identity(),
            "model": _digest(trainee),
            "data": self.examples.digest,
            "batch": self.shares.batch,
            "held out": len(self.shares.held),
            "seed": self.shares.seed,
        }
        return Trainer(
            trainee, self.examples, self.shares, targets, judge, optimizer, self.options.rate,
            self.options.course(self.shares.steps), self.ctx, self.folder, identity, self.resume,
        ).run()  # fmt: skip

    def _table(self, outcome: Outcome, trainee: Trainable) -> dict[str, Any]:
        kinds = list(trainee.kinds.values())
        return {
            "options": self.options.identity(),
            "samples": {"train": len(self.shares.train), "held_out": len(self.shares.held), "batch": self.shares.batch},
            "parameters": {
                kind: {
                    "tensors": kinds.count(kind),
                    "values": sum(a.size for k, a in trainee.parameters.items() if trainee.kinds[k] == kind),
                }
                for kind in sorted(set(kinds))
            },
            **outcome.to_json(),
        }


def _digest(trainee: Trainable) -> str:
    """SHA-256 of what is trained: the graph and the parameters it starts with."""
    digest = hashlib.sha256(trainee.proto.SerializeToString(deterministic=True))
    for name, array in trainee.parameters.items():
        digest.update(name.encode())
        digest.update(array.data)
    return digest.hexdigest()
