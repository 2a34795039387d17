from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dubito.data import ImageFolder, from_dataset, load, parts, read_folder, read_images

Put = Callable[[str, bytes], Path]


def png(values: np.ndarray, mode: str | None = None, kind: str = "PNG", **options: object) -> bytes:
    stream = io.BytesIO()
    image = Image.fromarray(values)
    (image.convert(mode) if mode else image).save(stream, kind, **options)
    return stream.getvalue()


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(256, size=shape, dtype=np.uint8)


@pytest.fixture
def pets(put: Put, tmp_path: Path) -> Path:
    """Two cats and three dogs of 6 x 5 pixels, one of them further down."""
    for seed, name in enumerate(
        ["cat/a.png", "cat/b.png", "dog/a.png", "dog/b.png", "dog/x/c.png"]
    ):
        put(f"pets/{name}", png(noise(6, 5, 3, seed=seed)))
    return tmp_path / "pets"


def test_a_folder_for_each_class(pets: Path) -> None:
    data = read_folder(pets)
    assert repr(data) == "Arrays('pets': 5 x (3, 6, 5) uint8, 2 classes, cpu)"
    assert data.classes == ("cat", "dog")
    assert data.labels.tolist() == [0, 0, 1, 1, 1]
    for seed, image in enumerate(data.inputs):
        np.testing.assert_array_equal(image.permute(1, 2, 0).numpy(), noise(6, 5, 3, seed=seed))


def test_hidden_files_and_files_beside_the_classes_are_no_images(pets: Path, put: Put) -> None:
    for name in ("pets/README.txt", "pets/cat/.DS_Store", "pets/.cache/thumb.png", "pets/dog/.t/a"):
        put(name, b"not an image")
    assert len(read_folder(pets)) == 5


def test_sizes_and_modes_become_one(put: Put, tmp_path: Path) -> None:
    put("mixed/a/grey.png", png(np.full((20, 10), 102, np.uint8)))
    put("mixed/a/palette.gif", png(np.full((9, 9, 3), 102, np.uint8), "P", "GIF"))
    put("mixed/b/photo.jpg", png(np.full((200, 300, 3), 102, np.uint8), kind="JPEG", quality=95))
    put("mixed/b/bits.png", png(np.full((4, 4), 255, np.uint8), "1"))
    put("mixed/b/cmyk.jpg", png(np.full((8, 8, 3), 102, np.uint8), "CMYK", "JPEG", quality=95))
    data = read_folder(tmp_path / "mixed", size=(12, 16))
    assert data.inputs.shape == (5, 3, 12, 16)
    for name, image in zip(["grey", "palette", "bits", "cmyk", "photo"], data.inputs, strict=True):
        wanted = 255 if name == "bits" else 102
        assert (image.float() - wanted).abs().max() <= 2, name


def test_resizing_averages(put: Put, tmp_path: Path) -> None:
    board = (np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8)
    image, _ = read_images([put("board.png", png(board))], size=8)
    assert image.float().sub(127.5).abs().max() < 4  # picking pixels would give 0 or 255


def test_grey_stays_grey_unless_asked(put: Put, tmp_path: Path) -> None:
    grey = put("grey.png", png(noise(5, 5)))
    images, _ = read_images([grey])
    np.testing.assert_array_equal(images[0, 0].numpy(), noise(5, 5))
    assert read_images([grey], mode="RGB")[0].shape == (1, 3, 5, 5)
    colour = put("colour.png", png(noise(5, 5, 3)))
    assert read_images([grey, colour])[0].shape == (2, 3, 5, 5)
    assert read_images([grey, colour], mode="L")[0].shape == (2, 1, 5, 5)


def test_sixteen_bits_are_scaled_not_clipped(put: Put) -> None:
    deep = (np.arange(256, dtype=np.uint16) * 257).reshape(16, 16)
    images, _ = read_images([put("deep.png", png(deep))])
    np.testing.assert_array_equal(images.flatten().numpy(), np.arange(256))


def test_transparency_lies_on_white(put: Put) -> None:
    pixels = np.zeros((2, 2, 4), np.uint8)
    pixels[0, 0] = (10, 20, 30, 255)
    images, _ = read_images([put("clear.png", png(pixels))])
    assert images[0, :, 0, 0].tolist() == [10, 20, 30]
    assert images[0, :, 1, 1].tolist() == [255, 255, 255]


def test_a_photograph_on_its_side_is_turned(put: Put) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise by a quarter
    upright = noise(4, 6, 3)
    path = put("turned.png", png(np.rot90(upright), exif=exif))
    images, _ = read_images([path])
    np.testing.assert_array_equal(images[0].permute(1, 2, 0).numpy(), upright)


@pytest.mark.parametrize("shapes", [[(6, 5), (5, 6)], [(65, 65), (65, 65)]])
def test_a_size_that_was_not_given_is_said(put: Put, shapes: list[tuple[int, int]]) -> None:
    paths = [put(f"{at}.png", png(noise(*shape))) for at, shape in enumerate(shapes)]
    with pytest.warns(UserWarning, match=r"become 32 x 32; give a size"):
        assert read_images(paths)[0].shape == (2, 1, 32, 32)


def broken(put: Put, pets: Path) -> None:
    whole = (pets / "cat" / "a.png").read_bytes()
    put("pets/cat/half.png", whole[: len(whole) // 2])
    put("pets/dog/notes.txt", b"remember the milk")
    put("pets/dog/empty.jpg", b"")


def test_unreadable_images_are_counted_and_named(put: Put, pets: Path) -> None:
    broken(put, pets)
    with pytest.raises(ValueError, match=r"3 of 8 images can't be read.*on_error='skip'") as caught:
        read_folder(pets)
    for name in ("half.png", "notes.txt", "empty.jpg"):
        assert name in str(caught.value)
    with pytest.raises(ValueError, match="3 of 8"):
        read_folder(pets, size=6, mode="RGB")


def test_unreadable_images_are_left_out_by_choice(put: Put, pets: Path) -> None:
    whole = read_folder(pets)
    broken(put, pets)
    with pytest.warns(UserWarning, match="3 of 8 images can't be read") as caught:
        data = read_folder(pets, on_error="skip")
    assert "half.png" in str(caught[0].message)
    assert torch.equal(data.inputs, whole.inputs)
    assert torch.equal(data.labels, whole.labels)


def test_many_unreadable_images_are_not_all_named(put: Put, pets: Path) -> None:
    for at in range(9):
        put(f"pets/cat/bad{at}.png", b"bad")
    with pytest.raises(ValueError, match=r"9 of 14 .*bad4\.png .* and 4 more"):
        read_folder(pets)


def test_a_class_without_a_readable_image(put: Put, pets: Path) -> None:
    put("pets/eel/bad.png", b"bad")
    with (
        pytest.warns(UserWarning, match="left out"),
        pytest.raises(ValueError, match=r"no image of \['eel'\] can be read"),
    ):
        read_folder(pets, on_error="skip")


def test_pixels_without_a_known_range_are_refused(put: Put) -> None:
    path = put("float.tiff", png(np.ones((3, 3), np.float32), kind="TIFF"))
    with pytest.raises(ValueError, match=r"float\.tiff .*mode F have no known range"):
        read_images([path])


def test_folders_without_classes(put: Put, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ValueError, match=r"no sub-folders, and 0 loose file.*for each class"):
        read_folder(empty)
    put("loose/a.png", png(noise(3, 3)))
    with pytest.raises(ValueError, match=r"no sub-folders, and 1 loose file"):
        read_folder(tmp_path / "loose")
    put("single/cat/a.png", png(noise(3, 3)))
    with pytest.raises(ValueError, match="one class only, 'cat'"):
        read_folder(tmp_path / "single")
    (tmp_path / "single" / "dog").mkdir()
    with pytest.raises(ValueError, match=r"there is no file in .*dog"):
        read_folder(tmp_path / "single")


def test_parts(put: Put, tmp_path: Path) -> None:
    for seed, name in enumerate(["train/cat/a", "train/dog/a", "train/eel/a", "test/dog/a"]):
        put(f"zoo/{name}.png", png(noise(4, 4, seed=seed)))
    zoo = tmp_path / "zoo"
    assert parts(zoo) == ("train", "test")
    train, test = load(zoo, "train"), load(zoo, "test")
    assert train.classes == test.classes == ("cat", "dog", "eel")
    assert (train.labels.tolist(), test.labels.tolist()) == ([0, 1, 2], [1])
    assert len(load(zoo, "all")) == 4
    with pytest.raises(ValueError, match="known: 'train', 'test', 'all'"):
        load(zoo, "valid")


def test_a_folder_without_parts_has_no_test_part(pets: Path) -> None:
    assert parts(pets) == ()
    assert len(load(pets)) == len(load(pets, "all")) == 5
    with pytest.raises(ValueError, match=r"no part called 'test'.*dubito\.data\.split"):
        load(pets, "test")


def test_classes_of_a_model_give_the_labels(pets: Path) -> None:
    data = read_folder(pets, classes=("ant", "dog", "cat"))
    assert data.classes == ("ant", "dog", "cat")
    assert sorted(data.labels.tolist()) == [1, 1, 1, 2, 2]
    with pytest.raises(ValueError, match=r"\['dog'\] are outside the classes"):
        read_folder(pets, classes=("ant", "cat"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size must be"),
        ({"mode": "HSV"}, "unknown mode 'HSV'; known: 'L', 'RGB'"),
        ({"on_error": "ignore"}, "unknown on_error 'ignore'; known: 'raise', 'skip'"),
    ],
)
def test_bad_options(pets: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(pets, **options)


def test_no_paths() -> None:
    with pytest.raises(ValueError, match="paths is empty"):
        read_images([])


def test_a_folder_as_a_dataset(pets: Path) -> None:
    whole = read_folder(pets, size=8, mode="RGB")
    lazy = ImageFolder(pets, size=8)
    batches = list(from_dataset(lazy, batch_size=2))
    assert torch.equal(torch.cat([x for x, _ in batches]), whole.floats())
    assert torch.equal(torch.cat([y for _, y in batches]), whole.labels)


def test_a_dataset_names_the_unreadable_file(put: Put, pets: Path) -> None:
    put("pets/cat/bad.png", b"bad")
    with pytest.raises(ValueError, match=r"cat/bad\.png can't be read"):
        list(from_dataset(ImageFolder(pets, size=8), batch_size=2))
