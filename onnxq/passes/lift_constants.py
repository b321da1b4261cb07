"""lift-constants: Constant nodes become initializers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from onnxq.edit import all_graphs, become_initializer, onnx_op, plain_initializers, tensor_of_constant
from onnxq.passbase import Context, Pass


@dataclass(frozen=True, kw_only=True)
class LiftConstants(Pass):
    """Constant(value | value_int(s) | value_float(s) | value_string(s)) -> initializer of the same name.

    Works in every scope: a Constant in an If/Loop/Scan body becomes an initializer of that body. Left alone, with a
    note: sparse constants, constants that are graph outputs themselves, and those in the body of a local function
    (functions cannot hold initializers; run `inline-functions` first). No data is read or copied.
    """

    name: ClassVar[str] = "lift-constants"

    def run(self, model: ir.Model, ctx: Context) -> bool:
        """Lift all constants; one note says how many and how large."""
        functions = {f.graph for f in model.functions.values()}
        count = size = 0
        for graph in all_graphs(model):
            done = []
            for node in graph:
                if not onnx_op(node, "Constant"):
                    continue
                tensor = tensor_of_constant(node)
                if tensor is None:
                    ctx.note(
                        "constant-kept", node, f"holds {', '.join(node.attributes)}, which no initializer can hold"
                    )
                elif node.outputs[0].is_graph_output():
                    ctx.note("constant-kept", node, "is a graph output itself")
                elif graph in functions:
                    ctx.note("constant-kept", node, "a function body cannot hold initializers; inline functions first")
                else:
                    value = become_initializer(node.outputs[0], tensor)
                    value.doc_string = value.doc_string or node.doc_string
                    for key, text in node.metadata_props.items():
                        value.metadata_props.setdefault(key, text)
                    done.append(node)
                    size += tensor.nbytes
            graph.remove(done)
            count += len(done)
        if count:
            plain_initializers(model)
            ctx.note("constants-lifted", None, f"{count} Constant nodes became initializers", count=count, bytes=size)
        return bool(count)
