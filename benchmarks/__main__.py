"""Run benchmarks by name: `python -m benchmarks [NAME...] [--list] [--json FILE]`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import cast

from benchmarks import BENCHMARKS, Row


def run(name: str) -> list[Row]:
    """Rows of one benchmark of the table."""
    if name not in BENCHMARKS:
        raise KeyError(f"unknown benchmark {name!r}, known: {', '.join(sorted(BENCHMARKS))}")
    return cast("list[Row]", import_module(BENCHMARKS[name]).run())


def table(rows: Sequence[Row]) -> str:
    """The rows as aligned text: a column for each key, in order of first appearance."""
    names = list(dict.fromkeys(key for row in rows for key in row))
    lines = [names, *([_cell(row.get(name, "")) for name in names] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(names))]
    numeric = [all(isinstance(row.get(name, 0), int | float) for row in rows) for name in names]
    return "\n".join(
        "  ".join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in lines
    )


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Ratios, not times.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run (default: all)")
    parser.add_argument("--list", action="store_true", help="print the known names and stop")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there as well")
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join(sorted(BENCHMARKS)))
        return 0
    unknown = sorted(set(options.names) - set(BENCHMARKS))
    if unknown:
        # Before anything runs: a typing error must not cost the minutes of the first benchmark.
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(sorted(BENCHMARKS))}")
    results: dict[str, list[Row]] = {}
    for name in options.names or sorted(BENCHMARKS):
        results[name] = run(name)
        print(f"{name}\n{table(results[name])}\n", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
