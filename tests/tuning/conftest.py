"""LeNet with thirty-two digits, tuned without long races."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxq.tuning import Tuning, tuner

Array = np.ndarray[Any, Any]
LENET = Path(__file__).parents[2] / "models" / "lenet"


@pytest.fixture(scope="session")
def digits() -> list[dict[str, Array]]:
    with np.load(LENET / "calibration.npz") as samples:
        return [{"image": samples["image"][i : i + 8]} for i in range(0, 32, 8)]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """As few timed rounds as there can be."""
    monkeypatch.setattr(tuner, "RACE_SECONDS", 0.0)


@pytest.fixture(scope="session")
def tuned(digits: list[dict[str, Array]], tmp_path_factory: pytest.TempPathFactory) -> Tuning:
    """The smallest form of LeNet that keeps 35 dB."""
    out = tmp_path_factory.mktemp("tuned") / "lenet.onnx"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuner, "RACE_SECONDS", 0.0)
        return tuner.tune(LENET / "lenet.onnx", digits, output=out, min_sqnr=35, max_size=1e6, rounding="nearest")
