"""Biases beside tiny weights: what onnxruntime's tool and onnxq make of them, in one run.

Conv, Gemm, MatMul + Add and ConvTranspose, per channel, with channels scaled by 1e-3 ... 1e-12 and biases of order 1.
The layer under test hands its output, as integers, to a second one of unit weights. Errors are counted in steps of that
output, against the best a quantized layer can do: inputs and weights rounded at their min-max scales, the bias exact.

python -m benchmarks.bias            prints the table, writes results/bias.json
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper, parser
from onnxruntime.quantization import QuantType
from rich.console import Console
from rich.table import Table

from benchmarks.harness import machine
from benchmarks.peers import onnxruntime_static
from benchmarks.tasks.base import DEFAULT, TRUE, Feed, cosine, session
from models.fetch import ROOT

Array = np.ndarray[Any, Any]
Quantizer = Callable[[Path, list[Feed], Path], object]

RESULTS = ROOT / "benchmarks" / "results" / "bias.json"
SIZES = np.concatenate([[1.0, 0.3], 10.0 ** -np.arange(3, 13)])
INPUTS, WIDTH = 6, 8
TYPES = {
    "A16W16": ("uint16", "int16"),
    "A16W8": ("uint16", "int8"),
    "A8W16": ("uint8", "int16"),
    "A8W8": ("uint8", "int8"),
    "A16W16, unsigned": ("uint16", "uint16"),
    "A8W8, unsigned": ("uint8", "uint8"),
}
STEPS, COSINE = 2.0, 0.9999
"""What onnxq has to reach."""


@dataclass(frozen=True)
class Net:
    """A layer ``A`` with the shape of its weight and its channel axis, and a layer ``B`` that copies what A makes.

    Attributes:
        text: The graph.
        shape: Shape of A's weight.
        axis: Its output-channel axis.
        unit: Shape of B's weight, which is a unit matrix.
        dims: Shape of the input.
        channel: Channel axis of the output.
    """

    text: str
    shape: tuple[int, ...]
    axis: int
    unit: tuple[int, ...]
    dims: tuple[int, ...]
    channel: int


N = len(SIZES)
NETS = {
    "Conv": Net(
        "[A] c = Conv<pads=[1,1,1,1]>(x, w, b) h = Relu(c) [B] y = Conv(h, u)",
        (N, INPUTS, 3, 3), 0, (N, N, 1, 1), (2, INPUTS, WIDTH, WIDTH), 1,
    ),
    "Gemm": Net("[A] c = Gemm(x, w, b) h = Relu(c) [B] y = Gemm(h, u)", (INPUTS, N), 1, (N, N), (64, INPUTS), -1),
    "MatMul + Add": Net(
        "[A] m = MatMul(x, w) c = Add(m, b) h = Relu(c) [B] y = MatMul(h, u)",
        (INPUTS, N), 1, (N, N), (2, 32, INPUTS), -1,
    ),
    "ConvTranspose": Net(
        "[A] c = ConvTranspose<strides=[2,2]>(x, w, b) h = Relu(c) [B] y = Conv(h, u)",
        (INPUTS, N, 2, 2), 1, (N, N, 1, 1), (2, INPUTS, WIDTH, WIDTH), 1,
    ),
}  # fmt: skip


@dataclass
class Row:
    """One tool on one net.

    Attributes:
        net: Name of the net.
        types: Name of the types.
        tool: Name of the tool.
        session: ``default`` or ``true``.
        cosine: Of the whole output, to the float model.
        channel: The worst cosine of one channel.
        steps: Largest error of a value, in steps of A's output, against the best that a quantized layer can do.
        error: Why there is no file, or why onnxruntime does not load it.
    """

    net: str
    types: str
    tool: str
    session: str
    cosine: float = 0.0
    channel: float = 0.0
    steps: float = float("inf")
    error: str = ""


def build(name: str, seed: int = 0) -> tuple[onnx.ModelProto, list[Feed]]:
    """The float model of a net, with samples."""
    net, rng = NETS[name], np.random.default_rng(seed)
    sizes = SIZES.reshape([-1 if i == net.axis else 1 for i in range(len(net.shape))])
    constants = {
        "w": rng.standard_normal(net.shape) * sizes,
        "b": rng.uniform(0.5, 2.0, N),
        "u": np.eye(N).reshape(net.unit),
    }
    dims, out = ",".join(map(str, net.dims)), ",".join("abcd"[: len(net.dims)])
    signature = f"g (float[{dims}] x) => (float[{out}] y)"
    proto = parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {signature} {{ {net.text} }}')
    proto.graph.initializer.extend(numpy_helper.from_array(v.astype(np.float32), k) for k, v in constants.items())
    return proto, [{"x": rng.standard_normal(net.dims).astype(np.float32)} for _ in range(4)]


def onnxq_for(activations: str, weights: str) -> Quantizer:
    """The recipe without its searches, so that ranges and scales are those of the other tool."""

    def quantize(model: Path, feeds: list[Feed], out: Path) -> None:
        import onnxq

        onnxq.quantize(
            model, feeds, output=out, activations=activations, weights=weights, method="minmax", search=False,
            rounding="nearest", dynamic="never", force=["A"],
        )  # fmt: skip

    return quantize


def onnxruntime_for(activations: str, weights: str, adjust: bool) -> Quantizer:
    """onnxruntime's tool, with or without its adjustment of weight scales."""
    kinds = {"uint8": "QUInt8", "int8": "QInt8", "uint16": "QUInt16", "int16": "QInt16"}
    options = {
        "activation_type": QuantType[kinds[activations]],
        "weight_type": QuantType[kinds[weights]],
        "extra_options": {"QDQDisableWeightAdjustForInt32Bias": not adjust},
    }
    return lambda model, feeds, out: onnxruntime_static(model, feeds, out, **options)


def tools(activations: str, weights: str) -> dict[str, Quantizer]:
    """The quantizers, by name."""
    return {
        "onnxruntime, no adjustment": onnxruntime_for(activations, weights, adjust=False),
        "onnxruntime": onnxruntime_for(activations, weights, adjust=True),
        "onnxq": onnxq_for(activations, weights),
    }


def compare(net: str, types: str, tool: str, quantizer: Quantizer, folder: Path) -> list[Row]:
    """Quantize one net with one tool; a row for each session."""
    proto, feeds = build(net)
    model, out = folder / "model.onnx", folder / "quantized.onnx"
    onnx.save(proto, model)
    rows = [Row(net, types, tool, kind) for kind in ("default", "true")]
    try:
        quantizer(model, feeds, out)
        made = onnx.load(out)
        best, step = best_possible(net, proto, made, types, feeds[0], folder)
        (exact,) = session(model).run(None, feeds[0])
        for row, config in zip(rows, (DEFAULT, TRUE), strict=True):
            (got,) = session(out, config=config).run(None, feeds[0])
            _fill(row, exact, got, best, step, NETS[net].channel)
    except Exception as error:  # another tool's, or onnxruntime's when it loads what the tool wrote
        for row in rows:
            row.error = row.error or str(error).strip().splitlines()[0]
    return rows


def _fill(row: Row, exact: Array, got: Array, best: Array, step: float, axis: int) -> None:
    row.cosine = cosine([exact], [got])
    row.channel = min(cosine([np.take(exact, c, axis)], [np.take(got, c, axis)]) for c in range(N))
    row.steps = float(np.abs(got.astype(np.float64) - best).max() / step)


def best_possible(
    name: str, proto: onnx.ModelProto, made: onnx.ModelProto, types: str, feed: Feed, folder: Path
) -> tuple[Array, float]:
    """What layer A can give at the scales that a tool chose for its input and output, and the step of its output.

    Weights are rounded at min-max scales of each channel, the bias is exact, the sum is not rounded. All in NumPy and a
    float session.
    """
    net = NETS[name]
    scales = _pairs(made)
    (s_x, z_x, x_limits), (s_h, z_h, h_limits) = scales["x"], scales["h"]
    x = _fake(feed["x"], s_x, z_x, x_limits)
    w = next(numpy_helper.to_array(t) for t in proto.graph.initializer if t.name == "w").astype(np.float64)
    largest = (1 << (16 if "16" in TYPES[types][1] else 8) - 1) - 1
    others = tuple(i for i in range(w.ndim) if i != net.axis)
    s_w = np.abs(w).max(axis=others, keepdims=True) / largest
    single = onnx.ModelProto()
    single.CopyFrom(proto)
    for tensor in single.graph.initializer:
        if tensor.name == "w":
            tensor.CopyFrom(numpy_helper.from_array((np.rint(w / s_w) * s_w).astype(np.float32), "w"))
    onnx.save(single, folder / "best.onnx")
    (h,) = session(folder / "best.onnx").run(None, {"x": x.astype(np.float32)})
    return _fake(h, s_h, z_h, h_limits), s_h


def _fake(x: Array, scale: float, zero: int, limits: tuple[int, int]) -> Array:
    return np.asarray((np.clip(np.rint(x / np.float64(scale)) + zero, *limits) - zero) * scale)


def _pairs(made: onnx.ModelProto) -> dict[str, tuple[float, int, tuple[int, int]]]:
    """Scale, zero point and limits of the input of A (as ``x``) and of B (as ``h``)."""
    constants = {t.name: numpy_helper.to_array(t) for t in made.graph.initializer}
    makers = {o: n for n in made.graph.node for o in n.output}
    layers = [n for n in made.graph.node if n.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul")]
    found = {}
    for name, layer in (("x", layers[0]), ("h", layers[-1])):
        dq = makers[layer.input[0]]
        while dq.op_type != "DequantizeLinear":  # onnxruntime's tool puts Reshapes around a MatMul with a bias
            dq = makers[dq.input[0]]
        zero = constants[dq.input[2]]
        limits = np.iinfo(zero.dtype)
        found[name] = float(constants[dq.input[1]].item()), int(zero.item()), (int(limits.min), int(limits.max))
    return found


def run(nets: Sequence[str] = tuple(NETS), types: Sequence[str] = tuple(TYPES)) -> Iterator[Row]:
    """All cells."""
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        for net in nets:
            for kind in types:
                for tool, quantizer in tools(*TYPES[kind]).items():
                    yield from compare(net, kind, tool, quantizer, Path(folder))


def missed(rows: Sequence[Row]) -> list[str]:
    """What onnxq does not reach."""
    return [
        f"{r.net} {r.types} ({r.session}): {r.error or f'cosine {r.cosine:.6f}, {r.steps:.2f} steps'}"
        for r in rows
        if r.tool == "onnxq" and (r.error or r.cosine < COSINE or r.steps > STEPS)
    ]


def table(rows: Sequence[Row]) -> Table:
    """A line for each net and types; each tool with the worse of its sessions."""
    names = list(tools("uint8", "int8"))
    out = Table("net", "types", *names, title="cosine · worst channel · steps off")
    for net, types in dict.fromkeys((r.net, r.types) for r in rows):
        cells = []
        for name in names:
            found = [r for r in rows if (r.net, r.types, r.tool) == (net, types, name)]
            worst = max(found, key=lambda r: r.steps)
            cells.append(worst.error[:40] or f"{worst.cosine:.5f} · {worst.channel:.3f} · {worst.steps:.1f}")
        out.add_row(net, types, *cells)
    return out


def main() -> int:
    """Print the table and what is missed; write the results."""
    rows = list(run())
    Console(width=140).print(table(rows))
    RESULTS.write_text(json.dumps({"machine": machine(), "rows": [asdict(r) for r in rows]}, indent=1) + "\n")
    for line in missed(rows):
        print("missed:", line)
    return bool(missed(rows))


if __name__ == "__main__":
    sys.exit(main())
