"""The Python door: `quantize` and `run`. Both cross the border once, and leave the caller's model untouched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

import onnxq
from onnxq import provenance
from onnxq.border import Crossing, open_model
from onnxq.collector import relaxed
from onnxq.context import Context, Progress, Report
from onnxq.errors import OptionError
from onnxq.facts import Feeds, Goal, Plan, Ranges
from onnxq.instruments import Timing
from onnxq.inventory import constants_of
from onnxq.look import all_graphs, nbytes
from onnxq.passbase import Instrument, Pass, Pipeline, Step
from onnxq.planfile import plan_json
from onnxq.targets import Target, load_target

if TYPE_CHECKING:
    from onnx import ModelProto

    from onnxq.calibration.sources import Data


@dataclass
class Result:
    """What a run gives back.

    Attributes:
        report: Notes, seconds per step, tables.
        path: The written file, where an output path was given.
        plan: The plan the run was made with, as `onnxq.planfile.plan_json` data; empty for recipes without one.
        ranges: The calibration cache; empty for recipes without calibration.
    """

    report: Report
    path: Path | None
    plan: dict[str, Any] = field(default_factory=dict)
    ranges: dict[str, Any] = field(default_factory=dict)
    _crossing: Crossing | None = None

    @cached_property
    def model(self) -> ModelProto:
        """The resulting model as a message; read from `path` on first use where an output path was given."""
        if self._crossing is not None:
            return self._crossing.to_proto()
        assert self.path is not None
        return open_model(self.path).to_proto()


def quantize(
    model: ModelProto | bytes | str | Path,
    data: Data | None = None,
    *,
    target: str | Path | Target | None = None,
    output: str | Path | None = None,
    recipe: str | Path = "int8",
    samples: int | None = None,
    preprocessing: str | Path | None = None,
    progress: Progress | None = None,
    custom_op_library: str | None = None,
    seed: int = 0,
    **parameters: Any,
) -> Result:
    """Quantize a float model for a target.

    Args:
        model: The float model; a path is read lazily and never loaded as a whole.
        data: Calibration samples: a list of ``{input name: array}``, a function that returns an iterator of such, or
            what ``--data`` takes (folder, ``module:function``, ``random``).
        target: Name of a target, path of a target file, or a `Target`; the recipe's own by default.
        output: Where to write the result; without it `Result.model` holds a message.
        recipe: Recipe that does the work.
        samples: Take at most this many samples.
        preprocessing: YAML file that says how images become input arrays.
        progress: Called with (label, done, total).
        custom_op_library: Shared library with kernels of custom ops, for calibration.
        seed: Seed of everything random.
        **parameters: Parameters of the recipe, with _ for -: ``activations``, ``weights``, ``method``, ``exclude``,
            ``include``, ``ranges`` (a calibration cache instead of data), ``plan`` (a plan file), …

    Raises:
        OnnxqError: Bad model, data, options; the message names place and remedy. Nothing is written then.
    """
    return run(
        recipe, model, data, target=target, output=output, samples=samples,
        parameters={name.replace("_", "-"): value for name, value in parameters.items()},
        preprocessing=preprocessing, progress=progress, custom_op_library=custom_op_library, seed=seed,
    )  # fmt: skip


@relaxed()
def run(
    recipe: str | Path | Pipeline,
    model: ModelProto | bytes | str | Path,
    data: Data | None = None,
    *,
    target: str | Path | Target | None = None,
    output: str | Path | None = None,
    parameters: Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | None = None,
    samples: int | None = None,
    preprocessing: str | Path | None = None,
    progress: Progress | None = None,
    custom_op_library: str | None = None,
    seed: int = 0,
) -> Result:
    """Run a recipe or a `Pipeline` on a model; see `quantize` for the arguments.

    Args:
        recipe: Name or path of a recipe, or a pipeline.
        model: The model.
        data: Samples, for recipes that calibrate.
        target: Put into the context when given.
        output: Where to write the result.
        parameters: Parameters of the recipe.
        overrides: ``{"step.option": value}``.
        samples: Take at most this many samples.
        preprocessing: YAML file that says how images become input arrays.
        progress: Called with (label, done, total).
        custom_op_library: Shared library with kernels of custom ops.
        seed: Seed of everything random.

    Raises:
        OnnxqError: As for `quantize`.
    """
    from onnxq.recipe import load_recipe

    if isinstance(recipe, Pipeline):
        if parameters or overrides:
            raise OptionError("parameters and overrides go with a recipe by name or path, not with a Pipeline")
        pipeline = recipe
    else:
        pipeline = load_recipe(recipe, parameters, overrides=overrides)
    crossing = open_model(model)
    ctx = Context(seed=seed, progress=progress or (lambda *_: None), custom_op_library=custom_op_library)
    if target is not None:
        ctx.put(Goal(load_target(target)))
    if data is not None:
        from onnxq.calibration.sources import open_source

        source = open_source(data, model=crossing.model, preprocessing=preprocessing, samples=samples, seed=seed)
        ctx.put(Feeds(source))
    elif preprocessing is not None or samples is not None:
        raise OptionError("samples and preprocessing need data")
    before, names = weight_bytes(crossing), provenance.start(crossing.model)
    kept = _Keep()
    replace(pipeline, instruments=(Timing(), *pipeline.instruments, kept)).run(crossing.model, ctx)
    provenance.finish(crossing.model, names)
    _stamp(crossing, pipeline.label, ctx)
    ctx.report.tables |= {"plan": kept.plan, "weights": {"before": before, "after": weight_bytes(crossing)}}
    path = Path(output) if output is not None else None
    if path is not None:
        crossing.save(path)
    return Result(ctx.report, path, kept.plan, kept.ranges, None if path else crossing)


def make_plan(
    model: ModelProto | bytes | str | Path,
    data: Data | None = None,
    *,
    target: str | Path | Target | None = None,
    recipe: str | Path = "int8",
    parameters: Mapping[str, Any] | None = None,
    **options: Any,
) -> Result:
    """Run a quantization recipe up to its plan; nothing is quantized.

    Args:
        model: The float model.
        data: Samples. Without them the plan is the one before calibration.
        target: Name of a target, path of a target file, or a `Target`; the recipe's own by default.
        recipe: The recipe whose plan it is.
        parameters: Parameters of the recipe.
        **options: As for `run`.

    Raises:
        OptionError: The recipe has no plan step.
        OnnxqError: As for `quantize`.
    """
    from onnxq.recipe import load_recipe

    whole = load_recipe(recipe, parameters)
    planning = [i for i, step in enumerate(whole.steps) if isinstance(step, Pass) and Plan in step.writes]
    if not planning:
        raise OptionError(f"recipe {whole.label} makes no plan")
    steps = whole.steps[: planning[-1 if data is not None else 0] + 1]
    return run(Pipeline(steps=steps, label=whole.label), model, data, target=target, **options)


class _Keep(Instrument):
    """Holds on to plan and ranges, which go stale when pairs are inserted."""

    def __init__(self) -> None:
        self.plan: dict[str, Any] = {}
        self.ranges: dict[str, Any] = {}

    def after(self, step: Step, model: ir.Model, ctx: Context, changed: bool) -> None:
        if isinstance(step, Pass) and Plan in step.writes:
            self.plan = plan_json(ctx.get(Plan))
        if isinstance(step, Pass) and Ranges in step.writes:
            self.ranges = ctx.get(Ranges).to_json()


def _stamp(crossing: Crossing, recipe: str, ctx: Context) -> None:
    """Say in the model's metadata who made it, by what recipe and from which data."""
    props = crossing.model.metadata_props
    props["onnxq.version"], props["onnxq.recipe"] = onnxq.__version__, recipe
    feeds = ctx.maybe(Feeds)
    if feeds is not None and feeds.source.random:
        props["onnxq.data"] = feeds.source.describe()


def weight_bytes(crossing: Crossing) -> int:
    """Bytes of all constants in all scopes, as stored: initializers and Constant nodes."""
    return sum(nbytes(tensor) for graph in all_graphs(crossing.model) for _, tensor in constants_of(graph))
