"""Resizing, compared with Pillow."""

import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from pydantic import ValidationError

from dubito.formats import ImageFormat, Resize

FILTERS = ("nearest", "bilinear", "bicubic", "lanczos")


def picture(height: int, width: int, seed: int = 0) -> Image.Image:
    """Draw a smooth image."""
    values = np.random.default_rng(seed).integers(256, size=(5, 6, 3), dtype=np.uint8)
    return Image.fromarray(values).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, size: tuple[int, int], **options: Any) -> np.ndarray:
    image.save(stream := io.BytesIO(), "PNG")
    format = ImageFormat(size=size, mode="RGB", resize=Resize(**options))
    return format.encode([stream.getvalue()]).checked()[0].permute(1, 2, 0).numpy()


@pytest.mark.parametrize("interpolation", FILTERS)
@pytest.mark.parametrize("size", [(48, 48), (30, 50), (160, 120)])
def test_stretch_is_pillows_resize(interpolation, size):
    image = picture(75, 100)
    expected = image.resize(size[::-1], Image.Resampling[interpolation.upper()])
    result = encoded(image, size, interpolation=interpolation)
    np.testing.assert_array_equal(result, np.asarray(expected))


@pytest.mark.parametrize(
    ("shape", "pct", "resized", "box"),
    [
        # Height and width, resized width and height, and the box of the crop.
        ((75, 100), 1.0, (64, 48), (8, 0, 56, 48)),
        ((100, 75), 1.0, (48, 64), (0, 8, 48, 56)),
        ((75, 100), 0.75, (85, 64), (18, 8, 66, 56)),
        ((20, 90), 0.875, (243, 54), (97, 3, 145, 51)),
    ],
)
def test_crop_keeps_the_center(shape, pct, resized, box):
    image = picture(*shape)
    expected = image.resize(resized, Image.Resampling.BICUBIC).crop(box)
    result = encoded(image, (48, 48), fit="crop", crop_pct=pct, interpolation="bicubic")
    np.testing.assert_array_equal(result, np.asarray(expected))


def test_crop_covers_a_size_of_another_shape():
    image = picture(60, 100)
    expected = image.resize((100, 60)).crop((35, 0, 65, 60))
    np.testing.assert_array_equal(encoded(image, (60, 30), fit="crop"), np.asarray(expected))


@pytest.mark.parametrize("shape", [(75, 100), (100, 40), (50, 50), (1, 90)])
def test_pad_shows_the_whole_image(shape):
    image = picture(*shape)
    whole = ImageOps.contain(image, (48, 48), Image.Resampling.BILINEAR)
    expected = Image.new("RGB", (48, 48))
    expected.paste(whole, (round((48 - whole.width) / 2), round((48 - whole.height) / 2)))
    np.testing.assert_array_equal(encoded(image, (48, 48), fit="pad"), np.asarray(expected))


def test_large_photos_are_reduced_first():
    image = picture(1500, 2000)
    expected = np.asarray(
        image.resize((74, 56), Image.Resampling.BILINEAR).crop((9, 0, 65, 56))
    ).astype(int)
    image.save(stream := io.BytesIO(), "JPEG", quality=95)
    format = ImageFormat(size=(56, 56), mode="RGB", resize=Resize(fit="crop"))
    result = format.encode([stream.getvalue()]).checked()[0].permute(1, 2, 0).numpy()
    assert abs(result - expected).mean() < 1


def test_arrays_of_the_size_are_taken_as_they_are():
    pixels = torch.randint(256, (2, 3, 9, 9), dtype=torch.uint8)
    format = ImageFormat(size=(9, 9), mode="RGB", resize=Resize(fit="crop", crop_pct=0.5))
    assert torch.equal(format.encode(pixels).inputs, pixels)


@pytest.mark.parametrize("values", [{"fit": "squash"}, {"crop_pct": 0}, {"interpolation": "area"}])
def test_wrong_values(values):
    with pytest.raises(ValidationError):
        Resize(**values)
