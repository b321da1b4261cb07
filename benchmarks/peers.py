"""onnxruntime's own quantizers, set up as its documentation recommends: the yardstick of the benchmarks."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
from onnx import version_converter
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from benchmarks.tasks.base import Feed

PER_CHANNEL_SINCE, UPGRADE_TO = 13, 17


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, feeds: Iterable[Feed]) -> None:
        self.feeds: Iterator[Feed] = iter(feeds)

    def get_next(self) -> Feed | None:
        return next(self.feeds, None)


def onnxruntime_static(model: Path, feeds: Iterable[Feed], out: Path, **options: object) -> None:
    """QDQ, uint8 activations, int8 weights per channel, min-max, all ops; ``options`` go to `quantize_static`.

    Models below opset 13 are upgraded first: per-channel Q/DQ does not exist there and the tool writes it all the same.
    """
    logging.getLogger().setLevel(logging.CRITICAL)
    feeds, out = list(feeds), out.resolve()
    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder) / "ready.onnx"
        prepare(model, ready)
        settings = {
            "quant_format": QuantFormat.QDQ,
            "activation_type": QuantType.QUInt8,
            "weight_type": QuantType.QInt8,
            "per_channel": True,
        } | options
        try:
            quantize_static(ready, out, _Reader(feeds), **settings)
        except ValueError as error:
            # The calibrator of 1.32 trips over outputs that `quant_pre_process` made constant.
            if "truth value of an array" not in str(error):
                raise
            quantize_static(model, out, _Reader(feeds), **settings)


def onnxruntime_nbits(
    model: Path, out: Path, *, block_size: int, symmetric: bool = False, qdq: bool = False, level: int | None = None
) -> None:
    """Four-bit weights of MatMul in blocks, rounded to nearest: as MatMulNBits, or with ``qdq`` as DequantizeLinear.

    ``level`` is the operator's accuracy_level: 4 computes on int8 activations, as onnxruntime does by itself where it
    fuses DequantizeLinear and MatMul; without it, on float.
    """
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    logging.getLogger().setLevel(logging.CRITICAL)
    quantizer = MatMulNBitsQuantizer(
        str(model),
        block_size=block_size,
        is_symmetric=symmetric,
        accuracy_level=level,
        quant_format=QuantFormat.QDQ if qdq else QuantFormat.QOperator,
    )
    quantizer.process()
    quantizer.model.save_model_to_file(str(out), use_external_data_format=False)


def prepare(model: Path, out: Path) -> None:
    """Opset upgrade where per-channel needs it, then `quant_pre_process` (which spoils a message it is given)."""
    proto = onnx.load(model)
    opset = next(o.version for o in proto.opset_import if o.domain in ("", "ai.onnx"))
    if opset < PER_CHANNEL_SINCE:
        proto = version_converter.convert_version(proto, UPGRADE_TO)
    upgraded = out.with_suffix(".upgraded.onnx")
    onnx.save(proto, upgraded)
    with _inside(out.parent):
        try:
            quant_pre_process(str(upgraded), str(out))
        except Exception as error:  # the tool raises a bare Exception when symbolic shape inference gives up
            if "symbolic shape inference" not in str(error):
                raise
            quant_pre_process(str(upgraded), str(out), skip_symbolic_shape=True)


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Work in a folder: the tool leaves files of its own in the current one."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
