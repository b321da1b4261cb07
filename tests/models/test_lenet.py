"""The committed LeNet: right, small, tested on digits it has not seen; and the training's arithmetic."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from models.fetch import ROOT
from models.lenet import train

LENET = ROOT / "models" / "lenet"


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    with np.load(LENET / "digits.npz") as stored:
        return stored["pixels"], stored["labels"]


def test_model_reads_held_out_digits(digits: tuple[np.ndarray, np.ndarray]) -> None:
    pixels, labels = digits
    assert (pixels.shape, pixels.dtype, labels.shape) == ((500, 28, 28), np.uint8, (500,))
    assert np.bincount(labels).min() > 30
    session = ort.InferenceSession(LENET / "lenet.onnx", providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"image": pixels[:, None].astype(np.float32) / 255})
    assert (logits.argmax(1) == labels).mean() > 0.94


def test_calibration_digits_are_others(digits: tuple[np.ndarray, np.ndarray]) -> None:
    with np.load(LENET / "calibration.npz") as stored:
        images = stored["image"]
    assert (images.shape, images.dtype) == ((64, 1, 28, 28), np.float32)
    held_out = {image.tobytes() for image in digits[0]}
    assert not held_out & {np.rint(image * 255).astype(np.uint8).tobytes() for image in images}


def test_training_digits_are_others_too(digits: tuple[np.ndarray, np.ndarray]) -> None:
    with np.load(LENET / "training.npz") as stored:
        pixels, labels = stored["pixels"], stored["labels"]
    assert (pixels.shape, pixels.dtype, labels.shape) == ((500, 28, 28), np.uint8, (500,))
    assert np.bincount(labels).min() > 30
    assert not {image.tobytes() for image in digits[0]} & {image.tobytes() for image in pixels}
    with np.load(LENET / "calibration.npz") as stored:
        assert (np.rint(stored["image"][:, 0] * 255) == pixels[:64]).all()


def test_committed_files_are_small() -> None:
    assert sum(p.stat().st_size for p in LENET.iterdir() if p.is_file()) < 300_000


@pytest.fixture(scope="module")
def batch() -> tuple[train.Weights, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    weights = train.initial(rng)
    return weights, rng.random((6, 1, 28, 28), dtype=np.float32), rng.integers(0, 10, 6)


def test_forward_pass_is_the_exported_model(batch: tuple[train.Weights, np.ndarray, np.ndarray]) -> None:
    weights, images, _ = batch
    proto = train.export(weights)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"image": images})
    np.testing.assert_allclose(train.logits(weights, images)[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [f"{layer}.{part}" for layer in train.SHAPES for part in ("weight", "bias")])
def test_gradients(name: str, batch: tuple[train.Weights, np.ndarray, np.ndarray]) -> None:
    """Along a random direction, against a central difference of the loss."""
    weights, images, labels = batch

    def loss(step: float) -> float:
        out = train.logits({**exact, name: exact[name] + step * direction}, images.astype(float))[0]
        shifted = out - out.max(1, keepdims=True)
        return float((np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(labels)), labels]).mean())

    exact = {k: w.astype(float) for k, w in weights.items()}
    direction = np.random.default_rng(3).choice([-1.0, 1.0], weights[name].shape)
    numeric = (loss(1e-6) - loss(-1e-6)) / 2e-6
    analytic = float((train.gradients(weights, images, labels)[name] * direction).sum())
    assert analytic == pytest.approx(numeric, rel=1e-4, abs=1e-5)


def test_committed_model_has_the_script_s_shapes() -> None:
    model = onnx.load(LENET / "lenet.onnx")
    shapes = {t.name: tuple(t.dims) for t in model.graph.initializer}
    assert {k.removesuffix(".weight"): v for k, v in shapes.items() if k.endswith(".weight")} == train.SHAPES
