"""Rendered text: single lines and whole pages, from the DejaVu fonts and the licence texts that Debian ships.

Seeded, so the same numbers come out everywhere the fonts (fetched, pinned) and Debian's licence texts are the same.
Elsewhere the project's own licence text and Pillow's built-in font stand in; `sources` says which were used.
"""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from models.fetch import ROOT, NotServed, fetch

Box = tuple[float, float, float, float]
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

DEBIAN = Path("/usr/share/common-licenses")
TEXTS = ("GPL-3", "Apache-2.0", "MPL-2.0", "Artistic", "LGPL-2.1", "GFDL-1.3")


@cache
def fonts() -> tuple[Path, ...]:
    """The DejaVu fonts but the mathematical one, sorted by file name; empty when they cannot be had."""
    try:
        folders = [fetch("dejavu-core"), fetch("dejavu-extra")]
    except NotServed:
        return ()
    found = [p for folder in folders for p in folder.glob("*.ttf") if "Math" not in p.name]
    return tuple(sorted(found, key=lambda p: p.name))


@cache
def corpus() -> tuple[str, ...]:
    """Printable ASCII lines (no tabs) of 21 to 69 characters."""
    files = [DEBIAN / name for name in TEXTS]
    if not all(p.exists() for p in files):
        files = [ROOT / "LICENSE"]
    raw = [line for p in files for line in p.read_text("utf-8", errors="replace").split("\n")]
    return tuple(t.strip() for t in raw if 20 < len(t.strip()) < 70 and all(32 <= ord(c) < 127 for c in t))


def sources() -> str:
    """What the text is made of, for the printed table."""
    text = "Debian licence texts" if all((DEBIAN / name).exists() for name in TEXTS) else "own licence text"
    return f"{text}, {'DejaVu fonts' if fonts() else 'built-in font'}"


def _face(rng: random.Random) -> Path | None:
    return rng.choice(fonts()) if fonts() else None


def _font(face: Path | None, size: int) -> Font:
    return ImageFont.truetype(str(face), size) if face else ImageFont.load_default(size)


def lines(count: int, seed: int) -> list[tuple[Image.Image, str]]:
    """Images of two to five words with their text: varied font, size, colour, blur, noise, slight rotation."""
    rng, out = random.Random(seed), []
    for i in range(count):
        words = rng.choice(corpus()).split()
        start = rng.randrange(max(1, len(words) - 4))
        text = " ".join(words[start : start + rng.randint(2, 5)])
        font = _font(_face(rng), rng.randint(18, 40))
        left, top, right, bottom = font.getbbox(text)
        w, h = int(right - left + rng.randint(8, 24)), int(bottom - top + rng.randint(6, 16))
        paper, ink = rng.randint(170, 255), rng.randint(0, 90)
        image = Image.new("RGB", (w, h), (paper,) * 3)
        ImageDraw.Draw(image).text((4 - left, 3 - top), text, font=font, fill=(ink, rng.randint(0, 90), ink))
        if rng.random() < 0.5:
            image = image.filter(ImageFilter.GaussianBlur(rng.random() * 1.2))
        noise = np.random.default_rng(seed * 1000 + i).normal(0, rng.random() * 18, (h, w, 3))
        noisy = (np.asarray(image).astype(np.float32) + noise).clip(0, 255).astype(np.uint8)
        turned = Image.fromarray(noisy).rotate(
            rng.uniform(-2, 2), expand=True, fillcolor=(paper,) * 3, resample=Image.Resampling.BICUBIC
        )
        out.append((turned, text))
    return out


def pages(count: int, seed: int) -> list[tuple[Image.Image, list[Box]]]:
    """Pages of text with the box (left, top, right, bottom) of every line, in pixels."""
    rng, out = random.Random(seed), []
    for _ in range(count):
        w, h = rng.choice([(620, 877), (877, 620), (700, 700)])
        image = Image.new("RGB", (w, h), (rng.randint(215, 255),) * 3)
        draw, boxes = ImageDraw.Draw(image), []
        y, size = rng.randint(15, 50), rng.randint(13, 24)
        face = _face(rng)
        while y < h - 40:
            here = size if rng.random() < 0.9 else int(size * 1.6)
            font = _font(face, here)
            text, x = rng.choice(corpus()), rng.randint(20, 60)
            while font.getlength(text) > w - x - 20:
                text = text.rsplit(" ", 1)[0] if " " in text else text[:10]
            if rng.random() < 0.85:
                draw.text((x, y), text, font=font, fill=(rng.randint(0, 80),) * 3)
                boxes.append(draw.textbbox((x, y), text, font=font))
            y += int(here * rng.uniform(1.25, 1.9))
        if rng.random() < 0.4:
            image = image.filter(ImageFilter.GaussianBlur(rng.random()))
        out.append((image, boxes))
    return out
