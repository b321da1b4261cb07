"""`onnxq targets` for people and for machines."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType

from onnxq.options import to_data
from onnxq.report.tables import table
from onnxq.targets import IntegerOp, Target


def target_json(target: Target) -> dict[str, Any]:
    """The target as JSON-able data, with the keys of its YAML file."""
    data = to_data(target)
    assert isinstance(data, dict)
    return {"format": "onnxq-target-1", **data}


def list_parts(targets: list[Target]) -> list[RenderableType]:
    """All targets, one line each."""
    rows = [
        (t.name, f"{t.opset.min}-{t.opset.max}", t.activations.default, t.weights.default, t.description)
        for t in targets
    ]
    return [table("Targets", ("name", "opsets", "activations", "weights", "description"), rows)]


def target_parts(target: Target) -> list[RenderableType]:
    """One target in full: types, then ops by kind with what they ask for."""
    newest = target.newest_ir_version
    rows = [
        ("opset", f"{target.opset.min} to {target.opset.max}, older models become {target.opset.default}"),
        ("IR version", f"at least {target.ir_version}" + (f", at most {newest}" if newest else "")),
        ("float types", ", ".join(target.float_types)),
    ]
    for role, rules in (("activations", target.activations), ("weights", target.weights)):
        symmetry = "symmetric" if rules.symmetric else "asymmetric"
        others = ", ".join(t.name for t in rules.types if t != rules.default)
        rows.append((role, f"{rules.default} {symmetry} {rules.granularity}, also {others}"))
    kernels = target.integer_kernels
    if kernels is not None:
        x, w = (", ".join(t.name for t in types) for types in (kernels.activations, kernels.weights))
        rows.append(("integer kernels", f"{x} activations with {w} weights; {kernels.otherwise}"))
    wide = f" ({target.bias.wide_policy} above 8 bits)" if target.bias.wide_policy else ""
    integers = f"{target.bias.type}, where it does not fit {target.bias.policy}{wide}"
    rows.append(("bias", "float" if target.bias.float_bias == "always" else integers))
    alike: dict[tuple[str, str, str], list[str]] = {}
    for op, rule in target.integer_ops.items():
        alike.setdefault((rule.kind, ", ".join(rule.forms), _conditions(rule)), []).append(op)
    ops = [(kind, ", ".join(names), forms, conditions) for (kind, forms, conditions), names in alike.items()]
    return [
        table(f"{target.name}: {target.description}", ("", ""), rows),
        table("Ops on integers", ("kind", "ops", "forms", "conditions"), ops),
    ]


def _conditions(rule: IntegerOp) -> str:
    out = [f"{k} {' or '.join(map(str, allowed))}" if allowed else f"no {k}" for k, allowed in rule.where.items()]
    if rule.kind == "matmul-like":
        out.append("weights per channel" if rule.per_channel else "weights per tensor")
        out.append("Q behind it" if rule.needs_output_q else "Q behind it optional")
        if rule.per_channel_max_rank:
            out.append(f"per channel up to rank {rule.per_channel_max_rank}")
        if rule.bias_int32:
            out.append("bias as integers")
    return ", ".join(out)
