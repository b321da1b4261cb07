"""OQ110–OQ112: what should be a constant of a pair, and is computed when the model runs."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxq.carry import constant_behind
from onnxq.linting.rule import Finding, graph_rule
from onnxq.linting.subject import Subject
from onnxq.look import constant_tensor, onnx_op
from onnxq.qoperators import disguised
from onnxq.states import dtype_name


@graph_rule("OQ110", "weight-not-folded", "warning", fix="freeze")
def weight_not_folded(subject: Subject) -> Iterator[Finding]:
    """A float weight is stored in front of its pair.

    What it does:
        Looks for QuantizeLinear nodes that read a constant, through Transpose, Reshape and the like. Not with
        `--target` of a runtime that wants weights in this form, as TensorRT and training do.

    Why is this bad:
        The file holds four bytes for each value and quantizes the weight anew each time it is loaded, and a runtime
        that does not fold constants does so at each run.

    Example:
        `float weight -> QuantizeLinear -> DequantizeLinear -> Conv`

    Use instead:
        The integers as the constant: `int8 weight -> DequantizeLinear -> Conv`.

    Fix safety:
        Safe: the integers are those that the QuantizeLinear computes.
    """
    if subject.target is not None and subject.target.weight_form == "fake-quant":
        return
    for one in subject.quantizers:
        found = constant_behind(one.data)
        if isinstance(found, str) or found.tensor.size < 2:
            continue
        size = found.tensor.size
        text = f"its weight '{found.source.name}' is stored as {dtype_name(found.tensor.dtype)}"
        yield Finding(one.node, text, numbers={"values": size}, fixable=found.source.is_initializer())


@graph_rule("OQ111", "cast-mul-weight", "warning", fix="qoperator-to-qdq", safe=False)
def cast_mul_weight(subject: Subject) -> Iterator[Finding]:
    """A weight of integers is dequantized by Cast and Mul.

    What it does:
        Looks for constants of small integers behind Cast, perhaps Sub, and Mul or Div with a constant scale.

    Why is this bad:
        No runtime takes it for quantization. onnxruntime folds it into a float weight as it loads: only the file is
        small, memory and time are those of the float model. Others compute the weight at each run.

    Example:
        `int8 weight -> Cast -> Mul(scale) -> MatMul`

    Use instead:
        A DequantizeLinear with that scale, and what is subtracted as its zero point.

    Fix safety:
        Unsafe: a DequantizeLinear computes the same, but onnxruntime makes MatMulNBits of a product with such a weight,
        which takes less memory, rounds activations to 8 bits (OQ710), and is slower where many rows are multiplied at
        once: a sentence encoder (32 tokens, one thread) went from 157 to 95 MB and from 10 to 16 ms.
    """
    for cast in subject.of("Cast"):
        tensor = constant_tensor(cast.inputs[0]) if cast.inputs else None
        if tensor is None or tensor.size < 2 or tensor.dtype not in _SMALL_INTEGERS:
            continue
        readers = [node for node, _ in cast.outputs[0].uses()]
        readers += [node for sub in readers if onnx_op(sub, "Sub") for node, _ in sub.outputs[0].uses()]
        for node in dict.fromkeys(readers):
            if onnx_op(node, "Mul", "Div") and disguised.form_of(node) is not None:
                name = cast.inputs[0].name if cast.inputs[0] is not None else ""
                text = f"it dequantizes the {dtype_name(tensor.dtype)} weight '{name}' behind a Cast"
                yield Finding(node, text, numbers={"values": tensor.size})


@graph_rule("OQ112", "computed-parameters", "warning")
def computed_parameters(subject: Subject) -> Iterator[Finding]:
    """A scale or zero point is computed when the model runs.

    What it does:
        Looks for scales and zero points that a node other than Constant makes. Those of a DynamicQuantizeLinear are
        meant to be computed and not reported. Each is named once, at the first node that reads it.

    Why is this bad:
        Kernels on integers want constants: the layer runs in float. It is what exporters leave that write the scale as
        `max / 127`, say.

    Use instead:
        Constants. Where everything behind the scale is constant, `fold-constants` makes it one.
    """
    told = set[ir.Value]()
    for one in subject.linears:
        for what, value in (("scale", one.scale_value), ("zero point", one.zero_value)):
            maker = value.producer() if value is not None else None
            if value is None or maker is None or value in told or onnx_op(maker, "Constant", "DynamicQuantizeLinear"):
                continue
            told.add(value)
            yield Finding(one.node, f"its {what} '{value.name}' is made by {maker.op_type} '{maker.name}'")


_SMALL_INTEGERS = frozenset(
    ir.DataType[name] for name in ("INT2", "UINT2", "INT4", "UINT4", "INT8", "UINT8", "INT16", "UINT16")
)
