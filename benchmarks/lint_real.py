"""`onnxq lint` on real files that came quantized: what is found, and what the files cost before and after ``--fix``.

python -m benchmarks.lint_real                             # print the tables
python -m benchmarks.lint_real --write docs/case-study.md  # put them between <!-- found --> and <!-- fixed -->

Files are those of `models/zoo.yaml`. Each run is on random inputs and one thread, which says nothing of accuracy.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import anonymous
from benchmarks.latency import latency
from benchmarks.table import write
from models.fetch import fetch
from onnxq import border
from onnxq.diagnostics import Diagnostic
from onnxq.linting.engine import check
from onnxq.linting.fixing import mend
from onnxq.linting.selection import Selection
from onnxq.linting.settings import LintSettings
from onnxq.session import Runtime, open_session

Feed = dict[str, np.ndarray[Any, Any]]


def _tokens(*names: str, length: int = 32) -> Feed:
    ids = np.random.default_rng(0).integers(1, 1000, (1, length))
    return {name: ids if name == "input_ids" else np.full_like(ids, "mask" in name) for name in names}


def _floats(name: str, *shape: int) -> Feed:
    return {name: np.random.default_rng(0).normal(size=shape).astype(np.float32)}


FILES: dict[str, Callable[[], Feed]] = {
    "minilm-int8": lambda: _tokens("input_ids", "attention_mask", "token_type_ids"),
    "tinyocr-rec-int8": lambda: _floats("x", 1, 3, 48, 320),
    "t5-encoder-int8": lambda: _tokens("input_ids", "attention_mask"),
    "t5-decoder-int8": lambda: {
        **_tokens("input_ids", "encoder_attention_mask"),
        **_floats("encoder_hidden_states", 1, 32, 512),
    },
    "voicefilter-int8": lambda: {
        **_floats("stacked_logmel", 1, 50, 512),
        **_floats("dvec", 1, 256),
        **_floats("h0", 3, 1, 512),
        **_floats("c0", 3, 1, 512),
    },
    "voice-embedder-int8": lambda: _floats("mel_window", 1, 80, 40),
    "ddddocr-old": lambda: _floats("input1", 1, 1, 64, 160),
    "sscd-int8": lambda: {"image": np.random.default_rng(0).integers(0, 256, (1, 288, 288, 3), np.uint8)},
}
SMALL = Path(__file__).parents[1] / "models" / "lenet" / "lenet.onnx"
NO_COPIES = {"sscd-int8"}
"""Its licence forbids modified copies, so it is only read."""


def found(name: str) -> list[str]:
    """A line of the first table: what lint says, without a target and with one."""
    path = fetch(name)
    plain, here = (check(path, Selection(target=target)).diagnostics for target in (None, "ort-cpu"))
    added = Counter(d.code for d in here) - Counter(d.code for d in plain)
    return [f"`{name}`", _codes(plain), _codes(d for d in here if d.code in added)]


def _codes(diagnostics: Iterable[Diagnostic]) -> str:
    counts = Counter((d.code, d.severity.value) for d in diagnostics)
    return ", ".join(f"{code} {severity} ×{count}" for (code, severity), count in sorted(counts.items())) or "-"


def fixed(name: str, folder: Path) -> list[str]:
    """A line of the second table: before and after mending."""
    path, target, feed = fetch(name), folder / f"{name}.onnx", FILES[name]()
    mended = mend(str(path), LintSettings(), folder, path, unsafe=True)
    assert mended.model is not None, name
    border.save(mended.model, target)
    before, after = latency([path, target], [feed], 1, clock=time.thread_time)
    return [
        f"`{name}`",
        ", ".join(f"{code} ×{count}" for code, count in mended.fixed.items()),
        f"{path.stat().st_size / 1e6:.1f} → {target.stat().st_size / 1e6:.1f}",
        f"{_memory(path, name):.0f} → {_memory(target, name):.0f}",
        f"{before:.1f} → {after:.1f}",
        f"{_difference(path, target, feed, Runtime(threads=1)):.1g}",
        f"{_difference(path, target, feed, Runtime(threads=1, true_semantics=True)):.1g}",
    ]


def _difference(path: Path, other: Path, feed: Feed, runtime: Runtime) -> float:
    """Largest difference of two files' outputs, in parts of the largest output."""
    pairs = zip(_outputs(path, feed, runtime), _outputs(other, feed, runtime), strict=True)
    return max(float(np.abs(a - b).max() / np.abs(a).max()) for a, b in pairs)


def _outputs(path: Path, feed: Feed, runtime: Runtime) -> list[np.ndarray[Any, Any]]:
    with open_session(path, runtime) as session:
        return [np.asarray(y, np.float64) for y in session.run(feed)]


def _memory(path: Path, name: str) -> float:
    """Megabytes that a process has more when the model is loaded and has run."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_grown, path, name).result()


def _grown(path: Path, name: str) -> float:
    with open_session(SMALL, Runtime(threads=1)):  # what onnxruntime needs for itself is there now
        before = anonymous(os.getpid())
        with open_session(path, Runtime(threads=1)) as session:
            session.run(FILES[name]())
            return (anonymous(os.getpid()) - before) / 1e6


def tables() -> dict[str, str]:
    """Both tables by marker, as Markdown."""
    lines = [["file", "found", "more with `--target ort-cpu`"], ["---"] * 3, *map(found, FILES)]
    head = ["file", "mended", "MB on disk", "MB loaded", "ms", "difference", "true semantics"]
    with tempfile.TemporaryDirectory() as folder:
        rows = [fixed(name, Path(folder)) for name in FILES if name not in NO_COPIES]
    return {"found": _markdown(lines), "fixed": _markdown([head, ["---", "---", *["---:"] * 5], *rows])}


def _markdown(rows: Iterable[Iterable[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def main() -> None:
    """Print the tables, or write them into a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FILE")
    page = parser.parse_args().write
    for name, table in tables().items():
        if page is None:
            print(table, end="\n\n")
        else:
            write(page, name, table)


if __name__ == "__main__":
    main()
