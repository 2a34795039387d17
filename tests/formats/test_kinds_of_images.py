"""Images as they come: orientation, modes, transparency, depth and damage, by what they show.

A smooth picture is stored in many ways; each must be read as what a person sees.
"""

import io
import warnings
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dubito import data
from dubito.api import predict, train
from dubito.formats import ImageFormat

Array = np.ndarray
#: content of a file, and the colors that it shows, (H, W, 3)
Stored = tuple[bytes, Array]
SIDE = 48
ORIENTATION = 0x0112


def smooth(side: int) -> Array:
    """Return colors that change slowly, so that resizing changes them little."""
    y, x = np.mgrid[0 : 1 : side * 1j, 0 : 1 : side * 1j]
    return np.stack([40 + 160 * x, 60 + 150 * y, 90 + 50 * x + 60 * y], -1)


def gray(colors: Array) -> Array:
    """Return the brightness (ITU-R BT.601) as a color."""
    return np.repeat((colors @ [0.299, 0.587, 0.114])[..., None], 3, -1)


def opacity(colors: Array) -> Array:
    """Return an opacity that grows from left to right: (H, W)."""
    return np.broadcast_to(np.linspace(0.25, 1, colors.shape[1]), colors.shape[:2])


def on_white(colors: Array) -> Array:
    share = opacity(colors)[..., None]
    return colors * share + 255 * (1 - share)


def image(values: Array) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(values).round().astype(np.uint8))


def translucent(colors: Array) -> Image.Image:
    picture = image(colors)
    picture.putalpha(image(255 * opacity(colors)))
    return picture


def saved(picture: Image.Image, kind: str, **options: Any) -> bytes:
    if kind == "JPEG":
        options["quality"] = 95
    picture.save(stream := io.BytesIO(), kind, **options)
    return stream.getvalue()


def plain(kind: str, colors: Array) -> Stored:
    return saved(image(colors), kind), colors


def dark(kind: str, colors: Array) -> Stored:
    return saved(image(gray(colors)[..., 0]), kind), gray(colors)


def deep(kind: str, colors: Array) -> Stored:
    """Store 16 bits."""
    values = (gray(colors)[..., 0] * 257).round().astype(np.uint16)
    return saved(Image.fromarray(values), kind), gray(colors)


def bilevel(colors: Array) -> Stored:
    values = np.where(colors[..., :1] > 120, 255.0, 0.0)
    picture = image(values[..., 0]).convert("1")
    return saved(picture, "PNG"), np.repeat(values, 3, -1)


def alpha(kind: str, colors: Array) -> Stored:
    return saved(translucent(colors), kind), on_white(colors)


def gray_alpha(colors: Array) -> Stored:
    return saved(translucent(colors).convert("LA"), "PNG"), on_white(gray(colors))


def paletted(kind: str, colors: Array) -> Stored:
    return saved(image(colors).quantize(256), kind), colors


def transparent(kind: str, colors: Array) -> Stored:
    """Store a palette of grays, of which one, in the upper half, is transparent."""
    indices = (colors[..., 0] // 2).astype(np.uint8)
    seen = np.repeat(2.0 * indices[..., None], 3, -1)
    half = len(colors) // 2
    indices[:half], seen[:half] = 200, 255
    picture = Image.fromarray(indices)
    levels = np.repeat(2 * np.arange(256), 3).clip(0, 255)
    picture.putpalette(levels.astype(np.uint8).tolist())
    return saved(picture, kind, transparency=200), seen


def print_colors(kind: str, colors: Array) -> Stored:
    return saved(image(colors).convert("CMYK"), kind), colors


def frames(colors: Array) -> Stored:
    first, second = (image(part).quantize(256) for part in (colors, 255 - colors))
    return saved(first, "GIF", save_all=True, append_images=[second]), colors


def turned(kind: str, orientation: int, colors: Array) -> Stored:
    """Store a picture as a camera in this orientation does."""
    mirrored = colors.swapaxes(0, 1)
    back = [colors, colors[:, ::-1], colors[::-1, ::-1], colors[::-1]]
    back += [mirrored, np.rot90(colors), mirrored[::-1, ::-1], np.rot90(colors, -1)]
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return saved(image(back[orientation - 1]), kind, exif=exif), colors


KINDS: dict[str, Callable[[Array], Stored]] = {
    "RGB.png": partial(plain, "PNG"), "RGB.jpg": partial(plain, "JPEG"),
    "RGB.webp": partial(plain, "WEBP"), "RGB.tif": partial(plain, "TIFF"),
    "RGB.bmp": partial(plain, "BMP"), "gray.png": partial(dark, "PNG"),
    "gray.JPG": partial(dark, "JPEG"), "16.png": partial(deep, "PNG"),
    "16.tif": partial(deep, "TIFF"), "16.pgm": partial(deep, "PPM"), "bits.png": bilevel,
    "RGBA.png": partial(alpha, "PNG"),
    "RGBA.webp": partial(alpha, "WEBP"), "RGBA.tif": partial(alpha, "TIFF"), "LA.png": gray_alpha,
    "palette.png": partial(paletted, "PNG"), "palette.gif": partial(paletted, "GIF"),
    "transparent.png": partial(transparent, "PNG"), "transparent.gif": partial(transparent, "GIF"),
    "CMYK.jpg": partial(print_colors, "JPEG"), "CMYK.tif": partial(print_colors, "TIFF"),
    "frames.gif": frames,
    "turned6.png": partial(turned, "PNG", 6), "turned6.tif": partial(turned, "TIFF", 6),
    "turned6.webp": partial(turned, "WEBP", 6),
    **{f"turned{number}.jpeg": partial(turned, "JPEG", number) for number in range(1, 9)},
}  # fmt: skip
#: some above a megapixel, which are reduced or decoded at a fraction first
LARGE = ("RGB.png", "gray.JPG", "16.png", "RGBA.png", "LA.png", "transparent.png", "CMYK.jpg",
         "turned6.jpeg", "turned6.png", "turned6.tif", "turned6.webp")  # fmt: skip
#: kinds whose edges are hard, or whose colors are few
ROUGH = ("bits", "palette", "transparent", "frames", "CMYK")


@cache
def stored(kind: str, side: int = SIDE) -> Stored:
    return KINDS[kind](smooth(side))


@pytest.mark.parametrize("size", [16, SIDE])
@pytest.mark.parametrize(
    ("kind", "side"), [*((kind, SIDE) for kind in KINDS), *((kind, 1056) for kind in LARGE)]
)
def test_each_kind_is_read_as_it_looks(kind, side, size):
    content, seen = stored(kind, side)
    expected = np.asarray(image(seen).resize((size, size), Image.Resampling.BOX)).astype(float)
    pixels = ImageFormat(size=(size, size), mode="RGB").encode([content]).checked()[0]
    gap = abs(pixels.permute(1, 2, 0).numpy() - expected)
    assert gap.mean() < (8 if kind.startswith(ROUGH) else 2)
    shade = ImageFormat(size=(size, size), mode="L").encode([content]).checked()[0, 0]
    assert abs(shade.numpy() - gray(expected)[..., 0]).mean() < 8


@pytest.mark.parametrize(
    "kind", ["RGBA.png", "RGBA.tif", "LA.png", "transparent.png", "transparent.gif"]
)
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_dropped_transparency_leaves_what_pillow_converts(kind, mode):
    content, _ = stored(kind)
    format = ImageFormat(size=(SIDE, SIDE), mode=mode, transparency="drop")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of transparent palettes
        expected = np.asarray(Image.open(io.BytesIO(content)).convert(mode))
    pixels = format.encode([content]).checked()[0].permute(1, 2, 0).numpy()
    np.testing.assert_allclose(pixels.squeeze().astype(int), expected.astype(int), atol=1)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_without_draft_large_images_are_resized_as_by_pillow(kind):
    values = np.random.default_rng(0).integers(256, size=(1100, 1000, 3), dtype=np.uint8)
    content = saved(Image.fromarray(values), kind)
    resized = Image.open(io.BytesIO(content)).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    pixels = ImageFormat(size=(SIDE, SIDE), mode="RGB", draft=False).encode([content]).checked()
    assert np.array_equal(pixels[0].permute(1, 2, 0), resized)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of two classes with every kind, a truncated file, and one of Windows."""
    place = tmp_path_factory.mktemp("photos")
    for number, kind in enumerate(KINDS):
        path = place / ("odd" if number % 2 else "even") / kind
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(stored(kind)[0])
    (place / "odd" / "half.jpg").write_bytes(stored("RGB.jpg")[0][:-60])
    (place / "odd" / "Thumbs.db").write_bytes(b"\xd0\xcf\x11\xe0" + bytes(400))
    return place


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("size", [8, 2 * SIDE])
def test_training_and_prediction_read_a_folder_alike(folder, tmp_path, size, stream):
    options: Any = {"size": size, "stream": stream}
    with pytest.warns(UserWarning, match=r"1 of 34 .*odd/half\.jpg: image file is truncated"):
        source = data.open(folder, **options)
    assert source.is_in_memory is not stream
    names = [source.item(row) for row in range(len(source))]
    assert sorted(Path(name).name for name in names) == sorted(KINDS)
    for name, pixels in zip(names, source.load(), strict=True):
        seen = image(stored(Path(name).name)[1]).resize((size, size), Image.Resampling.BILINEAR)
        assert abs(pixels.permute(1, 2, 0).numpy() - np.asarray(seen, float)).mean() < 12, name
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*(half|photos of).*")
        options |= {"epochs": 1, "report": False, "backbone": {"name": "mlp", "hidden": [4]}}
        model = train(folder, out=tmp_path / "run", device="cpu", **options)
    prediction = predict(tmp_path / "run", [folder])
    assert [prediction.inputs[row] for row in prediction.errors] == [f"{folder}/odd/half.jpg"]
    rows = [row for row in range(len(prediction)) if row not in prediction.errors]
    assert [prediction.inputs[row] for row in rows] == [f"{folder}/{name}" for name in names]
    expected = model.predict(source).distribution.total
    np.testing.assert_allclose(prediction[rows].distribution.total, expected, rtol=1e-6)
