from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dubito.data import DATASETS, load
from dubito.data.registry import Published

Put = Callable[[str, bytes], Path]
PUBLISHED = {name: entry for name, entry in DATASETS.items() if isinstance(entry, Published)}
# The small files of these tests are not the published ones, and are meant not to be.
NOT_PUBLISHED = pytest.mark.filterwarnings("ignore:.*is not the published file")


def files_of(name: str, split: str, labels: np.ndarray, formats: Any) -> dict[str, bytes]:
    """The files of one part with the given labels, and images that differ in each."""
    entry = PUBLISHED[name]
    files = entry.splits[split]
    images = formats.images(len(labels), *entry.shape, seed=len(labels))
    if name == "svhn":
        return {files[0]: formats.mat(images, np.where(labels == 0, 10, labels))}
    if not name.startswith("cifar"):
        pixels, classes = formats.idx(images[:, 0]), formats.idx(labels)
        return {files[0]: formats.gz(pixels), files[1]: formats.gz(classes)}
    chunks = np.array_split(np.arange(len(labels)), len(files))
    coarse = labels // 5 if name == "cifar-100" else None
    return {
        file: formats.cifar(images[at], labels[at], coarse if coarse is None else coarse[at])
        for file, at in zip(files, chunks, strict=True)
    }


@NOT_PUBLISHED
@pytest.mark.parametrize("name", PUBLISHED)
def test_every_published_set_loads(name: str, formats: Any, put: Put, tmp_path: Path) -> None:
    entry = PUBLISHED[name]
    labels = {"train": np.array([0, 9, 5, 3, 1, 7]), "test": np.array([4, 0, 8])}
    for split, values in labels.items():
        for file, data in files_of(name, split, values, formats).items():
            put(f"{name}/{file}", data)
    for split, values in labels.items():
        arrays = load(name, split, root=tmp_path, download=False)
        assert arrays.labels.tolist() == values.tolist()
        expected = formats.images(len(values), *entry.shape, seed=len(values))
        np.testing.assert_array_equal(arrays.inputs.numpy(), expected)
        assert (arrays.shape, arrays.classes, arrays.name) == (entry.shape, entry.classes, name)
    assert len(load(name, "all", root=tmp_path, download=False)) == 9


@NOT_PUBLISHED
@pytest.mark.parametrize("name", ["cifar-10", "cifar-100"])
def test_cifar_loads_from_its_archive(name: str, formats: Any, put: Put, tmp_path: Path) -> None:
    release, labels = PUBLISHED[name].release, np.array([4, 0, 8])
    files = files_of(name, "test", labels, formats)
    put(
        f"{name}/{release.archive}",
        formats.tar({f"{release.inside}/{file}": data for file, data in files.items()}),
    )
    assert load(name, "test", root=tmp_path, download=False).labels.tolist() == labels.tolist()


@pytest.mark.parametrize("name", PUBLISHED)
def test_entries_are_complete(name: str) -> None:
    entry = PUBLISHED[name]
    release = entry.release
    assert release.name == name
    assert entry.terms
    assert re.match("https?://", entry.source)
    for address in release.mirrors:
        assert re.fullmatch("https?://.*/", address)
    for files in entry.splits.values():
        assert set(files) <= set(release.md5)
    assert release.archive is None or release.archive in release.md5
    for value in release.md5.values():
        assert re.fullmatch("[0-9a-f]{32}", value)
    assert len(set(release.md5.values())) == len(release.md5)


def test_classes() -> None:
    assert {name: len(entry.classes) for name, entry in DATASETS.items()} == {
        "mnist": 10,
        "fashion-mnist": 10,
        "kmnist": 10,
        "cifar-10": 10,
        "cifar-100": 100,
        "svhn": 10,
        "digits": 10,
    }
    fine = DATASETS["cifar-100"].classes
    assert list(fine) == sorted(set(fine))  # as in the publisher's list


@NOT_PUBLISHED
@pytest.mark.parametrize(("name", "label"), [("mnist", 10), ("cifar-10", 11), ("cifar-100", 100)])
def test_labels_outside_the_classes(
    name: str, label: int, formats: Any, put: Put, tmp_path: Path
) -> None:
    for file, data in files_of(name, "test", np.array([0, label]), formats).items():
        put(f"{name}/{file}", data)
    with pytest.raises(ValueError, match=rf"{name}: labels must be .*\[{label}\].* index 1"):
        load(name, "test", root=tmp_path)


@NOT_PUBLISHED
def test_images_of_another_size(formats: Any, put: Put, tmp_path: Path) -> None:
    put("mnist/t10k-images-idx3-ubyte.gz", formats.gz(formats.idx(formats.images(2, 20, 20))))
    put("mnist/t10k-labels-idx1-ubyte.gz", formats.gz(formats.idx(np.zeros(2))))
    with pytest.raises(ValueError, match=r"shape \(1, 20, 20\), not \(1, 28, 28\)"):
        load("mnist", "test", root=tmp_path)


@pytest.mark.parametrize("name", DATASETS)
def test_an_unknown_split_lists_the_known(name: str, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=rf"split of {name} 'valid'; known: 'train', 'test', 'all'"
    ):
        load(name, "valid", root=tmp_path, download=False)


def test_digits_are_scikit_learns() -> None:
    from sklearn.datasets import load_digits

    original = load_digits()
    everything = load("digits", "all")
    np.testing.assert_array_equal(everything.inputs[:, 0].numpy() * 16, original.images)
    np.testing.assert_array_equal(everything.labels.numpy(), original.target)
    train, test = load("digits", "train"), load("digits", "test")
    assert len(train) + len(test) == len(everything) == 1797
    # No image is in both parts: all 1797 differ.
    rows = torch.cat([train.inputs, test.inputs]).flatten(1)
    assert len(rows.unique(dim=0)) == len(everything.inputs.flatten(1).unique(dim=0)) == 1797
    torch.testing.assert_close(
        train.class_counts / len(train), test.class_counts / len(test), rtol=0, atol=0.005
    )
