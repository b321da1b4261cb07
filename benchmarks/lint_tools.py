"""One tool on many models: ``python lint_tools.py TOOL``, paths on stdin, one line of JSON for each on stdout.

Runs in the interpreter that has the tool, so it imports nothing of onnxq but for onnxq itself. A line holds the path,
what the tool says (errors and warnings, none where it finds nothing), and its CPU seconds; that of onnxruntime also
has the file of the model's output.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Said = list[str]


def checker(path: str) -> Said:
    """onnx.checker, with its full check."""
    import onnx

    try:
        onnx.checker.check_model(path, full_check=True)
    except Exception as error:  # of whatever kind: it refuses the model
        return [_first_line(error)]
    return []


def inference(path: str) -> Said:
    """onnx's shape inference, at its strictest."""
    import onnx

    try:
        model = onnx.load(path, load_external_data=False)
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    except Exception as error:
        return [_first_line(error)]
    return []


def doctor(path: str) -> Said:
    """onnx-doctor with its checks for onnxruntime."""
    from onnx_doctor import _cli

    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        try:
            code = _cli.main(["check", "--ort", "--severity", "warning", "--output-format", "json", path])
        except Exception as error:
            return [_first_line(error)]
    try:
        found = json.loads(out.getvalue() or "[]")
    except json.JSONDecodeError:
        return [out.getvalue()[:200]]
    said = [" ".join(str(row.get(key, "")) for key in ("code", "location", "message")) for row in found]
    said = [re.sub(r"\[\d+\]", "", text) for text in said]  # the position of a node is not what is wrong with it
    return said or (["it stops with an error"] if code > 1 else [])


def polygraphy(path: str) -> Said:
    """``polygraphy check lint``."""
    from polygraphy.tools import _main

    with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w") as nothing:
        report = Path(folder) / "report.json"
        with contextlib.redirect_stdout(nothing), contextlib.redirect_stderr(nothing):
            try:
                status = _main.main(["check", "lint", path, "-o", str(report), "--silent"])
            except BaseException as error:
                return [_first_line(error)]
        entries = json.loads(report.read_text())["lint_entries"] if report.exists() else []
    said = [" ".join(str(row.get(key, "")) for key in ("level", "nodes", "message")) for row in entries]
    return said or (["it stops with an error"] if status else [])


def onnxruntime(path: str) -> Said:
    """A default session of the CPU provider, run once; its first output goes to a file beside the model."""
    import numpy as np
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    try:
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        return [f"load: {_first_line(error)}"]
    rng, feeds = np.random.default_rng(0), {}
    kinds = {"tensor(float)": "f4", "tensor(float16)": "f2", "tensor(int64)": "i8"}
    defaults = {one.name for one in session.get_overridable_initializers()}
    for one in session.get_inputs():
        if one.name not in defaults:
            shape = [d if isinstance(d, int) else 1 for d in one.shape]
            feeds[one.name] = np.abs(rng.normal(size=shape)).astype(kinds[one.type])
    try:
        found = session.run(None, feeds)
    except Exception as error:
        return [f"run: {_first_line(error)}"]
    np.save(Path(path).with_suffix(".npy"), np.asarray(found[0], np.float32))
    return []


def onnxq(path: str) -> Said:
    """onnxq with the rules that belong to no target; see `benchmarks.lint` for codes and places."""
    from onnxq import lint

    return [str(d) for d in lint(path) if d.severity.value != "info"]


TOOLS: dict[str, Callable[[str], Said]] = {
    "onnx.checker": checker,
    "shape inference": inference,
    "onnx-doctor": doctor,
    "polygraphy lint": polygraphy,
    "onnxruntime": onnxruntime,
    "onnxq": onnxq,
}


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


def main() -> None:
    """Say what a tool says of each path."""
    run, said = TOOLS[sys.argv[1]], os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what tools print does not belong to the answer
    paths: list[str] = json.load(sys.stdin)
    run(paths[0])  # so that imports do not count
    for path in paths:
        start = time.process_time()
        row: dict[str, Any] = {"path": path, "said": run(path), "seconds": time.process_time() - start}
        print(json.dumps(row), file=said, flush=True)


if __name__ == "__main__":
    main()
