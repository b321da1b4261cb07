"""OQ651–OQ654: what Ascend's compression toolkit (AMCT) and compiler do not take, beyond types (OQ401, OQ606–OQ609).

Sources: the table of layers and restrictions in Huawei's documentation of AMCT and ATC, and the rules of AMCT's A8W4
export. None of it was run here.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnxq.linting.rule import Finding, graph_rule
from onnxq.linting.subject import Linear, Subject
from onnxq.look import attr_int, attr_ints, onnx_op
from onnxq.rules._around import bits, dequantizer, weights


@graph_rule("OQ651", "ascend-transposed-gemm", "warning", targets=("ascend",), fix="untranspose-gemm")
def ascend_transposed_gemm(subject: Subject) -> Iterator[Finding]:
    """A quantized Gemm reads its weight transposed.

    What it does:
        Looks for Gemm with transB=1 and a quantized weight.

    Why is this bad:
        The toolkit deploys a Gemm with the weight as it is used, [K, N], and packs 4 bits along N: a transposed weight
        is packed along its first axis.

    Use instead:
        transB=0, as `onnxq quantize --target ascend` writes.

    Fix safety:
        Safe: the weight is turned, and the axis of its scales with it.
    """
    for one, node in weights(subject):
        if onnx_op(node, "Gemm") and attr_int(node, "transB", 0):
            yield Finding(node, f"it reads the weight of '{one.node.name}' with transB=1")


@graph_rule("OQ652", "ascend-layer", "error", targets=("ascend",))
def ascend_layer(subject: Subject) -> Iterator[Finding]:
    """A quantized layer is of a form that the toolkit does not quantize.

    What it does:
        Looks for Gemm with transA=1, ConvTranspose with dilations or other than four dimensions, and MatMul whose
        stored weight is no matrix, where the weight is quantized. Source: "Layers that support quantization and
        restrictions" (documentation of ATC and AMCT): transpose_a = false; dilation 1 and a filter of 4 dimensions;
        the second input of MatMul a constant of 2 dimensions.

    Why is this bad:
        The compiler refuses the layer.

    Use instead:
        Leave such a layer float.
    """
    for one, node in weights(subject):
        why = _misfit(one, node.op_type)
        dilations = attr_ints(node, "dilations") or []
        if onnx_op(node, "Gemm") and attr_int(node, "transA", 0):
            why = "transA is 1"
        elif onnx_op(node, "ConvTranspose") and any(d != 1 for d in dilations):
            why = f"its dilations are {dilations}"
        if why:
            yield Finding(node, f"its weight is quantized, and {why}")


def _misfit(one: Linear, op_type: str) -> str:
    dims, wanted = one.dims, {"MatMul": 2, "ConvTranspose": 4}.get(op_type)
    return f"has {len(dims)} dimensions, not {wanted}" if wanted and dims is not None and len(dims) != wanted else ""


@graph_rule("OQ653", "ascend-int4-opset", "warning", targets=("ascend",))
def ascend_int4_opset(subject: Subject) -> Iterator[Finding]:
    """4-bit weights are in a model of another opset than 21.

    What it does:
        Compares the opset where 4-bit weights are dequantized. Source: AMCT writes and checks A8W4 models at opset 21.

    Why is this bad:
        The toolkit refuses the model.

    Use instead:
        Opset 21.
    """
    for one in subject.linears:
        opset = subject.opset(one.node)
        if not one.quantizes and bits(one) == 4 and opset != 21:
            yield Finding(one.node, f"it dequantizes 4 bits at opset {opset}, not 21", numbers={"opset": opset})
            return


@graph_rule("OQ654", "ascend-float-activations", "warning", targets=("ascend",))
def ascend_float_activations(subject: Subject) -> Iterator[Finding]:
    """A weight is quantized, and the activations of its layer are not.

    What it does:
        Looks for layers with a stored quantized weight whose input comes from no DequantizeLinear. Source: AMCT
        quantizes activations and weights of a layer together.

    Why is this bad:
        There is no kernel for it: the layer runs in float, with its weight dequantized.

    Use instead:
        Pairs on the input, too; or a float weight.
    """
    for one, node in weights(subject):
        if dequantizer(subject, node.inputs[0], _CARRIERS) is None and bits(one) == 8:
            yield Finding(node, f"its weight '{one.data.name if one.data else ''}' has 8 bits, its input is float")


_CARRIERS = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Slice", "MaxPool", "Flatten", "Relu", "Identity")
