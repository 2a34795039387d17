"""Features, their files and scalings."""

import numpy as np
import pytest
import torch

from dubito.errors import DubitoError
from dubito.fewshot import Features, read_features, write_features
from dubito.fewshot._features import scale
from tests.fewshot.samples import draw_features


def test_classes_without_samples_are_left_out():
    features = Features(torch.rand(4, 2), torch.tensor([0, 2, 2, 0]), ("a", "b", "c"))
    assert features.classes == ("a", "c")
    assert features.labels.tolist() == [0, 1, 1, 0]


def test_features_that_are_not_finite_are_an_error():
    values = torch.ones(3, 2)
    values[1, 0] = torch.nan
    with pytest.raises(DubitoError, match="sample 1 are not finite"):
        Features(values, torch.arange(3), tuple("abc"), "bad")


def test_unit_gives_the_mean_length_of_the_reference():
    data, reference = draw_features(), draw_features(seed=1)
    lengths = scale(data, "unit", reference).values.norm(dim=-1)
    expected = reference.values.norm(dim=-1).mean()
    torch.testing.assert_close(lengths, expected.expand_as(lengths))
    assert scale(data, "none", None) is data
    with pytest.raises(DubitoError, match="'unit' needs a reference"):
        scale(data, "unit", None)


def test_centered_uses_the_mean_of_the_reference():
    data, reference = draw_features(), draw_features(seed=1)
    moved = data.values - reference.values.mean(0)
    result = scale(data, "centered", reference).values
    cosine = torch.cosine_similarity(result, moved)
    torch.testing.assert_close(cosine, torch.ones_like(cosine))


def test_written_features_are_read_back(tmp_path):
    data = draw_features()
    result = read_features(write_features(data, tmp_path / "sample.npz"))
    assert result.classes == data.classes
    assert result.name == "sample"
    torch.testing.assert_close(result.values, data.values, rtol=0, atol=0)
    assert result.labels.equal(data.labels)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("damaged.npz", r"cannot read .*damaged\.npz"),
        ("a.pkl", r"kept in \.npz files, not in .*a\.pkl"),
        ("none.npz", "No such file"),
    ],
)
def test_bad_files_are_errors(tmp_path, name, message):
    (tmp_path / "damaged.npz").write_bytes(b"not a file of features")
    with pytest.raises(DubitoError, match=message):
        read_features(tmp_path / name)


def test_numbers_are_indices_of_named_classes(tmp_path):
    path = tmp_path / "a.npz"
    arrays = {"features": np.eye(3), "labels": np.array([1, 0, 1])}
    np.savez(path, classes=np.array(["cat", "dog"]), **arrays)
    assert read_features(path).labels.tolist() == [1, 0, 1]
    for label in (-1, 2):
        np.savez(path, classes=np.array(["cat", "dog"]), features=np.eye(3), labels=[1, 0, label])
        with pytest.raises(DubitoError, match=f"a: label {label} of sample 2 is none of the 2 cl"):
            read_features(path)
