import gzip

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from dubito import data
from dubito.data import DATASETS, Dataset
from dubito.data.sources import parts
from dubito.errors import DubitoError
from dubito.formats import ImageFormat

PUBLISHED = {
    "mnist": ("0", (1, 28, 28)),
    "fashion-mnist": ("T-shirt/top", (1, 28, 28)),
    "kmnist": ("o", (1, 28, 28)),
    "cifar-10": ("airplane", (3, 32, 32)),
    "cifar-100": ("apple", (3, 32, 32)),
}


def test_digits():
    train, test = data.open("digits"), data.open("digits", "test")
    assert (len(train), len(test)) == (1438, 359)
    assert train.format == ImageFormat(size=(8, 8), mode="L")
    everything = data.open("digits", "all")
    original = load_digits()
    assert sorted(everything.target) == sorted(original.target.astype(str))
    assert everything.load().sum() == (original.images * 255 / 16).round().sum()


def test_names_and_parts():
    assert {*PUBLISHED, "svhn", "digits"} <= set(DATASETS)
    assert parts("cifar-10") == ("train", "test")
    with pytest.raises(DubitoError, match="part of digits: 'valid'; known: 'train', 'test'"):
        data.open("digits", "valid")


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.filterwarnings("ignore:.*is not the published file")
def test_published_files_are_read(name, put, make, tmp_path, monkeypatch):
    first, shape = PUBLISHED[name]
    monkeypatch.setenv("DUBITO_DATA", str(tmp_path))
    images, labels = make.noise(4, *shape), np.array([0, 1, 0, 9])
    if name.startswith("cifar"):
        coarse = 9 - labels if name == "cifar-100" else None
        file = "test.bin" if name == "cifar-100" else "cifar-10-batches-bin/test_batch.bin"
        put(f"{name}/{file}", make.cifar(images, labels, coarse))
    else:
        put(f"{name}/t10k-images-idx3-ubyte.gz", gzip.compress(make.idx(images[:, 0])))
        put(f"{name}/t10k-labels-idx1-ubyte", make.idx(labels))
    source = data.open(name, "test")
    assert torch.equal(source.load(), torch.from_numpy(images))
    assert source.target[[0, 2]].tolist() == [first, first]
    assert source.name == name


def test_registered_dataset():
    @DATASETS.register("toy")
    class Toy(Dataset):
        argument = "columns"
        columns: int = 2

        def load(self, part: str) -> data.Source:
            count = {"train": 3, "test": 2}[part]
            inputs = torch.full((count, self.columns), float(count))
            return data.open((inputs, ["a", "b", "a"][:count]))

    assert len(data.open("toy", "test")) == 2
    assert data.open("toy", "all").load()[:, 0].tolist() == [3, 3, 3, 2, 2]
    assert data.open("toy:5").load().shape == (3, 5)
