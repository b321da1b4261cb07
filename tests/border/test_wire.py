"""The wire format: payloads out and in again, and data that are none."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxq.border.wire import MARK_BYTES, WireError, lift, mark, marked, splice

TAG = b"only a test!"


def tensor(name: str, count: int) -> TensorProto:
    return numpy_helper.from_array(np.arange(count, dtype=np.float32), name)


def everywhere(count: int) -> ModelProto:
    """Weights as initializer, in a Constant, in a list of tensors, in a subgraph, and in a function."""
    inner = helper.make_graph([helper.make_node("Constant", [], ["t"], value=tensor("", count))], "then", [], [])
    inner.initializer.append(tensor("deep", count))
    nodes = [
        helper.make_node("Constant", [], ["c"], value=tensor("", count)),
        helper.make_node("Foo", [], ["f"], domain="d", ts=[tensor("a", count), tensor("b", 2)]),
        helper.make_node("If", ["q"], ["y"], then_branch=inner, else_branch=inner),
    ]
    model = helper.make_model(helper.make_graph(nodes, "g", [], [], [tensor("w", count), tensor("small", 3)]))
    function = helper.make_function("d", "F", [], ["c"], nodes[:1], [helper.make_opsetid("", 21)])
    function.attribute_proto.append(helper.make_attribute("default", tensor("", count)))
    model.functions.append(function)
    return model


def rebuild(data: bytes, threshold: int) -> tuple[ModelProto, bytes, int]:
    shell, spans = lift(data, TAG, threshold)
    pieces, size = splice(shell, TAG, [end - start for start, end in spans])
    whole = b"".join(data[slice(*spans[p])] if isinstance(p, int) else p for p in pieces)
    assert len(whole) == size
    return ModelProto.FromString(shell), whole, len(spans)


@pytest.mark.parametrize("count", [20, 5000])  # lengths of one and of three varint bytes
def test_every_payload_comes_out_and_goes_in_again(count: int) -> None:
    data = everywhere(count).SerializeToString()
    shell, whole, payloads = rebuild(data, 64)
    assert whole == data
    assert payloads == 9
    assert len(shell.SerializeToString()) < 2000
    assert [marked(t.raw_data, TAG) is not None for t in shell.graph.initializer] == [True, False]
    assert shell.graph.initializer[0].dims == [count]


def test_the_mark_holds_the_payload_index() -> None:
    data = everywhere(100).SerializeToString()
    text, spans = lift(data, TAG, 64)
    shell = ModelProto.FromString(text)
    index = marked(shell.graph.initializer[0].raw_data, TAG)
    assert index is not None
    values = np.frombuffer(data[slice(*spans[index])], np.float32)
    np.testing.assert_array_equal(values, np.arange(100, dtype=np.float32))
    assert len(mark(TAG, 7)) == MARK_BYTES
    assert marked(mark(TAG, 7), TAG) == 7
    assert marked(mark(TAG, 7), b"another tag!") is None


def test_the_tag_may_occur_in_other_places() -> None:
    model = everywhere(100)
    model.doc_string = TAG.decode()
    model.graph.initializer[1].raw_data = mark(TAG, 0)[:12]
    data = model.SerializeToString()
    assert rebuild(data, 64)[1] == data


def test_unknown_fields_and_split_messages_stay() -> None:
    part = ModelProto()
    part.graph.initializer.append(tensor("late", 50))
    data = everywhere(50).SerializeToString() + bytes([0xFA, 0x3F, 0x03]) + b"abc" + part.SerializeToString()
    shell, whole, _ = rebuild(data, 64)
    assert whole == data
    assert [t.name for t in shell.graph.initializer] == ["w", "small", "late"]  # protobuf merges the two graphs


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\x3a\x80\x01abc", "field 7 ends"),
        (b"\x3a\xff", "end in a number"),
        (b"\x08" + b"\xff" * 10 + b"\x01", "more than 10 bytes"),
        (b"\x3b", "wire type 3"),
        (b"\x02\x00", "field number 0"),
        (b"\x0d\x00\x00", "field 1 ends 2 bytes"),
        (b"PK\x03\x04 a zip file", "wire type"),
    ],
)
def test_other_data_are_named(data: bytes, what: str) -> None:
    with pytest.raises(WireError, match=what):
        lift(data, TAG, 64)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.binary(max_size=60), st.integers(0, 400), st.integers(0, 255))
def test_any_change_of_a_byte_is_a_message_or_an_error(junk: bytes, at: int, byte: int) -> None:
    data = bytearray(everywhere(20).SerializeToString() + junk)
    data[at] = byte
    try:
        shell, spans = lift(bytes(data), TAG, 16)
    except WireError:
        return
    pieces, _ = splice(shell, TAG, [end - start for start, end in spans])
    whole = b"".join(bytes(data[slice(*spans[p])]) if isinstance(p, int) else p for p in pieces)
    try:
        original = onnx.ModelProto.FromString(bytes(data))
    except Exception:
        return  # a scan that only follows lengths may accept more than the parser
    assert onnx.ModelProto.FromString(whole) == original
