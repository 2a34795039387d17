"""Episodes: indices of support samples, queries and out-of-distribution queries.

An episode is a function of the seed and its number. So methods, batch sizes and devices all use
the same episodes, and episodes with more shots or queries contain those with fewer.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dubito.errors import DubitoError
from dubito.fewshot._draws import Indices, Keys, choices, keys

__all__ = ["Episodes", "Features", "Sampler", "Setting"]

#: streams of random numbers of an episode
CLASSES, SAMPLES, OOD_CLASSES, OOD_SAMPLES = range(4)


@dataclass(frozen=True)
class Setting:
    """N-way K-shot episodes.

    Attributes:
        ways: Classes of an episode.
        shots: Support samples of each class.
        queries: Queries of each class, with as many out-of-distribution queries. Default:
            max(15, shots), as in the published code; the paper states min(15, shots).
        seed: Seed of the episodes.

    >>> setting = Setting(ways=10, shots=20)
    >>> print(setting, setting.queries)
    10-way 20-shot 20
    """

    ways: int = 5
    shots: int = 5
    queries: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "queries", self.queries or max(15, self.shots))
        for name, least in (("ways", 2), ("shots", 1), ("queries", 1), ("seed", 0)):
            if not least <= getattr(self, name) < 2**64:
                raise DubitoError(f"{name} must be at least {least}, not {getattr(self, name)}")

    def __str__(self) -> str:
        return f"{self.ways}-way {self.shots}-shot"


@dataclass(frozen=True, eq=False)
class Features:
    """Labeled features.

    Args:
        values: Features (N, D), float32 and finite.
        labels: Class indices, (N,).
        classes: Names of the classes; those without samples are left out.
        name: Name in messages.

    >>> Features(torch.rand(5, 3), torch.tensor([1, 0, 1, 1, 0]), ("a", "b")).sizes
    array([2, 3])
    """

    values: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    name: str = "features"

    def __post_init__(self) -> None:
        shapes = tuple(self.values.shape), tuple(self.labels.shape)
        if len(shapes[0]) != 2 or shapes[0][:1] != shapes[1]:
            raise DubitoError(
                f"{self.name}: features have shape {shapes[0]} and labels {shapes[1]}; expected "
                "(N, D) and (N,)"
            )
        object.__setattr__(self, "values", self.values.float().contiguous())
        bad = (~self.values.isfinite()).any(-1).nonzero().flatten().tolist()
        if bad:
            raise DubitoError(f"{self.name}: the features of sample {bad[0]} are not finite")
        present, labels = self.labels.unique(return_inverse=True)
        object.__setattr__(self, "classes", tuple(self.classes[i] for i in present.tolist()))
        object.__setattr__(self, "labels", labels)

    @cached_property
    def order(self) -> Indices:
        """Samples sorted by class."""
        return np.argsort(self.labels.numpy(), kind="stable")

    @cached_property
    def sizes(self) -> Indices:
        """Number of samples of each class."""
        return np.bincount(self.labels.numpy())

    @property
    def smallest(self) -> str:
        """The class with the fewest samples, for messages."""
        least = int(self.sizes.argmin())
        return f"class {self.classes[least]!r} has {self.sizes[least]} samples"

    def check_width(self, other: Features) -> None:
        """Raise if other features have another dimension.

        Args:
            other: Features to compare with.
        """
        widths = self.values.shape[1], other.values.shape[1]
        if widths[0] != widths[1]:
            raise DubitoError(
                f"{self.name} has {widths[0]} features and {other.name} {widths[1]}: use features "
                "of one network"
            )

    def describe(self) -> dict[str, Any]:
        """Return name, shape and hash as JSON values."""
        digest = hashlib.blake2b(digest_size=16)
        for array in (self.values.numpy(), self.order, self.sizes):
            digest.update(np.ascontiguousarray(array).data)
        return {"name": self.name, "shape": list(self.values.shape), "hash": digest.hexdigest()}


class Episodes(NamedTuple):
    """Indices of E episodes, sorted by class; class j of an episode has the label j."""

    support: Indices  # (E, N K)
    query: Indices  # (E, N Q)
    ood: Indices  # (E, N Q), into the features of OOD queries


class Sampler:
    """Draws episodes.

    Out-of-distribution queries are divided among as many classes as an episode has, or more if
    these are small.

    Args:
        features: Features of the classes to distinguish.
        ood: Features of the out-of-distribution queries. Default: classes that an episode leaves
            out, so that hyperparameters can be chosen on validation classes alone.
        setting: Episodes to draw.

    Attributes:
        labels: Labels of the support samples, (N K,).
        query_labels: Labels of the queries, (N Q,).

    >>> features = Features(torch.rand(120, 3), torch.arange(120) % 6, tuple("abcdef"))
    >>> sampler = Sampler(features, None, Setting(ways=2, shots=1))
    >>> drawn = sampler.draw(0, 1000)
    >>> drawn.support.shape, drawn.query.shape, drawn.ood.shape
    ((1000, 2), (1000, 30), (1000, 30))
    >>> bool((sampler.draw(7, 8).query == drawn.query[7]).all())
    True
    """

    def __init__(self, features: Features, ood: Features | None, setting: Setting) -> None:
        self.features, self.setting = features, setting
        self.ood = features if ood is None else ood
        self._apart = ood is not None
        self.labels = torch.arange(setting.ways).repeat_interleave(setting.shots)
        self.query_labels = torch.arange(setting.ways).repeat_interleave(setting.queries)
        features.check_width(self.ood)
        ways, needed = setting.ways, setting.shots + setting.queries
        if ways > len(features.classes):
            count = len(features.classes)
            raise DubitoError(f"ways={ways}, but {features.name} has {count} classes")
        if features.sizes.min() < needed:
            raise DubitoError(
                f"{setting} episodes with {setting.queries} queries need {needed} samples of "
                f"each class, but in {features.name} {features.smallest}"
            )
        # The smallest number of classes, at least `ways`, that have enough OOD queries.
        needed = ways * setting.queries
        available = len(self.ood.classes) - (0 if self._apart else ways)
        self._ood_ways = max(min(ways, available), -(-needed // int(self.ood.sizes.min())))
        if not 1 <= self._ood_ways <= available:
            raise DubitoError(
                f"{setting} episodes need {needed} out-of-distribution queries, but "
                f"{self.ood.name} has {max(available, 0)} classes for them, and {self.ood.smallest}"
            )

    def draw(self, start: int, stop: int) -> Episodes:
        """Draw the episodes with the numbers from `start` to `stop` - 1."""
        ways, shots, queries = self.setting.ways, self.setting.shots, self.setting.queries
        seed = keys(np.zeros(1, np.uint64), np.array([self.setting.seed], np.uint64))
        streams = keys(keys(seed, np.arange(start, stop))[:, None], np.arange(4))
        count = ways if self._apart else ways + self._ood_ways
        classes = _classes(self.features, streams[:, CLASSES], count)
        drawn = _samples(self.features, streams[:, SAMPLES], classes[:, :ways], shots + queries)
        ood_classes = classes[:, ways:]
        if self._apart:
            ood_classes = _classes(self.ood, streams[:, OOD_CLASSES], self._ood_ways)
        each = -(-ways * queries // self._ood_ways)
        ood = _samples(self.ood, streams[:, OOD_SAMPLES], ood_classes, each)
        return Episodes(
            support=drawn[:, :, :shots].reshape(len(drawn), -1),
            query=drawn[:, :, shots:].reshape(len(drawn), -1),
            # One sample of each class in turn, so that what is left over is spread evenly.
            ood=ood.transpose(0, 2, 1).reshape(len(drawn), -1)[:, : ways * queries],
        )


def _classes(features: Features, streams: Keys, count: int) -> Indices:
    return choices(streams, np.full(len(streams), len(features.classes)), count)


def _samples(features: Features, streams: Keys, classes: Indices, count: int) -> Indices:
    """Draw different samples of each class: (E,), (E, N) -> (E, N, count)."""
    # By the position of the class in the episode, so that each class has a key of its own.
    each = keys(streams[:, None], np.arange(classes.shape[1])).reshape(-1)
    picked = choices(each, features.sizes[classes].reshape(-1), count)
    starts = (np.cumsum(features.sizes) - features.sizes)[classes]
    samples: Indices = features.order[starts[..., None] + picked.reshape(*classes.shape, count)]
    return samples
