import struct

import numpy as np
import pytest

from dubito import data
from dubito.data.sources import parts
from dubito.errors import DubitoError
from dubito.formats import ArrayFormat, ImageFormat


def test_far_values_are_noted_and_out_of_range():
    format = ArrayFormat(shape=(2,), low=(0, 5), high=(2, 5))
    encoded = format.encode([[4.0, 10.0], [-2.1, 5.0], [1.0, 10.1]])  # a constant may double
    assert encoded.notes == {
        1: "feature 0 is -2.1, far from [0, 2]",
        2: "feature 1 is 10.1, far from [5, 5]",
    }
    assert format.in_range(encoded.inputs).tolist() == [True, False, False]


def test_range_of_flat_inputs_is_kept():
    source = data.open(np.array([[0.0, 5.0], [2.0, 5.0]]))
    assert source.format == ArrayFormat(shape=(2,), low=(0, 5), high=(2, 5))
    wide = data.open(np.random.default_rng(0).normal(size=(50, 3)) * [1e-30, 1, 1e30])
    assert wide.format.in_range(wide.load()).all()


def test_values_that_are_not_finite():
    x = np.ones((4, 2, 2))
    x[1, 0, 1], x[3, 1, 1] = np.nan, 1e39
    encoded = ArrayFormat(shape=(2, 2)).encode(x)
    assert encoded.errors == {
        1: "value [0, 1] is nan, not a finite float32 number",
        3: "value [1, 1] is 1e+39, not a finite float32 number",
    }
    assert encoded.inputs[1].tolist() == [[0, 0], [0, 0]]
    with pytest.raises(DubitoError, match=r"2 of 4 inputs.*data\[1\]: value \[0, 1\] is nan"):
        data.open(x)
    with pytest.raises(DubitoError, match=r"row 0: value \[1\] is inf"):
        data.open(np.array([[1, np.inf]]))


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (np.zeros((2, 3)), r"shape \(3,\), but the model takes \(2,\)"),
        (np.zeros((2, 2), np.uint8), "uint8, but the model was trained on float32"),
        (np.zeros(2), r"shape \(2,\); expected \(N"),
        ([["a", "b"]], "must be numbers"),
        ([[1, 2], [3]], "not an array of numbers"),
    ],
)
def test_unfit_arrays(items, message):
    with pytest.raises(DubitoError, match=message):
        ArrayFormat(shape=(2,)).encode(items)


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((2, 6, 5), np.uint8, ImageFormat(size=(6, 5), mode="L")),
        ((2, 6, 5, 3), np.uint8, ImageFormat(size=(6, 5), mode="RGB")),
        ((2, 3, 6, 5), np.uint8, ImageFormat(size=(6, 5), mode="RGB")),
        ((2, 6, 5, 4), np.uint8, ArrayFormat(shape=(4, 6, 5), dtype="uint8")),
        ((2, 6, 5, 3), np.float64, ArrayFormat(shape=(3, 6, 5))),
        ((2, 6), np.uint8, ArrayFormat(shape=(6,), dtype="uint8")),
    ],
)
def test_format_follows_from_the_array(shape, dtype, expected):
    source = data.open(np.ones(shape, dtype))
    assert source.format == expected
    assert source[0].shape == expected.shape


def test_npz(tmp_path):
    path = tmp_path / "flowers.npz"
    np.savez(path, x=np.ones((3, 4)), y=np.array([b"rose", b"iris", b"rose"]))
    source = data.open(path)
    assert repr(source) == "<flowers.npz: 3 x (4,), array, labeled>"
    assert source.target.tolist() == ["rose", "iris", "rose"]
    assert data.open(path, labeled=False).target is None


def test_npz_parts(tmp_path):
    path = tmp_path / "parts.npz"
    np.savez(
        path,
        x_train=np.zeros((3, 2)),
        y_train=np.array([["cat"], ["dog"], ["dog"]]),
        x_test=np.ones((1, 2)),
        y_test=[["cat"]],
    )
    assert parts(path) == ("train", "test")
    assert data.open(path).target.tolist() == ["cat", "dog", "dog"]
    assert data.open(path, "test").load().tolist() == [[1, 1]]
    assert data.open(path, "all").target.tolist() == ["cat", "dog", "dog", "cat"]
    with pytest.raises(DubitoError, match=r"part of .*: 'valid'; known: 'train', 'test', 'all'"):
        data.open(path, "valid")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"z": np.zeros((2, 2))}, "has no array named inputs or x or X: it has z"),
        ({"x": np.zeros((2, 2))}, "has no array named labels or y"),
        ({"x": np.zeros((2, 2)), "y": [0, 1, 1]}, "2 inputs, but 3 targets"),
        ({"x": np.zeros((0, 2)), "y": []}, "there are no inputs in bad.npz"),
        ({"x": np.array([{}, {}]), "y": [0, 1]}, "cannot be read.*Store numbers"),
        ({"x": np.array([["a"], ["b"]]), "y": [0, 1]}, "inputs must be numbers, not <U1"),
    ],
)
def test_unfit_npz(tmp_path, arrays, message):
    path = tmp_path / "bad.npz"
    np.savez(path, **arrays)
    with pytest.raises(DubitoError, match=message):
        data.open(path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and no more", struct.pack("<8d", *range(8))])
def test_damaged_npz(tmp_path, content):
    path = tmp_path / "bad.npz"
    path.write_bytes(content)
    with pytest.raises(DubitoError, match=r"bad\.npz is not an \.npz file"):
        data.open(path)
