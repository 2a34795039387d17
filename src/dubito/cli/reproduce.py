"""`dubito reproduce`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from dubito.cli._options import ADDRESS, GPUS, cluster, numbers
from dubito.cli._stop import stoppable

if TYPE_CHECKING:
    from dubito.experiments import Outcome, Recipe, Store

INCOMPLETE = 1  # the exit status where some cells failed
RESULTS, WORK, REPORT = "results", "runs/reproduce", "report"
PIPED = 200  # columns where there is no terminal
NOTES = (
    "The same command again skips what is done, goes on with what was stopped, and runs again what "
    "has changed in its recipe; the record before the change is kept beside it as *.stale. "
    "On a GPU all seeds of a recipe train at once. "
    "--quick is a rehearsal with embedded data: its figures mean nothing."
)


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TABLE|RECIPE]...",
            help="Tables (tab_ood, lambda, ...) or recipes (mnist-iedl, 'cifar10-*', ...), run in "
            "this order; all of them if none is given. --list shows them.",
            show_default=False,
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A rehearsal: embedded data and two epochs.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help=f"The folder of records. [default: {RESULTS}, {RESULTS}-quick with --quick]",
            show_default=False,
        ),
    ] = None,
    work: Annotated[Path, typer.Option(help="The folder of trainings.")] = Path(WORK),
    seeds: Annotated[
        str | None, typer.Option(help="Other seeds than the recipes', as 1,2,3.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes that work side by side.")] = 1,
    ray: Annotated[
        bool,
        typer.Option("--ray", help="Run each cell as a task of a Ray cluster: see --address."),
    ] = False,
    address: Annotated[str | None, ADDRESS] = None,
    gpus: Annotated[float | None, GPUS] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    listed: Annotated[
        bool, typer.Option("--list", help="Show tables, recipes and what is done; run nothing.")
    ] = False,
    report: Annotated[bool, typer.Option(help="Write the report when all is done.")] = True,
) -> None:
    """Run the paper's experiments, and set our figures beside the paper's."""
    import torch

    from dubito import experiments
    from dubito.cli._cells import shown

    known = experiments.recipes()
    if quick:
        known = {name: experiments.quick(recipe) for name, recipe in known.items()}
    chosen = experiments.chosen(known, names or ())
    if out is None:
        out = Path(f"{RESULTS}-quick" if quick else RESULTS)
    given = None if seeds is None else numbers(seeds, "--seeds")
    console = Console()
    if listed:
        _list(chosen, experiments.Store(out, quick=quick), given, console)
        return
    where = cluster(ray, address, gpus)
    if quick:
        console.print(Text("quick: embedded data and two epochs; the figures mean nothing"))
        torch.set_num_threads(1)  # on so little data threads only wait for each other
    # what differs from the published files is said once, not for each cell
    warnings.filterwarnings("once", message=".*is not the published file")
    total = _left(chosen, experiments.Store(out, quick=quick), given)
    with stoppable(console), shown(console, total) as tell:
        outcome = experiments.reproduce(
            chosen, out=out, work=work, among=known.values(), seeds=given, device=device,
            jobs=jobs, ray=where, gpus=gpus, tell=tell,
        )  # fmt: skip
    _show(outcome, console)
    if report:
        _report(outcome, out / REPORT, console)
    if outcome.failed:
        raise typer.Exit(INCOMPLETE)


def _left(recipes: Sequence[Recipe], store: Store, seeds: Sequence[int] | None) -> int:
    from dubito.experiments import DONE

    cells = [cell for recipe in recipes for cell in recipe.cells(seeds)]
    return sum(store.state(cell) != DONE for cell in cells)


def _show(outcome: Outcome, console: Console) -> None:
    """What was done in a line, and what was not."""
    words = f"{len(outcome.ran)} cells ran, {len(outcome.skipped)} were done before"
    console.print(Text(f"{words}; {len(outcome.records)} records in {outcome.results}"))
    if outcome.outdated:
        console.print(
            Text(
                f"left out: {len(outcome.outdated)} records of recipes that have changed since, "
                f"{outcome.outdated[0]} the first; name their recipes to run them again"
            ),
            style="yellow",
            soft_wrap=True,
        )
    if outcome.failed:
        console.print(Text(f"{len(outcome.failed)} cells failed:"), style="red")
        for name, reason in outcome.failed.items():
            console.print(Text(f"  {name}: {reason}"), style="red", soft_wrap=True)


def _report(outcome: Outcome, folder: Path, console: Console) -> None:
    from dubito import experiments
    from dubito.report import reproduction

    if not outcome.records:
        console.print(Text("no records, no report"))
        return
    notes = reproduction.read_notes(folder.parent)
    for path in reproduction.write(outcome.records, experiments.paper(), folder, notes):
        if path.suffix == ".html":
            console.print(Text(str(path)), soft_wrap=True)


def _list(
    recipes: Sequence[Recipe], store: Store, seeds: Sequence[int] | None, console: Console
) -> None:
    """Recipes with what is done of them, and the tables that they are part of."""
    from rich.table import Table

    from dubito import experiments

    shown = Table(box=None, pad_edge=False)
    for head in ("recipe", "what", "seeds", "done", "tables"):
        shown.add_column(head, overflow="fold", no_wrap=head == "recipe")
    for recipe in recipes:
        states = [store.state(cell) for cell in recipe.cells(seeds)]
        done = f"{states.count(experiments.DONE)}/{len(states)}"
        changed = states.count(experiments.CHANGED)
        shown.add_row(
            Text(recipe.name),
            Text(recipe.title),
            Text(" ".join(str(cell.seed) for cell in recipe.cells(seeds))),
            Text(done + (f", {changed} changed" if changed else "")),
            Text(" ".join(recipe.tables)),
        )
    # a pipe has no width: a line a recipe is what one can search
    (console if console.is_terminal else Console(width=PIPED)).print(shown)
    groups: Mapping[str, list[str]] = experiments.tables({one.name: one for one in recipes})
    console.print(Text(f"tables: {', '.join(groups)}"), soft_wrap=True)
