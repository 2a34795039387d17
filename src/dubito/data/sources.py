"""Open data of any kind."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from dubito import _checks, _plugins
from dubito.data import arrays, images, tables
from dubito.data.arrays import ArrayFormat
from dubito.data.base import InputFormat, Items, Source, check_split
from dubito.data.images import ImageFormat
from dubito.data.known import DATASETS
from dubito.data.tables import TableFormat
from dubito.errors import DubitoError

__all__ = ["open"]

Array = np.ndarray[Any, Any]
TABLES = (".csv", ".tsv", ".parquet")


def open(
    source: Any,
    split: str = "train",
    *,
    target: str | Sequence[str] | None = None,
    ignore: Sequence[str] = (),
    categories: Sequence[str] = (),
    size: int | tuple[int, int] | None = None,
    mode: Literal["L", "RGB"] | None = None,
    on_error: Literal["skip", "raise", "report"] = "skip",
    format: InputFormat | None = None,
    resize: bool = False,
    labeled: bool = True,
) -> Source:
    """Open data for training, evaluation or prediction.

    A folder has one sub-folder of images per class, or parts `train` and `test` with these inside.
    An .npz file has arrays `inputs` and `labels` (or `x` and `y`), perhaps `x_train`, `x_test`, and
    so on. A table has a header; a column of text is one of categories, and so is one of codes with
    leading zeros.

    Args:
        source: Known name, image folder, .npz, .csv or .parquet file; DataFrame or list of dicts;
            array (N, *shape); or a pair of inputs and targets. Without targets also image files.
        split: "train", "test" or "all". Data without parts has only "all" of it, which "train"
            means as well.
        target: Target column or columns of a table; default: the last.
        ignore: Columns of a table to leave out.
        categories: Columns of numbers to read as categories.
        size: Side, or height and width, to resize images to; default: their own if all share one
            of at most 64 pixels, otherwise 32.
        mode: "L" (gray) or "RGB"; default: by the images.
        on_error: "skip" leaves out images that cannot be read, with a warning; "raise" stops;
            "report" keeps all inputs, so that `Source.encode` reports their errors. Rows of
            arrays and tables that cannot be read are errors unless "report".
        format: Format that a model was trained with, in place of `ignore`, `categories`, `size`
            and `mode`; default: fitted to the data.
        resize: Convert arrays of images of another size or mode to `format`; files always are.
        labeled: Whether to read targets.

    >>> open("digits", "test")
    <digits: 359 x (1, 8, 8), image, labeled>
    """
    if format is not None:
        ignore, categories, size, mode = (), (), None, None
    _checks.one_of(("skip", "raise", "report"), on_error, "on_error")
    name, content, labels = _read(source, split, labeled)
    labels = _as_target(labels) if labeled else None
    if not len(content):
        raise DubitoError(f"there are no inputs in {name}")
    if labels is not None and len(labels) != len(content):
        raise DubitoError(f"{name} has {len(content)} inputs, but {len(labels)} targets")
    if hasattr(content, "iloc"):
        _reject(name, "images", size=size, mode=mode)
        columns = (target,) if isinstance(target, str) else tuple(target or ())
        opened = _open_table(name, content, labels, columns, ignore, categories, format, labeled)
    else:
        _reject(name, "tables", target=target, ignore=ignore, categories=categories)
        if isinstance(content, list):
            if format is not None and not isinstance(format, ImageFormat):
                raise DubitoError(f"{name} has images, but the model takes {format}")
            format = format or images.common_format(content, size, mode)
            return images.open_images(name, content, labels, format, on_error)
        opened = _open_array(name, content, labels, format, size, mode, resize)
    if on_error != "report" and isinstance(opened, Items) and opened.encoded is not None:
        opened.encoded.checked(opened.item)
    return opened


def parts(source: Any) -> tuple[str, ...]:
    """Return the parts of a source, such as ("train", "test"); empty if it has none.

    Args:
        source: See `open`.

    >>> parts("mnist")
    ('train', 'test')
    """
    if not isinstance(source, str | os.PathLike):
        return ()
    if _is_known(source):
        return DATASETS[str(source)].parts
    path = _existing(source)
    if path.is_dir():
        return images.folder_parts(path)
    return arrays.npz_parts(path) if path.suffix.lower() == ".npz" else ()


def _is_known(source: str | os.PathLike[str]) -> bool:
    if source not in DATASETS and not Path(source).exists():
        _plugins.load_plugins()
    return source in DATASETS


def _existing(source: str | os.PathLike[str]) -> Path:
    path = Path(source).expanduser()
    if not path.exists():
        raise DubitoError(
            f"{os.fspath(source)!r} is not a file, a folder or a known dataset; "
            f"known: {_checks.listed(DATASETS)}"
        )
    return path


def _read(source: Any, split: str, labeled: bool) -> tuple[str, Any, Any]:
    """Return the name, the inputs (a table, image files, an array or a source) and the targets."""
    if isinstance(source, list) and len(source) == 1 and isinstance(source[0], str | os.PathLike):
        source = source[0]
    if isinstance(source, str | os.PathLike) and _is_known(source):
        source = _load(str(source), split)
    if isinstance(source, Source):
        return source.name, source, source.target
    if isinstance(source, str | os.PathLike):
        return _read_path(_existing(source), split, labeled)
    check_split(split, (), "data in memory")
    if _all_are(source, str | os.PathLike):
        return "images", _unlabeled_files([Path(path) for path in source], labeled), None
    inputs, labels = source if isinstance(source, tuple) else (source, None)
    if hasattr(inputs, "iloc") or _all_are(inputs, Mapping):
        return "table", tables.as_frame(inputs), labels
    return "data", arrays.as_array(inputs), labels


def _read_path(path: Path, split: str, labeled: bool) -> tuple[str, Any, Any]:
    suffix, name, known = path.suffix.lower(), path.resolve().name, parts(path)
    check_split(split, known, str(path))
    selected = [part for part in known if split in (part, "all")]
    if path.is_dir():
        if labeled:
            return name, *images.class_files(path, selected)
        return name, images.image_files([path / part for part in selected] or [path]), None
    if suffix == ".npz":
        return name, *arrays.read_npz(path, selected, labeled)
    if suffix in TABLES:
        return name, tables.as_frame(path), None
    if suffix in images.EXTENSIONS:
        return name, _unlabeled_files([path], labeled), None
    raise DubitoError(f"{path} is neither a folder nor a table ({' '.join(TABLES)}), .npz or image")


def _unlabeled_files(paths: list[Path], labeled: bool) -> list[Path]:
    if labeled:
        raise DubitoError(
            "image files have no targets: pass a folder with one sub-folder of images per class, "
            "or labeled=False"
        )
    return images.image_files(paths)


def _load(name: str, split: str) -> Source:
    """Load a part of a known dataset, or all parts."""
    dataset = DATASETS[name]
    check_split(split, dataset.parts, name)
    if split != "all":
        return dataset.load(split)
    sources = [dataset.load(part) for part in dataset.parts]
    inputs = torch.cat([source.load() for source in sources])
    targets = [np.asarray(source.target) for source in sources if source.target is not None]
    target = np.concatenate(targets) if len(targets) == len(sources) else None
    return Items(name, sources[0].format, inputs.numpy(), target).in_memory()


def _open_array(
    name: str,
    values: Any,
    target: Any,
    format: InputFormat | None,
    size: int | tuple[int, int] | None,
    mode: Literal["L", "RGB"] | None,
    resize: bool,
) -> Source:
    if isinstance(values, Source):
        if format in (None, values.format) and size is None and mode is None:
            same: Source = copy.copy(values)
            same.target = target
            return same
        values = values.load().numpy()
    values = arrays.channels_first(arrays.as_array(values))
    own = ImageFormat.of(values)
    other = isinstance(format, ImageFormat) and format != own and not (resize and own)
    if other or isinstance(format, TableFormat):
        has = f"arrays of shape {values.shape}" if own is None else own
        hint = "" if own is None else ": convert them with resize=True"
        raise DubitoError(f"{name} has {has}, but the model takes {format}{hint}")
    if own is None:
        _reject(name, "images (uint8)", size=size, mode=mode)
    elif format is None:
        size = own.size if size is None else images.pair(size)
        format = ImageFormat(size=size, mode=mode or own.mode)
    fitted = format or ArrayFormat.fit(values)
    items = Items(name, fitted, values, target, is_fitted=format is None)
    return items if isinstance(values, np.memmap) else items.in_memory()


def _open_table(
    name: str,
    frame: Any,
    target: Any,
    columns: tuple[str, ...],
    ignore: Sequence[str],
    categories: Sequence[str],
    format: InputFormat | None,
    labeled: bool,
) -> Source:
    frame = tables.without_index(frame, name)
    if isinstance(format, TableFormat):
        columns = columns or format.target
    elif format is not None:
        raise DubitoError(f"{name} is a table, but the model takes {format}")
    for column in (*columns, *ignore, *categories) if format is None else ():
        _checks.one_of(list(frame.columns), column, f"column of {name}")
    if labeled and target is None and not columns:
        columns = tuple(column for column in frame.columns if column not in ignore)[-1:]
    readers = [lambda: format or TableFormat.fit(frame, columns, ignore, categories)]
    if labeled and target is None:
        readers.append(lambda: tables.target_columns(frame, columns))
    fitted, *labels = tables.collected(readers, name)
    if labels:
        target = labels[0]
    names = tables.row_names(frame, name)
    return Items(name, fitted, frame, target, names, is_fitted=format is None).in_memory()


def _reject(name: str, kind: str, **options: Any) -> None:
    """Raise if an option is set that does not apply."""
    for option, value in options.items():
        if value:
            raise DubitoError(f"{option}={value!r} is for {kind}, which {name} is not")


def _all_are(source: Any, kind: Any) -> bool:
    return isinstance(source, list) and all(isinstance(item, kind) for item in source)


def _as_target(values: Any) -> Any:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
    return values if values is None or hasattr(values, "iloc") else np.asarray(values)
