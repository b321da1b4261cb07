"""Image folders: decoding and preprocessing against plain NumPy on known pixels."""

import sys

import numpy as np
import onnx_ir as ir
import pytest
from onnx import parser

from onnxq.calibration.images import Preprocessing
from onnxq.calibration.sources import open_source
from onnxq.errors import DataError, OptionError, RecipeError

Image = pytest.importorskip("PIL.Image")


def model(text="float[1, 3, H, W] image"):
    graph = f"agraph ({text}) => (float[1] y) {{ y = Constant<value: tensor = float[1] {{1}}>() }}"
    return ir.from_proto(parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {graph}'))


@pytest.fixture
def pixels(tmp_path):
    rgb = np.random.default_rng(0).integers(0, 256, (5, 7, 3)).astype(np.uint8)
    Image.fromarray(rgb).save(tmp_path / "a.png")
    return rgb


def one(tmp_path, **options):
    return Preprocessing(**options).load(tmp_path / "a.png")


def test_default_is_rgb_over_255_in_nchw(tmp_path, pixels):
    y = one(tmp_path)
    assert y.shape == (1, 3, 5, 7) and y.dtype == np.float32 and y.flags.c_contiguous
    np.testing.assert_allclose(y[0].transpose(1, 2, 0), pixels / np.float32(255), rtol=1e-6)


def test_mean_std_order_and_layout(tmp_path, pixels):
    y = one(tmp_path, mean=(0.1, 0.2, 0.3), std=(1.0, 2.0, 4.0), color="BGR", layout="NHWC")
    expected = (pixels[..., ::-1] / 255 - [0.1, 0.2, 0.3]) / [1, 2, 4]
    np.testing.assert_allclose(y[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("layout", "shape"), [("NCHW", (1, 3, 5, 7)), ("CHW", (3, 5, 7)), ("HWC", (5, 7, 3))])
def test_layouts(tmp_path, pixels, layout, shape):
    assert one(tmp_path, layout=layout).shape == shape


def test_integers_are_rounded_and_saturated(tmp_path, pixels):
    y = one(tmp_path, divide=1.0, mean=128.0, dtype="int8", layout="HWC")
    np.testing.assert_array_equal(y, (pixels.astype(int) - 128).astype(np.int8))
    np.testing.assert_array_equal(one(tmp_path, divide=0.5, dtype="uint8", layout="HWC"), np.minimum(pixels * 2.0, 255))


def test_gray(tmp_path, pixels):
    y = one(tmp_path, color="gray", divide=1.0)
    luma = pixels.astype(float) @ [0.299, 0.587, 0.114]
    assert y.shape == (1, 1, 5, 7)
    assert np.abs(y[0, 0] - luma).max() <= 1


def test_resize_and_crop(tmp_path, pixels):
    assert one(tmp_path, size=(10, 20)).shape == (1, 3, 10, 20)
    assert one(tmp_path, size=10).shape == (1, 3, 10, 14)  # shorter side, proportions kept
    y = one(tmp_path, crop=3, divide=1.0, layout="HWC")
    np.testing.assert_array_equal(y, pixels[1:4, 2:5])
    y = one(tmp_path, size=(5, 14), crop=(5, 2), resample="nearest", divide=1.0, layout="HWC")
    np.testing.assert_array_equal(y[:, 0], pixels[:, 3])


def test_crop_larger_than_the_image(tmp_path, pixels):
    with pytest.raises(DataError, match=r"a\.png: 5 x 7 pixels are too few for a crop of 6 x 6"):
        one(tmp_path, crop=6)


def test_not_an_image(tmp_path):
    (tmp_path / "a.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"a\.png: not an image"):
        one(tmp_path)


def test_folder_with_yaml(tmp_path, pixels):
    how = tmp_path / "how" / "pre.yaml"
    how.parent.mkdir()
    how.write_text("size: [8, 8]\nmean: [0.485, 0.456, 0.406]\nstd: [0.229, 0.224, 0.225]\ncolor: RGB\n")
    source = open_source(tmp_path, model(), preprocessing=how)
    (feeds,) = source
    assert feeds["image"].shape == (1, 3, 8, 8) and source.size == 1
    how.write_text("input: image\nlayout: HWC\n")
    with pytest.raises(DataError, match=r"input 'image' takes float32\[1, 3, H, W\], got float32\[5, 7, 3\]"):
        list(open_source(tmp_path, model(), preprocessing=how))


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("sice: 3\n", RecipeError, r"pre\.yaml:1: preprocessing has no option 'sice'; did you mean size"),
        ("color: XYZ\n", RecipeError, r"pre\.yaml:1: .*expected one of RGB, BGR, gray"),
        ("mean: [1, 2]\n", OptionError, "mean needs 3 numbers for RGB, got 2"),
        ("std: 0\n", OptionError, "must not be 0"),
    ],
)
def test_wrong_yaml(tmp_path, text, error, message):
    path = tmp_path / "pre.yaml"
    path.write_text(text)
    with pytest.raises(error, match=message):
        Preprocessing.read(path)


def test_images_need_preprocessing_and_nothing_else_does(tmp_path, pixels):
    with pytest.raises(OptionError, match="--preprocessing FILE"):
        open_source(tmp_path, model())
    with pytest.raises(OptionError, match=r"no input 'imag'; did you mean image\?"):
        open_source(tmp_path, model(), preprocessing=Preprocessing(input="imag"))
    with pytest.raises(OptionError, match="preprocessing is for folders of images"):
        open_source([np.zeros((1, 3, 2, 2), np.float32)], model(), preprocessing=Preprocessing())


def test_without_pillow(tmp_path, pixels, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(OptionError, match=r"pip install 'onnxq\[images\]'"):
        one(tmp_path)
