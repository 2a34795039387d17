import gzip
import io

import numpy as np
import pytest
from scipy.io import savemat

from dubito.data.known import PARSERS
from dubito.errors import DubitoError


def test_cifar_joins_files(put, make):
    images, labels = make.noise(5, 3, 32, 32), np.arange(5)
    files = [
        put("1.bin", make.cifar(images[:2], labels[:2])),
        put("2.bin", make.cifar(images[2:], labels[2:])),
    ]
    parsed, parsed_labels = PARSERS["cifar"](files)
    np.testing.assert_array_equal(parsed, images)
    np.testing.assert_array_equal(parsed_labels, labels)


def test_svhn_calls_zero_ten(put, make):
    images, stream = make.noise(3, 3, 32, 32), io.BytesIO()
    savemat(stream, {"X": images.transpose(2, 3, 1, 0), "y": np.array([[10], [1], [9]])})
    parsed, labels = PARSERS["svhn"]([put("test.mat", stream.getvalue())])
    np.testing.assert_array_equal(parsed, images)
    assert labels.tolist() == [0, 1, 9]


def test_damaged_idx(put, make):
    good = make.idx(make.noise(5, 40, 30))
    labels = put("labels", make.idx(np.zeros(4)))
    packed = gzip.compress(good)
    for content, message in [
        (good[:-1], r"images is truncated or another file \(.*reshape"),
        (good + b"x", "truncated or another file"),
        (make.idx(np.zeros(3)), "it starts with 00 00 08 01, not 00 00 08 03"),
        (b"", "it starts with , not"),
        (packed[: len(packed) // 2], r"images is truncated.*delete it"),
    ]:
        with pytest.raises(DubitoError, match=message):
            PARSERS["mnist"]([put("images", content), labels])


def other_arrays() -> bytes:
    savemat(stream := io.BytesIO(), {"X": np.zeros((2, 2)), "y": np.zeros(3)})
    return stream.getvalue()


@pytest.mark.parametrize("content", [b"", b"x" * 3000, other_arrays()])
@pytest.mark.parametrize("name", ["cifar", "svhn"])
def test_damaged_files(put, name, content):
    with pytest.raises(DubitoError, match=r"bad is truncated or another file.*delete it"):
        PARSERS[name]([put("bad", content)])
