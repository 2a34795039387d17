"""Features, their files and scalings."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dubito.errors import DubitoError
from dubito.fewshot import Features, read_features, write_features
from dubito.fewshot._features import scale
from tests.fewshot.samples import draw_features


def test_classes_without_samples_are_left_out() -> None:
    features = Features(torch.rand(4, 2), torch.tensor([0, 2, 2, 0]), ("a", "b", "c"))
    assert features.classes == ("a", "c")
    assert features.labels.tolist() == [0, 1, 1, 0]


def test_features_that_are_not_finite_are_an_error() -> None:
    values = torch.ones(3, 2)
    values[1, 0] = torch.nan
    with pytest.raises(DubitoError, match="sample 1 are not finite"):
        Features(values, torch.arange(3), tuple("abc"), "bad")


def test_unit_gives_the_mean_length_of_the_reference() -> None:
    reference = draw_features(seed=1)
    lengths = scale(draw_features(), "unit", reference).values.norm(dim=-1)
    expected = reference.values.norm(dim=-1).mean()
    torch.testing.assert_close(lengths, expected.expand_as(lengths))


def test_centered_uses_the_mean_of_the_reference() -> None:
    data, reference = draw_features(), draw_features(seed=1)
    moved = data.values - reference.values.mean(0)
    result = scale(data, "centered", reference).values
    cosine = torch.cosine_similarity(result, moved)
    torch.testing.assert_close(cosine, torch.ones_like(cosine))


def test_none_leaves_features_alone() -> None:
    data = draw_features()
    assert scale(data, "none", None) is data


def test_scaling_needs_a_reference() -> None:
    with pytest.raises(DubitoError, match="'unit' needs a reference"):
        scale(draw_features(), "unit", None)


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
