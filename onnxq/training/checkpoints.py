"""The state of a training on disk: one .npz file that is there whole or not at all, and says what it belongs to."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from onnxq.errors import OptionError

Array = np.ndarray[Any, np.dtype[Any]]

FORMAT = "onnxq-training-1"
FILE = "training.npz"
HASHED = ("model", "data", "teacher")
"""Parts of an identity that are hashes."""
REMEDY = "take another folder, or start over (--no-resume)"


@dataclass
class Checkpoint:
    """A training at the end of a step.

    Attributes:
        parameters: Parameters as they are.
        best: Parameters as they were at the best held-out loss; empty if that was before the first step.
        state: Arrays of the optimizer by part and parameter.
        progress: Everything else, as JSON: steps, scores, epochs so far.
    """

    parameters: dict[str, Array]
    best: dict[str, Array] = field(default_factory=dict)
    state: dict[str, dict[str, Array]] = field(default_factory=dict)
    progress: dict[str, Any] = field(default_factory=dict)


def write(folder: Path, checkpoint: Checkpoint, identity: Mapping[str, Any]) -> Path:
    """Write a checkpoint over the one that is there.

    Args:
        folder: Where to; made if missing.
        checkpoint: What to write. The arrays in the file are ``parameters/NAME``, ``best/NAME``,
            ``state/PART/NAME``.
        identity: Model, data and options of the training, JSON-able; `read` compares it.

    Raises:
        OptionError: It cannot be written.
    """
    path, part = folder / FILE, folder / f".{FILE}.part"
    about = {"format": FORMAT, "identity": identity, "progress": checkpoint.progress}
    groups = {"parameters": checkpoint.parameters, "best": checkpoint.best}
    groups |= {f"state/{k}": v for k, v in checkpoint.state.items()}
    arrays: dict[str, Any] = {f"{group}/{name}": array for group, by in groups.items() for name, array in by.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            text: Any = np.frombuffer(json.dumps(about).encode(), np.uint8)
            np.savez(file, **{"about": text, **arrays})
        part.replace(path)
    except OSError as error:
        raise OptionError(f"cannot write the checkpoint {path}: {error.strerror}") from error
    finally:
        with suppress(OSError):
            part.unlink()
    return path


def read(folder: Path, identity: Mapping[str, Any]) -> Checkpoint | None:
    """The checkpoint in a folder; None if there is none.

    Raises:
        OptionError: It cannot be read, or belongs to another model, other data or other options; says which.
    """
    path = folder / FILE
    if not path.exists():
        return None
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            about = json.loads(stored["about"].tobytes())
            if about["format"] != FORMAT:
                raise OptionError(f"checkpoint {path} is of format {about['format']}, not {FORMAT}: {REMEDY}")
            differences = _differences(about["identity"], json.loads(json.dumps(identity)))
            if differences:
                raise OptionError(f"checkpoint {path} is of another training: {'; '.join(differences)}: {REMEDY}")
            out = Checkpoint({}, progress=about["progress"])
            for key in stored.files:
                group, _, name = key.partition("/")
                if group == "state":
                    group, _, name = name.partition("/")
                    out.state.setdefault(group, {})[name] = stored[key]
                elif group in ("parameters", "best"):
                    getattr(out, group)[name] = stored[key]
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError(f"checkpoint {path} is damaged ({error}): {REMEDY}") from error
    return out


def _differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """What two identities do not have in common; hashes are not shown."""
    out = []
    for key in sorted({*there, *here}):
        a, b = there.get(key), here.get(key)
        if a != b:
            out.append(f"the {key} is another" if key in HASHED else f"{key} {a} there, {b} now")
    return out
