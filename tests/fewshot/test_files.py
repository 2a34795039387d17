"""Files of features."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dubito.errors import DubitoError
from dubito.fewshot import read_features, write_features
from fewshot.samples import draw_features


def test_written_features_are_read_back(tmp_path: Path) -> None:
    data = draw_features()
    result = read_features(write_features(data, tmp_path / "sample.npz"))
    assert result.classes == data.classes
    assert result.name == "sample"
    torch.testing.assert_close(result.values, data.values, rtol=0, atol=0)
    assert result.labels.equal(data.labels)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_published_pickles_are_read(tmp_path: Path, protocol: int) -> None:
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    content = {np.int64(7): [rows[0], rows[1]], np.int64(3): [rows[2], rows[3]]}
    path = tmp_path / "novel.plk"
    path.write_bytes(pickle.dumps(content, protocol))
    result = read_features(path)
    assert result.classes == ("3", "7")
    assert result.labels.tolist() == [1, 1, 0, 0]
    np.testing.assert_array_equal(result.values.numpy(), rows)


def test_arrays_of_a_pickle_keep_order_and_type(tmp_path: Path) -> None:
    values = np.asfortranarray(np.arange(6, dtype=">f8").reshape(2, 3))
    path = tmp_path / "a.pkl"
    path.write_bytes(pickle.dumps({"features": values, "labels": np.array(["b", "a"])}))
    result = read_features(path)
    assert result.classes == ("a", "b")
    np.testing.assert_array_equal(result.values.numpy(), values)


class Harmful:
    def __reduce__(self) -> Any:
        return os.system, ("false",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (Harmful(), "names (posix|nt).system"),
        ({"features": np.array([[None]]), "labels": [1]}, "contains an array of object"),
        ([1, 2], "expected a dictionary, not list"),
        ({"features": [[1.0]]}, "has no 'labels'"),
    ],
)
def test_other_pickles_are_refused(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "bad.pkl"
    path.write_bytes(pickle.dumps(content))
    with pytest.raises(DubitoError, match=message):
        read_features(path)


@pytest.mark.parametrize("name", ["a.npz", "a.pkl"])
def test_damaged_files_are_errors(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"not a file of features")
    with pytest.raises(DubitoError, match=f"cannot read .*{name}"):
        read_features(tmp_path / name)


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DubitoError, match="No such file"):
        read_features(tmp_path / "none.npz")


def test_numbers_are_indices_of_named_classes(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    arrays = {"features": np.eye(3), "labels": np.array([1, 0, 1])}
    np.savez(path, classes=np.array(["cat", "dog"]), **arrays)
    assert read_features(path).labels.tolist() == [1, 0, 1]
