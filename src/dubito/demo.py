"""Demo: EDL and I-EDL are trained on digits, and predict photo patches and noisy digits.

Both methods get the same network, initial weights and batches, for several seeds: the difference
between two seeds can exceed that between the methods. Patches are made like the digits, which count
ink in blocks of 4x4: blocks of 4x4 pixels of two photographs are averaged.

The settings are not blind. The Fisher weight, the weight decay and the scale of the patches were
chosen with OOD figures in view; batch size, learning rate and epochs keep the demo short.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from dubito import __version__, data, metrics
from dubito._extras import need
from dubito._files import atomic_write, json_text, make_folder
from dubito._threads import one_thread
from dubito.methods import EDL, IEDL, Method
from dubito.model import Model, Preprocessing
from dubito.policy import Policy
from dubito.report import _demo as page
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
    others = {"photo patches": _patches(len(test), seed), "noisy digits": _noisy(test.load(), seed)}
    sets = {"test digits": test.load(), **others}
    result: dict[str, Any] = {
        "dubito": __version__,
        "settings": {"epochs": epochs, "seed": seed, "noise": NOISE, "coverage": COVERAGE},
        "samples": {"train": len(train), "validation": len(validation), "test": len(test)},
        "methods": {},
        "energy_distance": {},
    }
    scores = {}
    for name, method in METHODS.items():
        models = [Model.build(method, task, preprocessing, BACKBONE, seed=one) for one in seeds]
        with one_thread():  # the fastest for networks of this size
            trainer.fit_many(models, *samples, seeds=seeds)
        for model in models:
            dist = model.predict(validation).distribution
            model.policy = Policy.control_coverage(dist, COVERAGE, "vacuity")
        result["methods"][name] = [model.evaluate(test, ood=others) for model in models]
        scores[name] = _uncertainty(models, sets)
        digits, *rest = scores[name].values()
        distances = [metrics.energy_distance(digits, one).item() for one in rest]
        result["energy_distance"][name] = dict(zip(others, distances, strict=True))
    result["examples"] = _examples(models[0], sets, test.target)  # of the last method
    atomic_write(folder / "results.json", json_text(result))
    page.write(result, folder, scores, sets)
    return result


def _patches(count: int, seed: int) -> Tensor:
    """Return gray patches of two photographs, as many of each: (count, 1, 8, 8) uint8."""
    photographs = need("sklearn.datasets", "sklearn").load_sample_images().images
    generator = torch.Generator().manual_seed(seed)
    patches = []
    for place, image in enumerate(photographs):
        gray = torch.from_numpy(image.copy()).double() @ torch.tensor(LUMA, dtype=torch.float64)
        small = avg_pool2d(gray[None], BLOCK)[0]
        windows = small.unfold(0, SIDE, 1).unfold(1, SIDE, 1).flatten(0, 1)
        share = (count + place) // len(photographs)
        patches.append(windows[torch.randperm(len(windows), generator=generator)[:share]])
    return torch.cat(patches).unsqueeze(1).round().byte()


def _noisy(images: Tensor, seed: int) -> Tensor:
    """Add Gaussian noise to images, and clip."""
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(seed))
    return (images + 255 * NOISE * noise).round().clamp(0, 255).byte()


def _uncertainty(models: list[Model], sets: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the mutual information of all models by set, from 0 to 1 over all sets."""
    values = {
        name: torch.cat([model.predict(inputs).score("mutual_information") for model in models])
        for name, inputs in sets.items()
    }
    low, high = torch.cat(list(values.values())).aminmax()
    return {name: (one - low) / (high - low) for name, one in values.items()}


def _examples(model: Model, sets: Mapping[str, Tensor], target: Any) -> list[dict[str, Any]]:
    """Choose images to show: of the candidates in a set, the one with the highest score."""
    found = {name: model.predict(inputs) for name, inputs in sets.items()}
    digits, patches, noisy = found
    correct = torch.from_numpy(found[digits].labels == target.astype(str))
    everything = torch.ones_like(correct)
    examples = []
    for heading, name, score, sign, candidates in (
        ("The surest digit", digits, "vacuity", -1, correct),
        ("The most ambiguous digit", digits, "dissonance", 1, everything),
        ("The surest error", digits, "vacuity", -1, ~correct),
        ("The most doubted patch", patches, "vacuity", 1, everything),
        ("The surest patch", patches, "vacuity", -1, everything),
        ("The most doubted noisy digit", noisy, "vacuity", 1, everything),
    ):
        if not bool(candidates.any()):
            continue
        scores = (sign * found[name].score(score)).masked_fill(~candidates, -torch.inf)
        index = int(scores.argmax())
        one: Any = found[name][index]
        beliefs, classes = ((one.distribution.alpha - 1) / one.distribution.alpha0).topk(2)
        first, second = model.task.decode(classes[0])
        examples.append({
            "heading": heading,
            "set": name,
            "index": index,
            "truth": None if name == patches else str(target[index]),
            "label": first,
            "belief": beliefs[0, 0].item(),
            "second_label": second,
            "second_belief": beliefs[0, 1].item(),
            "vacuity": one.score("vacuity").item(),
            "accepted": bool(one.accepted),
        })  # fmt: skip
    return examples
