"""Episodes: which samples are support, query and out-of-distribution query, as indices.

An episode follows from the seed and its number alone. So methods, batch sizes, devices and shards
all meet the same episodes, and those with more shots or queries contain those with fewer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dubito import _checks
from dubito.data import Arrays
from dubito.fewshot.draws import choices, keys

__all__ = ["PROTOCOLS", "Episodes", "Pool", "Sampler", "Setting"]

#: name -> queries a class, from the shots
PROTOCOLS: dict[str, Callable[[int], int]] = {
    "code": lambda shots: max(15, shots),
    "paper": lambda shots: min(15, shots),
}
_CLASSES, _SAMPLES, _OUTSIDE_CLASSES, _OUTSIDE_SAMPLES = range(4)  # streams of an episode


@dataclass(frozen=True)
class Setting:
    """N-way K-shot episodes; `protocol` says how many queries a class has, "code" or "paper".

    As many OOD queries come with them. The published code takes max(15, K) queries a class, and the
    paper states min(15, K).

    >>> Setting(ways=5, shots=1).queries, Setting(ways=5, shots=1, protocol="paper").queries
    (15, 1)
    >>> str(Setting(10, 5))
    '10w5s'
    """

    ways: int = 5
    shots: int = 1
    protocol: str = "code"
    seed: int = 0

    def __post_init__(self) -> None:
        _checks.one_of(PROTOCOLS, self.protocol, "protocol")
        if isinstance(self.seed, int) and self.seed >= 2**64:
            raise ValueError(f"seed must be below 2^64, not {self.seed}")
        for name, least in (("ways", 2), ("shots", 1), ("seed", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ValueError(
                    f"{name} must be a whole number of at least {least}, not {value!r}"
                )

    @property
    def queries(self) -> int:
        """Queries of each class."""
        return PROTOCOLS[self.protocol](self.shots)

    def __str__(self) -> str:
        return f"{self.ways}w{self.shots}s"


@dataclass(frozen=True, eq=False)
class Pool:
    """Features (N, D) and where the samples of each class are.

    >>> from dubito.data import Arrays
    >>> Pool.of(Arrays(torch.rand(5, 3), torch.tensor([1, 0, 1, 1, 0]), ("a", "b"))).sizes
    array([2, 3])
    """

    name: str
    features: Tensor
    classes: tuple[str, ...]
    order: NDArray[np.int64]
    """the samples by class"""
    starts: NDArray[np.int64]
    """where each class begins in the order"""
    sizes: NDArray[np.int64]
    scaling: str = "none"
    """what was done to the features, see `dubito.fewshot.scalings`"""

    @classmethod
    def of(cls, data: Arrays) -> Pool:
        """Of labelled features, which must be finite; classes without samples are left out."""
        if data.inputs.ndim != 2:
            raise ValueError(
                f"{data.name}: features must be (N, D), not {tuple(data.inputs.shape)}"
            )
        features = data.inputs.float()
        bad = (~features.isfinite()).any(-1).nonzero().flatten()
        if len(bad):
            raise ValueError(
                f"{data.name}: features must be finite, but {len(bad)} of {len(features)} samples "
                f"hold NaN or infinity, the first is sample {int(bad[0])}"
            )
        labels = data.labels.cpu().numpy()
        sizes = np.bincount(labels, minlength=len(data.classes))
        starts = np.cumsum(sizes) - sizes
        held = sizes > 0
        names = tuple(name for name, some in zip(data.classes, held, strict=True) if some)
        order = np.argsort(labels, kind="stable")
        return cls(data.name, features, names, order, starts[held], sizes[held])

    def smallest(self) -> str:
        """The class with the fewest samples, in words."""
        least = int(self.sizes.argmin())
        return f"class {self.classes[least]!r} has {self.sizes[least]}"

    def to(self, device: torch.device | str) -> Pool:
        """The same with the features on another device."""
        return replace(self, features=self.features.to(device))


@dataclass(frozen=True)
class Episodes:
    """Indices of E episodes, sorted by class: support (E, N K), query (E, N Q), outside (E, N Q).

    `outside` points into the pool of OOD samples. Class j of an episode has the label j.
    """

    support: NDArray[np.int64]
    query: NDArray[np.int64]
    outside: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.support)


class Sampler:
    """Draws episodes from a pool, and their OOD queries from another one.

    Without another pool, OOD queries come from the classes that an episode leaves out, as they must
    while a choice is made on validation classes. OOD queries are shared out among as many classes
    as the episode has, or more where these are small.

    >>> from dubito.data import Arrays
    >>> pool = Pool.of(Arrays(torch.rand(120, 3), torch.arange(120) % 6, tuple("abcdef")))
    >>> sampler = Sampler(pool, None, Setting(ways=2, shots=1))
    >>> drawn = sampler.draw(0, 1000)
    >>> drawn.support.shape, drawn.query.shape, drawn.outside.shape
    ((1000, 2), (1000, 30), (1000, 30))
    >>> bool((sampler.draw(7, 8).query == drawn.query[7]).all())
    True
    """

    def __init__(self, pool: Pool, outside: Pool | None, setting: Setting) -> None:
        self.pool, self.setting = pool, setting
        self.outside = outside if outside is not None else pool
        self._apart = outside is not None
        _check_pool(pool, setting)
        if pool.features.shape[1] != self.outside.features.shape[1]:
            raise ValueError(
                f"features and OOD features must have the same dimension, but {pool.name} has "
                f"{pool.features.shape[1]} and {self.outside.name} {self.outside.features.shape[1]}"
            )
        self.outside_ways = self._outside_ways()

    @property
    def labels(self) -> Tensor:
        """The labels of the support samples: (N K,)."""
        return torch.arange(self.setting.ways).repeat_interleave(self.setting.shots)

    @property
    def query_labels(self) -> Tensor:
        """The labels of the queries: (N Q,)."""
        return torch.arange(self.setting.ways).repeat_interleave(self.setting.queries)

    def draw(self, start: int, stop: int) -> Episodes:
        """Episodes `start` to `stop`, the latter not included."""
        seed = keys(np.zeros(1, np.uint64), np.array([self.setting.seed]))
        episodes = keys(seed, np.arange(start, stop))
        streams = keys(episodes[:, None], np.arange(4))
        ways, shots, queries = self.setting.ways, self.setting.shots, self.setting.queries
        classes = self._classes(streams[:, _CLASSES], ways)
        drawn = _samples(self.pool, streams[:, _SAMPLES], classes[:, :ways], shots + queries)
        others = classes[:, ways:]
        if self._apart:
            sizes = np.full(len(episodes), len(self.outside.classes))
            others = choices(streams[:, _OUTSIDE_CLASSES], sizes, self.outside_ways)
        each = -(-ways * queries // self.outside_ways)
        outside = _samples(self.outside, streams[:, _OUTSIDE_SAMPLES], others, each)
        return Episodes(
            drawn[:, :, :shots].reshape(len(episodes), -1),
            drawn[:, :, shots:].reshape(len(episodes), -1),
            # one of each class in turn, so that what is left over is left over evenly
            outside.transpose(0, 2, 1).reshape(len(episodes), -1)[:, : ways * queries],
        )

    def _classes(self, streams: NDArray[np.uint64], ways: int) -> NDArray[np.int64]:
        count = ways if self._apart else ways + self.outside_ways
        return choices(streams, np.full(len(streams), len(self.pool.classes)), count)

    def _outside_ways(self) -> int:
        """The fewest classes, from the episode's on, that hold all OOD queries."""
        wanted = self.setting.ways * self.setting.queries
        most = len(self.outside.classes) - (0 if self._apart else self.setting.ways)
        least = int(self.outside.sizes.min())
        ways = max(min(self.setting.ways, most), -(-wanted // least))
        if most < 1 or ways > most:
            raise ValueError(
                f"{self.setting} episodes need {wanted} OOD queries, but {self.outside.name} has "
                f"{max(most, 0)} classes for them, of which {self.outside.smallest()} samples"
            )
        return ways


def _check_pool(pool: Pool, setting: Setting) -> None:
    if setting.ways > len(pool.classes):
        raise ValueError(f"ways={setting.ways}, but {pool.name} has {len(pool.classes)} classes")
    wanted = setting.shots + setting.queries
    if int(pool.sizes.min()) < wanted:
        raise ValueError(
            f"{setting} episodes with {setting.queries} queries a class need {wanted} samples of "
            f"each class, but {pool.name}: {pool.smallest()}"
        )


def _samples(
    pool: Pool, streams: NDArray[np.uint64], classes: NDArray[np.int64], count: int
) -> NDArray[np.int64]:
    """Different samples of each class: (E,), (E, N) -> (E, N, count)."""
    # by the class's place in the episode: its key is one that no other class has
    each = keys(streams[:, None], np.arange(classes.shape[1])).reshape(-1)
    picked = choices(each, pool.sizes[classes].reshape(-1), count)
    found: NDArray[np.int64] = pool.order[pool.starts[classes].reshape(-1)[:, None] + picked]
    return found.reshape((*classes.shape, count))
