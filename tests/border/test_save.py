"""Writing: beside the target and renamed, in place, the same bytes again, and nothing at all after a failure."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from onnxq import border
from onnxq.border import files
from onnxq.errors import InputError, OnnxqError, OptionError


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def halve(model: ir.Model) -> None:
    """Lazy tensors that read the old ones when they are written, transposed so that they are not contiguous."""
    for value in model.graph.initializers.values():
        old = value.const_value
        assert old is not None

        def half(old: ir.TensorProtocol = old) -> ir.TensorProtocol:
            return ir.tensor((old.numpy() / np.float32(2)).T)

        value.const_value = ir.LazyTensor(half, old.dtype, old.shape, name=value.name)


@pytest.fixture
def inline(build: Any, tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    path.write_bytes(build.mlp(3).SerializeToString())
    return path


@pytest.fixture
def external(build: Any, tmp_path: Path) -> Path:
    onnx.save(build.mlp(3), tmp_path / "m.onnx", save_as_external_data=True, location="m.onnx.data")
    return tmp_path / "m.onnx"


def test_inline_stays_inline_byte_for_byte(inline: Path, tmp_path: Path) -> None:
    border.open_model(inline).save(tmp_path / "new" / "deep" / "out.onnx")
    assert (tmp_path / "new" / "deep" / "out.onnx").read_bytes() == inline.read_bytes()
    assert names(tmp_path / "new" / "deep") == ["out.onnx"]


def test_external_stays_external(external: Path, tmp_path: Path, build: Any) -> None:
    out = tmp_path / "new" / "out.onnx"
    border.open_model(external).save(out)
    assert names(out.parent) == ["out.onnx", "out.onnx.data"]
    assert onnx.load(out) == external_free(build.mlp(3), onnx.load(out))
    record = onnx.load(out, load_external_data=False).graph.initializer[1]
    assert {e.key: e.value for e in record.external_data} == {
        "location": "out.onnx.data",
        "offset": "16384",
        "length": "16384",
    }
    onnx.checker.check_model(out, full_check=True)


def external_free(model: onnx.ModelProto, like: onnx.ModelProto) -> onnx.ModelProto:
    """onnx leaves traces in a tensor that it loaded from outside; copy them."""
    for tensor, other in zip(model.graph.initializer, like.graph.initializer, strict=True):
        tensor.data_location = other.data_location
        tensor.external_data.extend(other.external_data)
    return model


@pytest.mark.parametrize("wish", [True, False])
def test_the_caller_may_choose(wish: bool, inline: Path, tmp_path: Path, build: Any) -> None:
    out = tmp_path / "out.onnx"
    border.open_model(inline).save(out, external_data=wish)
    assert (tmp_path / "out.onnx.data").exists() == wish
    assert border.open_model(out).to_proto() == build.mlp(3)
    border.save(border.open_model(out).model, out, external_data=not wish)
    assert border.open_model(out).to_proto() == build.mlp(3)


def test_small_tensors_stay_in_the_model_and_large_ones_start_at_pages(tmp_path: Path) -> None:
    arrays = {"a": np.arange(3, dtype=np.int64), "b": np.ones(1001, np.uint8), "c": np.ones(300, np.float32)}
    arrays["d"] = np.full(1 << 18, 7, np.float32)
    initializers = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    model = helper.make_model(
        helper.make_graph([], "g", [], [], [*initializers, numpy_helper.from_array(arrays["c"], "e")])
    )
    border.open_model(model).save(tmp_path / "m.onnx", external_data=True)
    records = {t.name: t for t in onnx.load(tmp_path / "m.onnx", load_external_data=False).graph.initializer}
    assert [n for n, t in records.items() if t.external_data] == ["c", "d", "e"]
    offsets = [int(next(e.value for e in records[n].external_data if e.key == "offset")) for n in "cde"]
    assert offsets == [0, 4096, 4096 + (1 << 20)]
    for name, array in arrays.items():
        np.testing.assert_array_equal(numpy_helper.to_array(records[name], str(tmp_path)), array)


def test_typed_data_go_out_as_raw_data(tmp_path: Path) -> None:
    tensor = helper.make_tensor("w", onnx.TensorProto.FLOAT16, [2000], np.linspace(0, 1, 2000).tolist())
    model = helper.make_model(helper.make_graph([], "g", [], [], [tensor]))
    border.open_model(model.SerializeToString()).save(tmp_path / "m.onnx", external_data=True)
    record = onnx.load(tmp_path / "m.onnx", load_external_data=False).graph.initializer[0]
    assert not record.int32_data
    np.testing.assert_array_equal(numpy_helper.to_array(record, str(tmp_path)), numpy_helper.to_array(tensor))


@pytest.mark.parametrize("wish", [True, False])
def test_many_strings_stay_in_the_model(wish: bool, tmp_path: Path) -> None:
    texts = helper.make_tensor("s", onnx.TensorProto.STRING, [500], ["text"] * 500)
    model = helper.make_model(helper.make_graph([], "g", [], [], [texts, numpy_helper.from_array(np.ones(500), "w")]))
    border.open_model(model).save(tmp_path / "m.onnx", external_data=wish)
    assert onnx.load(tmp_path / "m.onnx").graph.initializer[0] == texts


@pytest.mark.parametrize("kind", ["inline", "external"])
def test_in_place_and_again(kind: str, request: pytest.FixtureRequest, build: Any) -> None:
    """The new tensors read, while they are written, the very file that is replaced."""
    path: Path = request.getfixturevalue(kind)
    for factor in (2, 4):
        crossing = border.open_model(path)
        halve(crossing.model)
        crossing.save(path)
        first = contents(path.parent)
        crossing.save(path)  # the mapping still shows the old file
        assert contents(path.parent) == first
        for now, then in zip(
            border.open_model(path).to_proto().graph.initializer, build.mlp(3).graph.initializer, strict=True
        ):
            expected = numpy_helper.to_array(then) / np.float32(factor)
            np.testing.assert_array_equal(numpy_helper.to_array(now), expected.T if factor == 2 else expected)


def test_a_second_run_does_not_append(external: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    border.open_model(external).save(out / "m.onnx")
    first = contents(out)
    border.open_model(external).save(out / "m.onnx")
    assert contents(out) == first
    assert len(first["m.onnx.data"]) == 3 * 16384


def test_an_existing_target_keeps_its_mode_and_a_new_one_obeys_the_umask(inline: Path, tmp_path: Path) -> None:
    inline.chmod(0o640)
    border.open_model(inline).save(inline)
    assert inline.stat().st_mode & 0o777 == 0o640
    border.open_model(inline).save(tmp_path / "new.onnx")
    umask = os.umask(0)
    os.umask(umask)
    assert (tmp_path / "new.onnx").stat().st_mode & 0o777 == 0o666 & ~umask


def fail_on_second(monkeypatch: pytest.MonkeyPatch, crossing: border.Crossing) -> None:
    def broken() -> ir.TensorProtocol:
        raise InputError("broken on purpose")

    value = crossing.model.graph.initializers["w1"]
    value.const_value = ir.LazyTensor(broken, ir.DataType.FLOAT, ir.Shape([64, 64]), name="w1")


def fail_to_write(monkeypatch: pytest.MonkeyPatch, crossing: border.Crossing) -> None:
    def full(slot: Any, sink: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "_write_tensor", full)


def fail_to_rename(which: int) -> Callable[[pytest.MonkeyPatch, border.Crossing], None]:
    def prepare(monkeypatch: pytest.MonkeyPatch, crossing: border.Crossing) -> None:
        real, calls = Path.replace, []

        def replace(self: Path, target: Path) -> Path:
            calls.append(target)
            if len(calls) == which:
                raise PermissionError(1, "Operation not permitted")
            return real(self, target)

        monkeypatch.setattr(Path, "replace", replace)

    return prepare


FAILURES = {
    "in a pass": fail_on_second,
    "disk full": fail_to_write,
    "first rename": fail_to_rename(1),
    "second rename": fail_to_rename(2),
}


@pytest.mark.parametrize(
    ("target", "failure"),
    [
        *((t, f) for t in ("m.onnx", "new/deep/m.onnx") for f in FAILURES.items()),
        ("m.onnx", ("third", fail_to_rename(3))),
    ],
    ids=lambda p: p if isinstance(p, str) else p[0],
)
def test_a_failure_leaves_everything_as_it_was(
    target: str,
    failure: tuple[str, Callable[[pytest.MonkeyPatch, border.Crossing], None]],
    external: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = contents(external.parent)
    crossing = border.open_model(external)
    halve(crossing.model)
    with monkeypatch.context() as patch:
        failure[1](patch, crossing)
        with pytest.raises(OnnxqError):
            crossing.save(external.parent / target)
    assert contents(external.parent) == before


def test_an_interrupt_leaves_everything_as_it_was(external: Path) -> None:
    def interrupt() -> ir.TensorProtocol:
        raise KeyboardInterrupt

    before = contents(external.parent)
    crossing = border.open_model(external)
    crossing.model.graph.initializers["w2"].const_value = ir.LazyTensor(
        interrupt, ir.DataType.FLOAT, ir.Shape([64, 64]), name="w2"
    )
    with pytest.raises(KeyboardInterrupt):
        crossing.save(external)
    assert contents(external.parent) == before


def test_targets_that_are_no_files(inline: Path, tmp_path: Path) -> None:
    crossing = border.open_model(inline)
    for target in (tmp_path, Path(os.devnull)):
        with pytest.raises(OptionError, match="is not a regular file"):
            crossing.save(target)
    with pytest.raises(OptionError, match="is not the name of a file"):
        crossing.save("")
    with pytest.raises(OnnxqError, match=r"cannot write .*m\.onnx/out\.onnx"):
        crossing.save(inline / "out.onnx")
    assert names(tmp_path) == ["m.onnx"]


def test_more_than_protobuf_can_hold(inline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_PROTOBUF_BYTES", 40000)
    crossing = border.open_model(inline)
    with pytest.raises(OptionError, match=r"a single ONNX file ends at 2 GiB, and the model has 4\d{4} bytes"):
        crossing.save(tmp_path / "out.onnx", external_data=False)
    with pytest.raises(OptionError, match="save it with external data"):
        crossing.to_bytes()
    monkeypatch.setattr(files, "INLINE_BYTES", 40000)
    crossing.save(tmp_path / "out.onnx")
    assert names(tmp_path) == ["m.onnx", "out.onnx", "out.onnx.data"]


def test_equal_models_give_equal_bytes(inline: Path) -> None:
    first, second = border.open_model(inline), border.open_model(inline.read_bytes())
    halve(first.model)
    halve(second.model)
    assert first.to_bytes() == second.to_bytes()


def test_the_weights_of_another_model_are_not_replaced(external: Path, tmp_path: Path, build: Any) -> None:
    """A model file that was renamed keeps its data under the old name; an output of that name would replace them."""
    renamed = external.rename(tmp_path / "float.onnx")
    crossing = border.open_model(renamed)
    with pytest.raises(OptionError, match=r"would replace '.*m\.onnx\.data', which holds weights of '.*float\.onnx'"):
        crossing.save(external)
    with pytest.raises(OptionError, match=r"would replace '.*m\.onnx\.data'"):
        crossing.save(tmp_path / "m.onnx.data", external_data=False)
    crossing.save(external, external_data=False)
    crossing.save(renamed)
    assert names(tmp_path) == ["float.onnx", "float.onnx.data", "m.onnx", "m.onnx.data"]
    assert border.open_model(renamed).to_proto() == border.open_model(external).to_proto() == build.mlp(3)


def test_no_data_file_without_large_tensors(build: Any, tmp_path: Path) -> None:
    border.open_model(build.model()).save(tmp_path / "m.onnx", external_data=True)
    assert names(tmp_path) == ["m.onnx"]


def test_external_stays_external_when_a_step_brought_another_graph(external: Path, tmp_path: Path) -> None:
    crossing = border.open_model(external)
    crossing.model.graph = border.open_model(crossing.to_proto()).model.graph
    crossing.save(tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx.data").exists()
