from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dubito import data
from dubito.api import train
from dubito.data.sources import parts
from dubito.errors import DubitoError
from dubito.formats import ImageFormat, Resize
from dubito.tasks import Classification

RGB = ImageFormat(size=(6, 5), mode="RGB")


def test_encode_takes_paths_bytes_images_and_arrays(pets):
    path = pets / "cat" / "a.png"
    with Image.open(path) as image:
        pixels = np.asarray(image)
        items = [path, str(path), path.read_bytes(), image, pixels, pixels.transpose(2, 0, 1)]
        encoded = RGB.encode(items)
    assert encoded.errors == {}
    expected = torch.from_numpy(pixels.transpose(2, 0, 1).copy())
    assert all(torch.equal(row, expected) for row in encoded.inputs)
    assert torch.equal(RGB.encode(pixels[None]).inputs[0], expected)
    assert torch.equal(RGB.encode(path).inputs[0], expected)
    assert ImageFormat(size=(3, 7), mode="RGB").encode([np.zeros((3, 3, 7), "u1")]).errors == {}


def test_encode_reports_each_error(pets, tmp_path):
    encoded = RGB.encode([tmp_path / "no.png", b"no image", np.zeros((6, 5)), pets / "cat/a.png"])
    assert list(encoded.errors) == [0, 1, 2]
    assert "No such file" in encoded.errors[0]
    assert "cannot identify" in encoded.errors[1]
    assert "uint8, not float64" in encoded.errors[2]
    assert not encoded.inputs[:3].any()
    assert encoded.inputs[3].any()


def test_untrusted_files_are_opened_before_they_are_decoded(make):
    format = ImageFormat(size=(4, 4), mode="L")
    item, values = format.open(make.png(np.zeros((20, 30), np.uint8)))
    assert values == 600
    assert format.encode([item]).checked().shape == (1, 1, 4, 4)
    for pixels, kind, problem in [((4, 4), "TIFF", "damaged"), ((1, 20_000), "PNG", "a side")]:
        with pytest.raises(DubitoError, match=problem):
            format.open(make.png(np.zeros(pixels, np.uint8), kind=kind))


def test_unknown_pixel_range_is_an_error(make):
    image = make.png(np.ones((6, 5), np.float32), kind="TIFF")
    assert "mode F have no known range" in RGB.encode([image]).errors[0]


def test_folder_has_one_sub_folder_per_class(pets, put):
    for name in ("README.txt", "cat/notes.txt", "cat/.DS_Store", ".cache/a.png", "dog/.t/a.png"):
        put(f"pets/{name}", "no image")
    source = data.open(pets)
    assert repr(source) == "<pets: 5 x (3, 6, 5), image, labeled>"
    assert source.target.tolist() == ["cat", "cat", "dog", "dog", "dog"]
    assert source.item(4) == "dog/x/c.png"
    assert data.open(pets, mode="L").format.shape == (1, 6, 5)
    with Image.open(pets / "dog/x/c.png") as image:
        np.testing.assert_array_equal(source[4].permute(1, 2, 0).numpy(), np.asarray(image))


def test_unreadable_images_are_skipped_raised_or_reported(pets):
    before = data.open(pets)
    complete = (pets / "cat" / "a.png").read_bytes()
    (pets / "cat" / "half.png").write_bytes(complete[: len(complete) // 2])
    (pets / "dog" / "empty.jpg").write_bytes(b"")
    with pytest.warns(UserWarning, match=r"2 of 7 .*half\.png.*empty\.jpg.*skipped") as caught:
        after = data.open(pets)
    assert len(caught) == 1
    assert after.fingerprint() == before.fingerprint()
    with pytest.raises(DubitoError, match=r"2 of 7 inputs cannot be read: cat/half\.png: "):
        data.open(pets, on_error="raise")
    source = data.open(pets, on_error="report", labeled=False, format=RGB)
    errors = [source.item(row) for row in source.encode(range(7)).errors]
    assert errors == [f"{pets}/cat/half.png", f"{pets}/dog/empty.jpg"]


def test_folders_without_classes(put, make, tmp_path):
    image = make.png(make.noise(3, 3))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DubitoError, match=r"no sub-folders, and 0 image files: expected one"):
        data.open(tmp_path / "empty")
    put("loose/a.png", image)
    with pytest.raises(DubitoError, match="no sub-folders, and 1 image files"):
        data.open(tmp_path / "loose")
    put("single/cat/a.png", image)
    with pytest.raises(DubitoError, match="at least two classes, but target has the one class 'c"):
        Classification.from_target(data.open(tmp_path / "single").target)
    put("single/dog/a.txt", "")
    with pytest.raises(DubitoError, match=r"there is no image file in .*dog: add files"):
        data.open(tmp_path / "single")
    put("single/dog/a.png", "bad")
    with pytest.raises(DubitoError, match="no input of 'dog' can be read"):
        data.open(tmp_path / "single")


def test_folder_with_parts(put, make, pets):
    for name in ("train/cat/a", "train/dog/a", "train/eel/a", "test/dog/a", "test/cat/b"):
        zoo = put(f"zoo/{name}.png", make.png(make.noise(4, 4))).parents[2]
    assert parts(zoo) == ("train", "test")
    assert data.open(zoo).target.tolist() == ["cat", "dog", "eel"]
    assert data.open(zoo, "test").target.tolist() == ["cat", "dog"]
    assert len(data.open(zoo, "all")) == 5
    assert len(data.open(zoo, "test", labeled=False)) == 2
    assert parts(pets) == ()
    with pytest.raises(DubitoError, match=r"part of .*pets: 'test'.*dubito\.data\.split"):
        data.open(pets, "test")


def test_size_and_mode(pets):
    source = data.open(pets, size=(4, 3), mode="L")
    assert source.format == ImageFormat(size=(4, 3), mode="L")
    assert data.open(pets, size=1).format.shape[1:] == (1, 1)
    assert data.open(pets, size=7).format == ImageFormat(size=(7, 7), mode="RGB")
    assert data.open(pets, size=np.int64(7)).format.size == (7, 7)
    for size in (0, 4.0, "4", (1, 2, 3)):
        with pytest.raises(DubitoError, match=r"size must be .*, not ['(04]"):
            data.open(pets, size=size)
    with pytest.raises(ValueError, match="unknown mode 'HSV'; known: 'L', 'RGB'"):
        data.open(pets, mode="HSV")


@pytest.mark.parametrize(
    ("shapes", "side", "fit"),
    [
        ([(6, 5), (5, 6)], 32, "crop"),
        ([(65, 65), (65, 65)], 64, "stretch"),
        ([(375, 500), (500, 375)], 224, "crop"),
        ([(80, 160), (120, 240)], 96, "stretch"),
    ],
)
def test_size_follows_the_median_shorter_side(put, make, shapes, side, fit):
    for name, shape in zip("ab", shapes, strict=True):
        folder = put(f"mixed/{name}/a.png", make.png(make.noise(*shape))).parents[1]
    with pytest.warns(UserWarning, match=f"become {side} x {side} .*pass size=") as caught:
        format = data.open(folder).format
    assert len(caught) == 1
    assert format == ImageFormat(size=(side, side), mode="L", resize=Resize(fit=fit))
    assert data.open(folder, size=16).format.resize.fit == "stretch"
    assert data.open(folder, size=16, fit="pad").format.resize.fit == "pad"


def test_files_without_targets(pets):
    files = [pets / "cat" / "a.png", pets / "dog"]
    source = data.open(files, labeled=False)
    names = [source.item(row) for row in range(4)]
    below = ["cat/a.png", "dog/a.png", "dog/b.png", "dog/x/c.png"]
    assert names == [f"{pets}/{name}" for name in below]
    assert len(data.open(pets / "cat" / "a.png", labeled=False)) == 1
    with pytest.raises(DubitoError, match="files have no targets: pass a folder"):
        data.open(files)


def test_large_folder_is_streamed(pets, monkeypatch):
    in_memory = data.open(pets)
    assert not data.open(pets, stream=True).subset([0, 1]).is_in_memory
    monkeypatch.setattr("dubito.data.base.IN_MEMORY", 100)
    assert data.open(pets, stream=False).subset([0, 1]).is_in_memory
    streamed = data.open(pets)
    assert in_memory.is_in_memory
    assert not streamed.is_in_memory
    assert torch.equal(streamed.load(), in_memory.load())
    before = streamed.fingerprint()
    (pets / "cat" / "b.png").write_bytes((pets / "cat" / "a.png").read_bytes())
    assert torch.equal(streamed[1], streamed[0])
    assert streamed.fingerprint() != before


@pytest.mark.parametrize(
    "numbers",
    [np.arange(5.0), np.arange(10.0).reshape(5, 2), np.array(["1", "2", ">3", "4", "5"])],
    ids=["one", "two", "text"],
)
def test_unreadable_images_with_numbers_as_targets_are_skipped(pets, numbers):
    files = sorted(pets.rglob("*.png"))
    files[2].write_bytes(b"bad")
    with pytest.warns(UserWarning, match="1 of 5 inputs cannot be read"):
        source = data.open((files, numbers))
    assert source.target.tolist() == np.delete(numbers, 2, 0).tolist()


@pytest.mark.parametrize("stream", [False, True])
def test_truncated_images_are_skipped_at_any_size(pets, make, stream):
    before, photo = data.open(pets), make.png(make.noise(64, 64, 3), kind="JPEG")
    (pets / "cat" / "half.jpg").write_bytes(photo[: len(photo) // 2])  # with a complete header
    with pytest.warns(UserWarning, match=r"1 of 6 .*cat/half\.jpg: .*truncated.*skipped"):
        source = data.open(pets, size=6, stream=stream)
    assert sorted(map(source.item, range(5))) == [*map(before.item, range(5))]
    assert source.load().shape == (5, 3, 6, 6)
    with pytest.raises(DubitoError, match=r"1 of 6 inputs cannot be read: cat/half\.jpg"):
        data.open(pets, size=6, stream=stream, on_error="raise")


def test_folder_beyond_the_memory_limit_is_trained(pets, make, tmp_path, monkeypatch):
    for number in range(12):
        path = pets / ("cat", "dog")[number % 2] / f"{number}.png"
        path.write_bytes(make.png(make.noise(6, 5, 3, seed=number)))
    largest = 0
    encode = ImageFormat.encode

    def watched(self: ImageFormat, items: Any) -> Any:
        nonlocal largest
        largest = max(largest, len(items))
        return encode(self, items)

    monkeypatch.setattr("dubito.data.base.IN_MEMORY", 4 * 90)
    monkeypatch.setattr("dubito.data.folders.READ", 3 * 90)
    monkeypatch.setattr("dubito.pipeline.FITTED_BYTES", 4 * 90)
    monkeypatch.setattr("dubito.training.batches._BATCH", 4)
    monkeypatch.setattr("dubito.model.prediction.MOST", 4)
    monkeypatch.setattr(ImageFormat, "encode", watched)
    options: Any = {"backbone": {"name": "mlp", "hidden": [4]}, "epochs": 1, "batch_size": 4}
    train(pets, out=tmp_path / "run", device="cpu", report=False, **options)
    assert 0 < largest <= 4
