"""The Python door: any form of model in, the same kind out, nothing of the caller's touched."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper, parser

import onnxq
from onnxq.api import make_plan, quantize, run
from onnxq.context import Context
from onnxq.errors import DataError, FactError, InputError, OnnxqError, OptionError, RecipeError
from onnxq.passes.drop_identity import DropIdentity
from onnxq.recipe import load_recipe

Array = np.ndarray[Any, Any]

NET = """<ir_version: 8, opset_import: ["" : 17]> g (float[n,4,8,8] x) => (float[n,6] y) {
  [a] a = Conv<pads=[1,1,1,1]>(x, w1, b1) [b] b = Relu(a) [c] c = Conv(b, w2) [d] d = Relu(c)
  [e] e = GlobalAveragePool(d) [f] f = Flatten(e) [h] h = Identity(f) [y] y = Gemm<transB=1>(h, w3, b3) }"""
QUICK = {"search": False, "rounding": "nearest"}
SHAPES = {"w1": (8, 4, 3, 3), "b1": (8,), "w2": (16, 8, 1, 1), "w3": (6, 16), "b3": (6,)}


def net(seed: int = 0, text: str = NET) -> onnx.ModelProto:
    rng = np.random.default_rng(seed)
    proto = parser.parse_model(text)
    for name, shape in SHAPES.items():
        array = (rng.standard_normal(shape) * 0.3).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    proto.metadata_props.add(key="author", value="someone")
    return proto


def samples(seed: int = 0, count: int = 3) -> list[dict[str, Array]]:
    rng = np.random.default_rng(seed)
    return [{"x": rng.standard_normal((2, 4, 8, 8)).astype(np.float32)} for _ in range(count)]


def data(message: onnx.ModelProto) -> bytes:
    return message.SerializeToString(deterministic=True)


def output(model: onnx.ModelProto, feeds: dict[str, Array]) -> Array:
    return np.asarray(ort.InferenceSession(model.SerializeToString()).run(None, feeds)[0])


def props(model: onnx.ModelProto) -> dict[str, str]:
    return {p.key: p.value for p in model.metadata_props}


def test_message_bytes_or_path_give_the_same_model(tmp_path: Path) -> None:
    proto = net()
    onnx.save(proto, tmp_path / "m.onnx")
    before, found = data(proto), []
    for given in (proto, before, str(tmp_path / "m.onnx"), tmp_path / "m.onnx"):
        result = quantize(given, samples())
        assert result.path is None and isinstance(result.model, onnx.ModelProto)
        assert result.model is result.model
        found.append(data(result.model))
    assert (
        data(proto) == before
        and (tmp_path / "m.onnx").read_bytes() == onnx.load(tmp_path / "m.onnx").SerializeToString()
    )
    assert len(set(found)) == 1 and list(tmp_path.iterdir()) == [tmp_path / "m.onnx"]
    model = onnx.load_from_string(found[0])
    onnx.checker.check_model(model, full_check=True)
    exact, got = (output(m, samples(5)[0]) for m in (proto, model))
    assert np.abs(exact - got).max() < 0.05 * np.abs(exact).max()


def test_to_a_file(tmp_path: Path) -> None:
    out = tmp_path / "new" / "q.onnx"
    result = quantize(net(), samples(), output=out, **QUICK)
    assert result.path == out and list(out.parent.iterdir()) == [out]
    assert data(result.model) == data(onnx.load(out)) == data(quantize(net(), samples(), **QUICK).model)


def test_the_file_is_read_when_it_is_asked_for(tmp_path: Path) -> None:
    result = quantize(net(), samples(), output=tmp_path / "q.onnx", **QUICK)
    (tmp_path / "q.onnx").unlink()
    assert result.plan["nodes"]["a"]["status"] == "integer"
    with pytest.raises(InputError, match=r"q\.onnx"):
        result.model  # noqa: B018


def test_what_the_result_tells() -> None:
    proto = net()
    result = quantize(proto, samples())
    assert result.plan["format"] == "onnxq-plan-1" and result.ranges["format"] == "onnxq-ranges-1"
    assert {n: e["status"] for n, e in result.plan["nodes"].items()} == {
        "a": "integer", "b": "integer", "c": "integer", "d": "integer", "e": "integer", "f": "moves", "y": "integer",
    }  # fmt: skip
    stored = sum(numpy_helper.to_array(t).nbytes for t in proto.graph.initializer)
    weights = result.report.tables["weights"]
    assert weights["before"] == stored
    assert weights["after"] == sum(len(t.raw_data) for t in result.model.graph.initializer)
    assert [name for name, _ in result.report.seconds if name in ("calibrate", "insert-qdq")]
    assert result.ranges["samples"] == 3 and "x" in result.ranges["ranges"]


def test_weights_in_constant_nodes_count() -> None:
    proto, constants = net(), net()
    del constants.graph.initializer[:]
    nodes = [onnx.helper.make_node("Constant", [], [t.name], value=t) for t in proto.graph.initializer]
    for node in reversed(nodes):
        constants.graph.node.insert(0, node)
    one, two = (quantize(p, samples(), **QUICK) for p in (proto, constants))
    assert one.report.tables["weights"] == two.report.tables["weights"]
    assert data(one.model) == data(two.model)


def test_metadata_says_who_made_it_and_from_what() -> None:
    made = props(quantize(net(), samples(), **QUICK).model)
    assert made == {"author": "someone", "onnxq.version": onnxq.__version__, "onnxq.recipe": "int8"}
    made = props(quantize(net(), "random:n=2", samples=2, seed=3, **QUICK).model)
    assert made["onnxq.data"] == "random:n=2 numbers (seed 3, 2 samples)"


def test_random_data_depend_on_the_seed_only() -> None:
    one, two, other = (quantize(net(), "random:n=1", samples=2, seed=s, **QUICK).model for s in (1, 1, 2))
    assert data(one) == data(two) != data(other)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"wieghts": "int8"}, RecipeError, r"recipe int8 has no parameter 'wieghts'; did you mean weights\?"),
        ({"weights": "int9"}, OptionError, r"unknown quantized type 'int9'; did you mean int8"),
        ({"method": "minmix"}, RecipeError, r"parameter method: .*expected one of minmax, .*got 'minmix'"),
        ({"target": "ort"}, OptionError, r"unknown target 'ort'; did you mean ort-cpu"),
        ({"recipe": "int88"}, OnnxqError, r"unknown pass or recipe 'int88'; did you mean int8"),
        ({"exclude": ["op:Convv"]}, OptionError, r"Convv.*did you mean"),
        ({"exclude": ["yy"]}, OptionError, r"selector 'yy' matches no node; did you mean y\?"),
        ({"samples": 0}, OptionError, "at least 1"),
        ({"preprocessing": "p.yaml"}, OnnxqError, r"p\.yaml"),
        ({"activations": "int8"}, OptionError, r"int8.*ort-cpu|ort-cpu.*int8"),
        ({"plan": "none.json"}, OptionError, r"cannot read the plan none\.json"),
        ({"ranges": "none.json"}, OptionError, r"cannot read the calibration cache none\.json"),
    ],
)
def test_bad_options_write_nothing(
    options: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        quantize(net(), samples(), output=tmp_path / "q.onnx", **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ([], "a list holds no samples"),
        ([{"z": np.zeros((1, 4, 8, 8), np.float32)}], r"'z' is no input.*input 'x' .* is missing"),
        ([{"x": np.zeros((1, 4, 8, 8))}], r"takes float32\[n, 4, 8, 8\], got float64.*astype"),
        ([{"x": np.zeros((1, 3, 8, 8), np.float32)}], "dimension 1 must be 4"),
        ([{"x": np.full((1, 4, 8, 8), np.nan, np.float32)}], "input 'x' is NaN in sample 0"),
    ],
)
def test_bad_data_write_nothing(feeds: list[dict[str, Array]], message: str, tmp_path: Path) -> None:
    (tmp_path / "q.onnx").write_bytes(b"old")
    with pytest.raises(DataError, match=message):
        quantize(net(), feeds, output=tmp_path / "q.onnx")
    assert [p.name for p in tmp_path.iterdir()] == ["q.onnx"] and (tmp_path / "q.onnx").read_bytes() == b"old"


def test_without_data() -> None:
    with pytest.raises(FactError, match=r"samples \(--data\) or calibrated ranges \(--ranges\); dynamic, w8"):
        quantize(net())
    with pytest.raises(OptionError, match="samples and preprocessing need data"):
        quantize(net(), samples=3)


def test_recipe_dynamic_needs_none() -> None:
    result = quantize(net(), recipe="dynamic")
    assert result.plan["nodes"]["y"]["status"] == "dynamic" and result.ranges == {}
    assert props(result.model)["onnxq.recipe"] == "dynamic"
    assert "DynamicQuantizeLinear" in [n.op_type for n in result.model.graph.node]
    exact, got = (output(m, samples()[0]) for m in (net(), result.model))
    assert np.abs(exact - got).max() < 0.02 * np.abs(exact).max()


def test_ranges_instead_of_data(tmp_path: Path) -> None:
    """What needs no samples but the ranges is the same to the byte."""
    first = quantize(net(), samples(), search=False, rounding="nearest", method="mse")
    cache = tmp_path / "ranges.json"
    cache.write_text(json.dumps(first.ranges))
    again = quantize(net(), ranges=str(cache), search=False, rounding="nearest")
    assert data(first.model) == data(again.model)
    assert first.ranges["ranges"] == again.ranges["ranges"]
    with_samples = quantize(net(), samples(), ranges=str(cache), search=False)
    assert data(with_samples.model) == data(quantize(net(), samples(), search=False, method="mse").model)


def test_a_plan_goes_back_in(tmp_path: Path) -> None:
    first = quantize(net(), samples(), **QUICK)
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(first.plan))
    assert data(quantize(net(), samples(), plan=str(file), **QUICK).model) == data(first.model)
    first.plan["nodes"]["c"]["status"] = "float"
    file.write_text(json.dumps(first.plan))
    made = quantize(net(), samples(), plan=str(file), **QUICK)
    assert made.plan["nodes"]["a"]["status"] == "integer" and made.plan["nodes"]["c"]["status"] == "float"
    (conv,) = [n for n in made.model.graph.node if n.name == "c"]
    assert conv.input[1] == "w2"


def test_make_plan_quantizes_nothing(tmp_path: Path) -> None:
    proto = net()
    before = data(proto)
    for given in (None, samples()):
        result = make_plan(proto, given)
        assert result.plan["nodes"]["a"]["status"] == "integer" and data(proto) == before
        assert not {n.op_type for n in result.model.graph.node} & {"QuantizeLinear", "DequantizeLinear"}
        assert bool(result.ranges) == (given is not None)
    with pytest.raises(OptionError, match="recipe prepare makes no plan"):
        make_plan(proto, recipe="prepare")
    assert make_plan(proto, parameters={"exclude": ["a"]}).plan["nodes"]["a"]["code"] != "layer"


def test_run_with_a_recipe_or_a_pipeline() -> None:
    by_name = run("prepare", net())
    assert "Identity" not in [n.op_type for n in by_name.model.graph.node] and by_name.plan == {}
    by_object = run(load_recipe("prepare"), net())
    assert data(by_name.model) == data(by_object.model)
    with pytest.raises(OptionError, match="go with a recipe by name or path"):
        run(load_recipe("prepare"), net(), parameters={"opset": 19})
    with pytest.raises(OptionError, match="go with a recipe by name or path"):
        run(load_recipe("prepare"), net(), overrides={"upgrade-opset.to": 19})
    assert run("prepare", net(), parameters={"opset": 19}).model.opset_import[0].version == 19
    assert run("prepare", net(), overrides={"upgrade-opset.to": 18}).model.opset_import[0].version == 18


def test_a_single_pass_alone() -> None:
    proto = net()
    before = data(proto)
    after = DropIdentity().apply(proto)
    assert isinstance(after, onnx.ModelProto) and data(proto) == before
    assert [n.op_type for n in after.graph.node].count("Identity") == 0


def test_progress_is_told() -> None:
    seen: list[tuple[str, int, int]] = []
    quantize(net(), samples(), progress=lambda *step: seen.append(step), **QUICK)
    done = [(d, t) for label, d, t in seen if label == "calibrate"]
    assert done[0] == (0, 3) and (3, 3) in done


def test_an_iterator_and_a_function_are_data() -> None:
    wanted = data(quantize(net(), samples(), **QUICK).model)
    assert data(quantize(net(), iter(samples()), **QUICK).model) == wanted
    assert data(quantize(net(), lambda: iter(samples()), **QUICK).model) == wanted
    assert data(quantize(net(), [s["x"] for s in samples()], **QUICK).model) == wanted


def test_threads_do_not_meet() -> None:
    """Two quantizations at once give what they give one after the other."""
    jobs = [(net(i), samples(i)) for i in range(2)]
    wanted = [data(quantize(*job).model) for job in jobs]
    got: list[Any] = [None, None]

    def work(i: int) -> None:
        try:
            got[i] = data(quantize(*jobs[i]).model)
        except Exception as error:
            got[i] = error

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == wanted


def test_large_external_data_beside_the_output(tmp_path: Path) -> None:
    """A model with external data goes path to path; the source's files stay as they are, twice gives the same."""
    proto = net()
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    results = []
    for _ in range(2):
        quantize(tmp_path / "m.onnx", samples(), output=tmp_path / "out" / "q.onnx", **QUICK)
        results.append({p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()})
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()} == before
    assert results[0] == results[1]
    (tmp_path / "m.data").unlink()
    with pytest.raises(InputError, match=r"m\.data"):
        quantize(tmp_path / "m.onnx", samples(), output=tmp_path / "z.onnx", **QUICK)
    assert not (tmp_path / "z.onnx").exists()


def test_a_context_of_its_own_each_run() -> None:
    assert Context().report is not Context().report
    one, two = quantize(net(), samples()), quantize(net(), samples())
    assert [n.to_json() for n in one.report.notes] == [n.to_json() for n in two.report.notes]


def test_parameters_of_a_recipe_as_python_names() -> None:
    result = onnxq.quantize(net(), recipe="w4-blocked", block_size=16, target="onnx", rounding="nearest")
    sizes = {a.i for n in result.model.graph.node for a in n.attribute if a.name == "axis"}
    assert sizes == {0, 1}, "w3 has 16 inputs, one block: one scale a channel, as the convolutions"
    with pytest.raises(RecipeError, match="did you mean block-size"):
        onnxq.quantize(net(), recipe="w4-blocked", block_sise=16)
