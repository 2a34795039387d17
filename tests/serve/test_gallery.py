import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dubito.errors import DubitoError
from dubito.serve import gallery


def write(path: Path, size: tuple[int, int] = (8, 8), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, "red" if mode == "RGB" else 200).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a gallery of two classes and another group."""
    write(tmp_path / "cat" / "a.png")
    write(tmp_path / "dog" / "b.jpg")
    write(tmp_path / "cars" / "c.png")
    (tmp_path / "cars" / "notes.txt").write_text("not an image")
    return tmp_path


def test_sub_folders_are_groups(folder):
    groups = gallery.read(folder, ["cat", "dog"]).groups
    kinds = {group["name"]: group["kind"] for group in groups}
    assert kinds == {"Known classes": "known", "cars": "unknown"}
    assert [item["truth"] for item in groups[0]["items"]] == ["cat", "dog"]
    assert groups[1]["items"] == [{"id": "1-0", "src": "gallery/1-0.png", "truth": None}]


def test_drawing(folder):
    drawing = {"fill": 0.8, "center": "box", "stroke": 0.1}
    (folder / "drawing.json").write_text(json.dumps(drawing))
    assert gallery.read(folder).drawing == drawing
    (folder / "drawing.json").write_text(json.dumps({**drawing, "fill": 2}))
    with pytest.raises(DubitoError, match="does not describe a drawing"):
        gallery.read(folder)


def test_images_become_small_pngs(tmp_path):
    write(tmp_path / "large" / "a.jpg", (2000, 1000))
    (content,) = gallery.read(tmp_path).pictures.values()
    with Image.open(io.BytesIO(content)) as image:
        assert (image.format, image.size) == ("PNG", (512, 256))


def test_sixteen_bits_are_shown_as_the_model_gets_them(tmp_path):
    (tmp_path / "gray").mkdir()
    pixels = np.full((4, 4), 128 << 8, np.uint16)
    Image.fromarray(pixels).save(tmp_path / "gray" / "a.png")
    (content,) = gallery.read(tmp_path).pictures.values()
    with Image.open(io.BytesIO(content)) as image:
        assert image.convert("L").getpixel((0, 0)) == 128


def test_what_cannot_be_shown_is_an_error(tmp_path):
    with pytest.raises(DubitoError, match="has 0 images; a gallery has 1 to 400"):
        gallery.read(tmp_path)
    with pytest.raises(DubitoError, match="there is no folder"):
        gallery.read(tmp_path / "nowhere")
    (tmp_path / "cars").mkdir()
    (tmp_path / "cars" / "a.png").write_bytes(b"damaged")
    with pytest.raises(DubitoError, match="cannot be shown in the gallery"):
        gallery.read(tmp_path)
