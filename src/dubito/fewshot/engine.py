"""Episodes from their numbers to their figures, in batches that fit the memory."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dubito.fewshot.episodes import Episodes, Pool, Sampler, Setting
from dubito.fewshot.heads import Head
from dubito.fewshot.lbfgs import Solver
from dubito.fewshot.scores import scores
from dubito.fewshot.solve import fit, products

__all__ = ["Engine", "Values"]

Values = dict[str, NDArray[np.float32]]
_CPU_BUDGET = 2**29  # bytes: larger batches leave the caches, and gain nothing
_SHARE = 0.5  # of the free memory at most
_SHORT, _LONG = 2.0, 500.0  # mean lengths that the solver's first step and tolerances are made for
_SAMPLES = 1000  # about as many tell the mean length


@dataclass(frozen=True, eq=False)
class Engine:
    """A head on the episodes of a pool: `values(start, stop)` are the figures of each episode.

    >>> from dubito.data import Arrays
    >>> from dubito.fewshot.heads import head
    >>> centres = 3 * torch.eye(6).repeat(20, 1)
    >>> data = Arrays(centres + torch.rand(120, 6), torch.arange(120) % 6, tuple("abcdef"))
    >>> engine = Engine(Pool.of(data), None, Setting(ways=3, shots=2), head("iedl"))
    >>> engine.values(0, 50)["accuracy"].mean() > 0.9
    np.True_
    """

    pool: Pool
    outside: Pool | None
    setting: Setting
    head: Head
    solver: Solver = field(default_factory=Solver)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    sampler: Sampler = field(init=False, repr=False)
    _features: tuple[Tensor, Tensor] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sampler", Sampler(self.pool, self.outside, self.setting))
        _check_length(self.pool)
        inside = self.pool.features.to(self.device).contiguous()
        others = self.sampler.outside.features.to(self.device).contiguous()
        object.__setattr__(self, "_features", (inside, others))

    def values(self, start: int, stop: int, tell: Callable[[int], None] | None = None) -> Values:
        """The figures of episodes `start` to `stop`, (E,) each; `tell` hears of finished ones."""
        size = self.batch(stop - start)
        ranges = [(first, min(first + size, stop)) for first in range(start, stop, size)]
        parts: list[dict[str, Tensor]] = []
        with _full_precision(self.device), _workers(self.device, len(ranges)) as mapped:
            for (first, last), part in zip(ranges, mapped(self._batch, ranges), strict=True):
                parts.append(part)
                if tell is not None:
                    tell(last - first)
        return {name: torch.cat([p[name] for p in parts]).cpu().numpy() for name in parts[0]}

    def batch(self, episodes: int) -> int:
        """How many episodes go through at once."""
        if self.device.type == "cuda":
            budget = int(torch.cuda.mem_get_info(self.device)[0] * _SHARE)
        else:
            budget = min(_CPU_BUDGET, int(_free_memory() * _SHARE) // torch.get_num_threads())
        size = max(1, min(episodes, budget // self._bytes()))
        # of one size each, but for rounding
        return -(-episodes // -(-episodes // size)) if episodes else 1

    def _bytes(self) -> int:
        """What an episode takes, roughly: its features, its design, the solver and the measures."""
        support, queries = len(self.sampler.labels), 2 * len(self.sampler.query_labels)
        dimension = self.pool.features.shape[1] + 1
        width, ways = min(support, dimension), self.setting.ways
        features = 8 * (3 * support + queries) * dimension
        design = 8 * 3 * support * width
        solver = 4 * (2 * self.solver.history + 20) * width * ways + 4 * 80 * support * ways
        return features + design + solver + 4 * 40 * queries * ways

    def logits(self, drawn: Episodes) -> tuple[Tensor, Tensor]:
        """Of queries and OOD queries: (E, N Q, K) each."""
        inside, others = self._features
        labels, ways = self.sampler.labels, self.setting.ways
        chosen = torch.from_numpy(drawn.support.reshape(-1)).to(self.device)
        support = inside.index_select(0, chosen).unflatten(0, drawn.support.shape)
        weights = fit(self.head, support, labels, ways, self.solver)
        return products(inside, drawn.query, weights), products(others, drawn.outside, weights)

    def _batch(self, numbers: tuple[int, int]) -> dict[str, Tensor]:
        drawn, first = self.sampler.draw(*numbers), numbers[0]
        with torch.no_grad():
            logits = torch.cat(self.logits(drawn), dim=1)
            bad = (~logits.isfinite()).flatten(1).any(-1).nonzero().flatten()
            if len(bad):
                raise ValueError(
                    f"the logits of {len(bad)} episodes are not finite, the first is episode "
                    f"{first + int(bad[0])} of {self.setting} with {self.head}"
                )
            return scores(self.head.prediction(logits), self.sampler.query_labels)


def _check_length(pool: Pool) -> None:
    """A warning where a round of the solver would end too early, with nothing learnt."""
    some = pool.features[:: 1 + len(pool.features) // _SAMPLES].double()
    length = float(some.norm(dim=-1).mean())
    if not (0 < length < _SHORT or length > _LONG):
        return
    factor = 10.0 ** round(1 - math.log10(length))
    warnings.warn(
        f"the features of {pool.name} have a mean length of {length:.2g}; heads learn well between "
        f"{_SHORT:g} and {_LONG:g}, and nothing far beyond: multiply the features in all files by "
        f"{factor:g}",
        RuntimeWarning,
        stacklevel=4,
    )


@contextmanager
def _full_precision(device: torch.device) -> Iterator[None]:
    """Products on a GPU in float32, so that a line search sees what it decides by."""
    if device.type != "cuda":
        yield
        return
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@contextmanager
def _workers(device: torch.device, tasks: int) -> Iterator[Callable[..., Iterator[Any]]]:
    """A `map` over batches: on the CPU in threads, as many as torch has, each with its own batch.

    Torch's own threads would wait for each other in every operation, which takes many times as long
    where other work shares the cores.
    """
    threads = min(torch.get_num_threads(), tasks)
    if device.type != "cpu" or threads <= 1:
        yield map
        return
    before = torch.get_num_threads()
    pool = ThreadPoolExecutor(threads, "dubito", initializer=torch.set_num_threads, initargs=(1,))
    torch.set_num_threads(1)
    try:
        yield pool.map
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(before)


def _free_memory() -> int:
    """Bytes that are free, where the system tells."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 2 * _CPU_BUDGET
