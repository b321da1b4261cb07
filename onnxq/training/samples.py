"""What is fed and what is wanted: raw samples taken apart into inputs and targets, each checked against the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from onnxq.calibration.feeds import Feeds, Port, check_feeds, name_feeds
from onnxq.errors import DataError, near
from onnxq.training.losses import TARGET, Loss

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Example:
    """What one or several samples feed, and what is wanted of each output."""

    feeds: Feeds
    targets: Feeds

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(a.nbytes for a in (*self.feeds.values(), *self.targets.values()))

    def shape(self) -> tuple[tuple[str, tuple[int, ...], str], ...]:
        """Names, shapes and types, to tell which examples go together."""
        named = [*self.feeds.items(), *((TARGET + k, v) for k, v in self.targets.items())]
        return tuple(sorted((k, v.shape, str(v.dtype)) for k, v in named))


@dataclass(frozen=True)
class Taker:
    """Takes raw samples apart into what the model is fed and what is wanted of it.

    A sample with targets is a pair ``(feeds, targets)``, or a mapping with keys ``target.<output>`` (``target`` for a
    model with one output). Targets in a pair are a mapping of output names, or for one output an array.

    Attributes:
        inputs: The model's inputs.
        outputs: The model's outputs.
        loss: ``distill`` needs no targets and ignores them.
    """

    inputs: Sequence[Port]
    outputs: Sequence[Port]
    loss: Loss

    def split(self, sample: Any) -> tuple[Any, Any]:
        """Feeds and targets as they were given; None for no targets."""
        if isinstance(sample, Mapping):
            names = {p.name for p in self.inputs}
            wanted = {str(k): v for k, v in sample.items() if self._is_target(str(k)) and k not in names}
            return {k: v for k, v in sample.items() if k not in wanted}, wanted or None
        if isinstance(sample, tuple) and len(sample) == 2:
            single = sum(p.required for p in self.inputs) == 1
            if single or self.loss != "distill" or isinstance(sample[0], Mapping):
                return sample
        return sample, None

    def feeds(self, sample: Any, index: int) -> Feeds:
        """What a sample feeds.

        Raises:
            DataError: It does not fit the model.
        """
        feeds = name_feeds(self.split(sample)[0], self.inputs, index)
        check_feeds(self.inputs, feeds, index)
        for name, array in feeds.items():
            if array.dtype.kind == "f" and np.isnan(array).any():
                raise DataError(f"sample {index}: input '{name}' is NaN: check the data")
        return feeds

    def __call__(self, sample: Any, index: int) -> Example:
        """Feeds and targets of a sample.

        Raises:
            DataError: It does not fit the model or the loss.
        """
        feeds = self.feeds(sample, index)
        return Example(feeds, {} if self.loss == "distill" else self._targets(self.split(sample)[1], index))

    def _is_target(self, key: str) -> bool:
        return key.startswith(TARGET) or key == TARGET.rstrip(".")

    def _targets(self, given: Any, index: int) -> Feeds:
        known = {p.name: p for p in self.outputs}
        how = f"give pairs (feeds, targets), or arrays '{TARGET}{next(iter(known))}' beside the inputs"
        if given is None:
            raise DataError(f"sample {index} has no target, which loss {self.loss} needs: {how}")
        if not isinstance(given, Mapping):
            given = {"": given}
        out: Feeds = {}
        for key, value in given.items():
            name = (
                str(key).removeprefix(TARGET.rstrip(".")).removeprefix(".") if self._is_target(str(key)) else str(key)
            )
            if name == "" and len(known) == 1:
                (name,) = known
            if name not in known:
                which = f"'{name}' is no output of the model{near(name, known)}" if name else "it does not say of which"
                raise DataError(f"sample {index}: a target is for an output, but {which}")
            out[name] = self._target(np.asarray(value), known[name], index)
        missing = [name for name in known if name not in out]
        if missing and self.loss == "mse":
            raise DataError(f"sample {index} has no target for output '{missing[0]}', which loss mse needs: {how}")
        return out

    def _target(self, array: Array, port: Port, index: int) -> Array:
        if self.loss == "cross-entropy":
            if array.dtype.kind not in "iu":
                text = f"loss cross-entropy takes the numbers of the classes, integers; got {array.dtype}"
                raise DataError(f"sample {index}: target of '{port.name}': {text}")
            classes = port.dims[1] if port.dims is not None and len(port.dims) > 1 else None
            if isinstance(classes, int) and array.size and not 0 <= array.min() <= array.max() < classes:
                text = f"classes {array.min()} to {array.max()}, but the output has {classes} (0 to {classes - 1})"
                raise DataError(f"sample {index}: target of '{port.name}': {text}")
            return array.astype(np.int64).reshape(array.shape or (1,))
        if array.dtype.kind != "f":
            raise DataError(f"sample {index}: target of '{port.name}': loss mse takes floats, got {array.dtype}")
        target = array.astype(np.float32)
        if problems := [p for p in replace(port, dtype=None).problems(target) if p]:
            raise DataError(f"sample {index}: target of '{port.name}' ({port}): {', '.join(problems)}")
        if not np.isfinite(target).all():
            raise DataError(f"sample {index}: target of '{port.name}' is not finite")
        return target
