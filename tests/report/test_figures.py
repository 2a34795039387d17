"""The report's figures: what is drawn, and in which files."""

from __future__ import annotations

import copy
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.text import Text
from PIL import Image

from dubito.report import reproduction
from dubito.report.figures.ridges import median
from dubito.report.figures.style import drawn, style
from dubito.report.reproduction.drawing import Drawing
from dubito.report.reproduction.drawings import drawings
from dubito.report.reproduction.names import SETS
from dubito.report.reproduction.records import Records
from report import synthetic

Made = reproduction.Report


def test_files_are_the_figures_in_two_forms(folder: Path) -> None:
    assert sorted(os.listdir(folder)) == ["figures", "report.html", "tables.md", "tables.tex"]
    keys = {"overview", "densities-mnist", "lambda-mnist", "risk-coverage", "reliability-mnist",
            "images-mnist-edl", "images-mnist-iedl"}  # fmt: skip
    names = set(os.listdir(folder / "figures"))
    assert names == {f"{key}.{form}" for key in keys for form in ("png", "pdf")}
    for name in names:
        data = (folder / "figures" / name).read_bytes()
        if name.endswith(".pdf"):
            assert data.startswith(b"%PDF")
            assert b"CreationDate" not in data
        else:
            picture = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
            assert picture.shape[1] > 700
            assert (picture < 250).any(-1).mean() > 0.01


def of(made: Made, key: str) -> Drawing:
    return next(drawing for drawing in made.drawings if drawing.key == key)


def test_figures_of_both_sets_are_there(made: Made) -> None:
    keys = {drawing.key for drawing in made.drawings}
    for data in SETS:
        assert {f"densities-{data}", f"lambda-{data}", f"reliability-{data}"} <= keys
    assert {"overview", "risk-coverage"} <= keys


def test_the_overview_has_a_dot_for_each_run(made: Made, all_records: list[Any]) -> None:
    axes = of(made, "overview").draw().axes
    assert [ax.get_title(loc="left") for ax in axes][2] == "CIFAR-10 → SVHN (re-cropped)"
    dots = [line for line in axes[0].get_lines() if line.get_marker() == "o"]
    drawn_runs = sorted(x for line in dots for x in np.atleast_1d(line.get_xdata()))
    apart = ("lambda", "no-logdet")
    values = sorted(
        100 * r["result"]["ood"]["kmnist"]["detection"]["max_prob"]["aupr"]
        for r in all_records
        if r["recipe"].startswith("mnist") and not any(word in r["recipe"] for word in apart)
    )
    assert drawn_runs == pytest.approx(values)
    assert len(axes[0].patches) == 6  # the methods of the paper's table


def test_densities_say_the_energy_distances(made: Made, all_records: list[Any]) -> None:
    figure = of(made, "densities-mnist").draw()
    assert len(figure.axes) == 8
    first = figure.axes[4]
    assert first.get_title(loc="left") == "I-EDL, Max.P"
    values = [
        r["curves"]["energy_distance"]["kmnist"]["max_prob"]
        for r in all_records
        if r["recipe"] == "mnist-iedl"
    ]
    wanted = f"KMNIST {np.mean(values):.2f} ±{np.std(values, ddof=1):.2f}"
    assert wanted in first.texts[0].get_text()
    ends = [label.get_text() for label in first.get_xticklabels()]
    assert ends == ["0\nunsure", "1\nsure"]
    assert figure.axes[7].get_xticklabels()[0].get_text() == "0\nsure"  # mutual information


def test_the_median_of_a_histogram_is_that_of_its_sample() -> None:
    values = np.random.default_rng(0).beta(2, 5, 100_000)
    assert median(np.histogram(values, 101, (0, 1))[0]) == pytest.approx(
        np.median(values), abs=1e-3
    )
    assert median([0, 0, 3, 0]) == 0.625


def test_reliability_pools_the_seeds(made: Made, all_records: list[Any]) -> None:
    figure = of(made, "reliability-mnist").draw()
    ax = next(ax for ax in figure.axes if ax.get_title(loc="left").strip() == "EDL")
    line = next(line for line in ax.get_lines() if line.get_label() == "before")
    bins = [r["curves"]["reliability"]["before"] for r in all_records if r["recipe"] == "mnist-edl"]
    count = np.array([one["count"] for one in bins])
    right = np.array([one["accuracy"] for one in bins])
    full = count.sum(0) > 0
    wanted = (count * right).sum(0)[full] / count.sum(0)[full]
    np.testing.assert_allclose(np.asarray(line.get_ydata(), dtype=float), wanted)


def test_another_form_of_a_method_is_drawn_where_the_method_was_not_run(
    records: list[Any], paper: dict[str, Any]
) -> None:
    def headings(given: list[Any]) -> list[str]:
        figure = of(reproduction.report(given, paper), "reliability-mnist").draw()
        return [ax.get_title(loc="left").strip() for ax in figure.axes]

    others = [{**r, "recipe": "mnist-iedl-long"} for r in records if r["recipe"] == "mnist-iedl"]
    assert "I-EDL (long)" not in headings([*records, *others])
    alone = headings([r for r in records if r["recipe"] != "mnist-iedl"] + others)
    assert "I-EDL (long)" in alone
    assert "I-EDL" not in alone


def test_the_sweep_has_error_bars_over_seeds(made: Made, all_records: list[Any]) -> None:
    axes = of(made, "lambda-cifar10").draw().axes
    assert [label.get_text() for label in axes[0].get_xticklabels()] == [
        "0", "0.001", "0.005", "0.01", "0.05", "0.1"
    ]  # fmt: skip
    values = [
        100 * r["result"]["accuracy"]
        for r in all_records
        if r["recipe"] == "cifar10-iedl-lambda-0.01"
    ]
    line, _, bars = axes[0].containers[0]
    assert np.asarray(line.get_ydata())[3] == pytest.approx(np.mean(values))
    low, high = bars[0].get_segments()[3][:, 1]
    assert (high - low) / 2 == pytest.approx(np.std(values, ddof=1))
    assert len(axes[1].containers) == 4  # the measures


def test_risk_is_drawn_where_there_is_some(made: Made) -> None:
    ax = of(made, "risk-coverage").draw().axes[1]
    risks = {line.get_label(): np.asarray(line.get_ydata(), float) for line in ax.get_lines()}
    assert next(iter(risks)) == "I-EDL"
    for risk in risks.values():
        assert np.isnan(risk).sum() < len(risk) / 2
        assert (risk[~np.isnan(risk)] > 0).all()
    # at full coverage the risk is the error of all
    entry = next(e for t in made.tables for e in t.entries if e.label == "cifar10-iedl/accuracy")
    assert entry.mean is not None
    assert risks["I-EDL"][-1] == pytest.approx(100 - entry.mean, abs=1e-3)


def test_styles_differ_in_more_than_colour() -> None:
    styles = [style(i) for i in range(12)]
    assert len({(str(s["linestyle"]), s["marker"]) for s in styles[:8]}) == 8
    assert len({(s["color"], str(s["linestyle"]), s["marker"]) for s in styles}) == 12


def test_the_same_figure_has_the_same_bytes(made: Made) -> None:
    drawing = of(made, "risk-coverage")
    forms = ("png", "pdf")
    assert drawn(drawing.draw(), forms) == drawn(drawing.draw(), forms)


def test_a_dollar_in_a_name_begins_no_formula(paper: dict[str, Any]) -> None:
    record = synthetic.record("mnist-iedl", 322) | {"recipe": r"mnist-iedl-$\x$ of 5"}
    made = reproduction.report([record], paper)
    for key in ("overview", "reliability-mnist"):
        figure = of(made, key).draw()
        shown = [text for text in figure.findobj(Text) if text.get_text().strip()]
        assert r"I-EDL ($\x$ of 5)" in [text.get_text().strip() for text in shown]
        drawn(figure)  # where a formula that is none would be an error


def test_images_that_are_not_at_hand_are_left_out_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUBITO_DATA", str(tmp_path))
    record = synthetic.record("mnist-iedl", 322)
    far = copy.deepcopy(record)
    far["config"]["data"]["source"] = "digits"
    far["extremes"]["data_uncertainty"]["3"]["hard"] = [359]
    for one, words in ((record, "the images of mnist are not at hand"), (far, "359 images")):
        found, left_out = drawings(Records([one]), {})
        assert not [drawing for drawing in found if drawing.key.startswith("images")]
        assert len(left_out) == 1
        assert words in left_out[0]


def test_epochs_show_what_was_watched_and_where_the_loss_was_least() -> None:
    def record(seed: int, losses: list[float] | None) -> dict[str, Any]:
        one = synthetic.record("cifar10-iedl", seed)
        epochs = [4, 8, 12, 16]
        history: dict[str, Any] = {"epoch": epochs, "validation_accuracy": [0.5, 0.6, 0.7, 0.8]}
        aupr = [0.5, 0.7, 0.9, 0.8]
        history["watched"] = {"accuracy": [0.5, 0.6, 0.7, 0.8], "svhn/max_prob/aupr": aupr}
        if losses is not None:
            history["validation_loss"] = losses
        one["training"] |= {"history": history, "best_epoch": 16}
        one["config"]["method"]["kl_ramp"] = 10
        return one

    def drawing(*given: dict[str, Any]) -> Drawing:
        found, _ = drawings(Records(list(given)), {})
        return next(one for one in found if one.key == "epochs-cifar10-iedl")

    watched = record(1, None)
    held = watched["training"]["history"]["watched"]
    for path in ("/a/outside.npz", "/b/outside.npz", "/b/other.npz"):
        held[f"{path}/max_prob/aupr"] = held["svhn/max_prob/aupr"]
    titles = [ax.get_title(loc="left") for ax in drawing(watched).draw().axes]
    assert titles[2:5] == ["→ outside", "→ /b/outside.npz", "→ other"]

    # the first loss is the least, but the weight of a term was still rising
    axes = drawing(record(1, [0.1, 0.9, 0.4, 0.5]), record(2, [0.1, 0.9, 0.6, 0.5])).draw().axes
    assert [ax.get_title(loc="left") for ax in axes][:3] == [
        "validation loss",
        "test accuracy",
        "→ SVHN (re-cropped)",
    ]
    places = {}
    for line in axes[2].get_lines():
        places[line.get_label()] = sorted(zip(*line.get_data(), strict=True))
    assert places["kept"] == [(16, 80), (16, 80)]
    assert places["least loss"] == [(12, 90), (16, 80)]
    drawing(record(1, [0.5] * 4)).draw()  # which leaves an axis nothing to span
    axes = drawing(record(1, None)).draw().axes
    assert axes[0].get_title(loc="left") == "test accuracy"
    assert "least loss" not in {line.get_label() for line in axes[1].get_lines()}

    # where alpha0 was watched in all trainings, its mean stands beside Max.P's
    assert axes[1].get_ylabel() == "AUPR, Max.P (%)"
    both, alone = record(1, None), record(2, None)
    both["training"]["history"]["watched"]["svhn/alpha0/aupr"] = [0.4, 0.3, 0.2, 0.1]
    ax = drawing(both).draw().axes[1]
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert (ax.get_ylabel(), names) == ("AUPR (%)", ["by Max.P", "by α₀"])
    assert [40, 30, 20, 10] in [[round(y) for y in line.get_ydata()] for line in ax.get_lines()]
    assert drawing(both, alone).draw().axes[1].get_legend() is None
