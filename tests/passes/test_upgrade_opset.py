"""upgrade-opset: numbers stay as the old opset made them; names, metadata, scopes and weights are left in peace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import defs, helper, parser

from onnxq.errors import OptionError, UnsupportedError
from onnxq.opsets import upgrade as opsets
from onnxq.opsets.adapters import ADAPTERS
from onnxq.passbase import Context, run_step
from onnxq.passes.upgrade_opset import UpgradeOpset

RNG = np.random.default_rng(0)
DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"


def graph(opset: int, signature: str, body: str, constants: str = "") -> str:
    return f'<ir_version: 8, opset_import: ["" : {opset}]> g {signature} {constants} {{ {body} }}'


X4 = "(float[2,3,4,5] x) => (float[a,b,c,d] y)"
ANY = "(float[2,3,4,5] x) => (float[?] y)".replace("float[?]", "float[a,b,c,d]")

# Each runs in onnxruntime at its own opset, so the old kernels are the oracle.
CASES = {
    "clip": graph(7, X4, "y = Clip<min=-0.5, max=0.25>(x)"),
    "clip-no-max": graph(9, X4, "y = Clip<min=-0.5>(x)"),
    "clip-default": graph(6, X4, "y = Clip(x)"),
    "pad-constant": graph(7, X4, "y = Pad<pads=[0,1,0,2,0,0,1,0], value=3.5>(x)"),
    "pad-reflect": graph(7, X4, 'y = Pad<pads=[0,0,1,2,0,0,1,2], mode="reflect">(x)'),
    "pad-edge": graph(10, X4, 'y = Pad<pads=[0,0,1,2,0,0,1,2], mode="edge">(x)'),
    "slice": graph(9, X4, "y = Slice<axes=[1,-1], starts=[1,-3], ends=[9223372036854775807,4]>(x)"),
    "slice-no-axes": graph(7, X4, "y = Slice<starts=[0,1], ends=[1,3]>(x)"),
    "top-k": graph(9, "(float[3,8] x) => (float[a,b] y, int64[a,b] i)", "y, i = TopK<k=3, axis=0>(x)"),
    "squeeze": graph(11, "(float[2,1,4,1] x) => (float[a,b] y)", "y = Squeeze<axes=[1,-1]>(x)"),
    "squeeze-all": graph(7, "(float[2,1,4,1] x) => (float[a,b] y)", "y = Squeeze(x)"),
    "unsqueeze": graph(12, "(float[2,3] x) => (float[a,b,c,d] y)", "y = Unsqueeze<axes=[0,3]>(x)"),
    "reduce-sum": graph(12, X4, "y = ReduceSum<axes=[1,2]>(x)"),
    "reduce-sum-all": graph(9, "(float[2,3] x) => (float y)", "y = ReduceSum<keepdims=0>(x)"),
    "reduce-mean": graph(13, "(float[2,3,4] x) => (float[a,b] y)", "y = ReduceMean<axes=[-1], keepdims=0>(x)"),
    "reduce-l2": graph(11, X4, "y = ReduceL2<axes=[3]>(x)"),
    "split-sizes": graph(11, "(float[7] x) => (float[a] y, float[b] z)", "y, z = Split<axis=0, split=[3,4]>(x)"),
    "split-even": graph(9, "(float[8,2] x) => (float[a,2] y, float[b,2] z)", "y, z = Split<axis=0>(x)"),
    "split-13": graph(13, "(float[8] x) => (float[a] y, float[b] z)", "y, z = Split<axis=0>(x)"),
    "softmax-default": graph(11, X4, "y = Softmax(x)"),
    "softmax-middle": graph(9, X4, "y = Softmax<axis=2>(x)"),
    "softmax-last": graph(12, X4, "y = Softmax<axis=3>(x)"),
    "softmax-negative": graph(12, X4, "y = Softmax<axis=-2>(x)"),
    "softmax-ones": graph(9, "(float[2,6,1,1] x) => (float[a,b,c,d] y)", "y = Softmax<axis=1>(x)"),
    "log-softmax": graph(10, X4, "y = LogSoftmax<axis=1>(x)"),
    "hardmax": graph(11, X4, "y = Hardmax<axis=1>(x)"),
    "upsample-7": graph(7, X4, 'y = Upsample<mode="nearest", scales=[1.0,1.0,2.0,3.0]>(x)'),
    "upsample-9-linear": graph(9, X4, 'y = Upsample<mode="linear">(x, s)', "<float[4] s = {1,1,2,2.5}>"),
    "resize-10-up": graph(10, X4, "y = Resize(x, s)", "<float[4] s = {1,1,2,1.7}>"),
    "resize-10-down": graph(10, "(float[1,1,9,7] x) => (float[a,b,c,d] y)", "y = Resize(x, s)",
                            "<float[4] s = {1,1,0.6,0.5}>"),
    "resize-10-linear": graph(10, X4, 'y = Resize<mode="linear">(x, s)', "<float[4] s = {1,1,0.6,2}>"),
    "resize-11-tf": graph(11, X4, 'y = Resize<mode="nearest", nearest_mode="floor", '
                          'coordinate_transformation_mode="tf_half_pixel_for_nn">(x, e, s)',
                          "<float[4] s = {1,1,2,0.6}, float[0] e = {}>"),
    "batch-norm-7": graph(7, X4, "y = BatchNormalization<epsilon=0.1>(x, g, b, m, v)",
                          "<float[3] g={1,2,3}, float[3] b={1,0,-1}, float[3] m={0.5,0,1}, float[3] v={1,2,0.5}>"),
    "scatter": graph(9, "(float[3,2] x) => (float[a,b] y)", "y = Scatter<axis=0>(x, i, u)",
                     "<int64[1,2] i={2,0}, float[1,2] u={7,8}>"),
    "dropout": graph(7, X4, "y = Dropout<ratio=0.3>(x)"),
    "dropout-11": graph(11, X4, "a, m = Dropout<ratio=0.3>(x)  y = Neg(a)"),
    "grid-sample": graph(16, "(float[1,1,4,5] x, float[1,2,3,2] q) => (float[a,b,c,d] y)", "y = GridSample(x, q)"),
    "grid-sample-cubic": graph(16, "(float[1,1,4,5] x, float[1,2,3,2] q) => (float[a,b,c,d] y)",
                               'y = GridSample<mode="bicubic", padding_mode="border">(x, q)'),
    "dft": graph(17, "(float[1,4,3,1] x) => (float[a,b,c,2] y)", "y = DFT<axis=2>(x)"),
    "dft-default": graph(17, "(float[1,4,3,1] x) => (float[a,b,c,2] y)", "y = DFT(x)"),
    "group-norm": graph(18, "(float[1,4,3,2] x) => (float[a,b,c,d] y)", "y = GroupNormalization<num_groups=2>(x, s, b)",
                        "<float[2] s={1,2}, float[2] b={0.5,-1}>"),
    "roi-align": graph(10, "(float[1,1,6,6] x) => (float[a,b,c,d] y)",
                       "y = RoiAlign<output_height=2, output_width=2, sampling_ratio=2>(x, r, i)",
                       "<float[1,4] r={0.5,0.5,4.2,5}, int64[1] i={0}>"),
    "lstm": graph(7, "(float[3,1,2] x) => (float[a,b,c,d] y)", "y = LSTM<hidden_size=2>(x, w, r)",
                  "<float[1,8,2] w={%s}, float[1,8,2] r={%s}>" % ((",".join(["0.3", "-0.5"] * 8),) * 2)),
    "max-pool": graph(8, X4, "y = MaxPool<kernel_shape=[2,2], strides=[2,1]>(x)"),
    "conv-relu": graph(11, "(float[1,2,4,4] x) => (float[a,b,c,d] y)", "c = Conv(x, w) y = Relu(c)",
                       "<float[1,2,1,1] w={0.5,-2}>"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_numbers_stay(name: str, run_passes: Callable[..., Any], same_numbers: Callable[..., None]) -> None:
    out = run_passes(CASES[name], UpgradeOpset(to=21))
    assert out.proto.opset_import[0].version == 21 and out.proto.ir_version == 10
    assert out.codes().count("opset-upgraded") == 1
    same_numbers(CASES[name], out.proto)


@pytest.mark.parametrize("name", ["clip", "softmax-middle", "resize-10-up", "group-norm", "reduce-mean"])
def test_newer_and_older_targets(
    name: str,
    run_passes: Callable[..., Any],
    same_numbers: Callable[..., None],
    runs_opset: Callable[[int], bool],
) -> None:
    for to in (
        (19, 25, 27) if name != "group-norm" else (25, 27)
    ):  # the checker calls the first GroupNormalization deprecated
        out = run_passes(CASES[name], UpgradeOpset(to=to))
        assert out.proto.opset_import[0].version == to
        if runs_opset(to):
            same_numbers(CASES[name], out.proto)


def test_opset_6_broadcasting(run_passes: Callable[..., Any], run_model: Callable[..., list[Any]]) -> None:
    """No kernel of onnxruntime runs these any more: NumPy is the oracle."""
    out = run_passes(
        graph(
            6,
            "(float[2,3,4,5] x, float[3,4] b, float[5] s, float[3] p) => (float[a,b,c,d] y)",
            "m = Mul<broadcast=1, axis=1>(x, b)  n = Add<broadcast=1>(m, s)  y = PRelu(n, p)",
        ),
        UpgradeOpset(to=21),
    )
    shapes: dict[str, tuple[int, ...]] = {"x": (2, 3, 4, 5), "b": (3, 4), "s": (5,), "p": (3,)}
    feeds = {name: RNG.standard_normal(shape).astype("f") for name, shape in shapes.items()}
    n = feeds["x"] * feeds["b"][:, :, None] + feeds["s"]
    wanted = np.where(n < 0, n * feeds["p"][:, None, None], n)
    np.testing.assert_allclose(run_model(out.proto, feeds)[0], wanted, rtol=1e-6)


def test_opset_6_models_of_the_past(run_passes: Callable[..., Any], run_model: Callable[..., list[Any]]) -> None:
    """BatchNormalization, PRelu and Linear as exported in 2017, with the outputs recorded then."""
    for name in ("BatchNorm2d_eval", "PReLU_2d_multiparam", "Linear", "GLU_dim", "softmax_functional_dim3"):
        folder = DATA / "pytorch-converted" / f"test_{name}"
        proto = onnx.load(folder / "model.onnx")
        out = run_passes(proto, UpgradeOpset(to=21))
        onnx.checker.check_model(out.proto, full_check=True)
        given, wanted = (
            onnx.numpy_helper.to_array(
                onnx.TensorProto.FromString((folder / "test_data_set_0" / f"{k}_0.pb").read_bytes())
            )
            for k in ("input", "output")
        )
        assert len(out.proto.graph.input) == 1, "what IR version 3 lists among the inputs are constants"
        np.testing.assert_allclose(
            run_model(out.proto, {proto.graph.input[0].name: given})[0], wanted, rtol=1e-3, atol=1e-6
        )


@pytest.mark.slow
def test_every_model_of_the_onnx_wheel(run_model: Callable[..., list[Any]]) -> None:
    compared = 0
    for path in sorted(DATA.glob("pytorch-*/*/model.onnx")):
        proto = onnx.load(path)
        model = ir.from_proto(proto)
        run_step(UpgradeOpset(to=21, required=True), model, Context())
        after = ir.to_proto(model)
        onnx.checker.check_model(after, full_check=True)
        known = {t.name for t in proto.graph.initializer}
        for folder in sorted(path.parent.glob("test_data_set_*")):

            def read(kind: str, i: int, folder: Path = folder) -> np.ndarray[Any, Any]:
                proto = onnx.TensorProto.FromString((folder / f"{kind}_{i}.pb").read_bytes())
                return onnx.numpy_helper.to_array(proto)

            feeds = {
                v.name: read("input", i) for i, v in enumerate(v for v in proto.graph.input if v.name not in known)
            }
            for i, got in enumerate(run_model(after, feeds, optimised=False)):
                np.testing.assert_allclose(got, read("output", i), rtol=1e-3, atol=1e-5, err_msg=str(path))
                compared += 1
    assert compared > 100


def test_float16_bounds_have_the_type_of_the_data(
    run_passes: Callable[..., Any], same_numbers: Callable[..., None]
) -> None:
    text = graph(6, "(float16[2,3] x) => (float16[a,b] y)", "c = Relu(x)  y = Clip<min=0.1, max=0.7>(c)")
    out = run_passes(text, UpgradeOpset())
    assert {n.attribute[0].t.data_type for n in out.proto.graph.node if n.op_type == "Constant"} == {10}
    same_numbers(text.replace('"" : 6', '"" : 7'), out.proto, rtol=1e-3)


def test_dropout_mask_becomes_boolean_behind_a_cast(run_passes: Callable[..., Any]) -> None:
    out = run_passes(graph(7, "(float[2] x) => (float[2] y, float[2] m)", "y, m = Dropout(x)"), UpgradeOpset(to=21))
    assert out.ops() == ["Dropout", "Cast"]
    onnx.checker.check_model(out.proto, full_check=True)


def test_names_outputs_and_metadata_stay(run_passes: Callable[..., Any]) -> None:
    proto = parser.parse_model(
        graph(10, "(float[2,3,4] x) => (float[a,b,c] y)", "s = Softmax(x)  y = Clip<min=0.0>(s)")
    )
    for node, name in zip(proto.graph.node, ("soft", "clip"), strict=True):
        node.name, node.doc_string = name, f"doc of {name}"
        node.metadata_props.add(key="team", value=name)
    out = run_passes(proto, UpgradeOpset(to=21))
    assert out.ops() == ["Flatten", "Softmax", "Shape", "Reshape", "Constant", "Clip"]
    by_name = {n.name: n for n in out.proto.graph.node}
    assert by_name["soft"].op_type == "Softmax" and by_name["clip"].op_type == "Clip"
    assert list(by_name["clip"].output) == ["y"] and by_name["clip"].input[0] == "s"
    assert by_name["clip"].doc_string == "doc of clip"
    assert {p.key: p.value for p in by_name["clip"].metadata_props} == {"team": "clip", "onnxq.pass": "upgrade-opset"}
    assert len({n.name for n in out.proto.graph.node}) == 6


def test_bodies_functions_and_other_domains(
    run_passes: Callable[..., Any], run_model: Callable[..., list[Any]]
) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 12, "local" : 1, "com.microsoft" : 1]>
    g (bool c, float[2,3] x) => (float[b] y) {
      f = local.total(x)
      y = If(c) <then_branch = t () => (float[b] p) { p = Squeeze<axes=[0]>(f) },
                 else_branch = e () => (float[b] q) { q = ReduceSum<axes=[0], keepdims=0>(x) }>
    }
    <domain: "local", opset_import: ["" : 11]>
    total (a) => (b) { b = ReduceSum<axes=[0]>(a) }
    """
    out = run_passes(text, UpgradeOpset(to=21))
    assert {o.domain: o.version for o in out.proto.opset_import} == {"": 21, "local": 1, "com.microsoft": 1}
    assert out.proto.functions[0].opset_import[0].version == 21
    x = RNG.standard_normal((2, 3)).astype("f")
    for flag in (True, False):
        np.testing.assert_allclose(run_model(out.proto, {"c": np.array(flag), "x": x})[0], x.sum(0), rtol=1e-6)


def test_weights_are_never_read() -> None:
    def refuse() -> ir.Tensor:  # type: ignore[type-arg]
        raise AssertionError("weight data was read")

    weight = ir.LazyTensor(refuse, dtype=ir.DataType.FLOAT, shape=ir.Shape([8, 8]), name="w")
    x = ir.val("x", ir.DataType.FLOAT, [3, 8])
    w = ir.Value(name="w", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(weight.shape), const_value=weight)
    nodes = [ir.node("MatMul", [x, w], name="m")]
    nodes.append(ir.node("Softmax", nodes[0].outputs, {"axis": 0}, name="s"))
    graph = ir.Graph([x], nodes[-1].outputs, nodes=nodes, initializers=[w], opset_imports={"": 11}, name="g")
    model = ir.Model(graph, ir_version=8)
    assert run_step(UpgradeOpset(), model, Context()) and model.opset_imports[""] == 21
    assert model.graph.initializers["w"].const_value is weight


NO_EQUAL = graph(
    8,
    "(float[2,3] x) => (float[2,3] y)",
    "c = Clip<min=0.0>(x)  y = BatchNormalization<spatial=0>(c, w, w, w, w)",
    "<float[3] w={1,2,3}>",
)


def test_all_or_nothing(run_passes: Callable[..., Any]) -> None:
    out = run_passes(NO_EQUAL, UpgradeOpset(to=21))
    assert not out.changed and out.ops() == ["Clip", "BatchNormalization"]
    assert out.proto.opset_import[0].version == 8
    (note,) = out.ctx.report.of("opset-not-upgraded")
    assert note.severity.value == "warning" and "opset 8" in note.message and "spatial=0" in note.message
    with pytest.raises(
        UnsupportedError, match=r"BatchNormalization of opset 8 cannot be brought to opset 21: spatial=0"
    ):
        run_passes(NO_EQUAL, UpgradeOpset(to=21, required=True))


def test_newer_models_and_bad_options(run_passes: Callable[..., Any]) -> None:
    out = run_passes(graph(23, "(float[2] x) => (float[2] y)", "y = Relu(x)"), UpgradeOpset(to=21))
    assert not out.changed and out.codes() == ["opset-kept"]
    with pytest.raises(OptionError, match="to=99"):
        run_passes(graph(13, "(float[2] x) => (float[2] y)", "y = Relu(x)"), UpgradeOpset(to=99))


def test_unknown_ops_stay_with_a_warning(run_passes: Callable[..., Any]) -> None:
    out = run_passes(graph(11, "(float[2] x) => (float[2] y)", "y = NotAnOp(x)"), UpgradeOpset(to=21))
    assert out.ops() == ["NotAnOp"] and out.codes() == ["unknown-op", "opset-upgraded"]


def test_too_old_is_said(run_passes: Callable[..., Any]) -> None:
    out = run_passes(graph(5, "(float[2] x) => (float[2] y)", "y = Relu(x)"), UpgradeOpset(to=21))
    assert "opset 5 is older than 6" in out.ctx.report.of("opset-not-upgraded")[0].message


def test_every_change_of_meaning_the_schemas_show_has_an_adapter() -> None:
    """Against every opset of the installed onnx; Scan lost its batch dim at 9, which no other op can express."""
    ops = {s.name for s in defs.get_all_schemas_with_history() if s.domain == ""}
    newest = opsets.newest()
    broken = {(op, v) for op in ops for v in opsets.breaks(op, opsets.OLDEST, newest)}
    for op in ops:  # ops younger than the oldest opset: look from their birth on
        born = min(s.since_version for s in defs.get_all_schemas_with_history() if s.domain == "" and s.name == op)
        broken |= {(op, v) for v in opsets.breaks(op, max(born, opsets.OLDEST), newest)}
    assert broken - set(ADAPTERS) == {("Scan", 9)}
    assert set(ADAPTERS) <= broken, "an adapter nobody reaches"


def test_ir_version_follows() -> None:
    assert [opsets.min_ir_version(v) for v in (13, 21, 23)] == [7, 10, 11]
    assert helper.find_min_ir_version_for([helper.make_opsetid("", opsets.newest())]) == opsets.min_ir_version(
        opsets.newest()
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            graph(
                11,
                X4,
                'y = Resize<coordinate_transformation_mode="tf_half_pixel_for_nn", mode="linear">(x, , s)',
                "<float[4] s={1,1,2,2}>",
            ),
            "Resize of opset 11 cannot be brought to opset 21: "
            "coordinate_transformation_mode 'tf_half_pixel_for_nn' has no equal since opset 13",
        ),
        (
            graph(
                12,
                "(float[2,3,4,5] x) => (float[a,b,c,d] y, float[e] s)",
                "y, m, v, s, t = BatchNormalization(x, w, w, w, w)",
                "<float[3] w={1,2,3}>",
            ),
            "its saved statistics (outputs 4 and 5) are used, which opset 14 does not make",
        ),
        (
            graph(
                18,
                "(float[n,c,4,5] x) => (float[a,b,c,d] y)",
                "y = GroupNormalization<num_groups=2>(x, w, w)",
                "<float[2] w={1,2}>",
            ),
            "the number of channels is unknown",
        ),
        (
            graph(
                8,
                "(float[2] s, float[2,3] x) => (float[a] t, float[b,c] u)",
                "t, u = Scan<num_scan_inputs=1, body = b (float[2] p, float[3] q) => (float[2] r, float[3] v) "
                "{ r = Identity(p) v = Identity(q) }>(, s, x)",
            ),
            "Scan has no equal since opset 9",
        ),
    ],
)
def test_what_has_no_equal_is_said(text: str, why: str, run_passes: Callable[..., Any]) -> None:
    out = run_passes(text, UpgradeOpset(to=21))
    (note,) = out.ctx.report.of("opset-not-upgraded")
    assert why in note.message and not out.changed


def test_attributes_of_a_call_are_said(run_passes: Callable[..., Any]) -> None:
    text = """<ir_version: 8, opset_import: ["" : 12, "f" : 1]> g (float[2,3] x) => (float[a,b] y) { y = f.soft(x) }
    <domain: "f", opset_import: ["" : 12]> soft <k: int = 1> (x) => (y) { y = Softmax<axis: int = @k>(x) }"""
    (note,) = run_passes(text, UpgradeOpset(to=21)).ctx.report.of("opset-not-upgraded")
    assert "it takes attributes from the call of a local function; inline functions first" in note.message


def test_batch_norm_that_trains_keeps_its_statistics(run_passes: Callable[..., Any]) -> None:
    text = graph(
        12,
        "(float[2,3,4,5] x) => (float[a,b,c,d] y, float[e] m)",
        "y, m, v, s, t = BatchNormalization(x, w, w, w, w)",
        "<float[3] w={1,2,3}>",
    )
    out = run_passes(text, UpgradeOpset(to=21))
    (new,) = out.proto.graph.node
    assert new.output[:2] == ["y", "m"] and len(new.output) == 3
    assert [a.i for a in new.attribute if a.name == "training_mode"] == [1]


def test_upsample_of_opset_6(run_passes: Callable[..., Any], same_numbers: Callable[..., None]) -> None:
    """No runtime has it: opset 7 with the same scales is the oracle."""
    old = graph(6, X4, 'y = Upsample<height_scale=2.0, width_scale=3.0, mode="bilinear">(x)')
    new = graph(7, X4, 'y = Upsample<scales=[1.0, 1.0, 2.0, 3.0], mode="linear">(x)')
    same_numbers(run_passes(new, UpgradeOpset(to=21)).proto, run_passes(old, UpgradeOpset(to=21)).proto)


def test_softmax_of_unknown_rank_from_the_last_dim(run_passes: Callable[..., Any]) -> None:
    text = graph(12, "(float[2,3] x, int64[k] s) => (float y)", "r = Reshape(x, s) y = Softmax<axis={}>(r)")
    kept = run_passes(text.replace("{}", "-1"), UpgradeOpset(to=13))
    assert kept.ops() == ["Reshape", "Softmax"] and not kept.ctx.report.of("opset-not-upgraded")
    refused = run_passes(text.replace("{}", "-2"), UpgradeOpset(to=13))
    assert "is unknown" in refused.ctx.report.of("opset-not-upgraded")[0].message
