"""What the tests of the report share: made-up records, the paper's numbers, a written report."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from dubito import experiments
from dubito.report import reproduction
from report import synthetic

WRITTEN = ("edl", "iedl", "mc-dropout", "iedl-lambda-0.01", "iedl-lambda-0.1", "iedl-no-logdet")


@pytest.fixture(scope="session")
def all_records() -> list[dict[str, Any]]:
    """Every recipe on both data sets; not to be changed."""
    return synthetic.records()


@pytest.fixture
def records(all_records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records of MNIST, for a test to change."""
    return copy.deepcopy([r for r in all_records if r["recipe"].startswith("mnist-")])


@pytest.fixture(scope="session")
def paper() -> dict[str, Any]:
    """The paper's numbers."""
    return experiments.paper()


@pytest.fixture(scope="session")
def made(all_records: list[dict[str, Any]], paper: dict[str, Any]) -> reproduction.Report:
    """The report of everything, not written."""
    return reproduction.report(all_records, paper)


@pytest.fixture(scope="session")
def folder(
    all_records: list[dict[str, Any]],
    paper: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A written report of some recipes of MNIST, quick ones, with a note."""
    chosen = [
        copy.deepcopy(record)
        for record in all_records
        if record["recipe"].removeprefix("mnist-") in WRITTEN
    ]
    for record in chosen:
        record["quick"] = True
        record["config"]["data"]["source"] = "quick:mnist"
    place = tmp_path_factory.mktemp("report") / "new" / "folder"
    reproduction.write(chosen, paper, place, {"mnist-*/ood/*": synthetic.NOTE})
    return place
