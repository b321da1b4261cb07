"""Identity in the place of a DequantizeLinear that training cannot have: numbers stay float, the form is remembered.

These are int32 biases, which become float parameters; integers of other than 8, 4 or 2 bits; pairs in If, Loop and Scan
bodies; and activations whose scale is computed at run time (DynamicQuantizeLinear).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onnxq.carry import constant_behind
from onnxq.context import Context
from onnxq.edit import Namer, add_initializer
from onnxq.look import constant, dims_of, graph_of, nested_graphs, onnx_op
from onnxq.numerics.affine import dequantize, quantize
from onnxq.numerics.spec import Encoding
from onnxq.pairs import float_type, parameter, read_encoding
from onnxq.states import DEQUANTIZE, QUANTIZE, is_q
from onnxq.trainable import record
from onnxq.trainable.guard import fitting
from onnxq.trainable.record import Form, rewire
from onnxq.trainable.unique_pairs import Numbers
from onnxq.weights import dequantized_weight, float_name, quantized_weight

_DYNAMIC = "DynamicQuantizeLinear"
_Made = tuple[ir.Node, tuple[ir.Value, ir.Value]]


def put(model: ir.Model, numbers: Numbers, namer: Namer, ctx: Context) -> int:
    """Replace what training cannot have by Identity; returns how many nodes."""
    biases = others = 0
    for graph in nested_graphs(model.graph):
        for dq in [n for n in graph if is_q(n, DEQUANTIZE)]:
            if onnx_op(_maker(dq), _DYNAMIC):
                _bypass(dq, ctx)
                others += 1
                continue
            found = _read(dq, graph is not model.graph)
            if found is None:
                continue
            encoding, why = found
            if not why:
                biases += 1
            else:
                others += 1
                ctx.note("trained-in-float", dq, f"its values stay float while the model is trained: {why}")
            _replace(dq, encoding, numbers, namer)
    if biases:
        ctx.note("float-biases", None, f"int32 biases that are float parameters now: {biases}", count=biases)
    return biases + others


def _maker(node: ir.Node) -> ir.Node | None:
    return None if node.inputs[0] is None else node.inputs[0].producer()


def _read(dq: ir.Node, inside: bool) -> tuple[Encoding, str] | None:
    """The encoding of a node that becomes a stand-in, and why (``""``: a bias); None for all others."""
    found = constant_behind(dq.inputs[0])
    q = _maker(dq)
    stored = not isinstance(found, str)
    if not stored and not is_q(q, QUANTIZE):
        return None
    dims = found.dims if not isinstance(found, str) else tuple(d or 0 for d in dims_of(dq.inputs[0]) or ())
    encoding = read_encoding(dq, dims)
    if isinstance(encoding, str):
        return None
    qtype = encoding.spec.qtype
    if stored and qtype.bits == 32:
        return encoding, ""
    if inside:
        return encoding, "the training build makes no pairs in bodies of If, Loop and Scan"
    if qtype.bits > 8 or qtype.is_float:
        return encoding, f"the training build rounds to 8 bits, not to {qtype.name}"
    return None


def _bypass(dq: ir.Node, ctx: Context) -> None:
    maker = _maker(dq)
    assert maker is not None and maker.inputs[0] is not None
    ctx.note(
        "trained-in-float", dq, f"{maker.op_type} has no gradient: its values stay float while the model is trained"
    )
    attributes = {name: attr.value for name, attr in dq.attributes.items()}
    zero = parameter(dq, 2) is not None
    record.write(dq.metadata_props, dynamic={"name": maker.name or "", "attributes": attributes, "zero": zero})
    _become_identity(dq, maker.inputs[0])


def _replace(dq: ir.Node, encoding: Encoding, numbers: Numbers, namer: Namer) -> None:
    q, found = _maker(dq), constant_behind(dq.inputs[0])
    entries: dict[str, Any] = {
        "scale": [float(str(s)) for s in encoding.scale.reshape(-1)],
        "zero": [int(z) for z in encoding.zero_point.reshape(-1)] if not encoding.spec.qtype.is_float else None,
        "half": encoding.scale.dtype == np.float16,
    }
    if isinstance(found, str):
        assert q is not None and q.inputs[0] is not None
        names = [q.name or QUANTIZE, q.outputs[0].name or "quantized"]
        record.write(dq.metadata_props, q=numbers[q], names=names, outside=q.graph is not dq.graph)
        value, form = q.inputs[0], Form.of(q, dq, encoding)
    else:
        tensor, dtype = found.read(), float_type(dq)
        values = dequantized_weight(tensor, encoding, dtype)
        value = add_initializer(graph_of(found.source), float_name(found.source), values, namer)
        form = Form.of(None, dq, encoding)
        if encoding.spec.qtype.bits > 16:
            entries["rest"] = _rest(tensor.numpy(), encoding, dtype)
    record.write(dq.metadata_props, stand_in={**entries, "form": form.to_json()})
    _become_identity(dq, value)


def _rest(integers: np.ndarray[Any, Any], encoding: Encoding, dtype: ir.DataType) -> list[list[int]]:
    """What 32-bit integers lose as floats: flat position and difference, where they have more than 24 bits."""
    lost = integers.astype(np.int64) - quantize(dequantize(integers, encoding, dtype.numpy()), encoding)
    at = np.flatnonzero(lost)
    return [[int(i), int(n)] for i, n in zip(at, lost.reshape(-1)[at], strict=True)]


def _become_identity(node: ir.Node, value: ir.Value) -> None:
    node.op_type, node.domain = "Identity", ""
    node.attributes.clear()
    rewire(node, [value])


def take_back(model: ir.Model, namer: Namer, ctx: Context) -> int:
    """Inverse of `put`; returns how many nodes. A constant becomes the integers nearest to it."""
    count = 0
    makers: dict[tuple[object, ...], ir.Node] = {}
    quantizers: dict[tuple[object, ...], _Made] = {}
    for graph in nested_graphs(model.graph):
        for node in [n for n in graph if onnx_op(n, "Identity") and record.KEY in n.metadata_props]:
            known = record.read(node.metadata_props)
            if "dynamic" in known:
                _quantize_at_run_time(node, known["dynamic"], makers, namer)
            elif "stand_in" in known:
                _restore(node, known, quantizers, namer, ctx)
            else:
                continue
            count += 1
    return count


def _quantize_at_run_time(
    node: ir.Node, known: dict[str, Any], made: dict[tuple[object, ...], ir.Node], namer: Namer
) -> None:
    value, graph = node.inputs[0], node.graph
    assert value is not None and graph is not None
    key = (value, known["name"], graph)
    if key not in made:
        base = value.name or "value"
        maker = ir.Node("", _DYNAMIC, [value], num_outputs=3, name=namer(known["name"] or f"{base}_{_DYNAMIC}"))
        for out, what in zip(maker.outputs, ("quantized", "scale", "zero_point"), strict=True):
            out.name = namer(f"{base}_{what}")
        maker.outputs[0].dtype = maker.outputs[2].dtype = ir.DataType.UINT8
        maker.outputs[0].shape, maker.outputs[1].dtype = value.shape, ir.DataType.FLOAT
        graph.insert_before(node, maker)
        made[key] = maker
    outputs = list(made[key].outputs)
    node.op_type = DEQUANTIZE
    rewire(node, outputs if known["zero"] else outputs[:2])
    for name, number in known["attributes"].items():
        node.attributes[name] = ir.AttrInt64(name, number)


def _restore(
    node: ir.Node, known: dict[str, Any], made: dict[tuple[object, ...], _Made], namer: Namer, ctx: Context
) -> None:
    data = known["stand_in"]
    form, value = Form.from_json(data["form"]), node.inputs[0]
    assert value is not None and isinstance(node.graph, ir.Graph)
    encoding = _encoding(form, data)
    home = graph_of(value)
    if form.q is None:
        encoding = fitting(node, encoding, namer, ctx) if form.qtype.bits > 16 else encoding
        stored = add_initializer(home, form.names[2], _integers(value, encoding, data.get("rest", [])), namer)
        node.op_type = DEQUANTIZE
        form.write(None, node, stored, form.parameters(home, encoding, namer))
        return
    graph = home if known["outside"] else node.graph
    key = (known["q"], value, graph)
    if key not in made:
        q = ir.Node("", QUANTIZE, [value], name=namer(known["names"][0]))
        q.outputs[0].name, q.outputs[0].shape = namer(known["names"][1]), value.shape
        _insert(q, node, value, graph)
        made[key] = q, form.parameters(graph, encoding, namer)
    node.op_type = DEQUANTIZE
    form.write(made[key][0], node, value, made[key][1])


def _encoding(form: Form, data: dict[str, Any]) -> Encoding:
    numbers = np.array(data["scale"], np.float16 if data["half"] else np.float32)
    zeros = np.zeros(numbers.shape, np.int32) if data["zero"] is None else np.array(data["zero"], np.int32)
    if form.granularity:
        numbers, zeros = numbers.reshape(form.scale_shape), zeros.reshape(form.scale_shape)
    return form.encoding(numbers, zeros)


def _integers(value: ir.Value, encoding: Encoding, rest: list[list[int]]) -> ir.TensorProtocol:
    if encoding.spec.qtype.bits <= 16:
        return quantized_weight(value, encoding)
    values = constant(value)
    assert values is not None
    stored = quantize(values, encoding).astype(np.int64)
    for at, lost in rest:
        stored.reshape(-1)[at] += lost
    limits = np.iinfo(np.int32)
    return ir.Tensor(np.clip(stored, limits.min, limits.max).astype(np.int32))


def _insert(q: ir.Node, node: ir.Node, value: ir.Value, graph: ir.Graph) -> None:
    """Beside the reader, or in an outer graph beside what makes the value."""
    maker = value.producer()
    if node.graph is graph:
        graph.insert_before(node, q)
    elif maker is not None:
        graph.insert_after(maker, q)
    else:
        graph.insert_before(graph[0], q)
