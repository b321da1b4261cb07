"""One training from a quantized model to a better one: teacher, twin, loop, result."""

from __future__ import annotations

import hashlib
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

import onnxq
from onnxq.border import Crossing
from onnxq.context import Context
from onnxq.diagnostics import Severity
from onnxq.inventory import constants_of
from onnxq.look import all_graphs
from onnxq.passes.validate_qdq import ValidateQdq
from onnxq.session import Runtime
from onnxq.training.data import Examples
from onnxq.training.engine import Trainable, trainable
from onnxq.training.freezing import trained
from onnxq.training.losses import float_outputs
from onnxq.training.options import Options
from onnxq.training.scores import Judge
from onnxq.training.shares import Shares
from onnxq.training.teacher import Aims, Targets, Teacher, given, open_teacher
from onnxq.training.trainer import Outcome, Trainer
from onnxq.wording import plural


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
        threads: Threads of onnxruntime; 0: all cores.
    """

    options: Options
    examples: Examples
    shares: Shares
    ctx: Context
    folder: Path | None
    resume: bool
    threads: int

    def run(self, crossing: Crossing, teacher: Crossing | None) -> None:
        """Train the model of a crossing, and put the trained one in its place if that is better.

        What decides is the score of the finished model, whose biases are integers again. During the training they are
        floats, and with weights of few bits a step of theirs can be seen in the loss.
        """
        start, options, ctx = crossing.model, self.options, self.ctx
        trainee = self._trainable(start)
        names = [value.name or "" for value in float_outputs(start, options.loss)]
        inputs, outputs = ([v.name or "" for v in values] for values in (start.graph.inputs, start.graph.outputs))
        runtime = Runtime(threads=self.threads, custom_op_library=ctx.custom_op_library)
        digest = _weights_digest(teacher.model) if teacher else ""
        with open_teacher(teacher.model, names, inputs, runtime) if teacher else nullcontext() as wise:
            targets = self._targets(wise)

            def judge(model: Trainable) -> Judge:
                reference, labels = wise.outputs if wise else None, options.loss == "cross-entropy"
                return Judge(model, outputs, self.examples, self.shares, targets, reference, labels)

            outcome = self._train(trainee, targets, judge(trainee), digest)
            table = self._table(outcome, trainee)
            kept, made = outcome.start, trainee.finish() if outcome.best else None
            del trainee  # its session, before there is another one
            if made is not None:
                ValidateQdq().run(made, ctx)
                score = judge(self._trainable(made))()
                if score.loss < kept.loss:
                    crossing.model, kept = made, score
        if kept is outcome.start:
            outcome.best = 0
            text = f"no epoch had a held-out loss below that of the start ({kept.loss:.4g}), which is the result"
            remedy = "another learning rate, more samples or more epochs may do"
            ctx.note("training-no-help", None, f"{text}; {remedy}", Severity.WARNING, loss=kept.loss)
        props = crossing.model.metadata_props
        props["onnxq.version"] = onnxq.__version__
        props["onnxq.training"] = f"{options.loss}, {outcome.best} of {plural(options.epochs, 'epoch')}"
        ctx.report.seconds.append(("train", outcome.seconds))
        ctx.report.tables["training"] = {**table, "best_epoch": outcome.best, "after": kept.to_json()}

    def _trainable(self, model: ir.Model) -> Trainable:
        options, shapes = self.options, self.examples.batch(self.shares.train[: self.shares.batch]).feeds
        return trainable(
            model, options.loss, batch=shapes, train=trained(options.freeze, model), scales=options.scales,
            threads=self.threads, ctx=self.ctx,
        )  # fmt: skip

    def _targets(self, teacher: Teacher | None) -> Aims:
        if self.options.loss != "distill":
            return given
        assert teacher is not None
        return Targets(teacher, self.examples, self.shares, self.ctx)

    def _train(self, trainee: Trainable, targets: Aims, judge: Judge, teacher: str) -> Outcome:
        optimizer = self.options.make(trainee.parameters, trainee.kinds, trainee.gradient_scale, trainee.units)
        identity = {
            **self.options.identity(),
            "model": _digest(trainee),
            "teacher": teacher,
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


def _weights_digest(model: ir.Model) -> str:
    """SHA-256 of a model's constants, one in memory at a time."""
    digest = hashlib.sha256()
    for graph in all_graphs(model):
        for _, tensor in constants_of(graph):
            digest.update(tensor.tobytes())
    return digest.hexdigest()
