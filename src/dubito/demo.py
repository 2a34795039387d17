"""Demo: EDL and I-EDL are trained on digits, and predict photo patches and noisy digits.

Both methods get the same network, initial weights and batches, for several seeds: the difference
between two seeds can exceed that between the methods. Patches are scaled like the digits, which
count ink in blocks of 4x4: blocks of 4x4 pixels of two photographs are averaged.

The settings are not blind. The Fisher weight, the weight decay and the scale of the patches were
chosen with OOD figures in view; batch size, learning rate and epochs keep the demo short.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import reduce
from operator import getitem
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from dubito import __version__, data, metrics
from dubito._extras import need
from dubito._files import atomic_path, atomic_write, json_text, make_folder
from dubito._threads import one_thread
from dubito.methods import EDL, IEDL, Method
from dubito.model import Model, Preprocessing
from dubito.policy import Policy
from dubito.report import _figures
from dubito.report._html import image, render
from dubito.tasks import Classification
from dubito.training import TrainConfig, Trainer

__all__ = ["demo"]

#: name in tables -> method, the baseline first
METHODS: dict[str, Method] = {"EDL": EDL(), "I-EDL": IEDL(fisher_weight=0.05)}
SEEDS = 5
#: pixels without ink in any digit get no gradient: weight decay removes their initial weights,
#: which would count as evidence in a patch that is bright there
TRAINING: dict[str, Any] = {
    "batch_size": 256, "lr": 1e-2, "optimizer_options": {"weight_decay": 1e-4}, "average_epochs": 0,
}  # fmt: skip
BACKBONE = {"name": "mlp", "hidden": [256]}
NOISE, COVERAGE = 0.5, 0.95
#: score that is drawn and that detects OOD images
SCORE = "mutual_information"
SIDE, BLOCK = 8, 4  # pixels of an image, and of a photograph in each of them
LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601


def demo(
    *,
    out: str | os.PathLike[str] = "dubito-demo",
    epochs: int = 40,
    seed: int = 0,
) -> dict[str, Any]:
    """Train EDL and I-EDL on digits, predict photo patches and noise, write a report.

    Args:
        out: Folder for report.html, results.json and densities.png.
        epochs: Epochs of each training.
        seed: First of the seeds.

    Returns:
        Content of results.json.
    """
    folder = make_folder(Path(out))
    train, validation = data.split(data.open("digits", "train"), 7 / 8, seed=0, stratify=True)
    test = data.open("digits", "test")
    task = Classification.from_target(train.target)
    preprocessing = Preprocessing.fit(train.format, train.load())
    samples = [(part.load(), task.encode(part.target)) for part in (train, validation)]
    seeds = range(seed, seed + SEEDS)
    trainer = Trainer(TrainConfig(epochs=epochs, validate_every=epochs, **TRAINING))
    ood = {"photo patches": _patches(len(test), seed), "noisy digits": _noisy(test.load(), seed)}
    sets = {"test digits": test.load(), **ood}
    result: dict[str, Any] = {
        "dubito": __version__,
        "settings": {"epochs": epochs, "seed": seed, "noise": NOISE, "coverage": COVERAGE},
        "samples": {"train": len(train), "validation": len(validation), "test": len(test)},
        "methods": {},
        "energy_distance": {},
    }
    scores = {}
    for name, method in METHODS.items():
        models = [Model.build(method, task, preprocessing, BACKBONE, seed=s) for s in seeds]
        with one_thread():  # the fastest for networks of this size
            trainer.fit_many(models, *samples, seeds=seeds)
        for model in models:
            dist = model.predict(validation).distribution
            model.policy = Policy.control_coverage(dist, COVERAGE, "vacuity")
        result["methods"][name] = [model.evaluate(test, ood=ood) for model in models]
        scores[name] = _uncertainty(models, sets)
        result["energy_distance"][name] = {
            group: metrics.energy_distance(scores[name]["test digits"], scores[name][group]).item()
            for group in ood
        }
    result["examples"] = _examples(models[0], sets, test.target)  # of the last method
    atomic_write(folder / "results.json", json_text(result))
    _write_report(result, folder, scores, sets)
    return result


def comparison(result: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Yield rows of a table: a name, and mean and standard deviation of each method in percent.

    Args:
        result: Result of `demo`.
    """
    rows: dict[str, tuple[str, ...]] = {
        "Accuracy ↑": ("metrics", "accuracy"),
        "Calibration error (ECE) ↓": ("metrics", "ece"),
        "Accepted test digits ↑": ("policy", "accepted"),
    }
    for group in result["methods"]["EDL"][0]["ood"]:
        rows[f"Accepted {group} ↓"] = ("ood", group, "policy", "accepted")
        rows[f"AUPR of {group} ↑"] = ("ood", group, "detection", SCORE, "aupr")
        rows[f"AUROC of {group} ↑"] = ("ood", group, "detection", SCORE, "auroc")
    for name, path in rows.items():
        cells = []
        for runs in result["methods"].values():
            values: list[Any] = [100 * reduce(getitem, path, run) for run in runs]
            cells.append(f"{mean(values):.1f} ±{stdev(values):.1f}")
        yield name, cells


def _write_report(
    result: Mapping[str, Any],
    folder: Path,
    scores: Mapping[str, Mapping[str, Tensor]],
    sets: Mapping[str, Tensor],
) -> None:
    """Write densities.png, of the scores by method and set of images, and report.html."""
    figure, axes = _figures.new("", "mutual information, scaled", width=2, columns=len(scores))
    for ax, (name, groups) in zip(axes, scores.items(), strict=True):
        drawn: Any = ax.violinplot(
            [values.numpy() for values in groups.values()],
            widths=0.9, showextrema=False, showmedians=True,
        )  # fmt: skip
        drawn["cmedians"].set_color(_figures.INK)
        for body, color in zip(drawn["bodies"], _figures.COLORS, strict=False):
            body.set(facecolor=color, alpha=0.6)
        distances = result["energy_distance"][name]
        notes = {group: f"\nenergy distance {value:.2f}" for group, value in distances.items()}
        labels = [group + notes.get(group, "") for group in groups]
        ax.set_xticks(range(1, len(labels) + 1), labels)
        ax.set_title(name, fontsize=12, fontweight="bold", color=_figures.INK)
    with atomic_path(folder / "densities.png") as partial:
        figure.savefig(partial, format="png", dpi=160, facecolor="white")
    page = render(
        "demo.html",
        result=result,
        rows=comparison(result),
        figure=_figures.svg(figure, "Uncertainty of each method, by set of images"),
        examples=[(e, image(sets[e["set"]][e["index"]])) for e in result["examples"]],
    )
    atomic_write(folder / "report.html", page)


def _patches(count: int, seed: int) -> Tensor:
    """Return gray patches of two photographs, as many of each: (count, 1, 8, 8) uint8."""
    photographs = need("sklearn.datasets", "sklearn").load_sample_images().images
    generator = torch.Generator().manual_seed(seed)
    patches = []
    for index, photograph in enumerate(photographs):
        gray = torch.tensor(photograph).double() @ torch.tensor(LUMA, dtype=torch.float64)
        small = avg_pool2d(gray[None], BLOCK)[0]
        windows = small.unfold(0, SIDE, 1).unfold(1, SIDE, 1).flatten(0, 1)
        share = (count + index) // len(photographs)
        patches.append(windows[torch.randperm(len(windows), generator=generator)[:share]])
    return torch.cat(patches).unsqueeze(1).round().byte()


def _noisy(images: Tensor, seed: int) -> Tensor:
    """Add Gaussian noise to images, and clip."""
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(seed))
    return (images + 255 * NOISE * noise).round().clamp(0, 255).byte()


def _uncertainty(models: list[Model], sets: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the score of all models by set, from 0 to 1 over all sets."""
    values = {
        name: torch.cat([model.predict(inputs).score(SCORE) for model in models])
        for name, inputs in sets.items()
    }
    low, high = torch.cat(list(values.values())).aminmax()
    return {name: (scores - low) / (high - low) for name, scores in values.items()}


def _examples(model: Model, sets: Mapping[str, Tensor], target: Any) -> list[dict[str, Any]]:
    """Choose the images with the least and the most vacuity of each set."""
    examples = []
    for name, inputs in sets.items():
        prediction = model.predict(inputs)
        vacuity = prediction.score("vacuity")
        for kind, index in (("surest", vacuity.argmin()), ("most doubted", vacuity.argmax())):
            row: Any = prediction[int(index)]
            beliefs, classes = ((row.distribution.alpha - 1) / row.distribution.alpha0).topk(2)
            first, second = model.task.decode(classes[0])
            examples.append({
                "heading": f"The {kind} of the {name}",
                "set": name,
                "index": int(index),
                "truth": None if name == "photo patches" else str(target[index]),
                "label": first,
                "belief": beliefs[0, 0].item(),
                "second_label": second,
                "second_belief": beliefs[0, 1].item(),
                "vacuity": vacuity[index].item(),
                "accepted": bool(row.accepted),
            })  # fmt: skip
    return examples
