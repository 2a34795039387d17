"""The report's few-shot tables and figures: whose numbers stand where, and what is said of them."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dubito import experiments
from dubito.fewshot import summary
from dubito.report import reproduction
from dubito.report.reproduction import fewshot
from dubito.report.reproduction.formats import latex, markdown
from dubito.report.reproduction.layout import Entry, Table
from dubito.report.reproduction.provenance import origins

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


# --- several seeds -------------------------------------------------------------------------------


def seeds_of(name: str, counts: dict[int, int]) -> tuple[list[dict[str, Any]], np.ndarray]:
    """Records of seeds with the accuracies of as many episodes, and those of all episodes."""
    random, made, every = np.random.default_rng(0), [], []
    for seed, count in counts.items():
        every.append(random.beta(8, 4 + seed, count).astype(np.float32))
        one = summary({"accuracy": every[-1]})["accuracy"]
        made.append(record(name, seed=seed))
        made[-1]["result"]["figures"]["accuracy"] = {
            "mean": one.mean, "interval": one.interval, "episodes": one.episodes
        }  # fmt: skip
    return made, np.concatenate(every)


def test_seeds_are_joined_as_one_run_of_all_their_episodes(tmp_path: Path) -> None:
    given, values = seeds_of("edl-5w1s", {0: 500, 1: 300, 7: 200})
    swept, of_sweep = seeds_of("iedl-lambda-5w5s-0.1", {0: 40, 1: 60})
    made = reproduction.report([*given, *swept, record("edl-5w5s")], experiments.paper())
    wanted = summary({"accuracy": values})["accuracy"]
    accuracy = entry(made, "5w", "EDL", 0)
    assert accuracy.mean == pytest.approx(100 * wanted.mean)
    assert accuracy.pooled is not None
    assert accuracy.pooled.interval == pytest.approx(100 * wanted.interval)
    assert accuracy.spread == f"±{100 * wanted.interval:.2f}"
    each = ", ".join(f"{r['seed']}: {100 * _mean(r):.2f}" for r in given)
    assert accuracy.hint.startswith(f"1000 episodes of 3 seeds ({each})")
    assert entry(made, "lambda", "0.1", 0).mean == pytest.approx(100 * of_sweep.mean())

    assert table(made, "5w").rows[0].count == "1,000 to 29,970 (1 to 3 seeds)"
    assert table(made, "lambda").rows[0].count == "100 to 19,980 (2 seeds)"
    reproduction.write_report(replace(made, drawings=[]), tmp_path)
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "<small>1,000 to 29,970 episodes, 1 to 3 seeds</small>" in page
    curve = next(d for d in made.drawings if d.key == "fewshot-lambda").draw().axes[0]
    line, _, _ = curve.containers[0]
    assert np.asarray(line.get_ydata()) == pytest.approx([100 * of_sweep.mean()])


def _mean(one: dict[str, Any]) -> float:
    return float(one["result"]["figures"]["accuracy"]["mean"])


def test_a_seed_of_one_episode_has_no_interval_and_so_have_all() -> None:
    given = [record("edl-5w1s"), record("edl-5w1s", 0.7, seed=1)]
    given[1]["result"]["figures"]["accuracy"] |= {"interval": None, "episodes": 1}
    accuracy = entry(reproduction.report(given, experiments.paper()), "5w", "EDL", 0)
    assert accuracy.mean == pytest.approx((10_000 * 60 + 70) / 10_001)
    assert accuracy.spread == ""


def tuned(seed: int, chosen: int, **used: Any) -> dict[str, Any]:
    trials = [trial(0.1, 1.0, "none", 0.6, 0.6), trial(0.0, 0.0, "centred", 0.65, 0.75)]
    choice, scaled = trials[chosen]["hyperparameters"], trials[chosen]["scaling"]
    return record(
        "iedl-tuned-5w1s", 0.66, seed=seed,
        config={"setting": {}, "used": {"head": choice, "scaling": scaled, **used}},
        tuning={"trials": trials, "choice": choice, "scaling": scaled},
    )  # fmt: skip


def read(folder: Path, *given: dict[str, Any]) -> list[dict[str, Any]]:
    for one in given:
        path = folder / one["recipe"] / f"seed-{one['seed']}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(one))
    return reproduction.read(folder)


def test_seeds_that_chose_differently_count_and_say_so(tmp_path: Path) -> None:
    given = [tuned(0, 0, hash="a"), tuned(1, 1, hash="b"), tuned(2, 1, hash="b")]
    assert read(tmp_path, *given) == given
    made = reproduction.report(given, experiments.paper())
    told = "I-EDL (tuned) 5w1s: λ 0.1 / KL 1 / none (seed 0), λ 0 / KL 0 / centred (seeds 1, 2)."
    assert told in table(made, "tuned").note
    drawing = next(d for d in made.drawings if d.key == "fewshot-tuning")
    assert "a scaling, of one seed;" in drawing.caption
    circles = [line for line in drawing.draw().axes[0].get_lines() if line.get_markersize() == 12]
    assert [tuple(c.get_xydata()[0]) for c in circles] == [(60, 60), (65, 75), (65, 75)]
    (origin,) = origins(made.records)
    assert "used.head.kl_weight" in origin.differs


def test_other_features_of_the_same_choice_are_another_state(tmp_path: Path) -> None:
    given = [tuned(0, 1, hash="a"), {**tuned(1, 1, hash="b"), "created": "2026-11-15"}]
    with pytest.warns(UserWarning, match=r"seed 0, is left out: it has another used.hash than"):
        assert read(tmp_path, *given) == given[1:]
