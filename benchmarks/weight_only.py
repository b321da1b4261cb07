"""Speed of weight-only 4-bit models in onnxruntime: onnxq's files beside onnxruntime's own, in one run, on one thread.

A MatMul of 4096 x 4096 with one row of input, in blocks of 32 and 128, and the whole of MiniLM in blocks of 32. Both
tools round to the nearest integer, symmetric. ``onnxq`` writes standard ONNX, which onnxruntime turns into MatMulNBits
at accuracy level 4 when it loads the file; ``onnxq-nbits`` has been through the pass to-matmulnbits at that level;
``onnxruntime`` is the output of its own tool at that level. Rounds are interleaved; the least CPU time counts. Writes
``results/weight_only.json``.

    python -m benchmarks.weight_only               # two minutes
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import onnxq
from benchmarks.harness import ROOT, machine
from benchmarks.latency import latency
from benchmarks.peers import onnxruntime_nbits
from benchmarks.tasks.base import Feed
from models.minilm import minilm
from onnxq.passbase import Pass
from onnxq.passes.to_matmulnbits import ToMatmulnbits

RESULTS = ROOT / "benchmarks" / "results" / "weight_only.json"
SIZE = 4096
BLOCKS = (32, 128)
TOKENS = (16, 128)
VOCABULARY = 30522
LEVEL: Literal[4] = 4
ROUNDS, SECONDS = 5000, 20.0
WANTED_SPEEDUP, WANTED_SHARE = 8.0, 0.95


def matmul(size: int, file: Path) -> Path:
    """One MatMul [m, size] x [size, size] with normal weights."""
    weight = np.random.default_rng(0).standard_normal((size, size), np.float32) / np.float32(size**0.5)
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["m", size]) for name in "xy"]
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="matmul")
    graph = helper.make_graph([node], "g", infos[:1], infos[1:], [numpy_helper.from_array(weight, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), file)
    return file


def variants(model: Path, block: int, folder: Path) -> dict[str, Path]:
    """The float model and what each tool makes of it."""
    files = {name: folder / f"{model.stem}-{block}-{name}.onnx" for name in ("onnxq", "onnxq-nbits", "onnxruntime")}
    settings: dict[str, Any] = {"symmetric": "yes", "weight-method": "minmax", "block-size": block}
    onnxq.quantize(model, recipe="w4-blocked", output=files["onnxq"], **settings)
    lower(files["onnxq"], files["onnxq-nbits"], ToMatmulnbits(accuracy_level=LEVEL))
    onnxruntime_nbits(model, files["onnxruntime"], block_size=block, symmetric=True, level=LEVEL)
    return {"float": model, **files}


def lower(source: Path, out: Path, step: Pass) -> None:
    """Run one pass on a file."""
    onnx.save(step.apply(source), out)


def measured(name: str, files: dict[str, Path], feed: Feed, seconds: float) -> dict[str, Any]:
    """One row: CPU milliseconds of each file, and the ratios that matter."""
    found = latency(list(files.values()), [feed], 1, ROUNDS, seconds, clock=time.thread_time)
    times = dict(zip(files, found, strict=True))
    return {
        "case": name,
        "milliseconds": {key: round(value, 4) for key, value in times.items()},
        "bytes": {key: file.stat().st_size for key, file in files.items()},
        "speedup": round(times["float"] / times["onnxq"], 2),
        "onnxruntime_speedup": round(times["float"] / times["onnxruntime"], 2),
        "against_onnxruntime": round(times["onnxruntime"] / times["onnxq"], 3),
    }


def tokens(count: int) -> Feed:
    """Random words, none of them padding."""
    words = np.random.default_rng(count).integers(0, VOCABULARY, (1, count))
    ones = np.ones((1, count), np.int64)
    return {"input_ids": words.astype(np.int64), "attention_mask": ones, "token_type_ids": ones - 1}


def rows(folder: Path, size: int, encoder: Callable[[], Path] | None, seconds: float = SECONDS) -> list[dict[str, Any]]:
    """All rows, ``seconds`` each; ``encoder`` makes MiniLM, None leaves it out."""
    out = []
    x = {"x": np.random.default_rng(1).standard_normal((1, size), np.float32)}
    model = matmul(size, folder / "matmul.onnx")
    for block in BLOCKS:
        name = f"MatMul {size} x {size}, M=1, block {block}"
        out.append(measured(name, variants(model, block, folder), x, seconds))
    if encoder is not None:
        files = variants(encoder(), BLOCKS[0], folder)
        out += [measured(f"MiniLM, {n} tokens, block {BLOCKS[0]}", files, tokens(n), seconds) for n in TOKENS]
    return out


def goals(found: Sequence[dict[str, Any]]) -> list[str]:
    """What was wanted and not reached, in words."""
    missed = []
    for row in found:
        if row["case"].startswith("MatMul") and row["speedup"] < WANTED_SPEEDUP:
            theirs = f"onnxruntime's own file {row['onnxruntime_speedup']}"
            missed.append(f"{row['case']}: {row['speedup']} times float, wanted {WANTED_SPEEDUP}; {theirs}")
        if row["against_onnxruntime"] < WANTED_SHARE:
            missed.append(f"{row['case']}: {row['against_onnxruntime']} of onnxruntime's speed, wanted {WANTED_SHARE}")
    return missed


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS, help="where to write the numbers")
    parser.add_argument("--matmul-only", action="store_true", help="leave MiniLM out")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="onnxq-bench-") as folder:
        found = rows(Path(folder), SIZE, None if args.matmul_only else minilm)
    for row in found:
        times = ", ".join(f"{key} {value:.3f} ms" for key, value in row["milliseconds"].items())
        print(f"{row['case']}: {times}")
        print(f"  {row['speedup']} x float, {row['against_onnxruntime']} x onnxruntime's own file")
    for line in goals(found):
        print(f"missed: {line}")
    args.out.write_text(json.dumps({"machine": machine(), "rows": found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
