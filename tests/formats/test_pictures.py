"""How inputs are shown."""

import pytest
import torch

from dubito.formats import ArrayFormat, ImageFormat


def test_images_are_shown_as_they_are():
    pixels = torch.arange(60, dtype=torch.uint8).reshape(3, 4, 5)
    assert ImageFormat(size=(4, 5), mode="RGB").picture(pixels) is pixels


@pytest.mark.parametrize(
    ("values", "shown"), [([-2.0, 0.0, 2.0], [0, 128, 255]), ([0.2, 0.2, 0.2], [51, 51, 51])]
)
def test_floats_are_scaled_if_outside_of_unit_range(values, shown):
    picture = ArrayFormat(shape=(1, 1, 3)).picture(torch.tensor([[values]]))
    assert picture.tolist() == [[shown]]


def test_vectors_are_described():
    format = ArrayFormat(shape=(2,))
    assert format.picture(torch.zeros(2)) is None
    assert format.describe(torch.tensor([1.5, 2.0])) == {"[0]": 1.5, "[1]": 2.0}
