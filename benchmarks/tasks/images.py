"""Image classifiers: EfficientNet-Lite0 on photos, PP-LCNet on turned pages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from PIL import Image

from benchmarks.data import photos, text
from benchmarks.tasks.base import Feed, Metrics, Task, cosine, same
from models.efficientnet import efficientnet
from models.fetch import fetch
from models.weights import Array

IMAGENET_MEAN = np.array([0.485, 0.456, 0.406], np.float32)
IMAGENET_STD = np.array([0.229, 0.224, 0.225], np.float32)


def channels_first(image: Array) -> Array:
    """[H, W, C] -> [1, C, H, W], float32, contiguous."""
    return np.ascontiguousarray(image.astype(np.float32).transpose(2, 0, 1)[None])


def first(outputs: Sequence[Array], _: Feed) -> Array:
    """The only sample of the first output."""
    return np.asarray(outputs[0][0])


def top_classes(answers: list[Array]) -> list[int]:
    return [int(a.argmax()) for a in answers]


def against_float(answers: list[Array], reference: list[Array]) -> Metrics:
    """Share of samples with the same class, and the cosine of all logits."""
    return {"agree": same(top_classes(answers), top_classes(reference)), "cosine": cosine(answers, reference)}


# ---- EfficientNet-Lite0 -------------------------------------------------------------------------


@cache
def _photos() -> tuple[Array, list[list[int]]]:
    return photos.labelled()


def _photo_feed(image: Array) -> Feed:
    return {"image": (channels_first(image) - 127) / 128}


def _photo_score(answers: list[Array]) -> Metrics:
    labels = _photos()[1]
    top5 = [np.argsort(-a)[:5] for a in answers]
    return {
        "top1": float(np.mean([t[0] in ok for t, ok in zip(top5, labels, strict=True)])),
        "top5": float(np.mean([bool(set(t) & set(ok)) for t, ok in zip(top5, labels, strict=True)])),
    }


EFFICIENTNET = Task(
    name="efficientnet",
    title="EfficientNet-Lite0",
    model=efficientnet,
    calibration=lambda: [_photo_feed(x) for x in photos.unlabelled(64)],
    tests=lambda: [_photo_feed(x) for x in _photos()[0]],
    answer=first,
    score=_photo_score,
    compare=against_float,
    main="top1",
    wanted={"agree": 0.957, "cosine": 0.994},
)


# ---- PP-LCNet document orientation --------------------------------------------------------------


def orientation_feed(page: Image.Image, quarter: int) -> Feed:
    """A page turned by ``quarter`` x 90 degrees: shorter side 256, centre 224, ImageNet mean and deviation."""
    image = page.rotate(90 * quarter, expand=True)
    w, h = image.size
    scale = 256 / min(w, h)
    image = image.resize((round(w * scale), round(h * scale)), Image.Resampling.LANCZOS)
    left, top = (image.size[0] - 224) // 2, (image.size[1] - 224) // 2
    pixels = np.asarray(image.crop((left, top, left + 224, top + 224))).astype(np.float32)
    return {"x": channels_first((pixels / 255 - IMAGENET_MEAN) / IMAGENET_STD)}


def orientation_calibration() -> list[Feed]:
    return [orientation_feed(page, i % 4) for i, (page, _) in enumerate(text.pages(24, 99))]


def orientation_tests() -> list[Feed]:
    return [orientation_feed(page, quarter) for page, _ in text.pages(60, 1) for quarter in range(4)]


def orientation_score(answers: list[Array]) -> Metrics:
    """The label is the turn: class k is a page turned clockwise by k x 90 degrees (Pillow turns the other way)."""
    turns = [-(i % 4) % 4 for i in range(len(answers))]
    return {"accuracy": same(top_classes(answers), turns)}


ORIENTATION = Task(
    name="orientation",
    title="PP-LCNet orientation",
    model=lambda: fetch("orientation"),
    calibration=orientation_calibration,
    tests=orientation_tests,
    answer=first,
    score=orientation_score,
    compare=against_float,
    main="accuracy",
    wanted={"accuracy": 1.0, "cosine": 0.9995},
)
