"""Peak anonymous memory of path-to-path runs, in a process of its own; mapped file pages do not count."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from onnx import ModelProto, TensorProto, helper

from onnxq.border import wire

COUNT, SIDE = 12, 1024  # weights of 4 MiB
TAG = b"sparse file!"

CHILD = """
import sys, threading, time
import numpy as np, onnx_ir as ir
from onnxq import border

def anonymous():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon")) / 1024

source, target, external = sys.argv[1], sys.argv[2], sys.argv[3] == "True"
start, peak, largest = anonymous(), 0.0, 0

def watch():
    global peak
    peak = max(peak, anonymous() - start)

model = border.open_model(source).model
for value in model.graph.initializers.values():
    old = value.const_value
    largest = max(largest, old.nbytes / 2**20)
    assert float(np.abs(old.numpy()).max()) == 0
    watch()
    def quantized(old=old):
        out = ir.tensor(np.clip(np.rint(old.numpy()), -128, 127).astype(np.int8))
        watch()
        return out
    value.const_value = ir.LazyTensor(quantized, ir.DataType.INT8, old.shape, name=value.name)
border.save(model, target, external_data=external)
watch()
print(peak, largest)
"""


def sparse_model(path: Path, external: bool, count: int = COUNT, side: int = SIDE) -> None:
    """A model of ``count`` zero weights of side x side floats whose file has holes instead of weights."""
    weights, size = [], side * side * 4
    for i in range(count):
        record = TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=[side, side])
        if external:
            record.data_location = TensorProto.EXTERNAL
            for key, value in (("location", "weights"), ("offset", str(i * size)), ("length", str(size))):
                record.external_data.add(key=key, value=value)
        else:
            record.raw_data = wire.mark(TAG, i)
        weights.append(record)
    nodes = [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"], name=f"n{i}") for i in range(count)]
    ends = [helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, ["N", side]) for i in (0, count)]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    model: ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    pieces, length = wire.splice(model.SerializeToString(), TAG, [size] * count)
    with path.open("wb") as file:
        for piece in pieces:
            if isinstance(piece, int):
                file.seek(size, 1)
            else:
                file.write(piece)
        file.truncate(length)
    if external:
        with path.with_name("weights").open("wb") as file:
            file.truncate(count * size)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("external", [False, True])
def test_peak_is_a_few_tensors_whatever_the_size(external: bool, tmp_path: Path) -> None:
    sparse_model(tmp_path / "m.onnx", external)
    args = [sys.executable, "-c", CHILD, tmp_path / "m.onnx", tmp_path / "q.onnx", str(external)]
    peak, largest = map(float, subprocess.run(args, check=True, capture_output=True, text=True).stdout.split())
    assert largest == 4
    # The whole model is 48 MiB; rounding in float32 takes a few tensors' worth of temporaries.
    assert peak < 6 * largest


@pytest.mark.slow
@pytest.mark.parametrize("external", [False, True])
def test_more_than_two_gib(external: bool, tmp_path: Path) -> None:
    """2.5 GiB of zeros, in one file that protobuf could not even read, and in an external one."""
    from onnxq import border

    sparse_model(tmp_path / "m.onnx", external, count=40, side=4096)
    crossing: Any = border.open_model(tmp_path / "m.onnx")
    weights = crossing.model.graph.initializers
    assert sum(v.const_value.nbytes for v in weights.values()) > 1 << 31
    crossing.save(tmp_path / "out" / "m.onnx")
    assert (tmp_path / "out" / "m.onnx").stat().st_size < 20000
    assert (tmp_path / "out" / "m.onnx.data").stat().st_size == 40 << 26
    again: Any = border.open_model(tmp_path / "out" / "m.onnx").model.graph.initializers
    assert not again["w39"].const_value.numpy().any()
