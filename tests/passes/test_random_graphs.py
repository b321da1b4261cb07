"""Any small network through the recipe int8: valid, loads, near the float model, the same bytes every time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import numpy_helper, parser

from onnxq.api import quantize

Array = np.ndarray[Any, Any]


@dataclass
class Net:
    """A network in the making: every value is float32 [2, 8, 4, 4] or [2, 16]; weights are seeded by their number."""

    images: list[str] = field(default_factory=lambda: ["x"])
    rows: list[str] = field(default_factory=lambda: ["z"])
    lines: list[str] = field(default_factory=list)
    weights: dict[str, Array] = field(default_factory=dict)

    def weight(self, *shape: int, spread: bool = False) -> str:
        name = f"w{len(self.weights)}"
        rng = np.random.default_rng(len(self.weights))
        fan = max(int(np.prod(shape[1:])), 1)
        values = rng.standard_normal(shape) / np.sqrt(fan if spread else 4)
        self.weights[name] = values.astype(np.float32)
        return name

    def constant(self, value: Any) -> str:
        name = f"k{len(self.weights)}"
        self.weights[name] = np.asarray(value)
        return name

    def add(self, text: str, row: bool = False) -> str:
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        (self.rows if row else self.images).append(name)
        return name


def step(net: Net, kind: str, i: int, j: int) -> None:
    """Append one op (or a few)."""
    a, b = net.images[i % len(net.images)], net.images[j % len(net.images)]
    r, s = net.rows[i % len(net.rows)], net.rows[j % len(net.rows)]
    w = net.weight
    if kind == "conv":
        bias = "" if j % 2 else f", {w(8)}"
        net.add(f"Conv<pads=[1,1,1,1]>({a}, {w(8, 8, 3, 3, spread=True)}{bias})")
    elif kind == "depthwise":
        net.add(f"Conv<pads=[1,1,1,1], group=8>({a}, {w(8, 1, 3, 3, spread=True)}, {w(8)})")
    elif kind == "gemm":
        transposed, factor = i % 2, 0.5 if j % 3 == 0 else 1.0
        net.add(f"Gemm<transB={transposed}, alpha={factor}>({r}, {w(16, 16, spread=True)}, {w(1, 16)})", row=True)
    elif kind == "matmul":
        net.add(f"MatMul({r}, {w(16, 16, spread=True)})", row=True)
    elif kind == "linear":
        product = net.add(f"MatMul({r}, {w(16, 16, spread=True)})", row=True)
        net.add(f"Add({product}, {w(16)})", row=True)
    elif kind in ("Relu", "Sigmoid", "Tanh", "HardSwish"):
        net.add(f"{kind}({a})")
        net.add(f"{kind}({r})", row=True)
    elif kind == "leaky":
        net.add(f"LeakyRelu<alpha=0.1>({a})")
    elif kind == "clip":
        net.add(f"Clip({a}, {net.constant(np.float32(0))}, {net.constant(np.float32(0.75))})")
    elif kind == "softmax":
        net.add(f"Softmax<axis=-1>({r})", row=True)
    elif kind in ("Add", "Mul"):
        net.add(f"{kind}({a}, {b})")
        net.add(f"{kind}({r}, {s})", row=True)
    elif kind == "concat":
        both = net.add(f"Concat<axis=1>({a}, {b})")
        net.images.remove(both)
        net.add(f"Conv({both}, {w(8, 16, 1, 1, spread=True)})")
    elif kind == "pool":
        net.add(f"MaxPool<kernel_shape=[3,3], pads=[1,1,1,1]>({a})")
        net.add(f"AveragePool<kernel_shape=[3,3], pads=[1,1,1,1]>({b})")
    elif kind == "move":
        net.add(f"Transpose<perm=[0,1,3,2]>({a})")
        net.add(f"Reshape({b}, {net.constant(np.array([2, 8, 4, 4]))})")
    elif kind == "flatten":
        pooled = net.add(f"GlobalAveragePool({a})")
        net.images.remove(pooled)
        flat = net.add(f"Flatten({pooled})", row=True)
        net.rows.remove(flat)
        net.add(f"MatMul({flat}, {w(8, 16, spread=True)})", row=True)
    elif kind == "scale":
        net.add(f"Mul({a}, {net.constant(np.float32(0.5))})")


KINDS = (
    "conv", "conv", "depthwise", "gemm", "matmul", "linear", "Relu", "Sigmoid", "Tanh", "HardSwish", "leaky", "clip",
    "softmax", "Add", "Mul", "concat", "pool", "move", "flatten", "scale",
)  # fmt: skip


@st.composite
def networks(draw: st.DrawFn) -> onnx.ModelProto:
    net = Net()
    choice = st.tuples(st.sampled_from(KINDS), st.integers(0, 40), st.integers(0, 40))
    for kind, i, j in draw(st.lists(choice, min_size=2, max_size=9)):
        step(net, kind, i, j)
    made = {line.split(" =")[0] for line in net.lines}
    read = {word.strip("(),") for line in net.lines for word in line.split(" = ")[1].replace("(", " ").split()}
    ends = sorted(made - read, key=lambda n: int(n[1:]))
    extra = draw(st.sampled_from(sorted(made)))  # a value that others read is an output, too
    outputs = []
    for name in dict.fromkeys([*ends, extra]):
        if name in net.images or name in net.rows:
            rank = 4 if name in net.images else 2
            outputs.append(f"float[{', '.join(f'{name}_{axis}' for axis in range(rank))}] {name}")
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[2,8,4,4] x, float[2,16] z) => '
    proto = parser.parse_model(f"{text} ({', '.join(outputs)}) {{ {' '.join(net.lines)} }}")
    for name, array in net.weights.items():
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    return proto


def feeds(seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {"x": rng.standard_normal((2, 8, 4, 4)).astype("f"), "z": rng.standard_normal((2, 16)).astype("f")}


OPTIONS: tuple[dict[str, Any], ...] = (
    {}, {}, {"dynamic": "never"}, {"weights": "uint8"}, {"exclude": ["op:Add"]}, {"exclude": ["op:Relu", "op:Clip"]},
    {"include": ["op:Gemm", "op:Conv", "op:MatMul"], "dynamic": "never"},
)  # fmt: skip


@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(networks(), st.sampled_from(OPTIONS))
def test_any_network(run_model: Callable[..., Any], proto: onnx.ModelProto, options: dict[str, Any]) -> None:
    before = proto.SerializeToString(deterministic=True)
    samples = [feeds(seed) for seed in range(3)]
    known = {f"op:{node.op_type}" for node in proto.graph.node}
    chosen = {k: [s for s in v if s in known] if isinstance(v, list) else v for k, v in options.items()}
    chosen |= {"search": False, "method": "minmax", "rounding": "nearest"}
    result = quantize(proto, samples, **chosen)
    after, again = result.model, quantize(proto, samples, **chosen).model
    assert proto.SerializeToString(deterministic=True) == before
    assert again.SerializeToString(deterministic=True) == after.SerializeToString(deterministic=True)
    onnx.checker.check_model(after, full_check=True)
    assert [(i.name, i.type) for i in after.graph.input] == [(i.name, i.type) for i in proto.graph.input]
    assert [o.name for o in after.graph.output] == [o.name for o in proto.graph.output]
    assert all(entry["reason"] for entry in result.plan["nodes"].values())
    exact = run_model(proto, samples[0], optimised=False)
    default, true = run_model(after, samples[0]), run_model(after, samples[0], true=True)
    layers = sum(entry["code"] != "part-of-layer" for entry in result.plan["nodes"].values())
    for name, wanted, a, b in zip((o.name for o in proto.graph.output), exact, default, true, strict=True):
        assert a.shape == b.shape == wanted.shape, name
        # Each op may add about a step of its own range to what it got; ranges here differ by small factors only.
        bound = 0.02 * (layers + 2) * max(float(np.abs(wanted).max()), 0.05)
        assert float(np.abs(a - wanted).max()) <= bound and float(np.abs(b - wanted).max()) <= bound, name
        assert float(np.abs(a - b).max()) <= bound / 2, name
