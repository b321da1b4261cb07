"""Training block by block: each keeps its output in the float model, on what the blocks before it really give it.

Li et al., "BRECQ: Pushing the Limit of Post-Training Quantization by Block Reconstruction" (2021): a block has few
parameters and, for each sample, a target of many numbers, so some hundred samples do; a residual block is trained as a
whole, since errors of its layers add up behind the shortcut.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from onnxq.context import Context
from onnxq.edit import plain_initializers
from onnxq.errors import OptionError
from onnxq.passes.freeze import Freeze
from onnxq.passes.lift_constants import LiftConstants
from onnxq.passes.thaw import Thaw
from onnxq.session import Runtime, open_session
from onnxq.training.blocks import Block, blocks
from onnxq.training.data import Examples
from onnxq.training.engine import every, trainable
from onnxq.training.losses import compared, float_outputs
from onnxq.training.options import Options
from onnxq.training.samples import Example
from onnxq.training.scores import Judge
from onnxq.training.shares import Shares
from onnxq.training.sites import Train, find_sites
from onnxq.training.teacher import given
from onnxq.training.trainer import Outcome, Trainer

MEMORY = 1 << 28
"""Bytes of values between blocks that are held in memory, for each of the four kinds; more are kept on disk."""


def reconstruct(
    model: ir.Model,
    reference: ir.Model,
    examples: Examples,
    shares: Shares,
    options: Options,
    ctx: Context,
    *,
    layers: int = 1,
    train: Train = every,
    threads: int = 0,
) -> tuple[ir.Model, list[tuple[Block, Outcome]]]:
    """Train a Q/DQ model block by block; what is passed stays as it is.

    Args:
        model: The Q/DQ model, in opset 13 or later.
        reference: The float model.
        examples: Feeds of the model; their targets are not used.
        shares: Which examples are trained on, and which are held out: a block gets the weights that it had after its
            best epoch on these, or keeps those it came with. A batch holds the same examples in all epochs.
        options: How each block is trained; the loss is `distill`, whatever they say.
        ctx: Takes progress, and one note a block.
        layers: Layers with weights that a block has at least.
        train: Which constants to train; one that several blocks read is trained in the first.
        threads: Threads of onnxruntime; 0 leaves it to onnxruntime.

    Returns:
        The trained model, in the form it came in, and what each block came to. A block is one of a copy of the model.

    Raises:
        OptionError: The model has no quantized weights.
        TrainingError: The loss of a block is not finite.
        UnsupportedError: An operator without gradient lies between weights and the end of their block.
    """
    work = model.clone()
    plain_initializers(work)
    LiftConstants().run(work, ctx)
    thawed = Thaw(form="fake-quant", zero_point="keep").run(work, ctx)
    outcomes = _Run(work, reference, examples, shares, options, ctx, layers, train, threads).go()
    if thawed:
        Freeze().run(work, ctx)
    return work, outcomes


@dataclass
class _Run:
    model: ir.Model
    reference: ir.Model
    examples: Examples
    shares: Shares
    options: Options
    ctx: Context
    layers: int
    train: Train
    threads: int
    _trained: set[str] = field(default_factory=set)

    def go(self) -> list[tuple[Block, Outcome]]:
        """Train each block in turn."""
        found = blocks(self.model, self.reference, layers=self.layers)
        if not found:
            raise OptionError("nothing to train block by block: no node has quantized weights")
        batches = self._batches()
        exact, rounded = _nothing(batches), _nothing(batches)
        outcomes = []
        for number, block in enumerate(found):
            student = block.quantized(self.model)
            data, exact = self._observe(block, student, batches, rounded, exact)
            at = f"block {number + 1} of {len(found)}"
            sites = find_sites(student, self._open, Context())
            if sites.constants or sites.biases:
                outcome = self._train(student, data, at, number, len(found))
                outcomes.append((block, outcome))
                self._note(block, outcome, at)
            else:
                self.ctx.note("block-kept", block.layers[0], f"{at} stays as it is: nothing in it is to be trained")
            if block.end:
                rounded = self._values(block.quantized(self.model, before_pair=True), data)
        return outcomes

    def _note(self, block: Block, outcome: Outcome, at: str) -> None:
        before, after = outcome.start.loss, outcome.end.loss
        name = f"'{block.end.name}'" if block.end else "the outputs"
        why = f"error {before:.3g} -> {after:.3g} of the float model's variance"
        self.ctx.note("block-trained", block.layers[0], f"{at}, up to {name}: {why}", before=before, after=after)

    def _batches(self) -> Examples:
        """Feeds of all batches, those to train on first."""
        out = Examples(joins=False, limit=MEMORY)
        for numbers in [*self.shares.epoch(0), *self.shares.held_batches()]:
            out.append(Example(self.examples.batch(numbers).feeds, {}))
        return out

    def _observe(
        self, block: Block, student: ir.Model, batches: Examples, rounded: Examples, exact: Examples
    ) -> tuple[Examples, Examples]:
        """Run the float model's part.

        Returns:
            What the student is fed and should give, and where the float model's next part begins.
        """
        teacher, end = block.exact(self.reference), block.end
        shown = list(teacher.graph.outputs)
        compares = {v.name for v in float_outputs(student, "distill")}
        aims = {
            own.name or "": compared(value, "distill")
            for own, value in zip(student.graph.outputs, shown, strict=True)
            if own.name in compares
        }
        values = list(dict.fromkeys([*aims.values(), *shown]))
        inputs = [value.name or "" for value in student.graph.inputs]
        data, ends = (Examples(joins=False, limit=MEMORY) for _ in range(2))
        with open_session(teacher, Runtime(threads=self.threads), outputs=values) as session:
            for batch, x, z in zip(_each(batches), _each(rounded), _each(exact), strict=True):
                known = {**batch.feeds, **z.feeds}
                made = dict(zip(values, session.run({name: known[name] for name in session.inputs}), strict=True))
                targets = {name: made[aim].astype(np.float32, copy=False) for name, aim in aims.items()}
                known = {**batch.feeds, **x.feeds}
                data.append(Example({name: known[name] for name in inputs}, targets))
                ends.append(Example({end.reference.name or "": made[shown[0]]} if end else {}, {}))
        return data, ends

    def _values(self, student: ir.Model, data: Examples) -> Examples:
        """The value that a trained part ends with, for each batch."""
        (end,) = student.graph.outputs
        out = Examples(joins=False, limit=MEMORY)
        with open_session(student, Runtime(true_semantics=True, threads=self.threads)) as session:
            for batch in _each(data):
                (value,) = session.run({name: batch.feeds[name] for name in session.inputs})
                out.append(Example({end.name or "": value}, {}))
        return out

    def _train(self, student: ir.Model, data: Examples, which: str, number: int, count: int) -> Outcome:
        options, ctx = self.options, self.ctx
        trainee = trainable(
            student,
            "distill",
            batch=data[0].feeds,
            train=self._open,
            scales=options.scales,
            threads=self.threads,
            ctx=ctx,
        )
        shares = Shares(range(self.shares.steps), range(self.shares.steps, len(data)), 1, self.shares.seed)
        course = options.course(shares.steps)

        def told(label: str, done: int, total: int) -> None:
            ctx.progress(f"{which}: {label}", number * total + done, count * total)

        judge = Judge(trainee, [value.name or "" for value in student.graph.outputs], data, shares, given)
        optimizer = options.make(trainee.parameters, trainee.kinds, trainee.gradient_scale, trainee.units)
        outcome = Trainer(
            trainee, data, shares, given, judge, optimizer, options.rate, course, replace(ctx, progress=told)
        ).run()
        self._trained.update(student.graph.initializers)
        if outcome.best:
            self._take(trainee.finish())
        return outcome

    def _open(self, value: ir.Value) -> bool:
        return value.name not in self._trained and self.train(value)

    def _take(self, finished: ir.Model) -> None:
        """Put the constants of a trained part into the whole model."""
        own = self.model.graph.initializers
        for name, value in finished.graph.initializers.items():
            own[name].const_value = value.const_value


def _each(examples: Examples) -> Iterator[Example]:
    return (examples[i] for i in range(len(examples)))


def _nothing(batches: Examples) -> Examples:
    """No value for any batch: what the first block begins with are the model's inputs."""
    out = Examples(joins=False)
    for _ in range(len(batches)):
        out.append(Example({}, {}))
    return out
