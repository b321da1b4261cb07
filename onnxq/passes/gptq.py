"""`gptq`: round weights so that each layer's output stays what it was on the samples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import onnx_ir as ir

from onnxq.calibration.moments import Moments
from onnxq.calibration.runner import Run, Watch
from onnxq.facts import Edge, Encodings, Fact, Feeds, Plan
from onnxq.look import attr_int, graph_of, onnx_op
from onnxq.numerics.affine import dequantize, quantize
from onnxq.numerics.gptq import gptq, relative_error
from onnxq.numerics.spec import Blocked, Encoding
from onnxq.passbase import Context, Pass
from onnxq.weights import weight_tensor

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Gptq(Pass):
    """`Encodings` -> `Encodings` with integers for the weights, chosen by GPTQ instead of rounding to nearest.

    Scales stay as they are, and so does the speed of the model. For each Conv, Gemm and MatMul the second moments of
    its input are collected from the float model; layers whose factorization would take too long keep nearest rounding,
    the costliest first, with one note.

    Attributes:
        rounding: ``nearest`` skips the pass.
        effort: Billions of operations that all layers together may take; 150 are some ten seconds on two cores.
        memory: Megabytes that second moments may take at a time; more needs several passes over the samples.
        samples: Use at most this many samples.
    """

    name: ClassVar[str] = "gptq"
    reads: ClassVar[frozenset[type[Fact]]] = frozenset({Plan, Encodings})
    maybe_reads: ClassVar[frozenset[type[Fact]]] = frozenset({Feeds})
    writes: ClassVar[frozenset[type[Fact]]] = frozenset({Encodings})

    rounding: Literal["gptq", "nearest"] = "gptq"
    effort: float = 150.0
    memory: int = 512
    samples: int = 32

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Choose the integers; the graph stays as it is."""
        feeds, old = ctx.maybe(Feeds), ctx.get(Encodings)
        if self.rounding == "nearest":
            return False
        if feeds is None:
            ctx.note("gptq-skipped", None, "no samples to measure on: weights are rounded to nearest")
            return False
        layers = self._affordable(self._layers(old, model), ctx)
        source = replace(feeds.source, limit=min(self.samples, feeds.source.limit or self.samples))
        before, after = [], []
        rounded: dict[tuple[ir.Value, int], Encoding] = {}
        for part in self._parts(layers):
            moments = {layer: Moments(layer.edges[0].node, *layer.sizes) for layer in part}
            watches: dict[ir.Value, list[Watch]] = {}
            for layer, found in moments.items():
                for edge in layer.edges:
                    value = edge.node.inputs[0]
                    assert value is not None
                    watches.setdefault(value, []).append(found.add)
            shown = {value: partial(_each, tuple(adds)) for value, adds in watches.items()}
            Run(model, source, shown, ctx, self.memory * 10**6).go()
            for layer, found in moments.items():
                if found.rows:
                    integers, nearest, chosen = layer.round(found.hessian)
                    rounded[layer.edges[0].value, id(layer.encoding)] = replace(layer.encoding, integers=integers)
                    before.append(nearest)
                    after.append(chosen)
        if before:
            times = float(np.sum(before) / max(np.sum(after), 1e-30))
            why = (
                f"weights of {len(before)} layers rounded by GPTQ: {times:.1f} times less output error than to nearest"
            )
            ctx.note("gptq", None, why, layers=len(before), times=round(times, 2))
        # Uses in bodies share the copy, though nobody observes them.
        ctx.put(replace(old, weights={e: rounded.get((e.value, id(w)), w) for e, w in old.weights.items()}))
        return False

    def _layers(self, encodings: Encodings, model: ir.Model) -> list[_Weight]:
        """The weights of main-graph layers whose input can be observed, each encoding once."""
        groups: dict[tuple[ir.Value, int], list[Edge]] = {}
        for edge, encoding in encodings.weights.items():
            x = edge.node.inputs[0]
            fits = onnx_op(edge.node, "Conv", "Gemm", "MatMul") and edge.index == 1 and edge.node.graph is model.graph
            fits = fits and not isinstance(encoding.spec.granularity, Blocked) and x is not None
            if fits and x is not None and graph_of(x) is model.graph:
                groups.setdefault((edge.value, id(encoding)), []).append(edge)
        layers = [_Weight(tuple(edges), encodings.weights[edges[0]]) for edges in groups.values()]
        return [layer for layer in layers if layer.sizes[1]]

    def _affordable(self, layers: list[_Weight], ctx: Context) -> list[_Weight]:
        """The layers that fit the effort, cheapest first chosen, in graph order."""
        left = self.effort * 1e9
        chosen: set[_Weight] = set()
        for layer in sorted(layers, key=lambda layer: layer.work):
            left -= layer.work
            if left < 0:
                break
            chosen.add(layer)
        if len(chosen) < len(layers):
            why = f"{len(layers) - len(chosen)} of {len(layers)} layers are too large for the effort of gptq: nearest"
            ctx.note("gptq-effort", None, why, layers=len(layers) - len(chosen))
        return [layer for layer in layers if layer in chosen]

    def _parts(self, layers: list[_Weight]) -> list[list[_Weight]]:
        parts: list[list[_Weight]] = []
        room = 0.0
        for layer in layers:
            size = layer.sizes[0] * layer.sizes[1] ** 2 * 8
            if not parts or size > room:
                parts.append([])
                room = self.memory * 1e6
            parts[-1].append(layer)
            room -= size
        return parts


@dataclass(frozen=True)
class _Weight:
    """One weight encoding and the uses that share it."""

    edges: tuple[Edge, ...]
    encoding: Encoding

    @property
    def _tensor(self) -> ir.TensorProtocol:
        tensor = weight_tensor(self.edges[0].value)
        assert tensor is not None
        return tensor

    @property
    def sizes(self) -> tuple[int, int, tuple[int, ...]]:
        """Groups, inputs of an output value, kernel; 0 inputs where GPTQ does not apply."""
        node, dims = self.edges[0].node, tuple(int(d) for d in self._tensor.shape.numpy())
        if node.op_type == "Conv":
            return attr_int(node, "group", 1), int(np.prod(dims[1:])), dims[2:]
        if len(dims) != 2:
            return 1, 0, ()
        return 1, dims[1] if attr_int(node, "transB", 0) else dims[0], ()

    @property
    def work(self) -> float:
        """Operations of factorization and rounding."""
        groups, inputs, _ = self.sizes
        return groups * inputs**3 * 3.0 + self._tensor.size * inputs * 2.0

    def round(self, hessian: Array) -> tuple[Array, float, float]:
        """Integers in the weight's layout, and the relative output error of nearest rounding and of these."""
        node = self.edges[0].node
        weight = self._tensor.numpy()
        groups, inputs, _ = self.sizes
        rows_last = node.op_type != "Conv" and not attr_int(node, "transB", 0)
        w = (weight.T if rows_last else weight.reshape(len(weight), -1)).reshape(groups, -1, inputs)
        params = [np.reshape(p, (groups, -1, 1)) if p.ndim else p.reshape(1, 1, 1) for p in self._parameters()]
        q = gptq(w, hessian, params[0], params[1], self.encoding.spec.qtype)
        flat = q.reshape(-1, inputs)
        integers = np.ascontiguousarray(flat.T) if rows_last else flat.reshape(weight.shape)
        errors = []
        for candidate in (quantize(weight, self.encoding), integers):
            decoded = dequantize(candidate, self.encoding)
            d = (decoded.T if rows_last else decoded.reshape(len(weight), -1)).reshape(groups, -1, inputs)
            errors.append(relative_error(w, d, hessian))
        return integers, errors[0], errors[1]

    def _parameters(self) -> tuple[Array, Array]:
        return self.encoding.scale, self.encoding.zero_point


def _each(adds: tuple[Watch, ...], x: Array, lo: float, hi: float) -> None:
    for add in adds:
        add(x, lo, hi)
