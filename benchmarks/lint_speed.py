"""How fast `onnxq lint` is: many nodes, much external data, its wire rules beside onnx.checker, and a page of a rule.

Each measurement is a fresh process, which checks a small model first, so that imports do not count. Called by
`benchmarks.lint`.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.harness import ENVIRONMENT, ROOT, build
from benchmarks.synthetic import Array

SIZES = (10_000, 100_000)
MB = 1 << 20
WANTED_SECONDS, WANTED_GROWTH, WANTED_RULE = 1.5, 1.3, 0.2
WANTED_EXTERNAL, WANTED_MEMORY, WANTED_BEHIND = 1.0, 200e6, 0.05
REPEAT = 3
Row = dict[str, Any]

CODE = """
import json, sys, time
from pathlib import Path
import onnx
from onnxq import lint
from onnxq.linting.catalog import rules
job = json.loads(sys.argv[1])
skip = [r.code for r in rules().values() if r.weights] if job["lazy"] else []
wire = [r.code for r in rules().values() if r.tier == "wire" and r.code.startswith("OQ0")]
lint(job["small"], ignore=skip)
def took(work):
    cpu, wall = time.process_time(), time.perf_counter()
    found = work()
    return {"cpu": time.process_time() - cpu, "seconds": time.perf_counter() - wall, "findings": len(found or ())}
if job["checker"]:
    model = onnx.load(job["model"])
    rows = {"checker": took(lambda: onnx.checker.check_model(model)), "wire": took(lambda: lint(model, select=wire))}
    rows["group 0"] = took(lambda: lint(model, select="OQ0"))
else:
    rows = {"lint": took(lambda: lint(job["model"], ignore=skip))}
status = Path("/proc/self/status").read_text()  # getrusage counts what the parent had when it forked
rows["peak_rss"] = int(status.split("VmHWM:")[1].split()[0]) * 1024
print(json.dumps(rows))
"""


def quantized(nodes: int, channels: int = 8) -> onnx.ModelProto:
    """A chain of Conv layers between pairs, 8-bit weights per channel, int32 biases: five nodes a layer."""
    rng = np.random.default_rng(0)
    made, tensors = [], []
    tensors += [numpy_helper.from_array(np.array(0.05, np.float32), "s")]
    tensors += [numpy_helper.from_array(np.array(128, np.uint8), "z")]
    value = "x"
    made += _pair(value, "first", "s", "z")
    value = "first_float"
    for layer in range((nodes - 2) // 5):
        name = f"layer_{layer}"
        weight = rng.integers(-127, 128, (channels, channels, 3, 3), dtype=np.int8)
        weight[:, 0, 0, 0] = 127
        w_scale = rng.uniform(0.001, 0.002, channels).astype(np.float32)
        arrays: dict[str, Array] = {
            "w": weight,
            "ws": w_scale,
            "wz": np.zeros(channels, np.int8),
            "b": rng.integers(-1000, 1000, channels, np.int32),
            "bs": np.float32(0.05) * w_scale,
        }
        tensors += [numpy_helper.from_array(array, f"{name}_{key}") for key, array in arrays.items()]
        n = {key: f"{name}_{key}" for key in arrays}
        made += [
            helper.make_node("DequantizeLinear", [n["w"], n["ws"], n["wz"]], [f"{name}_wf"], f"{name}_dq_w", axis=0),
            helper.make_node("DequantizeLinear", [n["b"], n["bs"]], [f"{name}_bf"], f"{name}_dq_b", axis=0),
            helper.make_node("Conv", [value, f"{name}_wf", f"{name}_bf"], [f"{name}_y"], name, pads=[1, 1, 1, 1]),
            *_pair(f"{name}_y", name, "s", "z"),
        ]
        value = f"{name}_float"
    shape = [1, channels, 8, 8]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in ("x", value)]
    graph = helper.make_graph(made, "chain", ends[:1], ends[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def _pair(value: str, name: str, scale: str, zero: str) -> list[onnx.NodeProto]:
    return [
        helper.make_node("QuantizeLinear", [value, scale, zero], [f"{name}_q"], f"{name}_quantize"),
        helper.make_node("DequantizeLinear", [f"{name}_q", scale, zero], [f"{name}_float"], f"{name}_dequantize"),
    ]


def external(folder: Path, megabytes: int = 1024, width: int = 4096) -> Path:
    """A chain of MatMul with int8 weights per channel beside the model; the file of data is a hole, none are read."""
    made, tensors, size = [], [], width * width
    value = "x"
    for layer in range(megabytes * MB // size):
        weight = TensorProto(name=f"w{layer}", data_type=TensorProto.INT8, dims=[width, width])
        weight.data_location = TensorProto.EXTERNAL
        for key, text in (("location", "weights.bin"), ("offset", str(layer * size)), ("length", str(size))):
            weight.external_data.add(key=key, value=text)
        scale = np.full(width, 0.001, np.float32)
        tensors += [weight, numpy_helper.from_array(scale, f"s{layer}")]
        tensors.append(numpy_helper.from_array(np.zeros(width, np.int8), f"z{layer}"))
        dq = helper.make_node(
            "DequantizeLinear", [f"w{layer}", f"s{layer}", f"z{layer}"], [f"d{layer}"], f"dq{layer}", axis=1
        )
        made += [dq, helper.make_node("MatMul", [value, f"d{layer}"], [f"y{layer}"], f"matmul{layer}")]
        value = f"y{layer}"
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, width]) for n in ("x", value)]
    graph = helper.make_graph(made, "external", ends[:1], ends[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    (folder / "external.onnx").write_bytes(model.SerializeToString())
    with (folder / "weights.bin").open("wb") as data:
        data.truncate(len(made) // 2 * size)
    return folder / "external.onnx"


def measure(model: Path, small: Path, *, checker: bool = False, lazy: bool = False) -> Row:
    """The smallest of several fresh processes, since others use the machine, too."""
    job = json.dumps({"model": str(model), "small": str(small), "checker": checker, "lazy": lazy})
    runs = []
    for _ in range(REPEAT):
        command = [sys.executable, "-c", CODE, job]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=ENVIRONMENT, cwd=model.parent)
        runs.append(json.loads(done.stdout))
    row: Row = {"peak_rss": min(run["peak_rss"] for run in runs)}
    for name in (key for key in runs[0] if key != "peak_rss"):
        row[name] = {key: min(run[name][key] for run in runs) for key in runs[0][name]}
    return row


def page() -> Row:
    """``onnxq rule OQ303``, the whole process: the smallest seconds and CPU seconds of several."""
    rows = []
    for _ in range(7):
        wall, cpu = time.perf_counter(), _children()
        subprocess.run([sys.executable, "-m", "onnxq", "rule", "OQ303"], check=True, capture_output=True, cwd=ROOT)
        rows.append({"cpu": _children() - cpu, "seconds": time.perf_counter() - wall})
    return {key: min(row[key] for row in rows) for key in ("cpu", "seconds")}


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def speed(sizes: tuple[int, ...] = SIZES, megabytes: int = 1024) -> Row:
    """All measurements."""
    result: Row = {"models": []}
    with tempfile.TemporaryDirectory(prefix="onnxq-lint-") as name:
        folder = Path(name)
        small = folder / "small.onnx"
        small.write_bytes(quantized(12).SerializeToString())
        for size in sizes:
            chain = folder / f"quantized-{size}.onnx"
            chain.write_bytes(quantized(size).SerializeToString())
            floats = Path(build("transformer", size, folder)["model"])
            for kind, file in (("quantized", chain), ("float", floats)):
                row = {"kind": kind, "nodes": len(onnx.load(file).graph.node), **measure(file, small)}
                result["models"].append(row)
                print(f"{kind}, {row['nodes']:,} nodes: {row['lint']['cpu']:.2f} s CPU", flush=True)
        result["checker"] = measure(folder / f"quantized-{sizes[0]}.onnx", small, checker=True)
        for key in ("checker", "wire", "group 0"):
            print(f"{key}: {1e3 * result['checker'][key]['cpu']:.0f} ms CPU", flush=True)
        result["external"] = measure(external(folder, megabytes), small, lazy=True) | {"megabytes": megabytes}
        row = result["external"]
        print(
            f"{megabytes} MB beside the model: {row['lint']['cpu']:.2f} s CPU, {row['peak_rss'] / 1e6:.0f} MB",
            flush=True,
        )
    result["rule"] = page()
    print(f"onnxq rule OQ303: {result['rule']['cpu']:.2f} s CPU", flush=True)
    return result


def missed(result: Row) -> list[str]:
    """The goals that a result misses, in words."""
    out = []
    for kind in ("quantized", "float"):
        rows = [row for row in result["models"] if row["kind"] == kind]
        first, last = rows[0], rows[-1]
        if first["lint"]["cpu"] > WANTED_SECONDS:
            out.append(f"{kind}, {first['nodes']:,} nodes: {first['lint']['cpu']:.2f} s, wanted {WANTED_SECONDS:g} s")
        growth = last["lint"]["cpu"] / first["lint"]["cpu"] / (last["nodes"] / first["nodes"])
        if growth > WANTED_GROWTH:
            out.append(f"{kind}: {growth:.1f}x the time a node of {last['nodes']:,} nodes, wanted {WANTED_GROWTH:g}x")
    behind = result["checker"]["wire"]["cpu"] - result["checker"]["checker"]["cpu"]
    if behind > WANTED_BEHIND:
        out.append(f"wire rules: {1e3 * behind:.0f} ms behind onnx.checker, wanted 50 ms")
    row = result["external"]
    if row["lint"]["cpu"] > WANTED_EXTERNAL or row["peak_rss"] > WANTED_MEMORY:
        out.append(
            f"external data: {row['lint']['cpu']:.2f} s and {row['peak_rss'] / 1e6:.0f} MB, wanted 1 s and 200 MB"
        )
    if result["rule"]["cpu"] > WANTED_RULE:
        out.append(f"onnxq rule: {result['rule']['cpu']:.2f} s, wanted {WANTED_RULE:g} s")
    return out
