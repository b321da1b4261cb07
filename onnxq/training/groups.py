"""Which pairs have one scale: those that read the same constant, and those that data movement ties together."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxq.context import Context
from onnxq.states import DEQUANTIZE, is_q
from onnxq.targets import load_target
from onnxq.training.sites import Pair, Train


def scale_groups(pairs: Sequence[Pair], train: Train, ctx: Context) -> list[list[Pair]]:
    """Pairs whose scales are learned, those with one scale together.

    A runtime runs data movement and Concat on integers only if the pairs on both sides are the same, so pairs that are
    so stay so. A scale that other nodes read, too, is not learned.

    Args:
        pairs: Trained pairs of a model.
        train: Asked for each tensor; a group is learned if all its tensors are.
        ctx: Takes notes.
    """
    links = _Links(pairs)
    of_scale: dict[ir.Value, Pair] = {}
    of_dq = {dq: pair for pair in pairs for dq in pair.dqs}
    for pair in pairs:
        for value in pair.scales:
            links.tie(pair, of_scale.setdefault(value, pair))
    moving = {name for name, op in load_target("onnx").integer_ops.items() if op.kind in ("moves", "join")}
    for pair in pairs:
        for dq in _sources(pair.data, moving):
            other = of_dq.get(dq)
            if other is not None and other.encoding.same(pair.encoding):
                links.tie(pair, other)
    return [group for group in links.groups() if _learned(group, train, ctx)]


def _sources(value: ir.Value, moving: set[str]) -> list[ir.Node]:
    """The DequantizeLinear nodes whose numbers data movement brings to a value."""
    found, seen, todo = [], {value}, [value]
    for at in todo:
        node = at.producer()
        if node is None:
            continue
        if is_q(node, DEQUANTIZE):
            found.append(node)
        elif node.domain == "" and (node.op_type in moving or node.op_type == "Identity"):
            new = [v for v in node.inputs if v is not None and v not in seen]
            seen.update(new)
            todo.extend(new)
    return found


def _learned(group: Sequence[Pair], train: Train, ctx: Context) -> bool:
    nodes = {node for pair in group for node in (pair.q, *pair.dqs)}
    for value in dict.fromkeys(v for pair in group for v in pair.scales):
        strangers = [user for user, _ in value.uses() if user not in nodes]
        if strangers or not value.is_initializer() or value.is_graph_output():
            at = strangers[0] if strangers else value
            ctx.note("scale-kept", at, f"the scale '{value.name}' is not learned: other nodes read it, too")
            return False
    return all(train(pair.weight or pair.data) for pair in group)


class _Links:
    """Union-find over pairs."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._up = {pair: pair for pair in pairs}

    def root(self, pair: Pair) -> Pair:
        while self._up[pair] is not pair:
            self._up[pair] = self._up[self._up[pair]]
            pair = self._up[pair]
        return pair

    def tie(self, a: Pair, b: Pair) -> None:
        self._up[self.root(a)] = self.root(b)

    def groups(self) -> list[list[Pair]]:
        found: dict[Pair, list[Pair]] = {}
        for pair in self._up:
            found.setdefault(self.root(pair), []).append(pair)
        return list(found.values())
