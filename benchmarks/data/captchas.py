"""Captcha images with their text, made by the ``captcha`` package from seeded random numbers."""

from __future__ import annotations

import random
from unittest import mock

from PIL import Image

LETTERS = "abcdefghjkmnpqrstuvwxy23456789"


class _Seeded(random.Random):
    """Stands in for the `secrets` module inside the generator."""

    def randbelow(self, n: int) -> int:
        return self.randrange(n)

    def randbits(self, k: int) -> int:
        return self.getrandbits(k)


def captchas(count: int, seed: int) -> list[tuple[Image.Image, str]]:
    """Grey 160 x 60 images of four characters, with the characters."""
    import captcha.image

    rng, out = _Seeded(seed), []
    generator = captcha.image.ImageCaptcha(160, 60)
    with mock.patch.object(captcha.image, "secrets", rng):
        for _ in range(count):
            text = "".join(rng.choice(LETTERS) for _ in range(4))
            out.append((generator.generate_image(text).convert("L"), text))
    return out
