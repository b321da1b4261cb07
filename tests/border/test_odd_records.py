"""Text that is not UTF-8, and tensors of shapes that no array can have: named, not crashed on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from onnx import ModelProto, TensorProto, parser

from onnxq.border.incoming import read_bytes, read_message
from onnxq.border.model import build
from onnxq.border.tensors import RecordTensor
from onnxq.errors import InputError, UnsupportedError

MARK, ODD = "q7Zq7Z", b"\xff\xfe7Z\xc3q"


def model() -> ModelProto:
    return parser.parse_model("""
        <ir_version: 10, opset_import: ["": 21, "local": 1]>
        g (float[2] x) => (float[2] y) <float[2] w = {1.0, 2.0}>
        { a = Add(x, w) b = Pow<k = 1>(a, w) y = local.f(b) }
        <domain: "local", opset_import: ["": 21]> f (v) => (o) { o = Relu(v) }""")


PLACES: dict[str, Callable[[ModelProto], None]] = {
    "producer": lambda m: setattr(m, "producer_name", MARK),
    "model text": lambda m: setattr(m, "doc_string", MARK),
    "graph text": lambda m: setattr(m.graph, "doc_string", MARK),
    "node text": lambda m: setattr(m.graph.node[0], "doc_string", MARK),
    "attribute text": lambda m: setattr(m.graph.node[1].attribute[0], "doc_string", MARK),
    "tensor text": lambda m: setattr(m.graph.initializer[0], "doc_string", MARK),
    "value text": lambda m: setattr(m.graph.input[0], "doc_string", MARK),
    "function text": lambda m: setattr(m.functions[0], "doc_string", MARK),
    "function node text": lambda m: setattr(m.functions[0].node[0], "doc_string", MARK),
    "reference": lambda m: setattr(m.functions[0].node[0].attribute.add(name="a", type=1), "ref_attr_name", MARK),
}


@pytest.mark.parametrize("place", PLACES)
def test_text_that_is_not_utf_8_is_refused(place: str) -> None:
    proto = model()
    PLACES[place](proto)
    data = proto.SerializeToString().replace(MARK.encode(), ODD)
    with pytest.raises(UnsupportedError, match="not UTF-8"):
        build(read_bytes(data, None))
    with pytest.raises(UnsupportedError, match="not UTF-8"):
        build(read_message(ModelProto.FromString(data), None))


def test_a_location_that_is_not_utf_8(tmp_path: Path) -> None:
    proto = model()
    tensor = proto.graph.initializer[0]
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=MARK)
    data = proto.SerializeToString().replace(MARK.encode(), ODD)
    with pytest.raises(InputError, match="not UTF-8"):
        build(read_bytes(data, tmp_path))


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.INT4, TensorProto.BFLOAT16])
@pytest.mark.parametrize("dims", [[1] * 100, [2**32, 2**32, 0], [2**63 - 1, 0], [0, 2**62, 2]])
def test_shapes_that_no_array_can_have(kind: int, dims: list[int]) -> None:
    data = b"" if 0 in dims else bytes(4)
    with pytest.raises(InputError, match="the data do not fit"):
        RecordTensor(TensorProto(name="t", data_type=kind, dims=dims, raw_data=data)).numpy()
