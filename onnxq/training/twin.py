"""The differentiable twin of a Q/DQ model: arithmetic in place of the pairs, parameters as inputs."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

Array = np.ndarray[Any, Any]
Kind = Literal["weight", "bias", "scale"]

RESIDUAL = ".residual"
"""The input ``<c>.residual`` of a twin stands for ``Round(<c>) - <c>``; ``<c>`` is a value of the twin."""
