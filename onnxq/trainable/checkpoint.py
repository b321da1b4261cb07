"""The parameters of an onnxruntime-training checkpoint as a ``.npz`` file, for the pass `from-trainable`.

``python checkpoint.py CHECKPOINT OUT.npz`` in the environment of the training build. Nothing here needs the rest of
onnxq: the file runs alone, with numpy and onnxruntime-training.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np


def to_npz(state: Any, path: str) -> list[str]:
    """Write the parameters of a ``CheckpointState`` by name.

    Args:
        state: A ``CheckpointState``, or the path of a saved one.
        path: The file to write; numpy appends ``.npz`` to a name without it.

    Returns:
        The names of the parameters.
    """
    if not hasattr(state, "parameters"):
        from onnxruntime.training.api import CheckpointState

        state = CheckpointState.load_checkpoint(state)
    arrays = {name: np.asarray(parameter.data) for name, parameter in state.parameters}
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return list(arrays)


def main(arguments: list[str]) -> int:
    """The command line; returns the exit code."""
    if len(arguments) != 2:
        print("usage: python checkpoint.py CHECKPOINT OUT.npz", file=sys.stderr)
        return 2
    names = to_npz(*arguments)
    print(f"{len(names)} parameters written to {arguments[1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
