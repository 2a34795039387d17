import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance
from scipy import stats
from torch import Tensor

from dubito.augmentations import AUGMENTATIONS
from dubito.augmentations.photo import Photo
from dubito.errors import DubitoError

IMAGES = torch.rand(5, 3, 24, 30, generator=torch.Generator().manual_seed(0))
PLAIN = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "flip": 0.0}


def changes(count: int = 5, **values: float) -> Tensor:
    """Return changes that change nothing but what is given."""
    names = ["flip", "height", "width", "top", "left", "brightness", "contrast", "saturation"]
    plain = dict.fromkeys(names, 1.0) | {"flip": 0.0, "top": 0.0, "left": 0.0} | values
    return torch.tensor([[plain[name] for name in names]]).repeat(count, 1)


def test_identity_changes_nothing():
    torch.testing.assert_close(Photo().apply(IMAGES, changes()), IMAGES, rtol=0, atol=1e-5)
    pixels = (255 * IMAGES).to(torch.uint8)
    assert torch.equal(Photo().apply(pixels, changes()), pixels)
    off = Photo(scale=1, ratio=1, **PLAIN)
    drawn = off.draw(5, torch.Generator().manual_seed(0))
    assert torch.equal(off.apply(pixels, drawn), pixels)


@pytest.mark.parametrize("flip", [0, 1])
@pytest.mark.parametrize("box", [(0, 0, 12, 15), (3, 7, 20, 11), (23, 29, 1, 1), (5, 0, 19, 30)])
def test_crop_is_that_of_interpolate(box, flip):
    top, left, height, width = box
    values = {"top": top / 24, "left": left / 30, "height": height / 24, "width": width / 30}
    result = Photo().apply(IMAGES, changes(flip=flip, **values))
    part = IMAGES[:, :, top : top + height, left : left + width]
    expected = F.interpolate(part, (24, 30), mode="bilinear", align_corners=False)
    expected = expected.flip(-1) if flip else expected
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-4)


def test_colors_change_as_pillow_changes_them():
    pixels = (255 * IMAGES).to(torch.uint8)
    kinds = {"brightness": "Brightness", "contrast": "Contrast", "saturation": "Color"}
    for name, kind in kinds.items():
        for factor in (0.6, 1.4):
            result = Photo().apply(pixels, changes(**{name: factor}))
            for ours, image in zip(result, pixels, strict=True):
                picture = Image.fromarray(image.permute(1, 2, 0).numpy())
                theirs = np.asarray(getattr(ImageEnhance, kind)(picture).enhance(factor))
                difference = ours.permute(1, 2, 0).numpy().astype(int) - theirs
                assert abs(difference).max() <= 2, (name, factor)


def test_draws_have_their_distributions():
    photo = Photo(scale=0.4)
    drawn = photo.draw(20_000, torch.Generator().manual_seed(0))
    flip, height, width, top, left, *factors = drawn.numpy().T
    assert stats.binomtest(int(flip.sum()), len(flip), 0.5).pvalue > 1e-3
    small = height * width < 0.7  # so small that no side is cut at that of the image
    assert stats.kstest((height * width)[small], stats.uniform(0.4, 0.3).cdf).pvalue > 1e-3
    ratio, most = np.log(height[small] / width[small]), math.log(4 / 3)
    assert stats.kstest(ratio, stats.uniform(-most, 2 * most).cdf).pvalue > 1e-3
    for start, size in ((top, height), (left, width)):
        free = size < 0.99
        assert stats.kstest(start[free] / (1 - size[free]), "uniform").pvalue > 1e-3
    for factor in factors:
        assert stats.kstest(factor, stats.uniform(0.8, 0.4).cdf).pvalue > 1e-3


@pytest.mark.parametrize(
    "options", [{"scale": 0.0}, {"ratio": 0.5}, {"flip": 2}, {"contrast": -1}, {"scale": math.nan}]
)
def test_bad_options_are_named(options):
    with pytest.raises(DubitoError, match=next(iter(options))):
        AUGMENTATIONS.build("photo", **options)
