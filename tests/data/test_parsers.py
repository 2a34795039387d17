from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dubito.data import parsers
from dubito.data.files import Blob


def blob(data: bytes, name: str = "some-file") -> Blob:
    return Blob(Path(name), data)


@pytest.mark.parametrize("compressed", [False, True])
def test_mnist(formats: Any, compressed: bool) -> None:
    images, labels = formats.images(5, 4, 3), np.array([0, 9, 3, 3, 1])
    pack = formats.gz if compressed else bytes
    files = [blob(pack(formats.idx(images))), blob(pack(formats.idx(labels)))]
    parsed, said = parsers.mnist(files)
    np.testing.assert_array_equal(parsed, images[:, None])
    np.testing.assert_array_equal(said, labels)
    assert said.dtype == np.int64
    assert parsed.flags.writeable


def test_idx_of_another_kind(formats: Any) -> None:
    floats = bytes([0, 0, 0x0D, 1, 0, 0, 0, 1, 0, 0, 0, 0])
    with pytest.raises(ValueError, match=r"some-file .*begins with 00 00 0d 01, not 00 00 08 01"):
        parsers.idx(blob(floats), 1)
    with pytest.raises(ValueError, match="not an idx file of 3-dimensional"):
        parsers.idx(blob(formats.idx(np.zeros(3))), 3)
    with pytest.raises(ValueError, match="begins with , not"):
        parsers.idx(blob(b""), 1)


@pytest.mark.parametrize("cut", [1, 10, 58])
def test_truncated_idx(formats: Any, cut: int) -> None:
    data = formats.idx(formats.images(5, 4, 3))
    with pytest.raises(ValueError, match=r"some-file is truncated .*\(5, 4, 3\).* 60 values"):
        parsers.idx(blob(data[:-cut]), 3)
    with pytest.raises(ValueError, match="too long"):
        parsers.idx(blob(data + b"x"), 3)


def test_truncated_or_damaged_gzip(formats: Any) -> None:
    packed = formats.gz(formats.idx(formats.images(5, 40, 30)))
    damaged = bytearray(packed)
    damaged[len(packed) // 2] ^= 0xFF
    for data in (packed[: len(packed) // 2], bytes(damaged)):
        with pytest.raises(ValueError, match=r"some-file \(.* bytes\) cannot be decompressed"):
            parsers.idx(blob(data), 3)


def test_images_and_labels_must_match(formats: Any) -> None:
    files = [blob(formats.idx(formats.images(5, 4, 3)), "im"), blob(formats.idx(np.zeros(4)), "la")]
    with pytest.raises(ValueError, match="im has 5 images, but la has 4 labels"):
        parsers.mnist(files)


def test_cifar_10(formats: Any) -> None:
    images, labels = formats.images(7, 3, 32, 32), np.array([0, 9, 3, 3, 1, 2, 5])
    files = [
        blob(formats.cifar(images[:4], labels[:4])),
        blob(formats.cifar(images[4:], labels[4:])),
    ]
    parsed, said = parsers.cifar(files)
    np.testing.assert_array_equal(parsed, images)
    np.testing.assert_array_equal(said, labels)


def test_cifar_100_takes_the_fine_label(formats: Any) -> None:
    images, fine, coarse = formats.images(3, 3, 32, 32), np.array([99, 0, 50]), np.array([1, 2, 3])
    parsed, said = parsers.cifar([blob(formats.cifar(images, fine, coarse))], label_bytes=2)
    np.testing.assert_array_equal(parsed, images)
    np.testing.assert_array_equal(said, fine)


def test_truncated_cifar(formats: Any) -> None:
    data = formats.cifar(formats.images(2, 3, 32, 32), np.array([0, 1]))
    for cut in (data[:-1], data + b"x", b""):
        with pytest.raises(ValueError, match=r"some-file is truncated .* 3073 bytes of a record"):
            parsers.cifar([blob(cut)])


@pytest.mark.parametrize("compress", [False, True])
def test_svhn(formats: Any, compress: bool) -> None:
    images, labels = formats.images(4, 3, 32, 32), np.array([10, 1, 9, 10])
    parsed, said = parsers.svhn([blob(formats.mat(images, labels, compress))])
    np.testing.assert_array_equal(parsed, images)
    np.testing.assert_array_equal(said, [0, 1, 9, 0])


def test_truncated_svhn(formats: Any) -> None:
    data = formats.mat(formats.images(40, 3, 32, 32), np.full(40, 3))
    for cut in (data[: len(data) // 2], data[:100], b""):
        with pytest.raises(ValueError, match=r"some-file \(.* bytes\) cannot be read as a MATLAB"):
            parsers.svhn([blob(cut)])


def test_svhn_of_another_shape(formats: Any) -> None:
    small = formats.mat(formats.images(4, 3, 16, 16), np.full(4, 1))
    uneven = formats.mat(formats.images(4, 3, 32, 32), np.full(3, 1))
    for data in (small, uneven):
        with pytest.raises(ValueError, match=r"must hold bytes X \(32, 32, 3, N\)"):
            parsers.svhn([blob(data)])
