"""The fixtures of the pass tests: these tests run passes on messages and messages in onnxruntime, too."""

from __future__ import annotations

from tests.passes.conftest import fused, random_feeds, run_model, run_passes, same_numbers

__all__ = ["fused", "random_feeds", "run_model", "run_passes", "same_numbers"]
