"""Finite differences of the clipped-identity surrogate: the twin itself, its residue inputs held where they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from onnxq.training.gradients import RESIDUE, derivative

Array = np.ndarray[Any, Any]
LOW, HIGH = -8, 7


class Twin:
    """A twin under construction, float64 or float32; every fake-quantized operand is a parameter."""

    def __init__(self, double: bool, opset: int = 21, seed: int = 0) -> None:
        self.dtype = np.dtype(np.float64 if double else np.float32)
        self.kind = TensorProto.DOUBLE if double else TensorProto.FLOAT
        self.opset, self.rng = opset, np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.feeds: dict[str, Array] = {}
        self.values: list[onnx.ValueInfoProto] = []
        self.losses: list[str] = []

    def node(self, op_type: str, inputs: Sequence[str], *outputs: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op_type, list(inputs), list(outputs), **attributes))
        return outputs[0]

    def constant(self, name: str, array: Any, dtype: Any = None) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(array, dtype or self.dtype), name))
        return name

    def input(self, name: str, array: Array) -> str:
        self.feeds[name] = array.astype(self.dtype)
        self.inputs.append(helper.make_tensor_value_info(name, self.kind, array.shape))
        return name

    def operand(
        self, name: str, shape: tuple[int, ...], *, per_axis: bool = False, base: float = 0.0, learned: bool = False
    ) -> str:
        """A fake-quantized parameter, some of it clipped, none of it near a bound; returns its dequantized value.

        Offsets that differ from element to element are added, so that no op sees two equal values, or zero.
        """
        scales = self.rng.uniform(0.1, 0.2, (shape[0], *[1] * (len(shape) - 1)) if per_axis else ())
        u = self.rng.uniform(LOW - 3, HIGH + 3, shape)
        for bound in (LOW, HIGH):
            u = np.where(np.abs(u - bound) < 0.3, bound + np.copysign(0.4, u - bound), u)
        s = f"{name}.s"
        if learned:
            self.input(s, scales)
        else:
            self.constant(s, scales)
        y = self.pair(self.input(name, u * scales), s, shape)
        offsets = self.rng.uniform(-0.04, 0.04, shape) + base
        return self.node("Add", [y, self.constant(f"{name}.offset", offsets)], f"{name}.y")

    def pair(self, x: str, s: str, shape: tuple[int, ...]) -> str:
        """The twin of a pair."""
        ends = [self.constant(f"{x}.{side}", bound) for side, bound in (("low", LOW), ("high", HIGH))]
        self.node("Div", [x, s], f"{x}.u")
        c = self.node("Clip", [f"{x}.u", *ends], f"{x}.c")
        self.inputs.append(helper.make_tensor_value_info(c + RESIDUE, self.kind, shape))
        d = self.node("Add", [c, c + RESIDUE], f"{x}.d")
        return self.node("Mul", [d, s], f"{x}.dequantized")

    def weigh(self, value: str) -> None:
        """Let the loss see a value: a weighted sum, whose central difference is exact where the op is linear."""
        shape = self.shape(value)
        weights = self.constant(f"{value}.weights", self.rng.uniform(0.5, 1.5, shape) * self.rng.choice([-1, 1], shape))
        self.losses.append(
            self.node(
                "ReduceSum", [self.node("Mul", [value, weights], f"{value}.weighed")], f"{value}.part", keepdims=0
            )
        )

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a value, which is then declared: not all ops tell onnx the shape of what they make."""
        model = self._model([], [helper.make_empty_tensor_value_info(name)])
        shape = session(model).run([name], {**self.feeds, **_zeros(model, self.dtype)})[0].shape
        self.values.append(helper.make_tensor_value_info(name, self.kind, shape))
        return tuple(shape)

    def proto(self) -> onnx.ModelProto:
        loss = helper.make_tensor_value_info("loss", self.kind, [])
        return self._model([helper.make_node("Sum", self.losses, ["loss"])], [*self.outputs, loss])

    def _model(self, more: list[onnx.NodeProto], outputs: list[onnx.ValueInfoProto]) -> onnx.ModelProto:
        graph = helper.make_graph(
            [*self.nodes, *more], "twin", self.inputs, outputs, self.constants, value_info=self.values
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10)


def session(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def residues(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """``Round(c) - c`` for every residue input; no clipped value depends on another residue."""
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    zero = _zeros(model, next(iter(feeds.values())).dtype)
    clipped = [name.removesuffix(RESIDUE) for name in zero]
    probe.graph.output.extend(helper.make_empty_tensor_value_info(c) for c in clipped)
    found = session(probe).run(clipped, {**feeds, **zero})
    return {c + RESIDUE: np.rint(value) - value for c, value in zip(clipped, found, strict=True)}


def _zeros(model: onnx.ModelProto, dtype: Any) -> dict[str, Array]:
    """Residue inputs, all zero."""
    inputs = {v.name: v.type.tensor_type.shape.dim for v in model.graph.input if v.name.endswith(RESIDUE)}
    return {name: np.zeros([d.dim_value for d in dims], dtype) for name, dims in inputs.items()}


def differences(model: onnx.ModelProto, feeds: Mapping[str, Array], parameters: Sequence[str]) -> dict[str, Array]:
    """Central differences of the loss for every element of every parameter, residues held."""
    run = session(model)
    held = {**feeds, **residues(model, feeds)}
    step = 1e-5 if next(iter(feeds.values())).dtype == np.float64 else 2.0**-9
    out = {}
    for name in parameters:
        slopes = np.zeros(feeds[name].shape)
        for index in np.ndindex(*slopes.shape):
            ends = []
            for sign in (1, -1):
                moved = feeds[name].copy()
                moved[index] += sign * step
                ends.append((run.run(["loss"], {**held, name: moved})[0].item(), float(moved[index])))
            slopes[index] = (ends[0][0] - ends[1][0]) / (ends[0][1] - ends[1][1])
        out[name] = slopes
    return out


def assert_gradients(twin: Twin) -> dict[str, Array]:
    """The gradient graph agrees with finite differences, element by element; returns the gradients."""
    model, parameters = twin.proto(), list(twin.feeds)
    expected = differences(model, twin.feeds, parameters)
    result = derivative(model, parameters, "loss")
    onnx.checker.check_model(result)
    names = [f"grad.{name}" for name in parameters]
    found = dict(zip(parameters, session(result).run(names, twin.feeds), strict=True))
    bound = 1e-6 if twin.dtype == np.float64 else 4e-3
    for name in parameters:
        assert found[name].shape == twin.feeds[name].shape and found[name].dtype == twin.dtype
        scale = max(1.0, float(np.abs(expected[name]).max()))
        np.testing.assert_allclose(found[name], expected[name], rtol=bound, atol=bound * scale, err_msg=name)
    return found
