"""Quick recipes: embedded data and two epochs, to run the whole path in a minute.

Digits of scikit-learn take the place of MNIST and CIFAR-10, smooth textures that of the OOD sets.
The numbers mean nothing, and all tables and pages state that.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate, one_hot

from dubito import data
from dubito.data import DATASETS, Dataset, Source
from dubito.fewshot import Features
from reproduction.recipes import Recipe

__all__ = ["PREFIX", "features", "human_counts", "quick"]

PREFIX = "quick-"
SHAPES = {"mnist": (1, 28, 28), "cifar-10": (3, 32, 32)}
#: OOD set -> the dataset whose shape its images have
OOD = {"kmnist": "mnist", "fashion-mnist": "mnist", "svhn": "cifar-10", "cifar-100": "cifar-10"}
SIZES = {"train": 100, "test": 60}
TRAINING = {
    "epochs": 2, "validate_every": 1, "patience": 0, "batch_size": 20, "precision": "tf32",
    "compile": False,
}  # fmt: skip
EPISODES, CANDIDATES, NEIGHBORS = 6, 2, 50
CLASSES, EACH, DIMENSION = 13, 104, 12


def quick(recipe: Recipe) -> Recipe:
    """Return a recipe with embedded data, a small network, two epochs and fewer seeds.

    Args:
        recipe: Recipe.
    """
    seeds = recipe.seeds[: 2 if len(recipe.seeds) > 3 else 1]  # enough for a deviation somewhere
    if recipe.is_fewshot:
        return replace(recipe, seeds=seeds, quick=True, sections=_quick_episodes(recipe.sections))
    sections = {name: dict(values) for name, values in recipe.sections.items()}
    sections["data"] |= {"source": PREFIX + sections["data"]["source"], "validation": 0.25}
    sections["backbone"] = {"name": "mlp"}
    sections["training"] |= TRAINING
    if recipe.method == "mc_dropout":
        sections["method"]["samples"] = 2
    watch = recipe.evaluate["watch"] and not recipe.variant
    evaluate = {**recipe.evaluate, "watch": watch}
    return replace(recipe, seeds=seeds, quick=True, sections=sections, evaluate=evaluate)


def _quick_episodes(sections: dict[str, Any]) -> dict[str, Any]:
    setting = {**sections["setting"], "episodes": EPISODES}
    quick_sections = {**sections, "setting": setting}
    for key in ("features", "ood"):
        quick_sections[key] = PREFIX + sections[key]
    if "tune" in sections:
        setting["tune_episodes"] = EPISODES
        few = {k: v[:CANDIDATES] for k, v in sections["tune"].items() if isinstance(v, list)}
        source = PREFIX + sections["tune"]["features"]
        quick_sections["tune"] = {**sections["tune"], **few, "features": source}
    return quick_sections


@cache
def _digits(part: str) -> Source:
    return data.open("digits", part).subset(range(SIZES[part]))


def _resized(images: Tensor, name: str) -> np.ndarray[Any, Any]:
    """Resize gray images (N, 1, H, W) in [0, 255] to the shape of a dataset."""
    channels, *size = SHAPES[name]
    resized = interpolate(images, size, mode="bilinear", align_corners=False)
    return resized.expand(-1, channels, -1, -1).round().to(torch.uint8).numpy()


def _register() -> None:
    for name in SHAPES:

        @DATASETS.register(PREFIX + name)
        class ResizedDigits(Dataset):
            like: str = name

            def load(self, part: str) -> Source:
                source = _digits(part)
                return data.open((_resized(source.load().float(), self.like), source.target))

    for seed, (name, like) in enumerate(OOD.items()):

        @DATASETS.register(PREFIX + name)
        class Textures(Dataset):
            parts: ClassVar[tuple[str, ...]] = ("test",)
            draw: int = seed
            shape_of: str = like

            def load(self, part: str) -> Source:
                generator = torch.Generator().manual_seed(self.draw)
                coarse = 255 * torch.rand(SIZES["test"], 1, 4, 4, generator=generator)
                return data.open(_resized(coarse, self.shape_of), labeled=False)


_register()


@cache
def human_counts() -> Tensor:
    """Return votes for each test digit, those of the labels of its nearest neighbors: (N, 10)."""
    everyone, test = data.open("digits", "train"), _digits("test")
    images, candidates = (source.load().flatten(1).float() for source in (test, everyone))
    apart = torch.cdist(images, candidates)
    names: Any = everyone.target
    labels = torch.tensor([int(name) for name in names])
    return one_hot(labels[apart.topk(NEIGHBORS, largest=False).indices], 10).sum(1)


def features(source: str) -> Features:
    """Return overlapping classes of nonnegative features.

    Args:
        source: Name that the random numbers follow from.
    """
    drawn = np.random.default_rng(list(source.encode()))
    labels = np.repeat(np.arange(CLASSES), EACH)
    centers = drawn.normal(0.4, 0.4, (CLASSES, DIMENSION))
    values = np.maximum(centers[labels] + drawn.normal(0, 0.4, (len(labels), DIMENSION)), 0)
    names = tuple(map(str, range(CLASSES)))
    return Features(torch.from_numpy(3 * values).float(), torch.from_numpy(labels), names, source)
