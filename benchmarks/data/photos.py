"""Labelled and unlabelled photos for ImageNet classifiers.

Labelled: 20 ImageNet samples (label in the file name) and 143 Tux Paint stamps whose captions name an ImageNet class;
the map `stamps.yaml` was written from the captions before any prediction was seen. Unlabelled: other stamps and the
sample photos of scikit-image and scikit-learn, for calibration.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
import yaml
from PIL import Image

from models.fetch import fetch
from models.weights import Array

SIDE = 224
SKIMAGE = [
    "astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "motorcycle_left.png", "hubble_deep_field.jpg",
    "retina.jpg", "ihc.png", "grass.png", "gravel.png", "brick.png", "camera.png", "coins.png", "page.png",
]  # fmt: skip


@cache
def stamp_classes() -> dict[str, list[int]]:
    """Stamp path without suffix -> the ImageNet ids that count as right."""
    classes: dict[str, list[int]] = yaml.safe_load(Path(__file__).with_name("stamps.yaml").read_text("utf-8"))
    return classes


def labelled() -> tuple[Array, list[list[int]]]:
    """163 photos, uint8 [N, 224, 224, 3], and the acceptable ImageNet ids of each."""
    samples = sorted(fetch("imagenet-samples").glob("imagenet_*.jpg"))
    images = [_photo(p) for p in samples]
    labels = [[int(re.findall(r"_(\d+)\.jpg", p.name)[0])] for p in samples]
    stamps = fetch("stamps")
    for name, ids in stamp_classes().items():
        images.append(_stamp(stamps / f"{name}.png"))
        labels.append(ids)
    return np.stack(images), labels


def unlabelled(count: int) -> Array:
    """``count`` calibration photos, uint8 [count, 224, 224, 3], disjoint from the labelled ones."""
    images = [np.asarray(picture.resize((SIDE, SIDE), Image.Resampling.BICUBIC)) for picture in pictures()]
    order = np.random.default_rng(0).permutation(len(images))[:count]
    return np.stack([images[i] for i in order])


def pictures() -> list[Image.Image]:
    """The unlabelled pictures in their own size, stamps on white squares."""
    stamps = fetch("stamps")
    found: list[Path] = []
    for kind in ("animals", "food", "plants", "vehicles", "household"):
        found += stamps.glob(f"{kind}/**/*.png")
    chosen = [
        p
        for p in sorted(found)
        if p.relative_to(stamps).with_suffix("").as_posix() not in stamp_classes()
        and not re.search("cartoon|mirror", str(p.relative_to(stamps)))
    ]
    images = [_square(p) for p in chosen]
    images += [Image.open(fetch("skimage-photos") / name).convert("RGB") for name in SKIMAGE]
    images += [Image.open(fetch("sklearn-photos") / name).convert("RGB") for name in ("china.jpg", "flower.jpg")]
    return images


def _photo(path: Path) -> Array:
    return np.asarray(Image.open(path).convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC))


def _stamp(path: Path) -> Array:
    return np.asarray(_square(path).resize((SIDE, SIDE), Image.Resampling.BICUBIC))


def _square(path: Path) -> Image.Image:
    """A cut-out on a white square with 10 % margin."""
    stamp = Image.open(path).convert("RGBA")
    w, h = stamp.size
    side = int(max(w, h) * 1.1)
    square = Image.new("RGBA", (side, side), (255, 255, 255, 255))
    square.alpha_composite(stamp, ((side - w) // 2, (side - h) // 2))
    return square.convert("RGB")
