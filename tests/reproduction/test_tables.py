"""Tables of the repository's records; the numbers were computed by the first edition."""

import math
from collections.abc import Mapping
from statistics import mean, stdev
from typing import Any

import pytest

from reproduction import fewshot, tables
from reproduction.fewshot import pooled
from reproduction.formats import html_page, latex_document, lines, markdown_document, markdown_table
from reproduction.results import Results
from reproduction.store import Store
from reproduction.summary import Summary, summarize
from reproduction.tables import Cell, Column, Table, build

Tables = Mapping[str, Table]


@pytest.fixture(scope="module")
def all_tables(results: Results) -> dict[str, Table]:
    every = [*tables.tables(results), *fewshot.tables(results)]
    return {table.key: table for table in every}


@pytest.fixture(scope="module")
def summary(results: Results, all_tables: Tables) -> Summary:
    return summarize(results, list(all_tables.values()))


def cell(table: Table, row: str, quantity: str) -> Any:
    cells = table.cells
    (match,) = cells[(cells["row"] == row) & (cells["quantity"] == quantity)].itertuples()
    return match


def test_number_of_tables_and_cells(all_tables: Tables) -> None:
    assert len(all_tables) == 35
    assert sum(len(table.cells) for table in all_tables.values()) == 3383


def test_cell_is_mean_and_deviation_over_seeds(all_tables: Tables, store: Store) -> None:
    records = [record for record in store.current() if record["recipe"] == "cifar10-iedl"]
    path = ("result", "ood", "svhn", "detection", "max_prob", "aupr")
    values = []
    for record in records:
        value: Any = record
        for key in path:
            value = value[key]
        values.append(100 * value)
    result = cell(all_tables["ood-cifar10-svhn"], "I-EDL", "ood/svhn/max_prob/aupr")
    assert (result.seeds, result.count) == (10, "10")
    assert result.mean == pytest.approx(mean(values))
    assert result.spread == pytest.approx(stdev(values))


@pytest.mark.parametrize(
    ("table", "row", "quantity", "expected"),
    [
        ("ood-cifar10-svhn", "I-EDL", "ood/svhn/max_prob/aupr",
         ["83.10 ±4.39", "83.26 ±2.4", "≈ agrees"]),
        ("ood-cifar10-svhn", "EDL", "ood/svhn/max_prob/aupr",
         ["81.18 ±4.84", "78.87 ±3.5", "≈ agrees"]),
        ("ood-cifar10-svhn", "RKL-PN", "ood/svhn/alpha0/aupr",
         ["25.73 ±9.38", "49.37 ±0.8", "▼ worse"]),
        ("ood-mnist-kmnist", "MC Dropout", "ood/kmnist/max_prob/aupr",
         ["98.28 ±0.38", "94.00 ±0.1", "▲ better"]),
        ("fewshot-5w", "EDL", "accuracy",
         ["60.61 ±0.20", "code 59.80 ±0.64", "paper 61.00 ±0.22", "▲ better"]),
        ("fewshot-ablation", "I-MSE", "accuracy", ["76.81 ±0.16", "paper 81.27 ±0.14"]),
    ],
)  # fmt: skip
def test_cells(
    all_tables: Tables, table: str, row: str, quantity: str, expected: list[str]
) -> None:
    cells = all_tables[table].cells
    (first, *_) = cells[(cells["row"] == row) & (cells["quantity"] == quantity)].itertuples()
    assert lines(first) == expected


def test_summary_counts_every_published_number_once(summary: Summary) -> None:
    assert summary.counts == {"agrees": 56, "better": 66, "worse": 5, "missing": 0}
    assert "I-EDL is ahead of EDL in 35 of the 35 cells" in summary.sentence
    assert "averaged in 19 of 19 on CIFAR-10, by accuracy in 16 of 16 on MNIST" in summary.sentence


def test_worse_cells_have_variants_and_a_note(summary: Summary) -> None:
    assert len(summary.worse) == 2
    assert "variants: short 52.68 ±5.83, unaugmented 49.59 ±21.68" in summary.worse[0]
    assert "The evidence of RKL-PN" in summary.worse[1]


def one_column(*values: float, higher: bool | None = True) -> Table:
    rows = [(str(place), None, "1", [Cell(value)]) for place, value in enumerate(values)]
    return build(Table("a", "b", "c"), [Column("x", "", "q", higher)], rows)


@pytest.mark.parametrize(
    ("values", "higher", "best"),
    [
        ((1.0, 3.0, 2.0), True, [False, True, False]),
        ((1.0, 3.0, 2.0), False, [True, False, False]),
        ((1.001, 1.0, 0.5), True, [True, True, False]),  # both are shown as 1.00
        ((1.0, 1.0), True, [False, False]),
        ((1.0, 2.0), None, [False, False]),
        ((math.nan, 2.0, 1.0), True, [False, True, False]),
    ],
)
def test_best_is_marked_as_shown(
    values: tuple[float, ...], higher: bool | None, best: list[bool]
) -> None:
    assert one_column(*values, higher=higher).cells["best"].tolist() == best


def test_markdown() -> None:
    expected = (
        "| Method | Seeds | x |\n| --- | ---: | ---: |\n| 0 | 1 | 1.00 |\n| 1 | 1 | **2.00** |"
    )
    assert markdown_table(one_column(1.0, 2.0)) == expected


def test_documents_have_every_table(all_tables: Tables, summary: Summary) -> None:
    every = list(all_tables.values())
    text = markdown_document(every, summary, False)
    assert text.count("\n### ") == latex_document(every, summary, False).count("\\toprule") == 35
    page = html_page(every, summary, True, [("a.png", "A & B")])
    assert page.count("<table") == 35
    assert "quick run" in page
    assert "A &amp; B" in page


def test_pooled_seeds_are_like_one_run_of_all_episodes() -> None:
    def record(values: list[float]) -> dict[str, Any]:
        half = 1.96 * stdev(values) / math.sqrt(len(values))
        summary = {"mean": mean(values), "interval": half, "episodes": len(values)}
        return {"result": {"figures": {"accuracy": summary}}}

    first, second = [0.1, 0.5, 0.4, 0.2], [0.9, 0.7, 0.3]
    result = pooled([record(first), record(second)], "accuracy")
    assert result is not None
    both = [100 * value for value in first + second]
    half = 1.96 * stdev(both) / math.sqrt(7)
    assert result == pytest.approx((mean(both), half, 7))
    assert pooled([record(first)], "other") is None
