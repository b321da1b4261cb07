"""Which constants of a model stay as they are while the others are trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import onnx_ir as ir

from onnxq.look import is_constant
from onnxq.selectors import match, parse, resolve
from onnxq.states import CARRIERS


def trained(freeze: Sequence[str], model: ir.Model) -> Callable[[ir.Value], bool]:
    """Tells for a weight, bias or scale whether to train it.

    A constant is frozen if a node that is meant reads it, also through pairs, Transpose and the like; what is computed
    (the scale of an activation) if such a node makes it.

    Args:
        freeze: Selectors.
        model: The model, to check that each selector means a node.

    Raises:
        OptionError: A selector that does not parse, or matches no node.
    """
    resolve(freeze, model)
    parsed = [parse(text) for text in freeze]

    def ask(value: ir.Value) -> bool:
        nodes = _readers(value) if is_constant(value) else [n for n in [value.producer()] if n is not None]
        return not any(match(selector, node) for node in nodes for selector in parsed)

    return ask


def _readers(value: ir.Value) -> Iterator[ir.Node]:
    """The nodes that read a value, looked for behind those that hand it on; both kinds, each once."""
    todo, seen = [value], {value}
    while todo:
        for node, _ in todo.pop().uses():
            yield node
            new = [out for out in node.outputs if out not in seen] if node.op_type in CARRIERS else []
            seen.update(new)
            todo += new
