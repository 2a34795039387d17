"""Open data of any kind."""

import copy
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from textwrap import shorten
from types import UnionType
from typing import Any, Literal, TypeAlias

import numpy as np

from dubito import _checks, plugins
from dubito.data import arrow, folders, npz
from dubito.data.base import PARTS, Items, Source, take
from dubito.data.folders import files_below
from dubito.data.known import DATASETS
from dubito.errors import DubitoError
from dubito.formats import FORMATS, ArrayFormat, InputFormat, TableFormat
from dubito.formats.arrays import as_array, as_numpy, channels_first
from dubito.formats.images import Fit, ImageFormat, Mode
from dubito.formats.tables import (
    TABLES,
    as_frame,
    collected,
    missing_targets,
    row_names,
    target_columns,
    weight_column,
    without_index,
)
from dubito.targets import missing
from dubito.types import Array, Frame, Options

__all__ = ["open"]

#: options that name columns of a table
OF_COLUMNS = ("ignore", "categories", "text")
#: inputs and targets as they are read
Inputs: TypeAlias = Source | Sequence[Any] | Array | Frame
Targets: TypeAlias = Array | Frame | None
#: function of a format that was fitted to data to the one to read it with
Adapt: TypeAlias = Callable[[InputFormat], InputFormat]
#: files in the folder of a dataset of the package datasets, and of one with parts
DATASET_FILES = ("dataset_info.json", "dataset_dict.json")
#: characters of a value in a message
LONGEST = 40


def open(
    source: object,
    split: str = "train",
    *,
    target: str | Sequence[str] | None = None,
    weight: str | None = None,
    ignore: str | Sequence[str] = (),
    categories: str | Sequence[str] = (),
    text: str | None = None,
    tokenizer: str | None = None,
    size: int | tuple[int, int] | None = None,
    mode: Mode | None = None,
    fit: Fit | None = None,
    on_error: Literal["skip", "raise", "report"] = "skip",
    format: InputFormat | Adapt | None = None,
    resize: bool = False,
    labeled: bool = True,
    stream: bool | None = None,
) -> Source:
    """Open data for training, evaluation or prediction.

    A folder has one sub-folder of files per class, or parts `train` and `test` with these inside.
    An .npz file has arrays `inputs` and `labels` (or `x` and `y`), perhaps `x_train`, `x_test`, and
    so on. A dataset of the package datasets has a column of images or of lists of numbers, or it is
    a table, where the only column, or `text`, is text if it has strings. A table has a header; a
    column of text is one of categories, and so is one of codes with leading zeros. The format of
    the inputs is the entry of `FORMATS` that accepts them. Samples without a target are left out,
    with a warning; of several numbers single ones may be missing.

    Args:
        source: Known name, folder, .npz, .csv or .parquet file; DataFrame or list of dicts; array
            (N, *shape) or list of texts; or a pair of inputs and targets; or a dataset of the
            package datasets, or the folder of one. Without targets also files.
        split: "train", "test" or "all". Data without parts has only "all" of it, which "train"
            means as well.
        target: Target column or columns of a table; default: the last.
        weight: Column of a table with sample weights; with a `format` it may be absent.
        ignore: Columns of a table to leave out.
        categories: Columns of numbers to read as categories.
        text: Column of a table to read as text, the only input.
        tokenizer: Content of a tokenizer.json, whose tokens texts become in place of words.
        size: Side, or height and width, to resize images to; default: their own if all share one
            of at most 64 pixels, otherwise by their median shorter side, 32 to 224.
        mode: "L" (gray) or "RGB"; default: by the images.
        fit: How images are resized: "stretch", "crop" or "pad"; default: "stretch" to a given size,
            otherwise "crop" if their shapes differ.
        on_error: "skip" leaves out files that cannot be read, with a warning; "raise" stops;
            "report" keeps all inputs, so that `Source.encode` reports their errors. Rows of
            arrays and tables that cannot be read are errors unless "report".
        format: Format that a model was trained with, in place of the options above; default: fitted
            to the data. A function of that returns the one to read files and arrays with.
        resize: Convert arrays of images of another size or mode to `format`; files always are.
        labeled: Whether to read targets.
        stream: Read files when they are needed (True), or hold them in memory (False); default:
            hold at most 2 GB.

    >>> open("digits", "test")
    <digits: 359 x (1, 8, 8), image, labeled>
    """
    _checks.one_of(("skip", "raise", "report"), on_error, "on_error")
    options: Options = {"text": text, "tokenizer": tokenizer, "size": size, "mode": mode}
    options |= {"fit": fit, "ignore": _columns(ignore) or None}
    options["categories"] = _columns(categories) or None
    options = {option: value for option, value in options.items() if value is not None}
    adapt: Adapt | None = None
    if format is not None and not isinstance(format, InputFormat):
        adapt, format = format, None
    if is_dataset(source):
        name, content, labels, found = arrow.read(source, _selected(source, split), labeled, target)
        options = options if found is None else {**options, "text": text or found}
        target = None if labels is not None else target
    else:
        name, content, labels = _read(source, split, labeled, format)
    if format is not None:
        options = {}
    _check(name, content, labels, {"target": target, "weight": weight}, labeled)
    labels, weights = labels if labeled else None, None
    if labels is not None and not isinstance(content, Source):
        absent = np.all(missing(labels).reshape(len(labels), -1), 1)
        content, labels = without_rows(name, absent, content, labels)
    if isinstance(content, Source):
        wanted = content.format if adapt is None else adapt(content.format)
        if format in (None, content.format) and wanted == content.format and not options:
            known = copy.copy(content)
            known.target = labels
            return known
        weights, content = content.weight, content.load().numpy()
    if hasattr(content, "iloc"):
        columns = tuple(_columns(target or ()))
        parts = content, labels, columns, weight if labeled else None
        return _open_table(name, *parts, options, format, labeled, on_error)
    items: Any = channels_first(content) if isinstance(content, np.ndarray) else content
    fitting = None
    if format is None:
        format, fitting = _fitted(name, items, options, adapt)
    else:
        _check_accepted(name, items, format, resize)
    names = folders.file_names(items, labeled) if _all_are(items, os.PathLike) else None
    opened = Items(name, format, items, labels, names, fit=fitting, weight=weights)
    if isinstance(items, np.ndarray):
        return _without_errors(opened.in_memory(), on_error)
    return folders.checked(opened, on_error, stream)


def is_known(source: object) -> bool:
    """Return whether a source is the name of a dataset, perhaps with an argument: "name:argument".

    Args:
        source: See `open`.
    """
    return isinstance(source, str) and source.partition(":")[0] in DATASETS


def is_dataset(source: object) -> bool:
    """Return whether a source is a dataset, several of them by part, or a folder of these.

    Args:
        source: See `open`.
    """
    if isinstance(source, str | os.PathLike):
        place = Path(source).expanduser()
        return any((place / name).is_file() for name in DATASET_FILES)
    package: Any = sys.modules.get("datasets")  # what has it was made by it
    return package is not None and isinstance(source, package.Dataset | package.DatasetDict)


def parts(source: object) -> tuple[str, ...]:
    """Return the parts of a source, such as ("train", "test"); empty if it has none.

    Args:
        source: See `open`.

    >>> parts("mnist")
    ('train', 'test')
    """
    if is_dataset(source):
        return arrow.parts(source)
    if not isinstance(source, str | os.PathLike):
        return ()
    path = Path(source).expanduser()
    if not is_known(source) and not path.exists():
        plugins.load_plugins()
    if is_known(source):
        return DATASETS.find(str(source)).parts
    if not path.exists():
        raise DubitoError(
            f"{os.fspath(source)!r} is not a file, a folder or a known dataset; "
            f"known: {_checks.listed(DATASETS)}"
        )
    if path.is_dir():
        return tuple(part for part in PARTS if folders.folders(path / part))
    return npz.npz_parts(path) if path.suffix.lower() == ".npz" else ()


def _check(name: str, content: Inputs, labels: Targets, columns: Options, labeled: bool) -> None:
    """Raise if there are no inputs, or if targets are missing or do not belong to them."""
    if not len(content):
        raise DubitoError(f"there are no inputs in {name}")
    if labeled and labels is not None and len(labels) != len(content):
        raise DubitoError(f"{name} has {len(content)} inputs, but {len(labels)} targets")
    for option, value in columns.items():
        if value and not hasattr(content, "iloc"):
            raise DubitoError(f"{option}={value!r} is for tables, which {name} is not")
    if labeled and labels is None and isinstance(content, list):
        raise DubitoError(
            f"{name} have no targets: pass a folder with one sub-folder of files per class, a pair "
            "of inputs and targets, or labeled=False"
        )


def _read(
    source: Any, split: str, labeled: bool, format: InputFormat | None
) -> tuple[str, Inputs, Targets]:
    """Return the name, the inputs (a table, a list, an array or a source) and the targets."""
    if isinstance(source, Source):
        return source.name, source, source.target
    if _are_paths(source) and len(source) == 1:
        source = source[0]
    kind = type(format) if format is not None and format.extensions else None
    selected = _selected(source, split)
    if isinstance(source, str | os.PathLike):
        if is_known(source):
            return _load(str(source), selected)
        return _read_path(Path(source).expanduser(), selected, labeled, kind)
    inputs, labels = source if isinstance(source, tuple) else (source, None)
    labels = labels if labels is None or hasattr(labels, "iloc") else as_numpy(labels)
    if _are_paths(inputs):
        return "files", files_below(inputs, kind), labels
    if hasattr(inputs, "iloc") or _all_are(inputs, Mapping):
        return "table", as_frame(inputs), labels
    if _all_are(inputs, str | bytes):
        return "inputs", inputs, labels
    return "data", as_array(inputs), labels


def _selected(source: Any, split: str) -> list[str]:
    """Return the parts of a source to read; empty if it has none."""
    known = parts(source)
    hint = "" if known else "; divide all of it with dubito.data.split"
    is_path = isinstance(source, str | os.PathLike)
    what = f"part of {os.fspath(source) if is_path else 'data in memory'}:"
    _checks.one_of([*(known or ["train"]), "all"], split, what, hint)
    return [part for part in known if split in (part, "all")]


def _load(name: str, parts: list[str]) -> tuple[str, Inputs, Targets]:
    dataset = DATASETS.build(name)
    sources = [dataset.load(part) for part in parts]
    if len(sources) == 1:
        return sources[0].name, sources[0], sources[0].target
    inputs = np.concatenate([source.load().numpy() for source in sources])
    targets = [np.asarray(source.target) for source in sources if source.target is not None]
    return name, inputs, np.concatenate(targets) if len(targets) == len(sources) else None


def _read_path(
    path: Path, parts: list[str], labeled: bool, kind: type[InputFormat] | None
) -> tuple[str, Inputs, Targets]:
    suffix, name = path.suffix.lower(), path.resolve().name
    if path.is_dir() and labeled:
        return name, *folders.class_files(path, parts, kind)
    if path.is_dir():
        return name, files_below([path / part for part in parts or [""]], kind), None
    if suffix == ".npz":
        return name, *npz.read_npz(path, parts, labeled)
    if TableFormat.accepts(path):
        return name, as_frame(path), None
    if any(suffix in entry.extensions for entry in FORMATS.values()):
        return name, [path], None
    raise DubitoError(
        f"{path} is neither a folder nor a table ({' '.join(TABLES)}), .npz or a file of the "
        f"formats {_checks.listed(FORMATS)}"
    )


def _accepts(kind: type[InputFormat], items: Inputs) -> bool:
    is_lazy = isinstance(items, Sequence) and not isinstance(items, list)  # images of a dataset
    return kind is ImageFormat if is_lazy else kind.accepts(items)


def _choose(name: str, items: Inputs, options: Options) -> type[InputFormat]:
    """Return the format that accepts items and takes the options; arrays are what others leave."""
    found = next((kind for kind in _kinds(items) if options.keys() <= _options(kind)), None)
    if found is None:
        first = next(_kinds(items))
        option, value = next(item for item in options.items() if item[0] not in _options(first))
        others = [repr(other) for other, kind in FORMATS.items() if option in _options(kind)]
        own = FORMATS.name_of(first)
        shown = shorten(repr(value), LONGEST)
        raise DubitoError(
            f"{option}={shown} is for the format {' or '.join(others)}, but {name} has {own!r}"
        )
    return found


def _kinds(items: Inputs) -> Iterator[type[InputFormat]]:
    """Yield the formats that accept items, arrays last."""
    yield from (kind for kind in FORMATS.values() if kind != ArrayFormat and _accepts(kind, items))
    yield ArrayFormat


def _options(kind: type[InputFormat]) -> set[str]:
    return {*inspect.signature(kind.fit).parameters}


def _fitted(
    name: str, items: Inputs, options: Options, adapt: Adapt | None
) -> tuple[InputFormat, Callable[..., InputFormat] | None]:
    """Return the format of items, and a function that fits it again, see `_fitting`."""
    kind = _choose(name, items, options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        format = kind.fit(items, **options)
    adapted = format if adapt is None else adapt(format)
    if adapted != format:
        return adapted, None
    for one in caught:  # they are about the format that is used
        warnings.warn(one.message, stacklevel=4)
    return format, _fitting(kind, options)


def _fitting(kind: type[InputFormat], options: Options) -> Callable[..., InputFormat] | None:
    """Return a function that fits a format to training rows again, if it depends on them."""
    return partial(kind.fit, **options) if "rows" in _options(kind) else None


def _open_table(
    name: str,
    frame: Frame,
    target: Targets,
    columns: tuple[str, ...],
    weight: str | None,
    options: Options,
    format: InputFormat | None,
    labeled: bool,
    on_error: str,
) -> Source:
    frame = without_index(frame, name)
    has_target = labeled and target is None
    if format is not None:
        _check_accepted(name, frame, format)
        columns = (columns or getattr(format, "target", ())) if has_target else ()
        weight = weight if weight in frame.columns else None
    kind = _choose(name, frame, options)
    named = (*columns, *([] if weight is None else [weight]))
    given = (c for option in OF_COLUMNS for c in _columns(options.get(option, ())))
    for column in (*named, *given):
        _checks.one_of(list(frame.columns), column, f"column of {name}")
    left_out = [*options.get("ignore", ()), *named[len(columns) :]]
    if has_target and not columns:
        columns = tuple(c for c in frame.columns if c not in left_out)[-1:]
    if has_target:
        (frame,) = without_rows(name, missing_targets(frame, columns), frame)
    for option, value in (("target", columns), ("ignore", left_out)):
        options = {**options, option: value} if option in _options(kind) else options
    fit: Callable[..., InputFormat] = partial(kind.fit, **options)
    readers: list[Callable[[], Any]] = [
        lambda: format or fit(frame),
        lambda: target_columns(frame, columns) if has_target else target,
        lambda: None if weight is None else weight_column(frame[weight]),
    ]
    fitted, labels, weights = collected(readers, name)
    names, fitting = row_names(frame, name), None if format else _fitting(kind, options)
    opened = Items(name, fitted, frame, labels, names, fit=fitting, weight=weights).in_memory()
    return _without_errors(opened, on_error)


def without_rows(name: str, absent: Array, *parts: Any) -> tuple[Any, ...]:
    """Leave out the samples whose targets are missing, unless these are all."""
    if not absent.any() or absent.all():
        return parts
    count, first = int(absent.sum()), int(absent.argmax())
    place = row_names(parts[0], name)[first] if hasattr(parts[0], "iloc") else f"sample {first}"
    warnings.warn(
        f"{name}: {count} of {len(absent)} samples have no target and are left out, the first is "
        f"{place}",
        stacklevel=3,
    )
    rows = np.flatnonzero(~absent).tolist()
    return tuple(take(part, rows) for part in parts)


def _columns(value: str | Sequence[str]) -> Sequence[str]:
    return [value] if isinstance(value, str) else value


def _without_errors(source: Items, on_error: str) -> Source:
    """Raise if an input cannot be read."""
    if on_error != "report" and source.encoded is not None:
        source.encoded.checked(source.item)
    return source


def _check_accepted(name: str, items: Inputs, format: InputFormat, resize: bool = True) -> None:
    """Raise if a model takes inputs of another kind, or arrays of images of another size."""
    if not _accepts(type(format), items):
        own = repr(FORMATS.name_of(_choose(name, items, {})))
        shape = f" of shape {items.shape}" if isinstance(items, np.ndarray) else ""
        raise DubitoError(f"{name} has the format {own}{shape}, but the model takes {format}")
    is_other = isinstance(items, np.ndarray) and items.shape[1:] != format.shape
    if is_other and format.resizes and not resize:
        own = str(type(format).fit(items))
        raise DubitoError(
            f"{name} has {own}, but the model takes {format}: convert them with resize=True"
        )


def _are_paths(source: Any) -> bool:
    """Return whether a list has files and folders; a text that is the name of a file is one."""
    if not _all_are(source, str | os.PathLike):
        return False
    return _all_are(source, os.PathLike) or any(map(os.path.exists, source))


def _all_are(source: object, kind: type | UnionType) -> bool:
    return isinstance(source, list) and all(isinstance(item, kind) for item in source)
