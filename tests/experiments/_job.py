"""Reproduce a folder of recipes, telling each event in a line: run by tests, and killed by them."""

from __future__ import annotations

from pathlib import Path

import torch

from dubito import experiments


def main(recipes: Path, out: Path, work: Path, events: Path) -> str:
    torch.set_num_threads(1)
    known = list(experiments.read_recipes(recipes).values())
    with events.open("w", encoding="utf-8", buffering=1) as told:

        def tell(event: dict[str, object]) -> None:
            print(event["event"], event["cell"], file=told)

        done = experiments.reproduce(known, out=out, work=work, device="cpu", tell=tell)
    return f"{len(done.failed)} failed"
