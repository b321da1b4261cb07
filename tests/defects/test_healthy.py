"""Nothing is an error in models that may ship, and each warning about them has been looked at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from onnxq import lint
from onnxq.diagnostics import Diagnostic, Severity
from tests.defects.healthy import MADE, REVIEWED, Made, harm, wheel, wheel_name

ANSWERS: dict[str, Any] = yaml.safe_load(REVIEWED.read_text())
QUANTIZED = (  # by others, as they have published them
    "ddddocr-old",
    "sscd-int8",
    "t5-decoder-int8",
    "t5-encoder-int8",
    "tinyocr-rec-int8",
    "voice-embedder-int8",
    "voicefilter-int8",
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("made", MADE, ids=str)
def test_what_quantizers_write(made: Made) -> None:
    _check(str(made), lint(made.model(), target=made.target))


def test_models_of_the_onnx_wheel() -> None:
    paths = wheel()
    assert len(paths) > 100
    for path in paths:
        _check(wheel_name(path), lint(path, target="ort-cpu"))


@pytest.mark.real
@pytest.mark.parametrize("name", QUANTIZED)
def test_published_models(name: str, real_model: Callable[[str], Path]) -> None:
    assert not harm(lint(real_model(name), target="ort-cpu"), Severity.ERROR)


def test_there_are_enough() -> None:
    assert len({str(made) for made in MADE}) == len(MADE)
    assert sum(made.by == "onnxq" for made in MADE) >= 30
    assert sum(made.by == "onnxruntime" for made in MADE) >= 15


def test_each_kind_of_warning_has_a_reason() -> None:
    kinds = {code for codes in ANSWERS["warnings"].values() for code in codes}
    assert kinds == set(ANSWERS["why"])
    assert all(len(reason) > 20 for reason in ANSWERS["why"].values())


def _check(name: str, found: list[Diagnostic]) -> None:
    assert harm(found, Severity.ERROR) == {}, [str(d) for d in found if d.severity is Severity.ERROR]
    assert harm(found, Severity.WARNING) == ANSWERS["warnings"].get(name, {}), name
