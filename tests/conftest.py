"""Real models for tests marked ``real``: taken from the cache, downloaded only when asked for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from models.fetch import NotServed, cached, fetch


@pytest.fixture(scope="session")
def real_model() -> Callable[[str], Path]:
    """Gives the file of a name in `models/zoo.yaml`.

    Skips the test when the file is not in the cache, unless ``ONNXQ_FETCH=1`` says that it may be downloaded.
    """

    def find(name: str) -> Path:
        if not cached(name) and os.environ.get("ONNXQ_FETCH") != "1":
            pytest.skip(f"'{name}' is not in the cache; ONNXQ_FETCH=1 downloads it")
        try:
            return fetch(name)
        except NotServed as why:
            pytest.skip(str(why))

    return find
