"""Models that may ship: what quantizers write, and the models of the onnx wheel. Nothing in them is an error.

``python -m tests.defects.healthy`` writes down which warnings they have, for review; the reasons stay.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import yaml
from onnx import ModelProto

from onnxq import lint, quantize, run
from onnxq.diagnostics import Diagnostic, Severity
from tests.defects.nets import feeds, net

REVIEWED = Path(__file__).with_name("healthy.yaml")
WHEEL = Path(onnx.__file__).parent / "backend" / "test" / "data"


@dataclass(frozen=True)
class Made:
    """What a quantizer makes of a network.

    Attributes:
        net: The network.
        by: ``onnxq`` or ``onnxruntime``.
        how: The recipe, or the kind of quantization.
        target: Target it is made and checked for.
        options: Of the recipe or tool.
    """

    net: str
    by: str
    how: str
    target: str = "ort-cpu"
    options: dict[str, Any] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        options = "-".join(f"{name}={value}" for name, value in self.options.items())
        return "-".join(
            p for p in (self.by, self.how, self.net, "" if self.target == "ort-cpu" else self.target, options) if p
        )

    def model(self) -> ModelProto:
        """The quantized model."""
        if self.by == "onnxruntime":
            return by_onnxruntime(self.net, self.how, self.options)
        if self.how == "to-trainable":
            return run(self.how, quantize(net(self.net), feeds(self.net), **_STATIC).model, target=self.target).model
        data = feeds(self.net) if self.how in ("int8", "a8w4") else None
        return quantize(net(self.net), data, recipe=self.how, target=self.target, **self.options).model


_QUICK = {"rounding": "nearest"}
_STATIC = {**_QUICK, "search": False, "method": "minmax"}


def _ours() -> Iterator[Made]:
    for name in ("lenet", "residual", "attention", "branches", "conv-chain", "transformer", "odd"):
        yield Made(name, "onnxq", "int8", options=_STATIC)
        yield Made(name, "onnxq", "w8", options=_QUICK)
    for name in ("lenet", "attention", "odd"):
        yield Made(name, "onnxq", "w4-blocked", options=_QUICK)
        yield Made(name, "onnxq", "dynamic")
    for activations, weights in (("uint16", "int8"), ("int16", "int16"), ("uint8", "uint8")):
        yield Made("residual", "onnxq", "int8", options={**_STATIC, "activations": activations, "weights": weights})
    yield Made("residual", "onnxq", "int8", options={**_STATIC, "granularity": "per-tensor"})
    yield Made("residual", "onnxq", "int8", options={**_STATIC, "bias": "float"})
    yield Made("attention", "onnxq", "int8", options={**_STATIC, "weights": "int4"})
    yield Made("attention", "onnxq", "w4-blocked", options={**_QUICK, "weights": "uint4", "block-size": 16})
    yield Made("attention", "onnxq", "w4-blocked", options={**_QUICK, "matmulnbits": True, "block-size": 16})
    yield Made("attention", "onnxq", "w4-blocked", "onnx", {**_QUICK, "weights": "int2", "opset": 25})
    yield Made("residual", "onnxq", "a8w4", "ascend", {**_QUICK, "form": "fake-quant"})
    yield Made("lenet", "onnxq", "int8", options={"rounding": "gptq"})
    for name in ("lenet", "residual"):
        yield Made(name, "onnxq", "to-trainable", "ort-training")
    yield Made("attention", "onnxq", "w8", options={**_QUICK, "weights": "uint8"})
    for name in ("lenet", "residual", "attention", "odd"):
        yield Made(name, "onnxq", "a8w4", "ascend", options=_QUICK)
    for activations in ("uint8", "int8"):
        yield Made("residual", "onnxq", "int8", "onnx", {**_STATIC, "activations": activations})


def _theirs() -> Iterator[Made]:
    for name in ("lenet", "residual", "transformer"):
        for per_channel in (True, False):
            yield Made(name, "onnxruntime", "static", options={"per_channel": per_channel})
    yield Made("residual", "onnxruntime", "static", options={"weight": "QUInt8"})
    yield Made("residual", "onnxruntime", "static", options={"activation": "QInt8"})
    yield Made("residual", "onnxruntime", "static", options={"activation": "QUInt16"})
    yield Made("residual", "onnxruntime", "static", options={"per_channel": True, "ActivationSymmetric": True})
    for name in ("lenet", "residual"):
        yield Made(name, "onnxruntime", "static", options={"format": "QOperator"})
    for name in ("lenet", "attention", "transformer"):
        yield Made(name, "onnxruntime", "dynamic")
    for format in ("QDQ", "QOperator"):
        yield Made("attention", "onnxruntime", "nbits", options={"format": format})


MADE = [*_ours(), *_theirs()]


def by_onnxruntime(name: str, how: str, options: dict[str, Any]) -> ModelProto:
    """What onnxruntime's own tools make of a network."""
    from onnxruntime import quantization as tool
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(tool.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rows = iter(feeds(name))

        def get_next(self) -> Any:
            return next(self.rows, None)

    given = dict(options)
    with tempfile.TemporaryDirectory() as folder:
        before, here = Path(folder) / "float.onnx", Path.cwd()
        ready, out = before.with_name("ready.onnx"), before.with_name("out.onnx")
        onnx.save(net(name), before)
        os.chdir(folder)  # the tool leaves files in the current folder
        try:
            quant_pre_process(str(before), str(ready), skip_symbolic_shape=True)
            if how == "dynamic":
                tool.quantize_dynamic(ready, out)
            elif how == "nbits":
                _nbits(ready, out, given["format"])
            else:
                tool.quantize_static(
                    ready,
                    out,
                    Reader(),
                    quant_format=tool.QuantFormat[given.pop("format", "QDQ")],
                    activation_type=tool.QuantType[given.pop("activation", "QUInt8")],
                    weight_type=tool.QuantType[given.pop("weight", "QInt8")],
                    per_channel=given.pop("per_channel", False),
                    extra_options=given,
                )
        finally:
            os.chdir(here)
        return onnx.load(out)


def _nbits(ready: Path, out: Path, form: str) -> None:
    from onnxruntime.quantization import QuantFormat
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(str(ready), block_size=16, is_symmetric=True, quant_format=QuantFormat[form])
    quantizer.process()
    quantizer.model.save_model_to_file(str(out), use_external_data_format=False)


def wheel() -> list[Path]:
    """The models that the onnx wheel holds, by place."""
    return sorted(WHEEL.rglob("*.onnx"))


def wheel_name(path: Path) -> str:
    """A name for a model of the wheel."""
    return f"wheel/{path.relative_to(WHEEL).with_suffix('').as_posix()}"


def harm(found: list[Diagnostic], severity: Severity) -> dict[str, list[str] | int]:
    """Places of findings of a severity by code; how many, where they are about the whole model."""
    rows: dict[str, list[str] | int] = {}
    for code in sorted({d.code for d in found if d.severity is severity}):
        places = sorted(str(d.place) for d in found if d.code == code and d.severity is severity)
        rows[code] = places if any(places) else len(places)
    return rows


def main() -> None:
    """Write the warnings down."""
    reviewed = yaml.safe_load(REVIEWED.read_text()) if REVIEWED.exists() else {"why": {}}
    rows = [(str(m), lint(m.model(), target=m.target)) for m in MADE]
    rows += [(wheel_name(p), lint(p, target="ort-cpu")) for p in wheel()]
    found = {name: harm(list_, Severity.WARNING) for name, list_ in rows}
    for name, list_ in rows:
        if errors := harm(list_, Severity.ERROR):
            print(f"errors in a healthy model: {name}: {errors}")
    found = {name: codes for name, codes in found.items() if codes}
    text = yaml.safe_dump({"why": reviewed["why"], "warnings": found}, width=120, sort_keys=True, allow_unicode=True)
    REVIEWED.write_text(text)


if __name__ == "__main__":
    main()
