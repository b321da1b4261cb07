"""unpack-int4: what keeps its type, and which bytes are read; `test_pack_int4` has the round trips."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper, parser

from onnxq import border
from onnxq.errors import InputError, OptionError
from onnxq.passes.pack_int4 import PackInt4
from onnxq.passes.unpack_int4 import UnpackInt4

Run = Callable[..., Any]
RAW = b"\x21\x43\xf5"  # 1, 2, 3, 4, 5; the last half is no value


def build(body: str = "y = DequantizeLinear(w, t)", **data: Any) -> onnx.ModelProto:
    """``w`` is int4 [5] with these data."""
    text = f'<ir_version: 10, opset_import: ["" : 21]> g () => (float[5] y) {{ {body} }}'
    proto = parser.parse_model(text)
    record = TensorProto(name="w", data_type=TensorProto.INT4, dims=[5], **data)
    proto.graph.initializer.extend([record, numpy_helper.from_array(np.float32(0.5), "t")])
    return proto


@pytest.mark.parametrize("data", [{"raw_data": RAW}, {"int32_data": RAW}])
def test_the_last_half_is_not_read(data: dict[str, Any], run_passes: Run, run_model: Run) -> None:
    before = build(**data)
    out = run_passes(before, UnpackInt4()).proto
    assert numpy_helper.to_array(out.graph.initializer[0]).tolist() == [1, 2, 3, 4, 5]
    for proto in (before, out):
        assert run_model(proto, {}, true=True)[0].tolist() == [0.5, 1, 1.5, 2, 2.5]


def test_other_readers_keep_the_type(run_passes: Run) -> None:
    proto = build("y = DequantizeLinear(w, t) [c] o = Cast<to = 1>(w)", raw_data=RAW)
    out = run_passes(proto, UnpackInt4())
    assert not out.changed and out.codes() == ["not-unpacked", "unpacked"]
    assert out.ctx.report.notes[0].message == "it stays INT4: Cast 'c' reads it, too"


@pytest.mark.parametrize("size", [0, 2, 4, 5])
@pytest.mark.parametrize("field", ["raw_data", "int32_data"])
def test_data_of_another_size_are_refused(size: int, field: str, tmp_path: Any) -> None:
    """onnx's own checker lets long data pass, and its decoder reads halves of other values."""
    proto = build(**{field: b"1" * size})
    onnx.save(proto, tmp_path / "m.onnx")
    for source in (tmp_path / "m.onnx", proto):
        tensor = border.open_model(source).model.graph.initializers["w"].const_value
        assert tensor is not None
        with pytest.raises(InputError, match=rf"'w': the data do not fit INT4\[5\]: {size} bytes instead of 3"):
            tensor.numpy()


def test_names_of_constants(run_passes: Run) -> None:
    """Initializers and outputs of Constants, by both passes; a second run meets them in their new type."""
    pairs = "e = DequantizeLinear(c, t) d = DequantizeLinear(w, t) y = Add(d, e)"
    before = build("c = Constant<value = int8[5] {1, -8, 7, 0, 2}>() " + pairs, raw_data=RAW)
    before.graph.initializer.append(numpy_helper.from_array(np.zeros(5, np.int8), "v"))

    def constant(proto: onnx.ModelProto) -> str:
        return str(TensorProto.DataType.Name(proto.graph.node[0].attribute[0].t.data_type))

    packed = run_passes(before, PackInt4(include=("c",))).proto
    assert constant(packed) == "INT4" and not run_passes(packed, PackInt4(include=("c",))).changed
    back = run_passes(packed, UnpackInt4(include=("c",))).proto
    assert constant(back) == "INT8" and back.graph.initializer[0].data_type == TensorProto.INT4
    for name, step in (("t", PackInt4), ("v", PackInt4), ("t", UnpackInt4)):
        with pytest.raises(OptionError, match=f"'{name}' holds no integers"):
            run_passes(before, step(include=(name,)))
