"""Photos to train on without labels: random views of pictures that are no test pictures.

Pictures: those of `photos.unlabelled`, larger, and the photos of GCompris, which lie as WebP in Qt resource files and
are found by their RIFF header.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator

import numpy as np
from PIL import Image

from benchmarks.data import photos
from models.fetch import fetch
from models.weights import Array

FILES = ("things", "scenes", "farm-animals", "monuments", "world-animals", "music")
LEAST = 200
"""Pixels of the shorter side: smaller pictures are icons."""
LARGEST = 640


def training(count: int, seed: int = 0) -> Iterator[Array]:
    """``count`` views, uint8 [224, 224, 3], of all pictures in turn; the first one of each shows all of it."""
    pictures = [*photos.pictures(), *gcompris()]
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(pictures))
    for i in range(count):
        yield view(pictures[order[i % len(order)]], rng if i >= len(order) else None)


def view(picture: Image.Image, rng: np.random.Generator | None) -> Array:
    """The picture, or, with ``rng``, a random 30 to 100 % of its area, half of them mirrored; uint8 [224, 224, 3]."""
    w, h = picture.size
    if rng is None:
        return _resized(picture, (0, 0, w, h))
    area, aspect = rng.uniform(0.3, 1.0) * w * h, np.exp(rng.uniform(-0.28, 0.28))
    width, height = min(w, int(np.sqrt(area * aspect))), min(h, int(np.sqrt(area / aspect)))
    x, y = rng.integers(0, w - width + 1), rng.integers(0, h - height + 1)
    seen = _resized(picture, (int(x), int(y), int(x) + width, int(y) + height))
    return seen[:, ::-1] if rng.random() < 0.5 else seen


def gcompris() -> list[Image.Image]:
    """The photos of GCompris, on white."""
    found = []
    for name in FILES:
        for raw in riff(fetch(f"gcompris-{name}").read_bytes()):
            picture = Image.open(io.BytesIO(raw)).convert("RGBA")
            if min(picture.size) < LEAST:
                continue
            white = Image.new("RGBA", picture.size, (255, 255, 255, 255))
            white.alpha_composite(picture)
            white.thumbnail((LARGEST, LARGEST), Image.Resampling.BICUBIC)
            found.append(white.convert("RGB"))
    return found


def riff(data: bytes) -> Iterator[bytes]:
    """The WebP files inside of other data; the size stands behind ``RIFF``, without these eight bytes."""
    at = data.find(b"RIFF")
    while at >= 0:
        (size,) = struct.unpack_from("<I", data, at + 4)
        if data[at + 8 : at + 12] == b"WEBP":
            yield data[at : at + 8 + size]
        at = data.find(b"RIFF", at + 8)


def _resized(picture: Image.Image, box: tuple[int, int, int, int]) -> Array:
    side = photos.SIDE
    return np.asarray(picture.resize((side, side), Image.Resampling.BICUBIC, box=box))
