"""`dubito evaluate`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.columns import Columns
from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from dubito.report.tables import Table

FOLDER = "evaluation"
NOTES = (
    "In-distribution and correct samples are the positives. Figures are printed in per cent, and "
    "written as fractions to DIR/evaluation/result.json, with what they came from in arrays.npz."
)
Detection = Mapping[str, Mapping[str, float]]


def evaluate(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a finished run.")],
    ood: Annotated[
        list[str] | None,
        typer.Option(help="Inputs to tell from the test samples: a known name or a path; repeat."),
    ] = None,
    noise: Annotated[
        list[float] | None,
        typer.Option(help="Tell test samples from themselves with noise N(0, NOISE); repeat."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Judge by other labelled data than the run's own: a name or a path."),
    ] = None,
    resize: Annotated[
        bool,
        typer.Option("--resize", help="Convert images of other sizes, grey or in colour."),
    ] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples at once.")] = 1024,
    seed: Annotated[int, typer.Option(min=0, help="The noise follows from it.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Judge a run: is it right, does it know when it is not, and what is none of its own?"""
    from dubito import runs

    run = runs.load(folder, runs.device_named(device))
    judged = runs.evaluate(
        run, source=data, ood=ood or (), noise=noise or (), resize=resize,
        batch_size=batch_size, seed=seed,
    )  # fmt: skip
    written = judged.write(folder / FOLDER)
    console = Console()
    _show(judged.result, console)
    console.print(Text(str(written)), soft_wrap=True)


def _show(result: Mapping[str, Any], console: Console) -> None:
    from dubito.report.tables import terminal
    from dubito.runs import HELD_OUT

    if result["test"]["part"] == HELD_OUT:
        console.print(
            Text(
                f"{result['test']['data']} has no test part: these are the held-out validation "
                "samples. They chose the weights that were kept, so figures may be a little high"
            ),
            style="yellow",
        )
    console.print(Columns([terminal(table) for table in _tables(result)], padding=(0, 3)))
    for note in result["notes"]:
        console.print(Text(note), style="yellow")


def _tables(result: Mapping[str, Any]) -> Iterator[Table]:
    from dubito.report.tables import Cell, Table

    test, calibration = result["test"], result["calibration"]
    figures = {
        "Accuracy ↑": f"{100 * result['accuracy']:.2f} %",
        "Calibration error (ECE) ↓": f"{100 * calibration['ece']:.2f} %",
        "Brier score ↓": f"{calibration['brier']:.4f}",
        "Negative log-likelihood ↓": f"{calibration['nll']:.4f}",
    }
    rows = tuple((name, (Cell(text),)) for name, text in figures.items())
    yield Table(test["data"], (f"{test['samples']} {test['part']} samples", ""), rows)
    if result["misclassification"]:
        aurc = result["aurc"]
        found = {m: {**v, "aurc": aurc[m]} for m, v in result["misclassification"].items()}
        yield _detection("Right or wrong? (%)", found)
    for name, one in result["ood"].items():
        yield _detection(f"{test['data']} or {name} ({one['samples']})? (%)", one["detection"])
    for sigma, one in result["noise"].items():
        title = f"Clean or with noise N(0, {sigma})? (%)"
        yield _detection(title, one["detection"])


def _detection(title: str, found: Detection) -> Table:
    """A row for each measure, a column for each metric."""
    from dubito.measures import MEASURES
    from dubito.report.tables import Table, cells

    heads = {"aupr": "AUPR ↑", "auroc": "AUROC ↑", "fpr95": "FPR95 ↓", "aurc": "AURC ↓"}
    shown = [metric for metric in heads if metric in next(iter(found.values()))]
    columns = [
        cells(
            [100 * figures[metric] for figures in found.values()],
            "higher" if "↑" in heads[metric] else "lower",
        )
        for metric in shown
    ]
    rows = tuple(
        (MEASURES[name].label, row)
        for name, row in zip(found, zip(*columns, strict=True), strict=True)
    )
    return Table(title, ("Measure", *(heads[metric] for metric in shown)), rows)
