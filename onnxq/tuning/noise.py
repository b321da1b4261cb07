"""How much noise a plan is expected to make at the outputs: what is measured once, then added up for any plan.

The pass over the samples that finds the ranges also tells how much noise each pair makes where it stands, and the
weights themselves tell how much rounding them makes. How that reaches the outputs is measured on a few samples with
the pairs of one tensor switched on alone (`onnxq.trials.trial`), at most `MOST_PROBES` times whatever the size of the
model.
Noise energies of independent roundings add up; one bit less is four times the energy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from onnxq.context import Context, Progress
from onnxq.encoding import activation_encodings, groups, weight_encoding
from onnxq.facts import Axes, Edge, Goal, Plan, Range, Wishes
from onnxq.numerics.affine import fake_quantize
from onnxq.numerics.spec import TensorSpec
from onnxq.passes.resolve_axes import ResolveAxes
from onnxq.targets import Target
from onnxq.trials.trial import Trial
from onnxq.weights import weight_tensor

MOST_PROBES = 64
_BITS = 8
# Noise of a pair of which nothing is known, as a share of the signal: 8 bits over a bell curve.
_USUAL = 1e-4
# Noise of float32 sums in another order.
_EXACT = 1e-11


@dataclass
class Noise:
    """Expected noise of plans, as a share of the outputs' energy.

    Attributes:
        model: The prepared float model.
        target: Rules of the runtime, which decide on axes.
        group: Number of the encoding of each value; some values share one.
        pairs: What the pairs of each encoding add at 8 bits.
        gains: Noise at the outputs for noise in a value, as shares of each one's energy.
    """

    model: ir.Model
    target: Target
    group: Mapping[ir.Value, int]
    pairs: Sequence[float]
    gains: Mapping[ir.Value, float]
    _weights: dict[tuple[Edge, TensorSpec], float] = field(default_factory=dict)

    def __call__(self, plan: Plan) -> float:
        """Sum over the pairs and weights of a plan."""
        found: dict[tuple[int, TensorSpec], None] = {}
        for value, spec in plan.activations.items():
            found[self.group.get(value, -1), spec] = None
        for edge, spec in plan.bridges.items():
            found[self.group.get(edge.value, -1), spec] = None
        planned = {i for i, _ in found}
        # What several layers read is quantized once, at run time, too.
        inputs = {edge.node.inputs[0] for edge in plan.weights if plan.decisions[edge.node].status == "dynamic"}
        at_run_time = {self.group[value] for value in inputs if value is not None and value in self.group} - planned
        total = sum(self.pairs[i] * 4.0 ** (_BITS - spec.qtype.bits) for i, spec in found if i >= 0)
        total += sum(self.pairs[i] for i in sorted(at_run_time))
        return total + sum(self._gain(edge) * self.rounding(edge, spec) for edge, spec in plan.weights.items())

    def _gain(self, edge: Edge) -> float:
        """Noise of a weight acts as noise of the same share in the layer's input does; 1 where none was measured."""
        known = (self.gains[v] for v in edge.node.inputs if v is not None and v is not edge.value and v in self.gains)
        return next(known, 1.0)

    def rounding(self, edge: Edge, spec: TensorSpec) -> float:
        """Energy of a weight's rounding to nearest, as a share of the weight's."""
        if (edge, spec) not in self._weights:
            ctx = Context().put(Goal(self.target), Plan(Wishes(spec, spec), weights={edge: spec}))
            ResolveAxes().run(self.model, ctx)
            encoding = weight_encoding(edge, spec.at(ctx.get(Axes).of[edge]))
            tensor = weight_tensor(edge.value)
            assert tensor is not None
            exact = np.asarray(tensor.numpy(), np.float32)
            error = fake_quantize(exact, encoding) - exact
            energy, lost = (float(np.einsum("i,i->", a, a, dtype=np.float64)) for a in (exact.ravel(), error.ravel()))
            self._weights[edge, spec] = lost / energy if energy else 0.0
        return self._weights[edge, spec]


def probe(
    model: ir.Model, target: Target, plan: Plan, ranges: Mapping[ir.Value, Range], trial: Trial, progress: Progress
) -> Noise:
    """Measure what each pair of a plan does to the outputs, alone or with its neighbours.

    Args:
        model: The prepared float model.
        target: Rules of the runtime.
        plan: The plan that quantizes all it can.
        ranges: Range of every planned value.
        trial: An open trial of that plan.
        progress: Told after each probe.
    """
    found = groups(plan)
    encodings = activation_encodings(plan, ranges)
    local = [_local(values, ranges) for values in found]
    size = max(1, -(-len(found) // MOST_PROBES))
    starts = range(0, len(found), size)
    pairs: list[float] = []
    gains: dict[ir.Value, float] = {}
    for done, start in enumerate(starts):
        batch = found[start : start + size]
        only = {value: plan.activations[value] for values in batch for value in values}
        there = trial.noise(replace(plan, activations=only, bridges={}), encodings)
        gain = there / sum(local[start : start + size])
        pairs += [gain * noise for noise in local[start : start + size]]
        if there > _EXACT:  # else the values are whole steps (a mask, one-hot), which says nothing of the weights
            gains |= {value: gain for values in batch for value in values}
        progress("probe layers", done + 1, len(starts))
    group = {value: i for i, values in enumerate(found) for value in values}
    return Noise(model, target, group, pairs, gains)


def _local(values: Sequence[ir.Value], ranges: Mapping[ir.Value, Range]) -> float:
    """Noise of a pair at 8 bits as a share of the value's energy, as calibration expects it."""
    known = [r.sqnr_db for value in values if (r := ranges.get(value)) is not None and r.sqnr_db is not None]
    return max((10 ** (-db / 10) for db in known if math.isfinite(db)), default=_USUAL)
