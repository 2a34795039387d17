"""Small valid files in the publishers' formats."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

Array = np.ndarray


def idx_bytes(values: Array) -> bytes:
    head = bytes([0, 0, 8, values.ndim])
    shape = b"".join(size.to_bytes(4, "big") for size in values.shape)
    return head + shape + values.astype(np.uint8).tobytes()


def cifar_bytes(images: Array, labels: Array, coarse: Array | None = None) -> bytes:
    """Records of (coarse and) fine label and pixels; images (N, 3, 32, 32)."""
    heads = [labels] if coarse is None else [coarse, labels]
    columns = [head.astype(np.uint8)[:, None] for head in heads]
    return np.concatenate([*columns, images.reshape(len(images), -1)], axis=1).tobytes()


def mat_bytes(images: Array, labels: Array, compress: bool = True) -> bytes:
    """SVHN's file of images (N, 3, 32, 32) with labels from 1 to 10."""
    from scipy.io import savemat

    stream = io.BytesIO()
    content = {"X": images.transpose(2, 3, 1, 0), "y": labels[:, None].astype(np.uint8)}
    savemat(stream, content, do_compression=compress)
    return stream.getvalue()


def tar_bytes(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return stream.getvalue()


class Formats:
    """The writers, and samples to write."""

    idx = staticmethod(idx_bytes)
    cifar = staticmethod(cifar_bytes)
    mat = staticmethod(mat_bytes)
    tar = staticmethod(tar_bytes)
    gz = staticmethod(gzip.compress)

    @staticmethod
    def images(count: int, *shape: int, seed: int = 0) -> Array:
        return np.random.default_rng(seed).integers(256, size=(count, *shape), dtype=np.uint8)


@pytest.fixture(scope="session")
def formats() -> type[Formats]:
    return Formats


@pytest.fixture
def put(tmp_path: Path) -> Callable[[str, bytes], Path]:
    """Write a file below tmp_path."""

    def write(name: str, data: bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    return write
