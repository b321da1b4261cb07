"""A plan as a file a person can read, edit and give back: one entry a node, one a value.

What is read back is the status of each node. All else follows from the graph, so an edited plan can never be
inconsistent: ``float`` there means float here, and any other status is met where the graph allows it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnxq.errors import OptionError, near
from onnxq.facts import Decision, Plan
from onnxq.layers import Layer, read_weights
from onnxq.look import all_nodes, onnx_op

FORMAT = "onnxq-plan-1"
STATUSES = ("integer", "dynamic", "moves", "weight-only", "float")


def plan_json(plan: Plan) -> dict[str, Any]:
    """The plan as JSON-able data, in node order; ``layer`` marks the nodes that carry constant weights."""
    return {
        "format": FORMAT,
        "nodes": {
            node.name or "": {
                "op": node.op_type,
                **({"layer": True} if _is_layer(node, d) else {}),
                "status": d.status,
                "code": d.code,
                "reason": d.reason,
            }
            for node, d in plan.decisions.items()
        },
        "activations": {value.name or "": spec.to_json() for value, spec in plan.activations.items()},
        "weights": {
            f"{e.node.name}:{e.index}": {"value": e.value.name, **spec.to_json()} for e, spec in plan.weights.items()
        },
        "shared": [[v.name for v in group] for group in plan.shared],
    }


def _is_layer(node: ir.Node, decision: Decision) -> bool:
    """Whether a node carries constant float weights; a Gather does where its table is quantized as weights are."""
    if onnx_op(node, "Gather"):
        return decision.status == "weight-only"
    layer = read_weights(node)
    return isinstance(layer, Layer) and layer.weight is not None


def read_plan(file: str | Path, model: ir.Model) -> dict[ir.Node, Decision]:
    """What a plan file says of each node it names, in the order of the file.

    Raises:
        OptionError: Not a plan file, an unknown status, or a node this model does not have.
    """
    try:
        data = json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise OptionError(f"cannot read the plan {file}: {why}") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT or not isinstance(data.get("nodes"), dict):
        raise OptionError(
            f"{file} is not a plan: expected 'format': '{FORMAT}' and 'nodes' (write one with onnxq plan)"
        )
    names = {node.name or "": node for node in all_nodes(model)}
    out: dict[ir.Node, Decision] = {}
    for name, entry in data["nodes"].items():
        if name not in names:
            raise OptionError(f"the plan {file} names node '{name}', which this model does not have{near(name, names)}")
        status = entry.get("status") if isinstance(entry, dict) else None
        if status not in STATUSES:
            hint = near(str(status), STATUSES)
            raise OptionError(f"the plan {file}: node '{name}' has the unknown status {status!r}{hint}")
        code, reason = str(entry.get("code", "by-plan")), str(entry.get("reason", "by the plan file"))
        out[names[name]] = Decision(status, code, reason)
    return out
