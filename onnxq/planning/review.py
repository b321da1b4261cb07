"""What a finished plan is checked for, and what its maker should be told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import onnx_ir as ir

from onnxq.errors import OptionError, UnsupportedError
from onnxq.facts import Edge, Plan
from onnxq.numerics.spec import TensorSpec
from onnxq.opsets.pairs import is_contrib
from onnxq.planning.checks import check_combination
from onnxq.targets import Target
from onnxq.wording import plural


def check_opset(plan: Plan, opset: int, target: Target) -> None:
    """Refuse a model whose opset the target does not run, or that has no pairs of a planned type.

    Raises:
        UnsupportedError: Names the opsets.
    """
    specs = [*plan.activations.values(), *plan.bridges.values(), *plan.weights.values()]
    if not specs:
        return
    if opset > target.opset.max:
        raise UnsupportedError(
            f"the model has opset {opset}; {target.name} runs Q/DQ pairs up to opset {target.opset.max}"
        )
    if plan.wishes.contrib:
        specs = [spec for spec in specs if not is_contrib(spec.qtype, spec.granularity)]
    newest = max(specs, key=lambda spec: spec.qtype.since, default=None)
    if newest is not None and opset < newest.qtype.since:
        raise UnsupportedError(
            f"the model has opset {opset}; pairs of {newest.qtype} exist from opset {newest.qtype.since} on: "
            "run upgrade-opset (parameter opset of the recipe prepare) first"
        )


def check_layers(plan: Plan, target: Target) -> None:
    """Refuse a layer whose weights are of a type that the target does not pair with that of its activations.

    Raises:
        OptionError: Names the node and both types.
    """
    for node, x, w in layer_types(plan):
        try:
            check_combination(target, w.qtype, None if x is None else x.qtype)
        except OptionError as error:
            raise OptionError(f"{node.name} ({node.op_type}): {error}") from None


def layer_types(plan: Plan) -> Iterator[tuple[ir.Node, TensorSpec | None, TensorSpec]]:
    """Each node with planned weights, the spec at which it reads its activations (None: floats) and its weights' one.

    Layers that quantize their input at run time are left out.
    """
    seen: set[ir.Node] = set()
    for edge, weight in plan.weights.items():
        node = edge.node
        if node in seen or plan.decisions[node].status == "dynamic":
            continue
        seen.add(node)
        yield node, input_spec(node, plan), weight


def input_spec(node: ir.Node, plan: Plan) -> TensorSpec | None:
    """The spec at which a node reads its first planned activation; None where it reads floats only."""
    if plan.decisions[node].status not in ("integer", "moves"):
        return None
    edges = (Edge(node, i) for i, value in enumerate(node.inputs) if value is not None)
    return next((spec for edge in edges if (spec := plan.read_by(edge)) is not None), None)


def runs_in_float(plan: Plan, target: Target) -> str:
    """Why layers of a plan run in float although they are quantized, in words; empty where none does."""
    kernels = target.integer_kernels
    if kernels is None:
        return ""
    slow: Counter[str] = Counter()
    for _, x, w in layer_types(plan):
        if x is not None and not (x.qtype in kernels.activations and w.qtype in kernels.weights):
            slow[f"{x.qtype} activations and {w.qtype} weights"] += 1
    if not slow:
        return ""
    kinds = ", ".join(f"{plural(count, 'layer')} of {kind}" for kind, count in slow.items())
    return f"{kinds}: {kernels.otherwise}"
