"""Load data by a known name, or from a folder or file of one's own."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dubito import _checks
from dubito.data.arrays import Arrays
from dubito.data.features import read_features
from dubito.data.folder import folder_parts, read_folder
from dubito.data.registry import DATASETS
from dubito.data.tables import npz_parts, read_csv, read_npz

__all__ = ["FORMATS", "load", "parts"]

#: suffix of a file -> its reader
FORMATS: dict[str, Callable[..., Arrays]] = {
    ".npz": read_npz,
    ".csv": read_csv,
    ".safetensors": read_features,
    ".pkl": read_features,
    ".plk": read_features,
    ".pickle": read_features,
}


def load(
    source: str | os.PathLike[str],
    split: str = "train",
    *,
    root: str | os.PathLike[str] | None = None,
    download: bool = True,
    **options: Any,
) -> Arrays:
    """Data by the name of a known set, or from an image folder, an .npz or a .csv file.

    `split` is "train", "test" or "all"; data without parts has only "all" of it, which "train"
    means as well. Known sets are looked for in `root`, the folder DUBITO_DATA or the user's cache
    folder, and downloaded unless `download` is false. Options go to the reader of the format:
    `read_folder` (size, mode, on_error), `read_csv` (label, delimiter), and for all `classes`.

    >>> load("digits", "test")
    Arrays('digits': 359 x (1, 8, 8) float32, 10 classes, cpu)
    """
    if source in DATASETS:
        _no_options(options, (), f"data set {source!r}")
        return DATASETS[str(source)].load(split, root, download)
    path = _existing(source)
    reader = read_folder if path.is_dir() else _reader(path)
    _no_options(options, list(inspect.signature(reader).parameters)[2:], f"{reader.__name__}")
    return reader(path, split, **options)


def parts(source: str | os.PathLike[str]) -> tuple[str, ...]:
    """The parts that a source comes in, such as ("train", "test"); none if it is one whole.

    >>> parts("mnist")
    ('train', 'test')
    """
    if source in DATASETS:
        return DATASETS[str(source)].parts
    path = _existing(source)
    if path.is_dir():
        return folder_parts(path)
    return npz_parts(path) if _reader(path) is read_npz else ()


def _existing(source: str | os.PathLike[str]) -> Path:
    path = Path(source).expanduser()
    if not path.exists():
        raise FileNotFoundError(
            f"{os.fspath(source)!r} is neither a file or folder nor a known data set; "
            f"known: {_checks.listed(DATASETS)}"
        )
    return path


def _reader(path: Path) -> Callable[..., Arrays]:
    return _checks.entry(FORMATS, path.suffix.lower(), f"format of {path}:")


def _no_options(options: dict[str, Any], known: Any, what: str) -> None:
    for option in options:
        if option not in known:
            takes = _checks.listed(known) or "none"
            raise TypeError(f"unknown option {option!r} for {what}; known: {takes}")
