"""Views of photos: what is found in resource files, and what is cut out of a picture."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from benchmarks.data import views


def webp(colour: int, size: tuple[int, int]) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, (colour, colour, colour)).save(out, "WEBP", lossless=True)
    return out.getvalue()


def test_pictures_are_found_between_other_bytes() -> None:
    first, second = webp(10, (8, 6)), webp(200, (5, 4))
    other = b"RIFF\x04\x00\x00\x00WAVE"
    found = list(views.riff(b"qres" + first + other + second + b"RI"))
    assert found == [first, second]
    assert [Image.open(io.BytesIO(raw)).size for raw in found] == [(8, 6), (5, 4)]


def test_a_view_shows_all_or_a_part() -> None:
    ramp = np.broadcast_to(np.arange(256, dtype=np.uint8)[None, :, None], (128, 256, 3))
    picture = Image.fromarray(np.ascontiguousarray(ramp))
    whole = views.view(picture, None)
    assert whole.shape == (224, 224, 3)
    assert (int(whole[0, 0, 0]), int(whole[0, -1, 0])) == (0, 255)
    parts = [views.view(picture, np.random.default_rng(seed)) for seed in range(40)]
    spans = [abs(int(p[0, -1, 0]) - int(p[0, 0, 0])) for p in parts]
    assert min(spans) > 256 * 0.3 * 0.7  # 30 % of the area, and at most 1.3 times as high as wide beyond that
    assert max(spans) < 256
    assert 8 < sum(p[0, -1, 0] < p[0, 0, 0] for p in parts) < 32
    again = views.view(picture, np.random.default_rng(3))
    assert np.array_equal(again, parts[3])
