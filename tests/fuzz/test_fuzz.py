"""Models changed at random: every input ends in diagnostics. `tests.fuzz.campaign` does the same for longer."""

from __future__ import annotations

import faulthandler
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.cli.conftest import onnxq  # noqa: F401
from tests.fuzz.campaign import make, prepare
from tests.fuzz.law import TARGETS, broken
from tests.fuzz.messages import mutated_message
from tests.fuzz.mutate import mutated, mutated_bytes
from tests.fuzz.seeds import seeds

MODELS = list(seeds().values())
SMALL = [data for data in MODELS if len(data) < 4096]
CHANCE = st.randoms(use_true_random=False)
SMOKE = settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck),
                 phases=(Phase.explicit, Phase.generate))  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("fuzz")
    prepare(made)
    return made


@pytest.fixture(autouse=True)
def watchdog() -> Iterator[None]:
    """Native code that does not come back cannot be interrupted: say where it is, and end the run."""
    faulthandler.dump_traceback_later(300, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.mark.parametrize("name", seeds())
def test_seeds_keep_the_law(name: str, folder: Path) -> None:
    assert broken(seeds()[name], folder, "ort-cpu") == ""


@given(chance=CHANCE, target=st.sampled_from(TARGETS))
@SMOKE
def test_changed_messages(folder: Path, chance: random.Random, target: str | None) -> None:
    data = mutated_message(chance, chance.choice(SMALL), chance.choice(SMALL))
    assert broken(data, folder, target) == ""


@given(chance=CHANCE, target=st.sampled_from(TARGETS))
@SMOKE
def test_changed_bytes(folder: Path, chance: random.Random, target: str | None) -> None:
    data = mutated_bytes(chance, chance.choice(SMALL), chance.choice(SMALL))
    assert broken(data, folder, target) == ""


@given(data=st.binary(max_size=200))
@SMOKE
def test_bytes_of_nothing(folder: Path, data: bytes) -> None:
    assert broken(data, folder, None) == ""


@pytest.mark.parametrize("start", range(0, 400, 50))
def test_numbered_inputs(start: int, folder: Path) -> None:
    for number in range(start, start + 50):
        data, target = make(number, MODELS)
        assert broken(data, folder, target) == "", f"input {number}"


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1000, 11000, 500))
def test_more_numbered_inputs(start: int, folder: Path) -> None:
    for number in range(start, start + 500):
        data, target = make(number, MODELS)
        assert broken(data, folder, target) == "", f"input {number}"


@pytest.mark.parametrize("number", range(12))
def test_command_line(number: int, tmp_path: Path, onnxq: Any) -> None:  # noqa: F811
    """Exit codes 0, 1 and 2, and no traceback."""
    rng = random.Random(number)
    path = tmp_path / "model.onnx"
    path.write_bytes(mutated(rng, SMALL))
    form = rng.choice(("text", "concise", "json", "json-lines", "github", "gitlab", "junit", "sarif"))
    for options in ([], ["--target", "ort-cpu"], ["--diff", "--unsafe-fixes"], ["--fix"]):
        code, out, err = onnxq("lint", path, "--isolated", "--format", form, *options)
        assert code in (0, 1, 2)
        assert "Traceback" not in out + err
        assert "OQ900" not in out + err
