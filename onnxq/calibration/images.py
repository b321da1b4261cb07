"""Images as samples: decode, resize, crop, normalize, lay out, as a small YAML file says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from onnxq.errors import DataError, OptionError

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff", ".gif"})

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """How an image becomes an input: ``((pixel / divide) - mean) / std`` after resizing and cropping.

    Attributes:
        size: [height, width] to resize to; one number resizes the shorter side and keeps the proportions.
        crop: [height, width] of a crop from the centre, after resizing; one number means a square.
        layout: Order of the dimensions; the batch has one image.
        color: Order of the channels; ``gray`` has one.
        divide: Divisor of the pixel values 0 ... 255.
        mean: Subtracted after dividing; one number or one a channel.
        std: Divided by at the end; one number or one a channel.
        dtype: Element type of the input.
        resample: Filter for resizing.
        input: Name of the model's input; needed only if it has several.
    """

    size: int | tuple[int, int] | None = None
    crop: int | tuple[int, int] | None = None
    layout: Literal["NCHW", "NHWC", "CHW", "HWC"] = "NCHW"
    color: Literal["RGB", "BGR", "gray"] = "RGB"
    divide: float = 255.0
    mean: float | tuple[float, ...] = 0.0
    std: float | tuple[float, ...] = 1.0
    dtype: Literal["float32", "float16", "uint8", "int8"] = "float32"
    resample: Literal["nearest", "bilinear", "bicubic", "lanczos"] = "bilinear"
    input: str | None = None

    def __post_init__(self) -> None:
        channels = 1 if self.color == "gray" else 3
        for name in ("mean", "std"):
            value = getattr(self, name)
            if isinstance(value, tuple) and len(value) != channels:
                raise OptionError(f"preprocessing: {name} needs {channels} numbers for {self.color}, got {len(value)}")
        if self.divide == 0 or 0 in (self.std if isinstance(self.std, tuple) else (self.std,)):
            raise OptionError("preprocessing: divide and std must not be 0")

    @classmethod
    def read(cls, path: str | Path) -> Preprocessing:
        """From a YAML file whose keys are the attributes.

        Raises:
            RecipeError: Not YAML, an unknown key, a value of the wrong kind; names file and line.
        """
        from onnxq.options import options_of, read_options
        from onnxq.yamltree import read_file

        return cls(**read_options(options_of(cls), read_file(Path(path)), "preprocessing"))

    def load(self, path: Path) -> Array:
        """One image file as an array of the layout.

        Raises:
            OptionError: Pillow is not installed.
            DataError: The file cannot be decoded, or is smaller than the crop.
        """
        try:
            from PIL import Image, ImageOps
        except ImportError:
            raise OptionError("images as data need Pillow: pip install 'onnxq[images]'") from None
        try:
            with Image.open(path) as file:
                image = ImageOps.exif_transpose(file).convert("L" if self.color == "gray" else "RGB")
        except (OSError, SyntaxError, ValueError) as error:
            raise DataError(f"{path}: not an image that can be decoded: {error}") from error
        return self._array(self._cropped(self._resized(image), path))

    def _resized(self, image: Image) -> Image:
        from PIL.Image import Resampling

        if self.size is None:
            return image
        if isinstance(self.size, int):
            factor = self.size / min(image.size)
            target = (max(1, round(image.width * factor)), max(1, round(image.height * factor)))
        else:
            target = (self.size[1], self.size[0])
        return image.resize(target, Resampling[self.resample.upper()])

    def _cropped(self, image: Image, path: Path) -> Image:
        if self.crop is None:
            return image
        height, width = (self.crop, self.crop) if isinstance(self.crop, int) else self.crop
        top, left = (image.height - height) // 2, (image.width - width) // 2
        if top < 0 or left < 0:
            raise DataError(
                f"{path}: {image.height} x {image.width} pixels are too few for a crop of {height} x {width}"
            )
        return image.crop((left, top, left + width, top + height))

    def _array(self, image: Image) -> Array:
        x: Array = np.asarray(image, np.float32)
        x = x[:, :, None] if x.ndim == 2 else x[:, :, ::-1] if self.color == "BGR" else x
        x = (x / np.float32(self.divide) - np.asarray(self.mean, np.float32)) / np.asarray(self.std, np.float32)
        dtype: np.dtype[Any] = np.dtype(self.dtype)
        if dtype.kind in "iu":
            info = np.iinfo(dtype)
            x = np.clip(np.rint(x), info.min, info.max)
        x = x.astype(dtype)
        x = x.transpose(2, 0, 1) if "CHW" in self.layout else x
        return np.ascontiguousarray(x[None] if self.layout.startswith("N") else x)
