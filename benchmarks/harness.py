"""Fresh processes for benchmarks: build a model in one, quantize it in another, watch its memory from outside."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}  # so that children run in a folder of their own


def build(kind: str, size: int, folder: Path, external: bool = False) -> dict[str, Any]:
    """Write a model of `benchmarks.synthetic` in a child process, once; its path, nodes, bytes and input shape."""
    file = folder / f"{kind}-{size}{'-external' if external else ''}.onnx"
    facts = file.with_suffix(".json")
    if not facts.exists():
        command = [sys.executable, "-m", "benchmarks.synthetic", kind, str(size), str(file)]
        command += ["--external"] if external else []
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=ENVIRONMENT, cwd=folder)
        facts.write_text(done.stdout)
    return {"model": str(file), **json.loads(facts.read_text())}


def measure(tool: str, method: str, samples: int, built: dict[str, Any], folder: Path) -> dict[str, Any]:
    """One fresh `benchmarks.worker`: seconds, CPU seconds, peak RSS and peak RssAnon in bytes, or what went wrong."""
    output = folder / "out" / "quantized.onnx"
    output.parent.mkdir(exist_ok=True)
    job = {"tool": tool, "method": method, "samples": samples, "output": str(output), **built}
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.worker", json.dumps(job)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        cwd=folder,
    )
    assert process.stdout is not None and process.stderr is not None
    first = process.stdout.readline()
    peak = 0
    while process.poll() is None:
        peak = max(peak, anonymous(process.pid))
        time.sleep(0.004)
    last, errors = process.stdout.read(), process.stderr.read()
    if process.returncode:
        return {"error": (errors.strip() or "no message").splitlines()[-1]}
    size = sum(f.stat().st_size for f in output.parent.iterdir())
    for file in output.parent.iterdir():
        file.unlink()
    return {**json.loads(first), **json.loads(last), "peak_anon": peak or None, "output_bytes": size}


def anonymous(pid: int) -> int:
    """Resident anonymous bytes of a process; 0 where ``/proc`` does not tell."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), 0)


def start_up() -> dict[str, float]:
    """Median seconds of a bare interpreter, of ``import onnxq`` and of ``onnxq --help``, whole processes."""
    commands = {
        "python": [sys.executable, "-c", "pass"],
        "import onnxq": [sys.executable, "-c", "import onnxq"],
        "onnxq --help": [sys.executable, "-m", "onnxq", "--help"],
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(7):
        for name, command in commands.items():
            start = time.perf_counter()
            subprocess.run(command, capture_output=True, check=False, cwd=ROOT)
            times[name].append(time.perf_counter() - start)
    return {name: round(statistics.median(t), 4) for name, t in times.items()}


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    packages = ("onnxq", "onnxruntime", "onnx", "onnx-ir", "numpy")
    return {
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in packages},
    }
