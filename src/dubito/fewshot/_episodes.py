"""Episodes: indices of support samples, queries and out-of-distribution queries.

An episode is a function of the seed and its number. So methods, batch sizes and devices all use
the same episodes, and episodes with more shots or queries contain those with fewer. A random number
is a hash of its key (the finalizer of SplitMix64), the same on every machine.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dubito.errors import DubitoError
from dubito.fewshot._features import Features, Indices

Keys = NDArray[np.uint64]

#: rows that stay in the cache of a processor
BLOCK = 16384
#: increment of SplitMix64
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


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
        # Streams of random numbers of each episode.
        streams = keys(keys(seed, np.arange(start, stop)), np.arange(4)[:, None])
        count = ways if self._apart else ways + self._ood_ways
        classes = choices(streams[0], np.array([len(self.features.classes)]), count)
        drawn = _samples(self.features, streams[1], classes[:, :ways], shots + queries)
        ood_classes = classes[:, ways:]
        if self._apart:
            ood_classes = choices(streams[2], np.array([len(self.ood.classes)]), self._ood_ways)
        each = -(-ways * queries // self._ood_ways)
        ood = _samples(self.ood, streams[3], ood_classes, each)
        return Episodes(
            support=drawn[:, :, :shots].reshape(len(drawn), -1),
            query=drawn[:, :, shots:].reshape(len(drawn), -1),
            # One sample of each class in turn, so that what is left over is spread evenly.
            ood=ood.transpose(0, 2, 1).reshape(len(drawn), -1)[:, : ways * queries],
        )


def _samples(features: Features, streams: Keys, classes: Indices, count: int) -> Indices:
    """Draw different samples of each class: (E,), (E, N) -> (E, N, count)."""
    # By the position of the class in the episode, so that each class has a key of its own.
    each = keys(streams[:, None], np.arange(classes.shape[1])).reshape(-1)
    picked = choices(each, features.sizes[classes].reshape(-1), count)
    starts = (np.cumsum(features.sizes) - features.sizes)[classes]
    return features.order.take(starts[..., None] + picked.reshape(*classes.shape, count))


# --- random draws ---


def keys(parents: Keys, counters: Indices | Keys) -> Keys:
    """Hash pairs of a parent key and a counter >= 0, which broadcast.

    >>> keys(np.zeros(1, np.uint64), np.array([[0], [1]]))
    array([[16294208416658607535], [ 7960286522194355700]], dtype=uint64)
    """
    x: Keys = parents + GOLDEN * (counters.astype(np.uint64) + np.uint64(1))
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def choices(parents: Keys, sizes: Indices, count: int) -> Indices:
    """Draw `count` different numbers below a size for each of R keys, in random order: (R, count).

    There is a size for each key, or one for all.

    These are the first swaps of a Fisher-Yates shuffle; arrays of the given sizes are never built.
    A larger count leaves the first draws unchanged.

    >>> choices(keys(np.zeros(1, np.uint64), np.arange(2)), np.array([3, 600]), 3)
    array([[  1,   2,   0], [165, 130, 527]])
    """
    bits = keys(parents[:, None], np.arange(count)) >> np.uint64(32)
    left = (sizes[:, None] - np.arange(count)).astype(np.uint64)
    # Draw j swaps place j with a place from j on.
    places = ((bits * left) >> np.uint64(32)).astype(np.int32)
    places += np.arange(count, dtype=np.int32)
    blocks = [_swap(places[i : i + BLOCK].T.copy()) for i in range(0, len(places), BLOCK)]
    return np.concatenate([block.T for block in blocks]).astype(np.int64)


def _swap(places: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the numbers that the swaps move to the first places: (count, R) -> (count, R)."""
    drawn, moved = places.copy(), np.empty_like(places)
    for j in range(len(places)):
        moved[j] = j
        for column, at in ((moved, np.int32(j)), (drawn, places[j])):
            # Matches are few and in the order of k; the last one at a place counts.
            k, row = np.divmod(np.flatnonzero(places[:j] == at), places.shape[1])
            column[j, row] = moved[k, row]
    return drawn
