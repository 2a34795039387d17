"""`dubito predict`."""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from dubito._whole import whole
from dubito.cli.features import MODULE, own_factory

if TYPE_CHECKING:
    from dubito.policy import Policy

NOTES = (
    "A row an input: its source, the label, the calibrated probability of it; belief, vacuity, "
    "mutual information and expected entropy by the evidence before calibration; accept or "
    "abstain, and why: ambiguous or unfamiliar. What the method has no measure of is left out. An "
    "input that can't be read is told in its own row, the rest go on, and the exit status is 1. "
    "--module imports and runs code of yours."
)
FAILED = 1  # the exit status where some inputs could not be predicted
DIGITS = 6  # of a number
Row = dict[str, Any]
Writer = Callable[[Sequence[Row]], None]


def predict(
    folder: Annotated[
        Path, typer.Argument(metavar="BUNDLE", help="The folder of a finished run, or of a bundle.")
    ],
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="Images, folders of images, .npz (inputs or x) and .csv files."
        ),
    ],
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="table, csv or jsonl. [default: by the name of --out, else table]",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the rows to a file, whole or not at all.")
    ] = None,
    batch_size: Annotated[
        int,
        typer.Option(
            min=1,
            help="Inputs at once, which bounds the memory.",
        ),
    ] = 1024,
    module: Annotated[str | None, typer.Option(help=MODULE, show_default=False)] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Predict with a trained model: label, probability, uncertainty, accept or abstain."""
    from dubito import bundle, runs
    from dubito._checks import entry

    chosen = entry(FORMATS, form or _by_name(out), "format")
    console = Console(stderr=True, soft_wrap=True)
    factory = own_factory(module, console)
    loaded = bundle.load(folder, factory=factory, device=runs.device_named(device))
    columns = bundle.row_columns(loaded)
    told: Counter[str] = Counter()
    with _opened(out) as file, chosen(file, columns) as write:
        for portion in bundle.stream(loaded, inputs, batch_size=batch_size):
            write([_rounded(row) for row in portion.rows])
            told.update(_outcome(row) for row in portion.rows)
    _summarise(told, out, console)
    if loaded.policy is not None and loaded.policy.accepts_nothing:
        console.print(Text.assemble(("warning: ", "bold"), _nothing(loaded.policy), style="yellow"))
    if told["error"]:
        raise typer.Exit(FAILED)


def _by_name(out: Path | None) -> str:
    suffix = "" if out is None else out.suffix.lower().removeprefix(".")
    return suffix if suffix in FORMATS else "table"


@contextmanager
def _opened(out: Path | None) -> Iterator[IO[str]]:
    """The file, which has its name once all is written, or what the command prints to."""
    if out is None:
        yield sys.stdout
        sys.stdout.flush()
        return
    try:
        with whole(out) as part, part.open("w", newline="", encoding="utf-8") as file:
            yield file
    except OSError as error:
        raise OSError(f"cannot write {out}: {error.strerror or error}") from error


def _rounded(row: Row) -> Row:
    return {
        name: float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
        for name, value in row.items()
    }


def _outcome(row: Row) -> str:
    return "error" if "error" in row else str(row.get("why", row.get("decision", "predicted")))


def _summarise(told: Counter[str], out: Path | None, console: Console) -> None:
    """What became of all inputs, apart from the rows."""
    names = {"accept": "accepted", "error": "not predicted"}
    listed = ", ".join(f"{count} {names.get(name, name)}" for name, count in sorted(told.items()))
    place = "" if out is None else f"; {out}"
    words = Text(f"{sum(told.values())} inputs: {listed or 'none found'}{place}")
    console.print(words, style="yellow" if told["error"] else "")


def _nothing(policy: Policy) -> str:
    """Why a policy refuses everything, and what to do."""
    promise, asked = "what was promised", policy.guarantee
    count = 0 if policy.validation is None else policy.validation.samples
    if asked is not None and asked.controls == "error":
        promise = f"an error rate <= {asked.level:g} with confidence {asked.confidence:g}"
    return (
        "this bundle abstains on everything, whatever the input: "
        f"{count} validation samples were too few, or too often wrong, "
        f"to show {promise}; hold out more of them (`dubito train --validation`), or promise less "
        "(`dubito train` again with a greater --error)"
    )


# --- formats -------------------------------------------------------------------------------------


@contextmanager
def _jsonl(file: IO[str], columns: Sequence[str]) -> Iterator[Writer]:
    """An object a line, with the keys that say something."""

    def write(rows: Sequence[Row]) -> None:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")

    yield write


@contextmanager
def _csv(file: IO[str], columns: Sequence[str]) -> Iterator[Writer]:
    """A header, and a line a row."""
    writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
    writer.writeheader()
    yield writer.writerows


@contextmanager
def _table(file: IO[str], columns: Sequence[str]) -> Iterator[Writer]:
    """Columns under each other; the first rows decide how wide they are."""
    console = Console(file=file, soft_wrap=True)
    widths: dict[str, int] = {}
    waiting: list[Row] = []

    def show() -> None:
        if not widths and waiting:
            widths.update(_widths(waiting, columns))
            console.print(Text(_line({n: HEADS.get(n, n) for n in columns}, widths)), style="bold")
        for row in waiting:
            cells = {name: _cell(row.get(name)) for name in columns}
            late = [cells[name] for name in columns if cells[name] and name not in widths]
            line = "  ".join([_line(cells, widths), *late])
            console.print(Text(line), style=STYLES.get(_outcome(row), ""))
        waiting.clear()

    def write(rows: Sequence[Row]) -> None:
        waiting.extend(rows)
        if widths or len(waiting) >= HELD:
            show()

    yield write
    show()


def _widths(rows: Sequence[Row], columns: Sequence[str]) -> dict[str, int]:
    """How wide the columns are that have something to say, or always are there."""
    cells = {name: [_cell(row.get(name)) for row in rows] for name in columns}
    return {
        name: max(len(text) for text in (HEADS.get(name, name), *texts))
        for name, texts in cells.items()
        if any(texts) or name not in RARE
    }


def _line(cells: dict[str, str], widths: dict[str, int]) -> str:
    return "  ".join(
        cells[name].rjust(width) if name in NUMBERS else cells[name].ljust(width)
        for name, width in widths.items()
    ).rstrip()


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    return "" if value is None else " ".join(str(value).split())


HELD = 200  # rows that a table waits for, to know its widths
RARE = ("note", "error")
NUMBERS = ("probability", "belief", "vacuity", "mutual_information", "expected_entropy")
HEADS = {"mutual_information": "M.I.", "expected_entropy": "E.Ent.", "probability": "prob."}
STYLES = {"error": "red", "unfamiliar": "magenta", "ambiguous": "yellow"}
#: name -> writer of rows to a file
FORMATS: dict[str, Callable[[IO[str], Sequence[str]], AbstractContextManager[Writer]]] = {
    "table": _table,
    "csv": _csv,
    "jsonl": _jsonl,
}
