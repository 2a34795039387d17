"""Demo: EDL and I-EDL are trained on digits, and predict photo patches and noisy digits.

Both methods get the same network, initial weights and batches, for several seeds: the difference
between two seeds can exceed that between the methods. Patches are scaled like the digits, which
count ink in blocks of 4x4: blocks of 4x4 pixels of two photographs are averaged.

The settings are not blind. The Fisher weight, the weight decay and the scale of the patches were
chosen with OOD figures in view; batch size, learning rate and epochs keep the demo short.
"""

from collections.abc import Iterator, Mapping
from functools import reduce
from operator import getitem
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dubito import __version__, data
from dubito._extras import need
from dubito._files import atomic_path, atomic_write, json_text, make_folder
from dubito._threads import one_thread
from dubito.api import AnyPath, averaged, train
from dubito.data import Source
from dubito.model import Model
from dubito.report import figures
from dubito.report.html import Example, examples, render

__all__ = ["demo"]

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
SIDE, BLOCK = 8, 4  # pixels of an image, and of a photograph in each of them


def demo(*, out: AnyPath = "dubito-demo", epochs: int = 40, seed: int = 0) -> dict[str, Any]:
    """Train EDL and I-EDL on digits, predict photo patches and noise, write a report.

    Args:
        out: Folder for report.html, results.json and densities.png.
        epochs: Epochs of each training.
        seed: First of the seeds.

    Returns:
        Content of results.json.
    """
    folder = make_folder(Path(out))
    test = data.open("digits", "test")
    generator = torch.Generator().manual_seed(seed)
    ood = {
        "photo patches": data.open(_patches(len(test), generator), labeled=False),
        "noisy digits": data.open(_noisy(test.load(), generator), labeled=False),
    }
    for name, source in ood.items():
        source.name = name
    sets = {"test digits": test, **ood}
    seeds = range(seed, seed + SEEDS)
    result: dict[str, Any] = {"dubito": __version__, "epochs": epochs, "seeds": [*seeds]}
    result |= {"noise": NOISE, "samples": len(test), "methods": {}}
    scores: dict[str, dict[str, Tensor]] = {}
    for name, method in METHODS.items():
        options: Any = {"method": method, "epochs": epochs, "validate_every": epochs, **TRAINING}
        with TemporaryDirectory() as runs, one_thread():  # the fastest for networks of this size
            models: Any = train("digits", out=runs, seeds=seeds, report=False, **options)
        result["methods"][name] = averaged([model.evaluate(test, ood=ood) for model in models])
        scores[name] = {
            group: torch.cat([model.predict(source).score(SCORE) for model in models])
            for group, source in sets.items()
        }
    atomic_write(folder / "results.json", json_text(result))
    figure = _draw(scores)
    with atomic_path(folder / "densities.png") as partial:
        figure.savefig(partial, format="png", dpi=160, facecolor="white")
    page = render(
        "demo.html",
        result=result,
        rows=comparison(result),
        svg=figures.svg(figure, "Vacuity of each method, by set of images"),
        groups={group: _examples(models[0], source) for group, source in sets.items()},
    )
    atomic_write(folder / "report.html", page)
    return result


def comparison(result: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Yield rows of a table: a name, and mean and standard deviation of each method in percent.

    Args:
        result: Result of `demo`.
    """
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


def _draw(scores: Mapping[str, Mapping[str, Tensor]]) -> Any:
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


def _patches(count: int, generator: torch.Generator) -> Tensor:
    """Return gray patches of two photographs: (count, 1, 8, 8) uint8."""
    windows = []
    for photograph in need("sklearn.datasets", "sklearn").load_sample_images().images:
        small = need("PIL.Image", "data").fromarray(photograph).convert("L").reduce(BLOCK)
        pixels = torch.from_numpy(np.array(small))
        windows.append(pixels.unfold(0, SIDE, 1).unfold(1, SIDE, 1).flatten(0, 1))
    patches = torch.cat(windows).unsqueeze(1)
    return patches[torch.randperm(len(patches), generator=generator)[:count]]


def _noisy(images: Tensor, generator: torch.Generator) -> Tensor:
    """Add Gaussian noise to images, and clip."""
    noise = torch.randn(images.shape, generator=generator)
    return (images + 255 * NOISE * noise).round().clamp(0, 255).byte()
