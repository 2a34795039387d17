"""The quick variant of a recipe: embedded data and two epochs, to see the whole way work.

The data are scikit-learn's digits and photographs at the size of the real ones, and the network is
the small one throughout. The figures mean nothing, and whatever comes of it is marked as quick.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dubito import data
from dubito.data import embedded
from dubito.experiments import _fewshot_recipe
from dubito.experiments._fewshot_recipe import PREFIX
from dubito.experiments._recipe import Recipe
from dubito.report import files
from dubito.runs import Config, configure

__all__ = ["HUMANS", "PREFIX", "located", "prepare", "quick"]

HUMANS = "cifar-10h.npy"
SHAPES = {"mnist": (1, 28, 28), "cifar-10": (3, 32, 32)}
TRAIN, TEST = 100, 60  # samples
EPOCHS, SEEDS, NEIGHBOURS = 2, 2, 50
_OPTIONS: dict[str, dict[str, Any]] = {"mc_dropout": {"passes": 2}}
_TRAINING = {
    "epochs": EPOCHS, "validate_every": 1, "patience": 0, "batch_size": 20,
    # on a CPU nothing is gained by these, and some tell of instructions that they do not have
    "precision": "tf32", "compile": False,
}  # fmt: skip


def quick(recipe: Recipe) -> Recipe:
    """The same with embedded data, the small network, two epochs and fewer seeds.

    Two where it has five, else one: enough for a deviation somewhere.

    >>> from dubito.experiments import recipes
    >>> quick(recipes()["cifar10-iedl"]).seeds
    (322, 365)
    """
    if recipe.kind == _fewshot_recipe.FEWSHOT:
        return _fewshot_recipe.quick(recipe)
    sections = {name: dict(values) for name, values in recipe.sections.items()}
    sections["data"] |= {"source": PREFIX + sections["data"]["source"], "validation": 0.25}
    sections["backbone"] = {"name": "convnet"}
    sections["training"] |= _TRAINING
    sections["method"] |= _OPTIONS.get(sections["method"].get("name", ""), {})
    return replace(
        recipe,
        sections=sections,
        seeds=recipe.seeds[: SEEDS if len(recipe.seeds) > 3 else 1],
        evaluate={
            **recipe.evaluate,
            "ood": [PREFIX + name for name in recipe.evaluate["ood"]],
            "watch": False,
        },
        quick=True,
    )


def located(recipe: Recipe, folder: Path) -> tuple[Config, list[str]]:
    """The recipe's configuration and OOD sources; those of a quick one are files in the folder."""
    sections = {name: dict(values) for name, values in recipe.sections.items()}
    sections["data"]["source"] = _file(sections["data"]["source"], folder)
    return configure(sections), [_file(name, folder) for name in recipe.evaluate["ood"]]


def _file(source: str, folder: Path) -> str:
    if not source.startswith(PREFIX):
        return source
    return str(folder / f"{source.removeprefix(PREFIX)}.npz")


def prepare(folder: Path) -> Path:
    """Write the quick data into a folder, once; each file is a function of nothing else."""
    files.folder(folder)
    made: dict[str, Callable[[], dict[str, Any]]] = {
        f"{name}.npz": partial(_digits, name) for name in SHAPES
    }
    for number, (name, like) in enumerate(OUTSIDE.items()):
        made[f"{name}.npz"] = partial(_outside, like, number)
    made[HUMANS] = _people
    for number, name in enumerate(FEATURES):
        made[f"{name}.npz"] = partial(_features, number)
    for name, make in made.items():
        if not (folder / name).exists():
            files.write(folder / name, _packed(name, make()))
    return folder


#: stand-ins for OOD sets: patches of photographs, two different draws for each size
OUTSIDE = {"kmnist": "mnist", "fashion-mnist": "mnist", "svhn": "cifar-10", "cifar-100": "cifar-10"}


#: stand-ins for few-shot features: novel, OOD and validation classes
FEATURES = ("mini2mini_novel", "mini2CUB_novel", "mini2mini_val")
CLASSES, EACH, DIMENSION = 13, 104, 12


def _features(number: int) -> dict[str, Any]:
    """Classes that overlap, of non-negative features."""
    drawn = np.random.default_rng(number)
    labels = np.repeat(np.arange(CLASSES), EACH)
    centres = drawn.normal(0.4, 0.4, (CLASSES, DIMENSION))
    noise = drawn.normal(0, 0.4, (len(labels), DIMENSION))
    return {"features": np.maximum(centres[labels] + noise, 0).astype(np.float32), "labels": labels}


def _packed(name: str, arrays: Mapping[str, Any]) -> bytes:
    held = io.BytesIO()
    if name.endswith(".npy"):
        np.save(held, arrays["counts"], allow_pickle=False)
    else:
        np.savez(held, **arrays)
    return held.getvalue()


def _divided() -> tuple[data.Arrays, data.Arrays]:
    """The first digits of both parts, each class in proportion as they were shuffled."""
    train, test = data.load("digits", "train"), data.load("digits", "test")
    return train.subset(range(TRAIN)), test.subset(range(TEST))


def _digits(name: str) -> dict[str, Any]:
    train, test = _divided()
    return {
        "images_train": _shaped(train.inputs, name),
        "labels_train": train.labels.numpy(),
        "images_test": _shaped(test.inputs, name),
        "labels_test": test.labels.numpy(),
        "classes": np.array(train.classes),
    }


def _outside(like: str, seed: int) -> dict[str, Any]:
    return {"images": _shaped(embedded.patches(TEST, seed), like)}


def _shaped(images: Tensor, name: str) -> Any:
    """Grey images (N, 1, 8, 8) in [0, 1] as bytes of the shape that the named set has."""
    channels, *size = SHAPES[name]
    grown = F.interpolate(images, size, mode="bilinear", align_corners=False)
    return (grown.expand(-1, channels, -1, -1) * 255).round().to(torch.uint8).numpy()


def _people() -> dict[str, Any]:
    """Counts like those of people: the labels of the nearest other digits vote."""
    everyone, (_, test) = data.load("digits", "train"), _divided()
    apart = torch.cdist(test.inputs.flatten(1), everyone.inputs.flatten(1))
    votes = everyone.labels[apart.topk(NEIGHBOURS, largest=False).indices]
    return {"counts": F.one_hot(votes, len(everyone.classes)).sum(1).numpy()}
