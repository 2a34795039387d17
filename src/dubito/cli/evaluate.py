"""`dubito evaluate`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.columns import Columns
from rich.console import Console
from rich.progress import track
from rich.text import Text

if TYPE_CHECKING:
    from dubito.report.tables import Cell, Table

FOLDER, RESULT = "evaluation", "result.json"
NOTES = (
    "In-distribution and correct samples are the positives. Figures are printed in per cent, and "
    "written as fractions to DIR/evaluation/result.json, with what they came from in arrays.npz; "
    "where DIR holds the runs of several seeds, also their means and deviations. Measures and the "
    "policy look at what the network says before calibration."
)
Result = Mapping[str, Any]
Detection = Mapping[str, Mapping[str, float]]


def evaluate(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="The folder of a finished run, or of a run's seeds."),
    ],
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
    from dubito.report import files

    place, console, results = runs.device_named(device), Console(), []
    members = runs.folders(folder)
    for member in track(members, "Seeds", console=console, disable=len(members) == 1):
        judged = runs.evaluate(
            runs.load(member, place), source=data, ood=ood or (), noise=noise or (), resize=resize,
            batch_size=batch_size, seed=seed,
        )  # fmt: skip
        written = judged.write(member / FOLDER)
        results.append(judged.result)
    if len(members) > 1:
        of_all = runs.averaged(results)
        of_all["run"]["seeds"] = [result["run"]["seed"] for result in results]
        written = files.write(files.folder(folder / FOLDER) / RESULT, files.json_text(of_all))
    _show(results, console)
    console.print(Text(str(written)), soft_wrap=True)


def _show(results: Sequence[Result], console: Console) -> None:
    from dubito.report.tables import terminal
    from dubito.runs import HELD_OUT

    test = results[0]["test"]
    if test["part"] == HELD_OUT:
        console.print(
            Text(
                f"{test['data']} has no test part: these are the held-out validation "
                "samples. They chose the weights that were kept, so figures may be a little high, "
                "and calibration and policy were fitted on them: check these with --data"
            ),
            style="yellow",
        )
    if len(results) > 1:
        seeds = ", ".join(str(result["run"]["seed"]) for result in results)
        console.print(f"Mean ± deviation over the seeds {seeds}")
    console.print(Columns([terminal(table) for table in _tables(results)], padding=(0, 3)))
    for note in dict.fromkeys(note for result in results for note in result["notes"]):
        console.print(Text(note), style="yellow")


def _tables(results: Sequence[Result]) -> Iterator[Table]:
    first = results[0]
    test = first["test"]
    yield _rightness(results)
    if all("promise" in one.get("limits", ()) for one in results):
        decisions = _decisions(results)
        if decisions.rows:
            yield decisions
    if all(one["misclassification"] for one in results):
        yield _detection("Right or wrong? (%)", [_with_aurc(one) for one in results])
    for name, one in first["ood"].items():
        found = [result["ood"][name]["detection"] for result in results]
        yield _detection(f"{test['data']} or {name} ({one['samples']})? (%)", found)
    for sigma in first["noise"]:
        found = [result["noise"][sigma]["detection"] for result in results]
        yield _detection(f"Clean or with noise N(0, {sigma})? (%)", found)


def _rightness(results: Sequence[Result]) -> Table:
    """How right the probabilities are: before calibration, and after it where that can be told."""
    from dubito.report.tables import Table, mean_cells

    test, heads = results[0]["test"], ["before calibration"]
    said = [[one["calibration"] for one in results]]
    if all("calibration" in one.get("limits", ()) for one in results):
        heads.append("after")
        said.append([one["limits"]["calibration"] for one in results])
    accuracies = [100 * one["accuracy"] for one in results]
    rows = [("Accuracy (%) ↑", tuple(mean_cells([accuracies] * len(said), form=".2f")))]
    for name, key, scale, form in (
        ("Calibration error, ECE (%) ↓", "ece", 100, ".2f"),
        ("Brier score ↓", "brier", 1, ".4f"),
        ("Negative log-likelihood ↓", "nll", 1, ".4f"),
    ):
        values = [[scale * one[key] for one in each] for each in said]
        rows.append((name, tuple(mean_cells(values, form=form))))
    title = f"{test['samples']} {test['part']} samples"
    return Table(test["data"], (title, *heads), tuple(rows))


def _decisions(results: Sequence[Result]) -> Table:
    """What the policy accepts of each set, and how much of that is wrong."""
    from dubito.policy import REASONS
    from dubito.report.tables import Table, mean_cells

    limits = [one["limits"] for one in results]
    first = limits[0]
    sets = (
        [(results[0]["test"]["data"], [one["test"] for one in limits])] if "test" in first else []
    )
    sets += [(name, [one["ood"][name] for one in limits]) for name in first["ood"]]
    sets += [(f"noise N(0, {s})", [one["noise"][s] for one in limits]) for s in first["noise"]]
    promised = {one["promise"].get("error") for one in limits} - {None}
    told = "".join(f" (promised: ≤ {100 * error:g})" for error in sorted(promised))
    heads = {**dict(zip(REASONS, REASONS, strict=True)), "wrong": f"wrong, of accepted{told}"}

    def cells(found: Sequence[Mapping[str, float]]) -> tuple[Cell, ...]:
        shares = [[100 * one[k] for one in found if k in one] for k in heads]
        # a mean of some seeds would be taken for one of all
        whole = [share if len(share) == len(found) else [] for share in shares]
        return tuple(mean_cells(whole, form=".2f"))

    rows = tuple((name, cells(found)) for name, found in sets)
    return Table("Accept or abstain? (%)", ("", *heads.values()), rows)


def _with_aurc(result: Result) -> Detection:
    aurc = result["aurc"]
    return {m: {**v, "aurc": aurc[m]} for m, v in result["misclassification"].items()}


def _detection(title: str, found: Sequence[Detection]) -> Table:
    """A row for each measure, a column for each metric, over all results."""
    from dubito._legacy import MEASURES
    from dubito.report.tables import Table, mean_cells

    heads = {"aupr": "AUPR ↑", "auroc": "AUROC ↑", "fpr95": "FPR95 ↓", "aurc": "AURC ↓"}
    measures = list(found[0])
    shown = [metric for metric in heads if metric in found[0][measures[0]]]
    columns = [
        mean_cells(
            [[100 * one[measure][metric] for one in found] for measure in measures],
            "higher" if "↑" in heads[metric] else "lower",
            ".2f",
        )
        for metric in shown
    ]
    rows = tuple(
        (MEASURES[name].label, row)
        for name, row in zip(measures, zip(*columns, strict=True), strict=True)
    )
    return Table(title, ("Measure", *(heads[metric] for metric in shown)), rows)
