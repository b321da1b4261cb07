"""Reading text: PP-OCRv4 recognition and detection on rendered text, ddddocr on captchas."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import cache

import numpy as np
import onnx
from PIL import Image

from benchmarks.data import captchas, text
from benchmarks.tasks.base import Feed, Metrics, Task, ctc, edit_distance, same
from benchmarks.tasks.images import IMAGENET_MEAN, IMAGENET_STD, channels_first
from models.fetch import fetch
from models.weights import Array


def _read_score(read: list[str], truth: list[str]) -> Metrics:
    """Share of samples read without error, and character error rate."""
    errors = sum(edit_distance(a, b) for a, b in zip(read, truth, strict=True))
    return {"exact": same(read, truth), "cer": errors / sum(map(len, truth))}


def _classes(outputs: Sequence[Array], _: Feed) -> Array:
    """The winning class of every step of the only sample."""
    return np.asarray(outputs[0].argmax(-1).ravel(), np.int32)


def _same_text(answers: list[Array], reference: list[Array]) -> Metrics:
    return {"agree": same([ctc(a) for a in answers], [ctc(b) for b in reference])}


# ---- PP-OCRv4 recognition -----------------------------------------------------------------------


@cache
def _lines() -> list[tuple[Image.Image, str]]:
    return text.lines(300, 5)


def line_feed(line: Image.Image, width: int = 0) -> Feed:
    """Height 48, BGR, (x / 255 - 0.5) / 0.5, zeros on the right up to ``width`` or a multiple of 32."""
    w, h = line.size
    scaled = max(16, round(48 * w / h))
    pixels = np.asarray(line.resize((scaled, 48), Image.Resampling.BILINEAR)).astype(np.float32)[:, :, ::-1]
    padded = np.zeros((48, max(width or -(-scaled // 32) * 32, scaled), 3), np.float32)
    padded[:, :scaled] = (pixels / 255 - 0.5) / 0.5
    return {"x": channels_first(padded)}


@cache
def _alphabet() -> list[str]:
    model = onnx.load(fetch("ocr-rec"))
    characters = next(p.value for p in model.metadata_props if p.key == "character")
    return ["", *characters.split("\n"), " "]


def _line_score(answers: list[Array]) -> Metrics:
    letters = _alphabet()
    read = ["".join(letters[c] for c in ctc(a)).replace(" ", "") for a in answers]
    return _read_score(read, [t.replace(" ", "") for _, t in _lines()])


RECOGNITION = Task(
    name="ocr-rec",
    title="PP-OCRv4 rec",
    model=lambda: fetch("ocr-rec"),
    calibration=lambda: [line_feed(line, 320) for line, _ in text.lines(48, 77)],
    tests=lambda: [line_feed(line) for line, _ in _lines()],
    answer=_classes,
    score=_line_score,
    compare=_same_text,
    main="exact",
    wanted={"exact": 0.92, "agree": 0.78},
)


# ---- PP-OCRv4 detection -------------------------------------------------------------------------

THRESHOLD = 0.3


@cache
def _pages() -> list[tuple[Image.Image, list[text.Box]]]:
    return text.pages(12, 3)


def _page_feed(page: Image.Image) -> Feed:
    """Sides to multiples of 32, BGR, ImageNet mean and deviation."""
    size = (round(page.size[0] / 32) * 32, round(page.size[1] / 32) * 32)
    pixels = np.asarray(page.resize(size, Image.Resampling.BILINEAR)).astype(np.float32)[:, :, ::-1]
    return {"x": channels_first((pixels / 255 - IMAGENET_MEAN) / IMAGENET_STD)}


def _mask(outputs: Sequence[Array], _: Feed) -> Array:
    return np.asarray(outputs[0][0, 0] > THRESHOLD)


def _page_score(answers: list[Array]) -> Metrics:
    """Lines whose box is covered by more than 30 %, and the share of marked pixels that lie in a box."""
    hits, lines, inside, marked = 0, 0, 0, 0
    for mask, (page, boxes) in zip(answers, _pages(), strict=True):
        h, w = mask.shape
        truth = np.zeros_like(mask)
        for box in boxes:
            left, right = (round(v * w / page.size[0]) for v in (box[0], box[2]))
            top, bottom = (round(v * h / page.size[1]) for v in (box[1], box[3]))
            truth[top:bottom, left:right] = True
            hits += int(mask[top:bottom, left:right].mean() > 0.3)
        lines += len(boxes)
        inside += int((mask & truth).sum())
        marked += int(mask.sum())
    return {"line_recall": hits / lines, "pixel_precision": inside / max(marked, 1)}


def _mask_iou(answers: list[Array], reference: list[Array]) -> Metrics:
    ious = [(a & b).sum() / max(1, (a | b).sum()) for a, b in zip(answers, reference, strict=True)]
    return {"iou": float(np.mean(ious))}


DETECTION = Task(
    name="ocr-det",
    title="PP-OCRv4 det",
    model=lambda: fetch("ocr-det"),
    calibration=lambda: [_page_feed(page.resize((640, 640))) for page, _ in text.pages(10, 55)],
    tests=lambda: [_page_feed(page) for page, _ in _pages()],
    answer=_mask,
    score=_page_score,
    compare=_mask_iou,
    main="line_recall",
    wanted={"iou": 0.86},
)


# ---- ddddocr ------------------------------------------------------------------------------------


@cache
def _captchas() -> list[tuple[Image.Image, str]]:
    return captchas.captchas(200, 3)


def _captcha_feed(image: Image.Image) -> Feed:
    """Grey, height 64, / 255."""
    w, h = image.size
    pixels = np.asarray(image.resize((int(w * 64 / h), 64), Image.Resampling.LANCZOS)).astype(np.float32) / 255
    return {"input1": channels_first(pixels[:, :, None])}


@cache
def _charset() -> list[str]:
    """The character list, read from the package's source without running it."""
    tree = ast.parse(fetch("ddddocr-charset").read_text("utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "CHARSET_BETA":
            return list(ast.literal_eval(node.value))
    raise LookupError("ddddocr's charsets.py has no CHARSET_BETA")


def _captcha_score(answers: list[Array]) -> Metrics:
    letters = _charset()
    return _read_score(["".join(letters[c] for c in ctc(a)).lower() for a in answers], [t for _, t in _captchas()])


CAPTCHA = Task(
    name="ddddocr",
    title="ddddocr",
    model=lambda: fetch("ddddocr"),
    calibration=lambda: [_captcha_feed(image) for image, _ in captchas.captchas(40, 11)],
    tests=lambda: [_captcha_feed(image) for image, _ in _captchas()],
    answer=_classes,
    score=_captcha_score,
    compare=_same_text,
    main="exact",
    wanted={"agree": 0.93},
)
