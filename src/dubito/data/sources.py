"""Open data of any kind."""

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dubito import _checks, plugins
from dubito.data import arrays, images, tables
from dubito.data.arrays import ArrayFormat
from dubito.data.base import PARTS, InputFormat, Items, Source
from dubito.data.images import ImageFormat, Mode, Size
from dubito.data.known import DATASETS
from dubito.data.tables import TableFormat
from dubito.errors import DubitoError

__all__ = ["open"]

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
    if not len(content):
        raise DubitoError(f"there are no inputs in {name}")
    if not labeled:
        labels = None
    elif labels is not None and len(labels) != len(content):
        raise DubitoError(f"{name} has {len(content)} inputs, but {len(labels)} targets")
    elif labels is None and isinstance(content, list):
        raise DubitoError(
            "image files have no targets: pass a folder with one sub-folder of images per class, "
            "or labeled=False"
        )
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
        opened = _open_array(name, content, format, size, mode, resize)
        opened.target = labels
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
    path = Path(source).expanduser()
    if source not in DATASETS and not path.exists():
        plugins.load_plugins()
    if source in DATASETS:
        return DATASETS[str(source)].parts
    if not path.exists():
        raise DubitoError(
            f"{os.fspath(source)!r} is not a file, a folder or a known dataset; "
            f"known: {_checks.listed(DATASETS)}"
        )
    if path.is_dir():
        return tuple(part for part in PARTS if images.folders(path / part))
    return arrays.npz_parts(path) if path.suffix.lower() == ".npz" else ()


def _read(source: Any, split: str, labeled: bool) -> tuple[str, Any, Any]:
    """Return the name, the inputs (a table, image files, an array or a source) and the targets."""
    if isinstance(source, Source):
        return source.name, source, source.target
    if _all_are(source, str | os.PathLike) and len(source) == 1:
        source = source[0]
    is_path, known = isinstance(source, str | os.PathLike), parts(source)
    hint = "" if known else "; divide all of it with dubito.data.split"
    what = f"part of {os.fspath(source) if is_path else 'data in memory'}:"
    _checks.one_of([*(known or ["train"]), "all"], split, what, hint)
    if is_path:
        selected = [part for part in known if split in (part, "all")]
        if source in DATASETS:
            return _load(str(source), selected)
        return _read_path(Path(source).expanduser(), selected, labeled)
    if _all_are(source, str | os.PathLike):
        return "images", images.image_files(source), None
    inputs, labels = source if isinstance(source, tuple) else (source, None)
    labels = labels if labels is None or hasattr(labels, "iloc") else arrays.as_numpy(labels)
    if hasattr(inputs, "iloc") or _all_are(inputs, Mapping):
        return "table", tables.as_frame(inputs), labels
    return "data", arrays.as_array(inputs), labels


def _load(name: str, parts: list[str]) -> tuple[str, Any, Any]:
    sources = [DATASETS[name].load(part) for part in parts]
    if len(sources) == 1:
        return sources[0].name, sources[0], sources[0].target
    inputs = np.concatenate([source.load().numpy() for source in sources])
    targets = [np.asarray(source.target) for source in sources if source.target is not None]
    return name, inputs, np.concatenate(targets) if len(targets) == len(sources) else None


def _read_path(path: Path, parts: list[str], labeled: bool) -> tuple[str, Any, Any]:
    suffix, name = path.suffix.lower(), path.resolve().name
    if path.is_dir() and labeled:
        return name, *images.class_files(path, parts)
    if path.is_dir():
        return name, images.image_files([path / part for part in parts or [""]]), None
    if suffix == ".npz":
        return name, *arrays.read_npz(path, parts, labeled)
    if suffix in TABLES:
        return name, tables.as_frame(path), None
    if suffix in images.EXTENSIONS:
        return name, images.image_files([path]), None
    raise DubitoError(f"{path} is neither a folder nor a table ({' '.join(TABLES)}), .npz or image")


def _open_array(
    name: str, values: Any, format: InputFormat | None, size: Size, mode: Mode, resize: bool
) -> Source:
    if isinstance(values, Source):
        if format in (None, values.format) and size is None and mode is None:
            return copy.copy(values)
        values = values.load().numpy()
    values = arrays.channels_first(arrays.as_array(values))
    has_channels = values.ndim == 4 and values.shape[1] in images.MODES.values()
    own = ImageFormat.of(values) if has_channels and values.dtype == np.uint8 else None
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
    fit = ArrayFormat.fit if format is None else None
    items = Items(name, format or ArrayFormat.fit(values), values, fit=fit)
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
    has_target = labeled and target is None
    if isinstance(format, TableFormat):
        columns = (columns or format.target) if has_target else ()
    elif format is not None:
        raise DubitoError(f"{name} is a table, but the model takes {format}")
    for column in (*columns, *ignore, *categories):
        _checks.one_of(list(frame.columns), column, f"column of {name}")
    if has_target and not columns:
        columns = tuple(column for column in frame.columns if column not in ignore)[-1:]
    fit = partial(TableFormat.fit, target=columns, ignore=ignore, categories=categories)
    readers: list[Callable[[], Any]] = [
        lambda: format or fit(frame),
        lambda: tables.target_columns(frame, columns) if has_target else target,
    ]
    fitted, labels = tables.collected(readers, name)
    names = tables.row_names(frame, name)
    return Items(name, fitted, frame, labels, names, fit=None if format else fit).in_memory()


def _reject(name: str, kind: str, **options: Any) -> None:
    """Raise if an option is set that does not apply."""
    for option, value in options.items():
        if value:
            raise DubitoError(f"{option}={value!r} is for {kind}, which {name} is not")


def _all_are(source: Any, kind: Any) -> bool:
    return isinstance(source, list) and all(isinstance(item, kind) for item in source)
