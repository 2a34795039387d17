"""Files to read."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

Array = np.ndarray
Put = Callable[[str, bytes | str], Path]


class Make:
    """Contents of files."""

    @staticmethod
    def noise(*shape: int, seed: int = 0) -> Array:
        return np.random.default_rng(seed).integers(256, size=shape, dtype=np.uint8)

    @staticmethod
    def png(values: Array, mode: str | None = None, kind: str = "PNG", **options: object) -> bytes:
        stream = io.BytesIO()
        image = Image.fromarray(values)
        (image.convert(mode) if mode else image).save(stream, kind, **options)
        return stream.getvalue()

    @staticmethod
    def idx(values: Array) -> bytes:
        head = bytes([0, 0, 8, values.ndim])
        shape = b"".join(size.to_bytes(4, "big") for size in values.shape)
        return head + shape + values.astype(np.uint8).tobytes()

    @staticmethod
    def cifar(images: Array, labels: Array, coarse: Array | None = None) -> bytes:
        """Make records of (coarse and) fine label and pixels; images (N, 3, 32, 32)."""
        heads = [labels] if coarse is None else [coarse, labels]
        columns = [head.astype(np.uint8)[:, None] for head in heads]
        return np.concatenate([*columns, images.reshape(len(images), -1)], axis=1).tobytes()


@pytest.fixture(scope="session")
def make() -> type[Make]:
    return Make


@pytest.fixture
def put(tmp_path: Path) -> Put:
    """Write a file below tmp_path."""

    def write(name: str, content: bytes | str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.fixture
def pets(put: Put, make: type[Make], tmp_path: Path) -> Path:
    """Make two cats and three dogs of 6 x 5 pixels, one of them further down."""
    names = ["cat/a.png", "cat/b.png", "dog/a.png", "dog/b.png", "dog/x/c.png"]
    for seed, name in enumerate(names):
        put(f"pets/{name}", make.png(make.noise(6, 5, 3, seed=seed)))
    return tmp_path / "pets"
