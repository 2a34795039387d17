"""Datasets of the package datasets, in memory and in folders of `save_to_disk`."""

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dubito import data
from dubito.api import evaluate, predict, train
from dubito.data.sources import parts
from dubito.errors import DubitoError
from dubito.formats import ImageFormat

datasets = pytest.importorskip("datasets")
datasets.disable_progress_bars()

NAMES = ("cat", "dog")


def pictures(count: int = 12, **columns: Any) -> Any:
    """Return images of which every second one is turned by its camera, and their classes."""
    draw = np.random.default_rng(0)
    exif = Image.Exif()
    exif[0x0112] = 6
    files = []
    for number in range(count):
        pixels = draw.integers(256, size=(8, 6, 3), dtype=np.uint8)
        turned = np.rot90(pixels) if number % 2 else pixels
        options = {"exif": exif} if number % 2 else {}
        Image.fromarray(np.ascontiguousarray(turned)).save(stream := io.BytesIO(), "PNG", **options)
        files.append({"bytes": stream.getvalue(), "path": None})
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=list(NAMES))}
    values = {"image": files, "label": [number % 2 for number in range(count)], **columns}
    others = {name: datasets.Value("string") for name in columns}
    return datasets.Dataset.from_dict(values, features=datasets.Features({**kinds, **others}))


@pytest.fixture
def reviews() -> Any:
    texts = [f"{word} film number {number}" for number in range(20) for word in ("good", "bad")]
    columns = {"text": texts, "label": [0, 1] * 20}
    kinds = {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["yes", "no"])}
    return datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("saved", [False, True])
def test_images_are_those_of_the_dataset(saved, stream, tmp_path):
    dataset = pictures(note=["a caption"] * 12)
    dataset.save_to_disk(tmp_path / "pets")
    source = data.open(tmp_path / "pets" if saved else dataset, stream=stream)
    assert source.name == ("pets" if saved else "dataset")
    assert source.format == ImageFormat(size=(8, 6), mode="RGB")
    assert source.is_in_memory is not stream
    assert source.target.tolist() == list(NAMES) * 6
    draw = np.random.default_rng(0)
    for pixels in source.load():
        expected = draw.integers(256, size=(8, 6, 3), dtype=np.uint8)
        np.testing.assert_array_equal(pixels.permute(1, 2, 0).numpy(), expected)
    again = data.open(tmp_path / "pets", stream=stream)
    assert again.fingerprint() == source.fingerprint()
    other = data.open(pictures(10), stream=stream)
    assert other.fingerprint() != source.fingerprint()


def test_images_in_files_and_damaged_ones(tmp_path):
    Image.new("L", (5, 5)).save(tmp_path / "a.png")
    files = [str(tmp_path / "a.png"), str(tmp_path / "a.png"), str(tmp_path / "no.png"), None]
    columns = {"photo": files, "labels": ["x", "y", "x", "y"]}
    dataset = datasets.Dataset.from_dict(columns).cast_column("photo", datasets.Image())
    for stream in (False, True):
        with pytest.warns(UserWarning, match=r"2 of 4 .*dataset\[2\]: .*; dataset\[3\]: "):
            source = data.open(dataset, stream=stream)
        assert source.target.tolist() == ["x", "y"]
        assert source.load().shape == (2, 1, 5, 5)


def test_samples_without_a_class_are_left_out():
    dataset = pictures()
    dataset = dataset.map(lambda row, number: {"label": -(number % 3 == 1)}, with_indices=True)
    with pytest.warns(UserWarning, match="dataset: 4 of 12 samples have no target and are left"):
        source = data.open(dataset)
    assert source.target.tolist() == ["cat"] * 8
    assert len(data.open(dataset, labeled=False)) == 12


def test_numbers():
    columns = {"features": [[1.0, 2.0], [3.0, 5.0]], "label": ["a", "b"]}
    source = data.open(datasets.Dataset.from_dict(columns))
    assert source.load().tolist() == [[1, 2], [3, 5]]
    assert source.target.tolist() == ["a", "b"]
    table = datasets.Dataset.from_dict({"price": [3.5, 4.5], "x": [1, 2], "kind": ["u", "v"]})
    source = data.open(table, target="price")
    assert source.target.tolist() == [3.5, 4.5]
    assert source.load().tolist() == [[1, 1, 0], [2, 0, 1]]
    labeled = table.rename_column("price", "label")
    assert data.open(labeled).target.tolist() == [3.5, 4.5]


def test_texts_are_trained_and_predicted(reviews, tmp_path):
    saved = datasets.DatasetDict(train=reviews, test=reviews, validation=reviews)
    saved.save_to_disk(tmp_path / "reviews")
    assert parts(tmp_path / "reviews") == ("train", "test")
    assert len(data.open(tmp_path / "reviews", "all")) == 80
    options: Any = {"epochs": 8, "lr": 0.05, "report": False, "device": "cpu", "batch_size": 8}
    model = train(tmp_path / "reviews", out=tmp_path / "run", **options)
    assert evaluate(tmp_path / "run")["part"] == "test"
    assert evaluate(model, reviews)["metrics"]["accuracy"] > 0.9
    expected = predict(model, ["good film", "a bad film"])
    rows = datasets.Dataset.from_dict({"text": ["good film", "a bad film"]})
    assert predict(model, rows).labels.tolist() == expected.labels.tolist() == ["yes", "no"]


def test_a_model_predicts_images_of_a_dataset(tmp_path):
    model = train(pictures(), out=tmp_path / "run", epochs=1, report=False)
    files = pictures().cast_column("image", datasets.Image(decode=False))["image"]
    expected = model.predict([file["bytes"] for file in files]).columns()
    assert model.predict(pictures()).columns() == expected
    assert predict(model, pictures()).columns().items() >= expected.items()


def test_bad_datasets(reviews):
    twice = datasets.concatenate_datasets(
        [pictures(), pictures().rename_columns({"image": "mask", "label": "kind"})], axis=1
    )
    for dataset, options, message in (
        (twice, {}, "several columns of inputs, 'image', 'mask': keep one"),
        (reviews, {"target": "stars"}, "unknown column of the dataset 'stars'; known: 'text', 'l"),
        (reviews, {"split": "test"}, "part of data in memory: 'test'"),
        (reviews, {"size": 8}, "size=8 is for the format 'image'"),
        (pictures(), {"weight": "w"}, "weight='w' is for tables, which dataset is not"),
        (reviews, {"format": ImageFormat(size=(2, 2), mode="L")}, "the model takes 2 x 2 L images"),
    ):
        with pytest.raises(DubitoError, match=message):
            data.open(dataset, **options)
