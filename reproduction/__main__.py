"""Command line: `python -m reproduction [TABLE ...]`, `comparison [SETTING ...]`, `regression`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dubito.errors import DubitoError
from reproduction.recipes import COMPARISON, Recipe, groups, read_recipes, select
from reproduction.store import Store

RESULTS, WORK = Path("results"), Path("runs/reproduction")
#: name of the tables on numbers
REGRESSION = "regression"


def parser() -> argparse.ArgumentParser:
    """Build the parser."""
    command = argparse.ArgumentParser(
        prog="python -m reproduction",
        description="Run the paper's experiments, and compare the results with the published ones. "
        "The same command resumes a run that was interrupted, and runs only missing records.",
    )
    add = command.add_argument
    add(
        "names",
        nargs="*",
        metavar="TABLE",
        help="tables or recipes (tab_ood, 'mnist-*'); comparison and its settings; regression and "
        "its experiments; all",
    )
    add("--quick", action="store_true", help="embedded data and two epochs; numbers mean nothing")
    add("--seeds", type=_numbers, help="seeds in place of those of the recipes: 1,2,3")
    add("--device", default="auto", help="auto, cpu or cuda")
    add("--jobs", type=int, default=1, help="number of processes")
    add("--ray", metavar="ADDRESS", help="Ray cluster; local starts one on this machine")
    add("--results", type=Path, help=f"folder of the records; default: {RESULTS}")
    add("--work", type=Path, default=WORK, help=f"folder of checkpoints; default: {WORK}")
    add("--out", type=Path, help=f"folder of the report; default: {WORK}/report")
    add("--list", action="store_true", help="list recipes and their records, run nothing")
    add("--report", action="store_true", help="write all tables and figures, run nothing")
    add("--pages", action="store_true", help="update the tables and figures of docs/, run nothing")
    add("--stopping", action="store_true", help="print the results of other stopping rules")
    return command


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: Command line without the program's name.
    """
    options = parser().parse_args(arguments)
    try:
        return _run(options)
    except DubitoError as error:
        print(f"error: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted: the same command resumes", file=sys.stderr)
    return 1


def _run(options: argparse.Namespace) -> int:
    if options.names[:1] == [COMPARISON]:
        return _compare(options, options.names[1:])
    if options.names[:1] == [REGRESSION]:
        return _run_regression(options)
    recipes = read_recipes()
    work = options.work / "quick" if options.quick else options.work
    folder = options.results or (work / "results" if options.quick else RESULTS)
    if options.quick:
        from reproduction.quick import quick

        recipes = {name: quick(recipe) for name, recipe in recipes.items()}
    selected = select(recipes, options.names)
    store = Store(folder, recipes)
    if options.list:
        _list(selected, store, options.seeds)
        return 0
    problems: dict[str, str] = {}
    if not (options.report or options.pages or options.stopping):
        from reproduction.runner import run

        problems = run(
            selected, store, work, seeds=options.seeds, device=options.device, jobs=options.jobs,
            ray=options.ray,
        )  # fmt: skip
        for unit, problem in problems.items():
            print(f"failed: {unit}: {problem}", file=sys.stderr)
    from reproduction import report

    if options.stopping:
        print(report.stopping_text(store, [recipe.name for recipe in selected]))
    elif options.pages:
        report.write_pages(store)
    else:
        print(report.write(store, options.out or work / "report"))
    return bool(problems)


def _compare(options: argparse.Namespace, settings: Sequence[str]) -> int:
    """Compare methods by one protocol."""
    from reproduction import comparison, comparison_page
    from reproduction.report import DOCS

    protocol = comparison.Protocol(seeds=options.seeds)
    chosen = protocol.selected(settings, options.quick)
    work = options.work / ("quick" if options.quick else COMPARISON)
    folder = options.results or (work / "results" if options.quick else RESULTS)
    problems: dict[str, str] = {}
    if not (options.list or options.report or options.pages):
        problems = comparison.run(
            protocol, chosen, folder, work,
            device=options.device, jobs=options.jobs, ray=options.ray,
        )  # fmt: skip
    for unit, problem in problems.items():
        print(f"failed: {unit}: {problem}", file=sys.stderr)
    if options.list:
        print(comparison_page.progress(protocol, folder, chosen))
    elif options.pages:
        print(comparison_page.write(protocol, folder, DOCS, "assets"))
    else:
        print(comparison_page.write(protocol, folder, options.out or work / "report"))
    return bool(problems)


def _run_regression(options: argparse.Namespace) -> int:
    """Compare regression methods on tables."""
    from reproduction import regression, regression_page

    known = regression.quick() if options.quick else regression.experiments()
    results = options.work / "quick" / "results" if options.quick else RESULTS
    store = regression.store(options.results or results, known)
    if options.pages:
        regression_page.write_page(store)
    elif not options.report:
        regression.run(store, options.names[1:], seeds=options.seeds, jobs=options.jobs)
    return 0


def _list(recipes: Sequence[Recipe], store: Store, seeds: Sequence[int] | None) -> None:
    for recipe in recipes:
        cells = recipe.cells(seeds)
        done = sum(store.get(cell) is not None for cell in cells)
        print(f"{recipe.name:47} {done:2} of {len(cells):2}  {recipe.about}")
    print(f"tables: {', '.join(groups(recipes))}")


if __name__ == "__main__":
    sys.exit(main())
