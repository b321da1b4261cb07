"""One quantization in a process of its own: ``python -m benchmarks.worker '{"tool": ..., "model": ..., ...}'``.

A two-node model is quantized first, so that neither tool's imports count; then one line of JSON tells the start, the
given model is quantized, and a second line tells seconds, CPU seconds and memory. The parent reads peak RssAnon from
outside (the kernel keeps no high-water mark for it).
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.synthetic import conv_chain

Feed = dict[str, np.ndarray[Any, Any]]


class Samples:
    """Random float32 samples made one at a time, the same at each iteration."""

    def __init__(self, shape: list[int], count: int) -> None:
        self.shape, self.count = shape, count

    def __iter__(self) -> Iterator[Feed]:
        rng = np.random.default_rng(1)
        for _ in range(self.count):
            yield {"x": rng.standard_normal(self.shape, dtype=np.float32)}

    def __len__(self) -> int:
        return self.count


def quantize_with_onnxruntime(model: str, output: str, samples: Samples, method: str) -> None:
    from onnxruntime.quantization import (
        CalibrationDataReader,
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.feeds = iter(samples)

        def get_next(self) -> Feed | None:
            return next(self.feeds, None)

    names = {"minmax": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}
    quantize_static(
        model,
        output,
        Reader(),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        calibrate_method=CalibrationMethod[names[method]],
    )


def quantize_with_onnxq(model: str, output: str, samples: Samples, method: str) -> None:
    """The same work as onnxruntime's tool: the given method, weights rounded to nearest, no search."""
    import onnxq

    if method == "weight-only":
        onnxq.quantize(model, recipe="dynamic", output=output)
    else:
        onnxq.quantize(model, data=samples, method=method, search=False, rounding="nearest", output=output)


def quantize_with_defaults(model: str, output: str, samples: Samples, method: str) -> None:
    """What a user gets who sets nothing; ``method`` is not used."""
    import onnxq

    onnxq.quantize(model, data=samples, output=output)


def four_bits_with_onnxruntime(model: str, output: str, samples: Samples, method: str) -> None:
    """MatMulNBits in blocks of 32, ``method`` symmetric or asymmetric, by the C++ quantizer that onnxruntime brings."""
    from benchmarks.peers import onnxruntime_nbits

    onnxruntime_nbits(Path(model), Path(output), block_size=32, symmetric=method == "symmetric")


def four_bits_with_onnxq(model: str, output: str, samples: Samples, method: str) -> None:
    """The same blocks, rounded to nearest, no search; the table of embeddings in 8 bits besides."""
    import onnxq

    settings: dict[str, Any] = {
        "weight-method": "minmax",
        "symmetric": "yes" if method == "symmetric" else "no",
        "block-size": 32,
    }
    onnxq.quantize(model, recipe="w4-blocked", rounding="nearest", output=output, **settings)


TOOLS = {
    "onnxruntime": quantize_with_onnxruntime,
    "onnxq": quantize_with_onnxq,
    "onnxq-defaults": quantize_with_defaults,
    "onnxruntime-nbits": four_bits_with_onnxruntime,
    "onnxq-4-bits": four_bits_with_onnxq,
}


def memory(key: str) -> int | None:
    """A line of ``/proc/self/status`` in bytes (VmHWM, RssAnon); None where there is no such file."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:")), None)


def peak_rss() -> int:
    """Largest resident set so far, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return memory("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def main() -> None:
    job = json.loads(sys.argv[1])
    quantize = TOOLS[job["tool"]]
    logging.disable(logging.CRITICAL)
    silence = io.StringIO()
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(silence),
        contextlib.redirect_stderr(silence),
    ):
        tiny = Path(folder) / "tiny.onnx"
        onnx.save(conv_chain(2), tiny)
        quantize(str(tiny), str(Path(folder) / "tiny-q.onnx"), Samples([1, 8, 8, 8], 1), job["method"])
    print(json.dumps({"base_rss": peak_rss(), "base_anon": memory("RssAnon")}), flush=True)

    cpu, wall = time.process_time(), time.perf_counter()
    with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
        quantize(job["model"], job["output"], Samples(job["shape"], job["samples"]), job["method"])
    seconds, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(json.dumps({"seconds": seconds, "cpu": cpu, "peak_rss": peak_rss()}), flush=True)


if __name__ == "__main__":
    main()
