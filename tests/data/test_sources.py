import numpy as np
import pytest
import torch

from dubito import data
from dubito.errors import DubitoError
from dubito.formats import ArrayFormat, ImageFormat


def test_unknown_names(put):
    with pytest.raises(DubitoError, match=r"'minst' is not a file.* known: .*'digits'.*'mnist'"):
        data.open("minst")
    with pytest.raises(DubitoError, match=r"a\.xyz is neither a folder nor a table"):
        data.open(put("a.xyz", ""))


def test_source_is_returned_with_or_without_its_target():
    source = data.open((np.zeros((2, 3)), ["a", "b"]))
    assert data.open(source).target.tolist() == ["a", "b"]
    assert data.open(source, labeled=False).target is None
    assert source.target is not None


def test_tensors_and_lists():
    source = data.open((torch.zeros(2, 3), torch.tensor([1, 0])))
    assert source.target.tolist() == [1, 0]
    assert data.open(([[1, 2], [3, 4]], ["a", "b"])).load().tolist() == [[1, 2], [3, 4]]


def test_images_of_another_size_are_converted_on_request():
    format = ImageFormat(size=(4, 4), mode="RGB")
    with pytest.raises(DubitoError, match=r"8 x 8 L images, but .* 4 x 4 RGB images.*resize=True"):
        data.open("digits", "test", format=format)
    resized = data.open("digits", "test", format=format, resize=True)
    assert resized.format == format
    assert torch.equal(data.open("digits", "test", size=4, mode="RGB").load(), resized.load())


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("digits", {"target": "x"}, "target='x' is for tables, which digits is not"),
        (np.zeros((2, 2)), {"size": 4}, "size=4 is for the format 'image', but data has 'array'"),
        (np.zeros((2, 2)), {"format": ImageFormat(size=(2, 2), mode="L")}, "takes 2 x 2 L images"),
        ([{"n": 1, "y": 2}], {"mode": "L"}, "mode='L' is for the format 'image', but table has"),
        ([{"n": 1}, {"n": 2}], {"format": ArrayFormat(shape=(1,))}, "has the format 'table'"),
        ("digits", {"on_error": "ignore"}, "unknown on_error 'ignore'; known: 'skip', 'raise'"),
        (np.zeros((2, 2)), {"split": "test"}, "part of data in memory: 'test'"),
        ((np.zeros((2, 2)), [1]), {}, "2 inputs, but 1 targets"),
    ],
)
def test_options_that_do_not_fit(source, options, message):
    with pytest.raises(ValueError, match=message):
        data.open(source, **options)
