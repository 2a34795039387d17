import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from scipy import stats

from dubito.augmentations import AUGMENTATIONS
from dubito.augmentations.shift import Shift
from dubito.errors import DubitoError


def by_pillow(image: np.ndarray, change: list[float], padding: int) -> np.ndarray:
    """Apply the same change to one channel (H, W), step by step."""
    flip, top, left, angle = change
    height, width = image.shape
    picture = Image.fromarray(image)
    if flip:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    picture = ImageOps.expand(picture, padding, fill=0)
    picture = picture.crop((int(left), int(top), int(left) + width, int(top) + height))
    return np.asarray(picture.rotate(angle, Image.Resampling.NEAREST, fillcolor=0))


def ambiguous(height: int, width: int, angle: float) -> np.ndarray:
    """Return pixels whose source is so close to the edge of a pixel that rounding decides."""
    y, x = np.mgrid[:height, :width]
    turn = np.exp(1j * np.deg2rad(angle))
    at = turn * ((x - (width - 1) / 2) + 1j * (y - (height - 1) / 2))
    column, row = at.real + width / 2, at.imag + height / 2
    # Pillow counts in steps of 1/65536, which add up over a row.
    return (abs(column - column.round()) < 2e-3) | (abs(row - row.round()) < 2e-3)


@pytest.mark.parametrize(
    ("shift", "shape"),
    [
        (Shift(), (3, 32, 32)),
        (Shift(padding=0), (1, 28, 28)),
        (Shift(padding=2, degrees=180), (1, 9, 14)),
    ],
)
def test_equals_pillow(shift, shape):
    generator = torch.Generator().manual_seed(1)
    # No zeros, so that every pixel from outside shows.
    images = torch.randint(1, 256, (60, *shape), generator=generator).to(torch.uint8)
    changes = shift.draw(60, generator)
    moved = shift.apply(images, changes).numpy()
    excluded = 0
    for image, result, change in zip(images.numpy(), moved, changes.tolist(), strict=True):
        clear = ~ambiguous(*shape[1:], change[3])
        excluded += int((~clear).sum())
        for channel, original in zip(result, image, strict=True):
            expected = by_pillow(original, change, shift.padding)
            np.testing.assert_array_equal(channel[clear], expected[clear])
    assert excluded < 0.02 * moved.size / shape[0]


def test_dtypes_agree():
    images = torch.randint(256, (8, 3, 32, 32), dtype=torch.uint8)
    shift = Shift()
    changes = shift.draw(8, torch.Generator().manual_seed(0))
    moved = shift.apply(images, changes)
    assert moved.dtype == torch.uint8
    assert torch.equal(shift.apply(images.float(), changes), moved.float())


def test_draws_have_their_distributions():
    flip, top, left, angle = Shift().draw(40_000, torch.Generator().manual_seed(0)).numpy().T
    assert stats.binomtest(int(flip.sum()), len(flip), 0.5).pvalue > 1e-3
    for corner in (top, left):
        counts = np.bincount(corner.astype(int), minlength=9)
        assert len(counts) == 9
        assert stats.chisquare(counts).pvalue > 1e-3
    pairs = np.histogram2d(top, left, bins=9)[0]
    assert stats.chi2_contingency(pairs).pvalue > 1e-3
    assert stats.kstest(angle, stats.uniform(-15, 30).cdf).pvalue > 1e-3
    assert set(np.unique(flip)) == {0.0, 1.0}


@pytest.mark.parametrize("flip", [0, 1])
def test_flip_alone(flip):
    images, shift = torch.rand(5, 2, 7, 6), Shift(flip=flip, padding=0, degrees=0)
    moved = shift.apply(images, shift.draw(5, torch.Generator().manual_seed(0)))
    assert torch.equal(moved, images.flip(-1) if flip else images)


@pytest.mark.parametrize(
    "options",
    [{"flip": 1.5}, {"padding": -1}, {"padding": 1.5}, {"degrees": 200}, {"degrees": math.nan}],
)
def test_bad_options(options):
    with pytest.raises(DubitoError, match=next(iter(options))):
        AUGMENTATIONS.build("shift", **options)
