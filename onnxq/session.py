"""The one way to make an onnxruntime session: weights always from files, quiet, with errors that name the remedy."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from onnxq.border import session_model
from onnxq.errors import InputError, OptionError

Array = np.ndarray[Any, np.dtype[Any]]
Optimization = Literal["none", "basic", "extended", "all"]

_LEVELS = {
    "none": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
_FATAL_ONLY = 4


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """How onnxruntime runs a model.

    Attributes:
        optimization: Graph optimization level; ``all`` is onnxruntime's default and what users get.
        true_semantics: Run Q/DQ nodes as ONNX writes them: no integer kernels, no removal of double pairs.
        threads: Threads inside an operator; 0 leaves it to onnxruntime.
        lean: Give memory back after each run and keep one copy of the weights; for calibration, where the tensors of
            one sample matter more than a few per cent of time.
        custom_op_library: Shared library with the kernels of custom operators.
        optimized: Where to write the graph that runs, as onnxruntime made it; large weights go beside it.
    """

    optimization: Optimization = "all"
    true_semantics: bool = False
    threads: int = 0
    lean: bool = False
    custom_op_library: str | None = None
    optimized: Path | None = None


class Session:
    """A loaded model.

    Attributes:
        inputs: Names of the required inputs.
        outputs: Names of the outputs, in the order `run` returns them.
    """

    def __init__(self, model: bytes | str, entries: Mapping[str, str], runtime: Runtime) -> None:
        import onnxruntime as ort

        try:
            self._ort = ort.InferenceSession(model, _options(runtime, entries), providers=["CPUExecutionProvider"])
        except OptionError:
            raise
        except Exception as error:
            raise InputError(f"onnxruntime cannot load the model: {_reason(error)}{_remedy(str(error))}") from error
        self._run_options = ort.RunOptions()
        self._run_options.log_severity_level = _FATAL_ONLY
        self.inputs = [i.name for i in self._ort.get_inputs()]
        self.outputs = [o.name for o in self._ort.get_outputs()]

    def run(self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None) -> list[Array]:
        """Outputs for one set of feeds: all, or those that are asked for.

        Raises:
            InputError: onnxruntime refuses feeds or fails in a kernel.
        """
        try:
            return list(self._ort.run(outputs or self.outputs, dict(feeds), self._run_options))
        except Exception as error:
            shapes = ", ".join(f"{k} {v.dtype}{list(v.shape)}" for k, v in feeds.items())
            raise InputError(f"onnxruntime cannot run the model with {shapes}: {_reason(error)}") from error


@contextmanager
def open_session(
    source: ir.Model | str | Path,
    runtime: Runtime = Runtime(),
    *,
    outputs: Sequence[ir.Value] | None = None,
) -> Iterator[Session]:
    """A session that lives as long as the ``with`` block; what it put on disk is gone afterwards, whatever happens.

    Args:
        source: An IR model (which stays as it is), or the path of a file that is used where it lies.
        runtime: How to run it.
        outputs: Values that nodes of ``source``'s main graph make, to return instead of its outputs; what they do not
            need is left out.

    Raises:
        InputError: onnxruntime cannot load the model.
        OptionError: The custom-op library cannot be loaded.
    """
    if not isinstance(source, ir.Model):
        yield Session(str(source), {}, runtime)
        return
    with tempfile.TemporaryDirectory(prefix="onnxq-") as folder:
        session = Session(*session_model(source, Path(folder), outputs), runtime)
        try:
            yield session
        finally:
            # The file may be mapped; on Windows it cannot be deleted before the session is gone.
            del session._ort
            gc.collect(0)


def _options(runtime: Runtime, entries: Mapping[str, str]) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = _FATAL_ONLY
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, _LEVELS[runtime.optimization])
    options.intra_op_num_threads = runtime.threads
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    if runtime.true_semantics:
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        options.add_session_config_entry("session.disable_double_qdq_remover", "1")
    if runtime.lean:
        options.add_session_config_entry("session.disable_prepacking", "1")
        options.enable_mem_pattern = False  # planning it takes half of the time to load 20 000 nodes
    if runtime.optimized is not None:
        options.optimized_model_filepath = str(runtime.optimized)
        weights = f"{runtime.optimized.name}.data"
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", weights)
    if runtime.custom_op_library:
        try:
            options.register_custom_ops_library(runtime.custom_op_library)
        except Exception as error:
            raise OptionError(f"cannot load the custom-op library {runtime.custom_op_library}: {error}") from error
    return options


def _reason(error: Exception) -> str:
    """The first line of onnxruntime's text, without its code prefix."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    head, _, tail = text.partition(" : ")
    while tail and head.startswith(
        ("[ONNXRuntimeError]", "1", "2", "6", "7", "9", "10", "FAIL", "INVALID", "NOT_IMPL")
    ):
        text = tail
        head, _, tail = text.partition(" : ")
    return text


def _remedy(text: str) -> str:
    if "is not a registered function/op" in text:
        return "; it has an operator onnxruntime does not know: give its kernels with --custom-op-library"
    return ""
