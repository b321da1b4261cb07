"""Selectors: what each form means, on named, unnamed, nested and exported nodes."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxq.errors import OptionError
from onnxq.selectors import SCOPES_KEY, Selector, match, parse, resolve

NAMES = ["/layer1/conv/Conv", "/layer1/0/conv/Conv", "/layer10/conv/Conv", "/head/MatMul", "conv1", "conv10", "w*[0]"]


def node(name: str | None, op: str = "Relu", domain: str = "", **metadata: str) -> ir.Node:
    made = ir.node(op, [], domain=domain, name=name, metadata_props=metadata)
    made.name = name
    return made


def model(*nodes: ir.Node) -> ir.Model:
    return ir.Model(ir.Graph([], [], nodes=nodes, opset_imports={"": 17}, name="g"), ir_version=10)


def names(text: str, known: list[str] = NAMES) -> list[str]:
    return [name for name in known if match(parse(text), node(name))]


@pytest.mark.parametrize(
    ("text", "hits"),
    [
        ("conv1", ["conv1"]),
        ("name:conv1", ["conv1"]),
        ("/layer*/conv/Conv", ["/layer1/conv/Conv", "/layer10/conv/Conv"]),
        ("/layer1/**", ["/layer1/conv/Conv", "/layer1/0/conv/Conv"]),
        ("path:/layer1", ["/layer1/conv/Conv", "/layer1/0/conv/Conv"]),
        ("path:layer1/", ["/layer1/conv/Conv", "/layer1/0/conv/Conv"]),
        ("path:/layer1/conv/Conv", ["/layer1/conv/Conv"]),
        ("/layer1/**/Conv", ["/layer1/conv/Conv", "/layer1/0/conv/Conv"]),
        ("/**", NAMES[:4]),
        ("*conv*", [*NAMES[:3], "conv1", "conv10"]),
        ("conv?", ["conv1"]),
        ("*", NAMES),
        ("re:conv", []),
        ("re:conv\\d+", ["conv1", "conv10"]),
        ("re:/layer1?/.*", ["/layer1/conv/Conv", "/layer1/0/conv/Conv"]),
        ("w*[0]", ["w*[0]"]),
        ("w?[0]", ["w*[0]"]),
        ("Conv1", []),
    ],
)
def test_what_each_form_means_by_name(text: str, hits: list[str]) -> None:
    assert names(text) == hits


@pytest.mark.parametrize(
    ("text", "hits"),
    [
        ("op:Conv", {"Conv", "ai.vendor:Conv"}),
        ("op::Conv", {"Conv"}),
        ("op:ai.vendor:Conv", {"ai.vendor:Conv"}),
        ("op:ai.vendor::Conv", {"ai.vendor:Conv"}),
        ("op:ai.*:*", {"ai.vendor:Conv", "ai.vendor:Gelu"}),
        ("op:*Pool", {"MaxPool"}),
        ("op:conv", set()),
    ],
)
def test_operator_types(text: str, hits: set[str]) -> None:
    ops = ["Conv", "ConvTranspose", "MaxPool", "ai.vendor:Conv", "ai.vendor:Gelu"]
    found = {op for op in ops if match(parse(text), node("", op.rpartition(":")[2], op.rpartition(":")[0]))}
    assert found == hits


def test_module_paths_recorded_by_the_pytorch_exporter() -> None:
    inner = node("node_linear_8", **{SCOPES_KEY: "['', 'blocks.2', 'blocks.2.mlp', 'blocks.2.mlp.fc1', 'linear_8']"})
    for text in ("path:blocks.2", "path:/blocks/2/mlp", "path:blocks.2.mlp.fc1", "/blocks/2/**"):
        assert match(parse(text), inner), text
    for text in ("path:blocks", "path:blocks.2.mlp.fc", "path:linear_8", "path:''"):
        assert not match(parse(text), inner), text
    assert not match(parse("path:a"), node("x", **{SCOPES_KEY: "not a list"}))


@pytest.mark.parametrize("text", ["*", "**", "re:.*", "path:x", "x"])
@pytest.mark.parametrize("name", [None, ""])
def test_unnamed_nodes_are_matched_by_operator_alone(text: str, name: str | None) -> None:
    assert not match(parse(text), node(name))
    assert match(parse("op:Relu"), node(name))


@pytest.mark.parametrize("text", ["", "re:", "op:", "path:", "path:/", "name:"])
def test_empty_selectors_are_errors(text: str) -> None:
    with pytest.raises(OptionError, match="empty selector"):
        parse(text)


def test_a_bad_regular_expression_is_an_error() -> None:
    with pytest.raises(OptionError, match=r"selector 're:\(' is no regular expression"):
        parse("re:(")


def test_resolve_gives_nodes_in_graph_order_with_the_last_selector_that_matches() -> None:
    a, b, c = node("a", "Conv"), node("b", "Conv"), node("c")
    whole = model(a, b, c)
    found = resolve(["op:Conv", "b", "a*"], whole)
    assert [(n.name, str(s)) for n, s in found.items()] == [("a", "a*"), ("b", "b")]
    assert resolve([], whole) == {}
    assert list(resolve([parse("c"), "c"], whole)) == [c]


def test_selectors_reach_into_bodies_and_functions() -> None:
    body = ir.Graph([], [], nodes=[node("inner", "Conv")], name="then")
    branch = ir.node("If", [None], attributes={"then_branch": body}, name="if")
    whole = model(branch)
    function = ir.Function("f", "F", graph=ir.Graph([], [], nodes=[node("deep", "Conv")]), attributes=[])
    whole.functions[function.identifier()] = function
    assert [n.name for n in resolve(["op:Conv"], whole)] == ["inner", "deep"]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("conv2", r"selector 'conv2' matches no node; did you mean .*conv1"),
        ("op:Cnov", r"did you mean Conv\?"),
        ("path:/layr1", "did you mean .*/layer1"),
        ("/layr1/*", "did you mean"),
        ("/layr1/**", r"selector '/layr1/\*\*' matches no node; did you mean /layer1"),
        ("re:none", "matches no node"),
        ("op:FusedConv", "did you mean .*com.microsoft:FusedConv"),
    ],
)
def test_a_selector_without_a_match_is_an_error_with_near_names(text: str, hint: str) -> None:
    graph = model(node("/layer1/a", "Conv"), node("conv1"), node("", "Add"), node("x", "FusedConv", "com.microsoft"))
    if text == "op:FusedConv":
        text = "op:microsoft:FusedConv"
    with pytest.raises(OptionError, match=hint):
        resolve(["*", text], graph)


def test_many_exact_names_cost_one_look_each() -> None:
    import time

    nodes = [node(f"n{i}") for i in range(5000)]
    whole = model(*nodes)
    start = time.perf_counter()
    assert len(resolve([f"n{i}" for i in range(5000)], whole)) == 5000
    assert time.perf_counter() - start < 2, "5000 names on 5000 nodes compared pair by pair take far longer"


texts = st.text(st.sampled_from("ab/*?:.[]$re name:op:path:"), min_size=1, max_size=12)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(texts)
def test_the_text_of_a_selector_reads_back_equal(text: str) -> None:
    try:
        selector = parse(text)
    except OptionError:
        return
    assert Selector.parse(str(selector)) == selector


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.text(st.sampled_from("ab/*?:.[]-"), min_size=1, max_size=10))
def test_every_name_can_be_selected_alone(name: str) -> None:
    selector = parse(f"name:{name}")
    assert match(selector, node(name))
    assert not match(selector, node(name + "x"))
