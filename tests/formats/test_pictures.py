"""How inputs are shown."""

import torch

from dubito.formats import ArrayFormat, ImageFormat


def test_images_are_shown_as_they_are() -> None:
    pixels = torch.arange(60, dtype=torch.uint8).reshape(3, 4, 5)
    assert ImageFormat(size=(4, 5), mode="RGB").picture(pixels) is pixels


def test_floats_outside_of_unit_range_are_scaled() -> None:
    picture = ArrayFormat(shape=(1, 1, 3)).picture(torch.tensor([[[-2.0, 0.0, 2.0]]]))
    assert picture is not None
    assert picture.tolist() == [[[0, 128, 255]]]


def test_floats_in_unit_range_keep_their_brightness() -> None:
    picture = ArrayFormat(shape=(1, 1, 2)).picture(torch.full((1, 1, 2), 0.2))
    assert picture is not None
    assert picture.tolist() == [[[51, 51]]]


def test_vectors_are_described() -> None:
    format = ArrayFormat(shape=(2,))
    assert format.picture(torch.zeros(2)) is None
    assert format.describe(torch.tensor([1.5, 2.0])) == {"[0]": 1.5, "[1]": 2.0}
