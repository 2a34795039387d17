"""The report's few-shot tables and figures: whose numbers stand where, and what is said of them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from dubito import experiments
from dubito.report import reproduction
from dubito.report.reproduction import fewshot
from dubito.report.reproduction.formats import latex, markdown
from dubito.report.reproduction.layout import Entry, Table

PROBS = ("max_prob", "entropy_of_mean")
ALPHA = (*PROBS, "alpha0", "max_alpha", "differential_entropy", "mutual_information")


def record(name: str, accuracy: float = 0.6, ood: float = 0.7, **more: Any) -> dict[str, Any]:
    """A record as the runner writes it."""
    measures = PROBS if "softmax" in name or "smoothing" in name else ALPHA
    figures = {"accuracy": {"mean": accuracy, "interval": 0.002, "episodes": 10_000}}
    for measure in measures:
        for metric in ("aupr", "auroc"):
            for task, mean in (("confidence", 0.8), ("ood", ood)):
                figures[f"{task}/{measure}/{metric}"] = {
                    "mean": mean, "interval": 0.0025, "episodes": 9_990,
                }  # fmt: skip
    return {
        "format": 1, "recipe": f"fewshot-{name}", "id": "0" * 16, "seed": 0, "quick": False,
        "config": {"setting": {}}, "training": {"seconds": 3.0}, "device": "cpu",
        "result": {"accuracy": accuracy, "figures": figures}, **more,
    }  # fmt: skip


def trial(weight: float, kl: float, scaling: str, accuracy: float, ood: float) -> dict[str, Any]:
    def figure(mean: float) -> dict[str, Any]:
        return {"mean": mean, "interval": 0.01, "episodes": 400}

    given = {"fisher_weight": weight, "kl_weight": kl, "kl_ramp": 10}
    return {
        "hyperparameters": given, "scaling": scaling, "accuracy": figure(accuracy),
        "ood_aupr": figure(ood), "confidence": figure(0.8),
    }  # fmt: skip


def records() -> list[dict[str, Any]]:
    trials = [trial(0.1, 1.0, "none", 0.6, 0.6), trial(0.0, 0.0, "centred", 0.65, 0.75)]
    tuning = {"trials": trials, "choice": trials[1]["hyperparameters"], "scaling": "centred"}
    return [
        record("edl-5w1s", 0.6061, 0.7568),
        record("iedl-5w1s", 0.50, 0.6803),
        record("softmax-5w1s", 0.62),
        record("label-smoothing-5w1s", 0.63),
        record("edl-10w5s"),
        record("iedl-5w5s"),
        record("edl-logdet-5w5s"),
        record("iedl-tuned-5w1s", 0.66, 0.77, tuning=tuning),
        *(record(f"iedl-lambda-5w5s-{w}", 0.6 + w) for w in (0.0, 0.01, 0.1)),
    ]


@pytest.fixture(scope="module")
def made() -> reproduction.Report:
    return reproduction.report(records(), experiments.paper())


def table(made: reproduction.Report, key: str) -> Table:
    return next(t for t in made.tables if t.key == f"fewshot-{key}")


def entry(made: reproduction.Report, key: str, row: str, column: int) -> Entry:
    (found,) = (r for r in table(made, key).rows if r.name == row)
    return found.entries[column]


def test_ours_the_codes_and_the_papers(made: reproduction.Report) -> None:
    accuracy = entry(made, "5w", "EDL", 0)
    assert (accuracy.ours, accuracy.spread) == ("60.61", "±0.20")
    assert accuracy.lines == [("code", "59.80 ±0.64"), ("paper", "61.00 ±0.22")]
    assert accuracy.verdict == "better"
    assert entry(made, "5w", "I-EDL", 0).verdict == "worse"
    assert entry(made, "5w", "I-EDL", 2).verdict == "agrees"  # 68.03 and 68.34 ±0.76
    confidence = entry(made, "5w", "EDL", 1)
    assert confidence.lines == [("code", "79.04"), ("paper", "80.59 ±0.23")]
    assert confidence.verdict is None
    assert entry(made, "5w", "Softmax", 2).reason == "this method has no α₀"
    assert entry(made, "5w-auroc", "I-EDL", 0).lines == [("paper", "67.46 ±0.28")]
    assert "all tables together: 1 agrees, 5 better, 2 worse;" in table(made, "5w").note


def test_each_table_is_there(made: reproduction.Report) -> None:
    keys = [t.key for t in made.tables if t.section == fewshot.FEWSHOT]
    assert keys == [
        f"fewshot-{key}"
        for key in (
            "5w", "10w", "5w-aupr", "5w-auroc", "10w-aupr", "10w-auroc", "ablation",
            "label-smoothing", "lambda", "tuned",
        )
    ]  # fmt: skip
    assert [row.name for row in table(made, "lambda").rows] == ["0", "0.01", "0.1"]
    assert entry(made, "ablation", "MSE + log det", 0).lines == [("paper", "81.82 ±0.14")]
    assert "I-EDL (tuned) 5w1s: λ 0 / KL 0 / centred" in table(made, "tuned").note
    drawn = [d.key for d in made.drawings if d.section == fewshot.FEWSHOT]
    assert drawn == ["fewshot-methods", "fewshot-lambda", "fewshot-tuning"]
    assert reproduction.report([], experiments.paper()).tables == [
        t for t in made.tables if t.section != fewshot.FEWSHOT
    ]


def test_the_summary_is_of_the_papers_own_data(made: reproduction.Report) -> None:
    """The paper's features are others, so its few-shot numbers are not counted as reached."""
    nothing = reproduction.report([], experiments.paper()).summary
    assert made.summary.counts == nothing.counts
    assert made.summary.alone == nothing.alone == 0
    noted = reproduction.report(records(), experiments.paper(), {"fewshot-edl-*": "Why."})
    assert noted.summary.counts == nothing.counts


def test_the_files(made: reproduction.Report, tmp_path: Path) -> None:
    few = [t for t in made.tables if t.section == fewshot.FEWSHOT]
    text = markdown([(fewshot.FEWSHOT, [], few)], made.summary, False, "figures")
    assert "| 60.61 ±0.20<br>code 59.80 ±0.64<br>paper 61.00 ±0.22<br>▲ better |" in text
    assert "| Method | Episodes |" in text
    assert "| EDL | 9,990 to 10,000 |" in text
    printed = latex(few, made.summary, False)
    assert r"\quad\small code &  & \small 59.80 $\pm$0.64" in printed
    assert r"\quad\small paper &  & \small 61.00 $\pm$0.22" in printed
    names = {path.name for path in reproduction.write_report(made, tmp_path)}
    assert {"fewshot-lambda.png", "fewshot-tuning.pdf", "fewshot-methods.png"} <= names
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "<small>code 59.80 ±0.64</small><small>paper 61.00 ±0.22</small>" in page
    assert "9,990 to 10,000 episodes" in page
    assert "No table is of the data of these recipes" not in page


def test_a_figure_that_no_episode_has(made: reproduction.Report) -> None:
    given = copy.deepcopy(records()[:1])
    given[0]["result"]["figures"]["confidence/max_alpha/aupr"] |= {"mean": None, "interval": None}
    found = reproduction.report(given, experiments.paper())
    assert entry(found, "5w", "EDL", 1).ours == "–"
