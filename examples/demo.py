"""Demo: EDL and I-EDL are trained on digits, and predict photo patches and noisy digits.

Both methods get the same network, initial weights and batches, for several seeds: the difference
between two seeds can exceed that between the methods.

The settings are not blind. The Fisher weight, the weight decay and the scale of the patches were
chosen with OOD figures in view; batch size, learning rate and epochs keep the demo short. Run it
with

    python examples/demo.py [--out dubito-demo] [--epochs 40] [--seed 0]

which prints a table and writes report.html, results.json and densities.png.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import getitem
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from matplotlib.figure import Figure
from shared import noisy, patches
from torch import Tensor

from dubito import Model, __version__, data, train
from dubito.api import averaged
from dubito.data import Source
from dubito.report import figures
from dubito.report.page import Example, examples, render

#: name in tables -> method, the baseline first
METHODS = {"EDL": {"name": "edl"}, "I-EDL": {"name": "iedl", "fisher_weight": 0.05}}
SEEDS = 5
#: pixels without ink in any digit get no gradient: weight decay removes their initial weights,
#: which would count as evidence in a patch that is bright there
TRAINING: dict[str, Any] = {
    "batch_size": 256, "lr": 1e-2, "optimizer_options": {"weight_decay": 1e-4}, "average_epochs": 0,
    "backbone": {"name": "mlp", "hidden": [256]}, "calibration": 0.125,
}  # fmt: skip
NOISE = 0.5
#: score that is drawn and that detects OOD images
SCORE = "vacuity"
EXAMPLES = 6
TEMPLATE = Path(__file__).with_suffix(".html")


def experiment(epochs: int, seed: int) -> tuple[dict[str, Any], dict[str, Source], dict[str, Any]]:
    """Train each method with several seeds: results, sets of images, and models by method."""
    test = data.open("digits", "test")
    ood = {
        "photo patches": _unlabeled(patches(len(test), seed)),
        "noisy digits": _unlabeled(noisy(test.load() / 255, NOISE, seed)),
    }
    for name, source in ood.items():
        source.name = name
    seeds = range(seed, seed + SEEDS)
    result: dict[str, Any] = {"dubito": __version__, "epochs": epochs, "seeds": [*seeds]}
    result |= {"noise": NOISE, "samples": len(test), "methods": {}}
    models: dict[str, Any] = {}
    for name, method in METHODS.items():
        options: Any = {"method": method, "epochs": epochs, "validate_every": epochs, **TRAINING}
        with TemporaryDirectory() as runs:
            models[name] = train("digits", out=runs, seeds=seeds, report=False, **options)
        evaluations = [model.evaluate(test, ood=ood) for model in models[name]]
        result["methods"][name] = averaged(evaluations)
    return result, {"test digits": test, **ood}, models


def comparison(result: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Yield rows of a table: a name, and mean and standard deviation of each method in percent."""
    methods = result["methods"].values()
    rows: dict[str, tuple[str, ...]] = {
        "Accuracy ↑": ("metrics", "accuracy"),
        "Calibration error (ECE) ↓": ("calibrated", "ece"),
        "Accepted test digits ↑": ("policy", "accepted"),
    }
    for group in result["methods"]["EDL"]["ood"]:
        rows[f"Accepted {group} ↓"] = ("ood", group, "policy", "accepted")
        rows[f"AUPR of {group} ↑"] = ("ood", group, "detection", SCORE, "aupr")
        rows[f"AUROC of {group} ↑"] = ("ood", group, "detection", SCORE, "auroc")
    for name, path in rows.items():
        values: Any = [reduce(getitem, path, method) for method in methods]
        yield name, [f"{100 * v['mean']:.1f} ±{100 * v['std']:.1f}" for v in values]


def _draw(scores: Mapping[str, Mapping[str, Tensor]]) -> Figure:
    """Draw the densities of scores by method and set of images."""
    figure, axes = figures.new("", SCORE, width=2, columns=len(scores))
    for ax, (name, groups) in zip(axes, scores.items(), strict=True):
        values = [score.numpy() for score in groups.values()]
        drawn: Any = ax.violinplot(values, widths=0.9, showextrema=False, showmedians=True)
        drawn["cmedians"].set_color(figures.INK)
        for body, color in zip(drawn["bodies"], figures.COLORS, strict=False):
            body.set(facecolor=color, alpha=0.6)
        ax.set_xticks(range(1, len(groups) + 1), list(groups))
        ax.set_title(name, fontsize=12, fontweight="bold", color=figures.INK)
    return figure


def _examples(model: Model, source: Source) -> list[Example]:
    """Return samples from the least uncertain to the most."""
    prediction = model.predict(source)
    order = prediction.score(SCORE).argsort()
    rows = order[torch.linspace(0, len(order) - 1, EXAMPLES).long()].tolist()
    return examples(source, prediction, rows, [SCORE])


def _unlabeled(images: Tensor) -> Source:
    return data.open((255 * images).round().byte(), labeled=False)


def main(argv: Sequence[str] | None = None) -> None:
    """Train, print the table, write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("dubito-demo"), help="folder to write to")
    parser.add_argument("--epochs", type=int, default=40, help="epochs of each training")
    parser.add_argument("--seed", type=int, default=0, help="first of the seeds")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)  # the fastest for networks of this size
    result, sets, models = experiment(options.epochs, options.seed)
    scores = {
        name: {
            group: torch.cat([model.predict(source).score(SCORE) for model in trained])
            for group, source in sets.items()
        }
        for name, trained in models.items()
    }
    figure, rows = _draw(scores), dict(comparison(result))
    page = render(
        TEMPLATE,
        result=result,
        rows=rows.items(),
        svg=figures.svg(figure, "Vacuity of each method, by set of images"),
        groups={group: _examples(models["I-EDL"][0], source) for group, source in sets.items()},
    )
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "results.json").write_text(json.dumps(result, indent=2), "utf-8")
    (options.out / "report.html").write_text(page, "utf-8")
    figure.savefig(options.out / "densities.png", dpi=160, facecolor="white")
    print(f"{result['samples']} test digits, photo patches and noisy digits (%)")
    print("".ljust(28), *(f"{name:>12}" for name in METHODS))
    for name, cells in rows.items():
        print(name.ljust(28), *(f"{cell:>12}" for cell in cells))
    print(f"report: {options.out / 'report.html'}")


if __name__ == "__main__":
    main()
