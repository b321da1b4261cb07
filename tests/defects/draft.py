"""A model on the way: nodes and tensors that a defect changes, then put into a graph, a body, or a function."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from onnxq.diagnostics import Place

Array = np.ndarray[Any, Any]
Body = GraphProto | FunctionProto
Edit = Callable[[ModelProto, Body], None]

PATHS = {
    "main": "",
    "then": "branch/then_branch",
    "loop": "loop/body",
    "nested": "loop/body/branch/then_branch",
    "function": "local::layer",
}
"""Where a layer may stand, with the path that findings name."""

IR_VERSIONS = {13: 8, 19: 9, 21: 10, 23: 11, 25: 13, 28: 14}


def node(op_type: str, inputs: list[str], output: str, name: str, **attributes: Any) -> NodeProto:
    """A node of ai.onnx; or of another domain, as ``domain="..."``."""
    return helper.make_node(op_type, inputs, [output], name, **attributes)


@dataclass
class Draft:
    """Parts of a model.

    Attributes:
        opset: Of ai.onnx.
        where: A key of `PATHS`: where the nodes will stand.
        real: Element type of inputs and outputs.
        ir_version: None for the one that goes with the opset.
        nodes: In order.
        tensors: Constants by name: initializers, or Constant nodes in a function.
        inputs: Shapes of the model's inputs, which are of type ``real``.
        outputs: Shapes of its outputs, likewise.
        types: Element types of inputs and outputs that are not.
        infos: Declarations of values.
        imports: Versions of other domains.
        edits: What is done to the finished model and the body that holds the nodes.
        spoil: What is done to its bytes.
        files: Files to put beside it; where there are any, also an empty one, it is checked as a file.
    """

    opset: int = 21
    where: str = "main"
    real: int = TensorProto.FLOAT
    ir_version: int | None = None
    nodes: list[NodeProto] = field(default_factory=list)
    tensors: dict[str, TensorProto] = field(default_factory=dict)
    inputs: dict[str, list[int]] = field(default_factory=dict)
    outputs: dict[str, list[int]] = field(default_factory=dict)
    types: dict[str, int] = field(default_factory=dict)
    infos: list[ValueInfoProto] = field(default_factory=list)
    imports: dict[str, int] = field(default_factory=dict)
    edits: list[Edit] = field(default_factory=list)
    spoil: Callable[[bytes], bytes] | None = None
    files: dict[str, bytes] | None = None

    def copy(self) -> Draft:
        """One of its own."""
        return copy.deepcopy(self)

    def put(self, name: str, array: Array | np.generic) -> None:
        """Set a constant."""
        self.tensors[name] = numpy_helper.from_array(np.asarray(array), name)

    def array(self, name: str) -> Array:
        """A copy of a constant, also where it was set in typed fields."""
        return np.array(numpy_helper.to_array(self.tensors[name]))

    def node(self, name: str) -> NodeProto:
        """The node of a name."""
        (found,) = [n for n in self.nodes if n.name == name]
        return found

    def set(self, name: str, attribute: str, value: object) -> None:
        """Write an attribute; None takes it out."""
        held = self.node(name)
        kept = [a for a in held.attribute if a.name != attribute]
        del held.attribute[:]
        held.attribute.extend(kept)
        if value is not None:
            held.attribute.append(helper.make_attribute(attribute, value))

    def insert(self, before: str, *nodes: NodeProto) -> None:
        """Put nodes in front of one."""
        at = self.nodes.index(self.node(before))
        self.nodes[at:at] = nodes

    def drop(self, *names: str) -> None:
        """Take nodes out."""
        self.nodes = [n for n in self.nodes if n.name not in names]

    @property
    def path(self) -> str:
        """The path that findings name."""
        return PATHS[self.where]

    def at(self, name: str = "", value: str = "") -> Place:
        """The place of a node, or of a value."""
        return Place(name, "", value, self.path)

    def at_tensor(self, name: str) -> Place:
        """The place of a constant, which is a node in a function."""
        return self.at(f"constant_{name}") if self.where == "function" else self.at(value=name)

    def model(self) -> ModelProto:
        """The model as a message."""
        nodes, tensors = [_copied(n) for n in self.nodes], [_copied(t) for t in self.tensors.values()]
        version = self.ir_version or IR_VERSIONS[self.opset]
        imports = [helper.make_opsetid("", self.opset), *(helper.make_opsetid(*i) for i in self.imports.items())]
        inputs, outputs = ([self._info(*i) for i in ports.items()] for ports in (self.inputs, self.outputs))
        infos = [_copied(v) for v in self.infos]
        functions: list[FunctionProto] = []
        if self.where == "main":
            graph = helper.make_graph(nodes, "g", inputs, outputs, tensors, value_info=infos)
        elif self.where == "function":
            constants = [helper.make_node("Constant", [], [t.name], f"constant_{t.name}", value=t) for t in tensors]
            functions = [helper.make_function("local", "layer", [*self.inputs], [*self.outputs], [], imports)]
            functions[0].node.extend([*constants, *nodes])
            functions[0].value_info.extend(infos)
            call = helper.make_node("layer", [*self.inputs], [*self.outputs], "call", domain="local")
            graph = helper.make_graph([call], "g", inputs, outputs)
            imports = [*imports, helper.make_opsetid("local", 1)]
        else:
            graph = self._around(nodes, tensors, infos, inputs, outputs)
        model = helper.make_model(graph, opset_imports=imports, ir_version=version, functions=functions)
        for edit in self.edits:
            edit(model, _body(model, self.where))
        return model

    def _info(self, name: str, shape: list[int]) -> ValueInfoProto:
        return helper.make_tensor_value_info(name, self.types.get(name, self.real), shape)

    def _around(
        self,
        nodes: list[NodeProto],
        tensors: list[TensorProto],
        infos: list[ValueInfoProto],
        inputs: list[ValueInfoProto],
        outputs: list[ValueInfoProto],
    ) -> GraphProto:
        """The main graph with the layer in bodies inside it, which give its outputs out under other names."""
        inside = {name: f"{name}_then" for name in self.outputs}
        for one in nodes:
            one.output[:] = [inside.get(name, name) for name in one.output]
            one.input[:] = [inside.get(name, name) for name in one.input]
        given = [self._info(f"{name}_then", shape) for name, shape in self.outputs.items()]
        body = helper.make_graph(nodes, "layer", [], given, tensors, value_info=infos)
        once = {name: f"{name}_once" for name in self.outputs} if self.where == "nested" else {}
        if self.where in ("then", "nested"):
            body = self._branch(body, once)
        if self.where in ("loop", "nested"):
            return self._loop(body, inputs, outputs, once or inside)
        body.input.extend(inputs)
        del body.output[:]
        body.output.extend(outputs)
        return body

    def _branch(self, then: GraphProto, names: dict[str, str]) -> GraphProto:
        zeros, other = [], []
        for name, shape in self.outputs.items():
            kind = helper.tensor_dtype_to_np_dtype(self.types.get(name, self.real))
            value = numpy_helper.from_array(np.zeros(shape, kind))
            zeros.append(helper.make_node("Constant", [], [f"{name}_else"], f"else_{name}", value=value))
            other.append(self._info(f"{name}_else", shape))
        choice = numpy_helper.from_array(np.array(True), "choice")
        outs = [names.get(name, name) for name in self.outputs]
        branches = {"then_branch": then, "else_branch": helper.make_graph(zeros, "other", [], other)}
        held = helper.make_node("If", ["choice"], outs, "branch", **branches)
        given = [self._info(names.get(name, name), shape) for name, shape in self.outputs.items()]
        return helper.make_graph([held], "g", [], given, [choice])

    def _loop(
        self, body: GraphProto, inputs: list[ValueInfoProto], outputs: list[ValueInfoProto], names: dict[str, str]
    ) -> GraphProto:
        """One round of a Loop, whose outputs are stacked."""
        body.input.append(helper.make_tensor_value_info("round", TensorProto.INT64, []))
        body.input.append(helper.make_tensor_value_info("go", TensorProto.BOOL, []))
        body.node.append(helper.make_node("Identity", ["go"], ["more"], "more"))
        del body.output[:]
        body.output.append(helper.make_tensor_value_info("more", TensorProto.BOOL, []))
        body.output.extend(self._info(names[name], shape) for name, shape in self.outputs.items())
        stacked = [self._info(name, [1, *shape]) for name, shape in self.outputs.items()]
        held = helper.make_node("Loop", ["rounds", ""], [o.name for o in outputs], "loop", body=body)
        rounds = numpy_helper.from_array(np.array(1), "rounds")
        return helper.make_graph([held], "g", inputs, stacked, [rounds])


def _body(model: ModelProto, where: str) -> Body:
    if where == "function":
        function: FunctionProto = model.functions[0]
        return function
    graph: GraphProto = model.graph
    for name in [part for part in PATHS[where].split("/") if part in ("branch", "loop")]:
        (held,) = [n for n in graph.node if n.name == name]
        graph = next(a.g for a in held.attribute if a.name in ("then_branch", "body"))
    return graph


def _copied(message: Any) -> Any:
    fresh = type(message)()
    fresh.CopyFrom(message)
    return fresh
