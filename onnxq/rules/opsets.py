"""OQ601, OQ603–OQ605: what the opset has, and what the runtime has of it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import onnx_ir as ir
from onnx import defs

from onnxq.diagnostics import Severity
from onnxq.linting.rule import Finding, graph_rule
from onnxq.linting.subject import Subject
from onnxq.opsets import upgrade
from onnxq.opsets.pairs import CONTRIB_TYPES
from onnxq.qoperators.table import FORMS, why_none
from onnxq.states import INTEGER_OPS, dtype_name

_OLD = frozenset(
    {"FLOAT", "DOUBLE", "FLOAT16", "BOOL", "STRING", "COMPLEX64", "COMPLEX128", "UNDEFINED"}
    | {f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)}
)
"""Types that operators of opset 7 had."""


@graph_rule("OQ601", "type-too-new", "error", fix="upgrade-opset", safe=False)
def type_too_new(subject: Subject) -> Iterator[Finding]:
    """An operator works on a type that it does not take at the model's opset.

    What it does:
        Compares the integer type of each QuantizeLinear and DequantizeLinear, and types of 2, 4 and 8 bits that came
        after opset 18 wherever they are used, with the operator's schema at the opset that the model imports.

    Why is this bad:
        The model does not load. The zero point alone makes QuantizeLinear write int16, say, and onnx.checker looks at
        types only when it is asked for a full check.

    Example:
        `QuantizeLinear` with an int16 zero point in a model of opset 19: 16 and 4 bits came with opset 21, 8-bit floats
        with 19, 2 bits with 25.

    Use instead:
        The opset that has the type, or a type that the opset has.

    Fix safety:
        Unsafe: the whole model goes to opset 21, and newer types than that stay where they are.
    """
    for one in subject.linears:
        opset = subject.opset(one.node)
        if not one.node.domain and opset and one.dtype is not None:
            yield from _too_new(one.node, "outputs" if one.quantizes else "inputs", 0, one.dtype, opset)
    for node in subject.nodes:
        if node.domain or node in subject.linear_of:
            continue
        for side, values in (("inputs", node.inputs), ("outputs", node.outputs)):
            for index, value in enumerate(values):
                dtype = value.dtype if value is not None else None
                if dtype is not None and dtype.name not in _OLD:
                    yield from _too_new(node, side, index, dtype, subject.opset(node))


def _too_new(node: ir.Node, side: str, index: int, dtype: ir.DataType, opset: int) -> Iterator[Finding]:
    if not 0 < opset <= upgrade.newest() or dtype in _types(node.op_type, opset, side, index):
        return
    later = [v for v in _versions(node.op_type) if v > opset and dtype in _types(node.op_type, v, side, index)]
    text = f"{node.op_type} of opset {opset} takes no {dtype_name(dtype)}"
    if later:
        yield Finding(node, f"{text}; it does from opset {later[0]} on", numbers={"opset": opset, "needs": later[0]})
    elif upgrade.schema(node.op_type, opset) is not None:
        yield Finding(node, f"{text}, nor does any later one", "Dequantize in front of it.", fixable=False)


@cache
def _types(op_type: str, opset: int, side: str, index: int) -> frozenset[ir.DataType]:
    """Element types that an input or output takes; all of them where there is no such input."""
    schema = upgrade.schema(op_type, opset)
    formal = list(getattr(schema, side)) if schema is not None else []
    if not formal:
        return frozenset() if schema is None else frozenset(ir.DataType)
    if index >= len(formal) and formal[-1].option != defs.OpSchema.FormalParameterOption.Variadic:
        return frozenset(ir.DataType)
    inner = (text[text.rfind("(") + 1 :].rstrip(")") for text in formal[min(index, len(formal) - 1)].types)
    return frozenset(ir.DataType[name.upper()] for name in inner if name.upper() in ir.DataType.__members__)


@cache
def _versions(op_type: str) -> tuple[int, ...]:
    """The opsets that changed an operator."""
    found = (upgrade.schema(op_type, v) for v in range(1, upgrade.newest() + 1))
    return tuple(sorted({schema.since_version for schema in found if schema is not None}))


@graph_rule("OQ603", "opset-above-runtime", "error")
def opset_above_runtime(subject: Subject) -> Iterator[Finding]:
    """The model has pairs of an opset that the target knows no pairs of.

    What it does:
        With `--target`: compares the opset with the target's newest one (`onnxq targets`), where QuantizeLinear or
        DequantizeLinear is used. The training build has rules of its own.

    Why is this bad:
        The runtime finds no implementation of these operators and does not load the model. onnxruntime 1.32 has pairs
        up to opset 27, and `onnx.helper.make_model` takes 28 by default.

    Use instead:
        `opset_imports=[onnx.helper.make_opsetid("", 21)]`, which every target takes.
    """
    newest = subject.target.opset.max if subject.target is not None else 0
    if subject.target is None or subject.target.weight_form == "fake-quant":
        return
    told = set[int]()
    for one in subject.linears:
        opset = subject.opset(one.node)
        if not one.node.domain and opset > newest and opset not in told:
            told.add(opset)
            text = f"{subject.target.name} knows {one.node.op_type} up to opset {newest}, the model has {opset}"
            yield Finding(one.node, text, f"Export at opset {newest} or below.", {"opset": opset, "newest": newest})


@graph_rule("OQ604", "contrib-pair", "warning", fix="contrib-to-standard")
def contrib_pair(subject: Subject) -> Iterator[Finding]:
    """A pair is onnxruntime's own, and ONNX has the same one.

    What it does:
        Looks for QuantizeLinear and DequantizeLinear of com.microsoft whose type and granularity the imported opset of
        ONNX has, too.

    Why is this bad:
        Only onnxruntime runs it, and it needs an import of its domain, which onnx.checker asks for and onnxruntime
        does not.

    Use instead:
        The operator of ai.onnx. For 16 and 4 bits that is opset 21.

    Fix safety:
        Safe: both compute the same.
    """
    for one in subject.linears:
        if one.node.domain and one.dtype is not None and dtype_name(one.dtype) in CONTRIB_TYPES:
            side = "outputs" if one.quantizes else "inputs"
            if one.dtype in _types(one.node.op_type, subject.opset(one.node), side, 0):
                yield Finding(
                    one.node, f"{one.node.op_type} of ai.onnx takes {dtype_name(one.dtype)} at this opset, too"
                )


@graph_rule("OQ605", "integer-operator-left", "warning", fix="qoperator-to-qdq")
def integer_operator_left(subject: Subject) -> Iterator[Finding]:
    """An operator computes on integers itself, in the older form (QOperator).

    What it does:
        Looks for `QLinear*`, `*Integer` and onnxruntime's integer operators. A warning for targets that are not
        onnxruntime's CPU provider, which has kernels for them; without a target, or for that one, an info.

    Why is this bad:
        Few runtimes have these operators: TensorRT's importer takes none of them. Tools that quantize, train or check
        work on pairs.

    Use instead:
        The float operator between DequantizeLinear and QuantizeLinear, of which onnxruntime makes the same kernels;
        of a ConvInteger on what a DynamicQuantizeLinear makes, a float Conv, which is often faster.

    Fix safety:
        Safe: exact but for values in the middle of two integers, which may round the other way.
    """
    here = subject.target is None or subject.target.name == "ort-cpu"
    for (domain, op_type), nodes in _integer_operators(subject):
        fixable = (domain, op_type) in FORMS
        for node in nodes:
            text = f"{op_type} takes integers itself"
            why = "" if fixable else why_none(node)
            severity = Severity.INFO if here else None
            help_ = "" if fixable else "Quantize the float model anew."
            yield Finding(node, text + (f"; {why}" if why else ""), help_, severity=severity, fixable=fixable)


def _integer_operators(subject: Subject) -> Iterator[tuple[tuple[str, str], list[ir.Node]]]:
    for domain, op_type in sorted({(node.domain, node.op_type) for node in subject.nodes}):
        key = f"{domain}::{op_type}" if domain else op_type
        if INTEGER_OPS.get(key) in ("integer", "dynamic") or op_type.startswith("QLinear"):
            yield (domain, op_type), subject.of(op_type, domain=domain)
