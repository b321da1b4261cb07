"""Who notices what: seeded defects of quantized models before six tools; and how fast `onnxq lint` is.

The defects are those of `tests/defects`, in many layers each. A peer has caught one where it says something of the
broken model, as an error or a warning, that it does not say of the healthy one, whatever it says; onnxruntime, where
it does not load or run it. onnxq has caught one only by the right rule at the right node. The peers are installed into
an environment of their own below the cache. Writes ``results/lint.json``.

    python -m benchmarks.lint               # five minutes
    python -m benchmarks.lint --only speed  # or: defects
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import lint_tools
from benchmarks.harness import ENVIRONMENT, ROOT, machine
from benchmarks.lint_speed import missed, speed
from models.fetch import cache_dir
from onnxq import lint
from tests.defects.corpus import cases
from tests.defects.defect import Case
from tests.defects.layers import Layer

RESULTS = ROOT / "benchmarks" / "results" / "lint.json"
PEERS = {"onnx-doctor": "0.2.0", "polygraphy": "0.53.6", "onnx-graphsurgeon": "0.6.1"}
ELSEWHERE = ("onnx-doctor", "polygraphy lint")
Row = dict[str, Any]


def peer_python() -> Path:
    """The interpreter of the environment with the peers, which is made where it is not there."""
    wanted = PEERS | {name: metadata.version(name) for name in ("onnx", "onnxruntime")}
    folder = cache_dir() / ("lint-peers-" + "-".join(wanted.values()))
    python = folder / "bin" / "python"
    done = folder / "complete"
    if not done.exists():
        venv.create(folder, with_pip=True, clear=True)
        pins = [f"{name}=={version}" for name, version in wanted.items()]
        subprocess.run([python, "-m", "pip", "install", "--quiet", *pins], check=True)
        done.touch()
    return python


def ask(tool: str, paths: Sequence[str], python: Path | str) -> dict[str, Row]:
    """What a tool says of each model; one that ends its process is said to crash."""
    rows: dict[str, Row] = {}
    left = list(paths)
    while left:
        done = subprocess.run(
            [str(python), lint_tools.__file__, tool],
            input=json.dumps(left),
            capture_output=True,
            text=True,
            env=ENVIRONMENT,
        )
        for line in done.stdout.splitlines():
            row = json.loads(line)
            rows[row["path"]] = row
        left = [path for path in left if path not in rows]
        if left and done.returncode > 0:
            raise RuntimeError(f"{tool}: {done.stderr.strip().splitlines()[-1]}")
        if left:  # a signal: native code gave up on the first of those that are left
            rows[left[0]] = {"path": left[0], "said": [f"crash: signal {-done.returncode}"], "seconds": 0.0}
            del left[0]
    return rows


def healthy_layer(case: Case) -> Layer:
    """The layer without the defect; a plain one where the layer itself is the defect."""
    broken, _ = case.broken(lambda: Path(tempfile.mkdtemp()))
    same = not isinstance(broken, (bytes, Path)) and broken == case.healthy()
    return replace(Layer(), op=case.layer.op, where=case.layer.where) if same else case.layer


def defects(chosen: Sequence[Case], folder: Path) -> Row:
    """A row for each kind of defect: cases, and how many each tool catches; seconds of each tool."""
    files = {}
    for index, case in enumerate(chosen):
        here = folder / str(index)
        here.mkdir()
        broken, place = case.broken(lambda here=here: here)  # type: ignore[misc]
        if not isinstance(broken, Path):
            data = broken if isinstance(broken, bytes) else broken.SerializeToString()
            (here / "model.onnx").write_bytes(data)
        files[str(here / "model.onnx")] = (case, place)
    layers = {file: healthy_layer(case) for file, (case, _) in files.items()}
    healthy = {}
    for index, layer in enumerate(dict.fromkeys(layers.values())):
        healthy[layer] = str(folder / f"healthy-{index}.onnx")
        Path(healthy[layer]).write_bytes(layer.draft().model().SerializeToString())
    caught: dict[str, list[bool]] = {}
    seconds = {}
    refused: dict[str, str] = {}
    for tool in lint_tools.TOOLS:
        python = peer_python() if tool in ELSEWHERE else sys.executable
        rows = ask(tool, [*healthy.values(), *files], python)
        seconds[tool] = sum(rows[file]["seconds"] for file in files)
        caught[tool] = [bool(set(rows[f]["said"]) - set(rows[healthy[layers[f]]]["said"])) for f in files]
        if tool == "onnxruntime":
            refused = {f: (rows[f]["said"] or [""])[0].split(":")[0] for f in files}
        print(f"{tool}: {sum(caught[tool])} of {len(files)}, {seconds[tool]:.1f} s", flush=True)
    caught["onnxq"] = [_found(file, *found) for file, found in files.items()]
    print(f"onnxq, at the right place: {sum(caught['onnxq'])} of {len(files)}", flush=True)
    kinds: dict[str, Row] = {}
    for index, (file, (case, _)) in enumerate(files.items()):
        one = case.defect
        empty = {"code": one.code, "name": one.name, "title": one.title, "target": one.target, "cases": 0, "run": 0}
        row = kinds.setdefault(one.name, {**empty, "error": 0.0, "caught": dict.fromkeys(caught, 0)})
        row["cases"] += 1
        row["run"] += refused[file] == "run"
        if not one.alters and layers[file] == case.layer:
            row["error"] = max(row["error"], _error(file, healthy[layers[file]]))
        for tool, found in caught.items():
            row["caught"][tool] += found[index]
    return {"tools": dict.fromkeys(caught) | PEERS, "seconds": seconds, "rows": list(kinds.values())}


def _found(file: str, case: Case, place: Any) -> bool:
    """Whether onnxq names the defect by its rule at its node."""
    for d in lint(file, target=case.defect.target):
        at = d.place
        here = at.graph == place.graph and place.node in ("", at.node) and place.value in ("", at.value)
        if here and d.code == case.defect.code:
            return True
    return False


def _error(file: str, healthy: str) -> float:
    """Relative error of the output in onnxruntime; 0 where it does not run, or gives something of another shape."""
    paths = [Path(one).with_suffix(".npy") for one in (file, healthy)]
    if not all(path.exists() for path in paths):
        return 0.0
    broken, right = (np.load(path) for path in paths)
    if broken.shape != right.shape or not np.isfinite(right).all():
        return 0.0
    off = float(np.abs(broken - right).max() / np.abs(right).max()) if np.isfinite(broken).all() else float("inf")
    return min(round(off, 4), 1e9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["defects", "speed"])
    only = parser.parse_args().only
    result: Row = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    result["machine"] = machine()
    if only != "speed":
        with tempfile.TemporaryDirectory(prefix="onnxq-lint-") as folder:
            os.chdir(folder)  # tools leave files in the current folder
            result["defects"] = defects(cases(), Path(folder))
            os.chdir(ROOT)
    if only != "defects":
        result["speed"] = speed()
        for line in missed(result["speed"]):
            print(f"missed  {line}")
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written to {RESULTS.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
