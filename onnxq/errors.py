"""Every error onnxq raises on purpose.

    OnnxqError                    exit 2; the message is complete: what, where, what to do
    ├── OptionError (ValueError)  an option, selector or combination that does not exist or does not fit
    ├── RecipeError (ValueError)  a recipe or target file that cannot be read; carries file and line
    ├── InputError                the model file: missing, truncated, not ONNX, external data gone
    │   └── UnsupportedError      valid ONNX that the IR cannot carry, or an opset / type nobody here knows
    ├── CapabilityError           an installed package is too old for what was asked; names the version that brings it
    ├── DataError                 calibration data: empty, wrong names, shapes or types, NaN
    ├── TrainingError             a training whose loss or gradients are no longer finite; names the step
    ├── ValidationError           a Q/DQ graph that breaks the pair rules; lists every place
    ├── FactError                 a pass reads a fact that no earlier pass wrote
    └── PassFailed                a pass raised something else; names the pass, chained to the cause

`onnxq.cli` prints any of them as one line and exits with 2; a traceback means a bug in onnxq.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class OnnxqError(Exception):
    """Root of all errors raised on purpose; the message names place and remedy."""


class OptionError(OnnxqError, ValueError):
    """An option, selector or combination of options that does not exist or does not fit."""


class RecipeError(OnnxqError, ValueError):
    """A recipe or target file that cannot be read.

    Args:
        message: What is wrong and what would be right.
        file: The YAML file, when there is one.
        line: 1-based line in that file.
    """

    def __init__(self, message: str, *, file: str | None = None, line: int | None = None) -> None:
        self.file, self.line = file, line
        where = f"{file}:{line}: " if file and line else f"{file}: " if file else f"line {line}: " if line else ""
        super().__init__(where + message)


class InputError(OnnxqError):
    """The model cannot be read: missing file, not ONNX, truncated, external data missing."""


class UnsupportedError(InputError):
    """Valid ONNX that onnxq cannot carry without loss; names construct and place."""


class CapabilityError(OnnxqError):
    """An installed package cannot do what was asked; names the version that can."""


class DataError(OnnxqError):
    """Calibration data that does not fit the model or is not finite; names tensor and sample."""


class TrainingError(OnnxqError):
    """A training whose loss or gradients are not finite; names step, loss and remedy."""


class ValidationError(OnnxqError):
    """A graph whose Q/DQ pairs do not hold together; lists every place."""


class FactError(OnnxqError):
    """A pass reads a fact that no earlier step wrote."""


class PassFailed(OnnxqError):
    """A pass raised an error of another kind; the cause is chained."""


def near(name: str, known: Iterable[str], n: int = 3) -> str:
    """``"; did you mean a, b?"`` for names that go on like this or are close, or all if they are few, else ``""``."""
    names = sorted(set(known))
    lowered = {k.lower(): k for k in names}
    longer = [k for k in lowered if len(name) > 1 and k.startswith(name.lower())]
    close = difflib.get_close_matches(name.lower(), list(lowered), n=n, cutoff=0.5)
    hits = [lowered[k] for k in dict.fromkeys(longer + close)][:n]
    if hits:
        return f"; did you mean {', '.join(hits)}?"
    return f"; known: {', '.join(names)}" if 0 < len(names) <= 12 else ""
