"""Images of standalone pages."""

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from dubito.report.page import image


def decoded(pixels: Tensor) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(image(pixels).split(",")[1])))


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB")])
def test_small_image_is_exact(channels, mode):
    pixels = torch.arange(channels * 20, dtype=torch.uint8).reshape(channels, 4, 5)
    picture = decoded(pixels)
    assert (picture.mode, picture.format) == (mode, "PNG")
    assert (np.asarray(picture).reshape(4, 5, channels) == pixels.permute(1, 2, 0).numpy()).all()


def test_large_image_is_reduced():
    picture = decoded(torch.zeros(3, 400, 800, dtype=torch.uint8))
    assert (picture.size, picture.format) == ((192, 96), "JPEG")
