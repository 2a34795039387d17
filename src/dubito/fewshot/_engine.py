"""Evaluation of episodes in batches."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dubito import kernels, metrics
from dubito._threads import one_thread
from dubito.distributions import Distribution
from dubito.errors import DubitoError
from dubito.fewshot._design import Design, with_ones
from dubito.fewshot._episodes import Episodes, Features, Sampler, Setting
from dubito.fewshot._lbfgs import Solver, minimize
from dubito.fewshot._objective import Objective
from dubito.methods import Method

__all__ = ["Engine", "Values", "evaluate_scores"]

#: metrics by name, one value per episode
Values = dict[str, NDArray[np.float32]]
#: bytes of a batch of episodes in the solver, and of features that are gathered at once
BATCH = {"cpu": 1 << 28, "cuda": 1 << 33}
GATHERED = {"cpu": 1 << 23, "cuda": 1 << 30}
#: range of mean lengths of features that suits the first step and the tolerances of the solver
SHORT, LONG = 2.0, 500.0
#: metrics, and their value if all samples are positive
METRICS = {"aupr": (metrics.aupr, 1.0), "auroc": (metrics.auroc, math.nan)}


class Engine:
    """Fits and evaluates episodes of one setting.

    Args:
        method: Method of classification.
        features: Features of the classes to distinguish.
        ood: Features of out-of-distribution queries; default: the classes outside an episode.
        setting: Episodes.
        solver: Protocol of the solver.
        device: Device to compute on.

    >>> from dubito.methods import IEDL
    >>> values = 3 * torch.eye(6).repeat(20, 1) + torch.rand(120, 6)
    >>> features = Features(values, torch.arange(120) % 6, tuple("abcdef"))
    >>> engine = Engine(IEDL(), features, setting=Setting(ways=3, shots=2))
    >>> engine.values(0, 50)["accuracy"].mean() > 0.9
    np.True_
    """

    def __init__(
        self,
        method: Method,
        features: Features,
        ood: Features | None = None,
        *,
        setting: Setting = Setting(),  # noqa: B008
        solver: Solver = Solver(),  # noqa: B008
        device: torch.device | str = "cpu",
    ) -> None:
        self.method, self.features, self.ood = method, features, ood
        self.setting, self.solver, self.device = setting, solver, torch.device(device)
        self.sampler = Sampler(features, ood, self.setting)
        labels = self.sampler.labels.to(self.device)
        self.objective = Objective(method, labels, self.setting.ways, self.solver.rounds)
        _check_length(features)
        self._inside = features.values.to(self.device)
        self._outside = self.sampler.ood.values.to(self.device)

    def describe(self) -> dict[str, Any]:
        """Return what the values depend on, as JSON values."""
        return {
            "setting": asdict(self.setting),
            "method": self.method.to_dict(),
            "solver": self.solver._asdict(),
            "features": self.features.describe(),
            "ood": None if self.ood is None else self.ood.describe(),
        }

    def values(
        self, start: int, stop: int, progress: Callable[[int], None] | None = None
    ) -> Values:
        """Evaluate the episodes with the numbers from `start` to `stop` - 1.

        Args:
            start: First episode.
            stop: End of the episodes.
            progress: Called with the number of episodes of each finished batch.

        Returns:
            Metrics by name, (E,) each.
        """
        size = self._batch_size(stop - start)
        ranges = [(first, min(first + size, stop)) for first in range(start, stop, size)]
        parts = []
        with _workers(self.device, len(ranges)) as map_batches:
            for part in map_batches(self._batch, ranges):
                parts.append(part)
                if progress is not None:
                    progress(len(part["accuracy"]))
        return {name: torch.cat([p[name] for p in parts]).cpu().numpy() for name in parts[0]}

    def outputs(self, drawn: Episodes) -> Tensor:
        """Fit the classifiers of episodes, and return the outputs of their queries.

        Args:
            drawn: E episodes.

        Returns:
            Outputs (E, N + M, outputs) of queries and out-of-distribution queries.
        """
        each = 4 * self._inside.shape[1] * max(drawn.query.shape[1], drawn.support.shape[1])
        rows = max(1, GATHERED[self.device.type] // each)
        chunks = [torch.from_numpy(index).to(self.device).split(rows) for index in drawn]
        slopes = self._first_slopes()
        designs, scales = [], []
        for index in chunks[0]:
            support = with_ones(_gather(self._inside, index))
            designs.append(Design.of(support))
            scales.append((slopes @ support).abs().sum((-2, -1)))
        factor = torch.cat([design.factor for design in designs]).float()
        size = self.objective.outputs
        solved = minimize(self.objective, factor, size, torch.cat(scales), self.solver).split(rows)
        outputs = []
        for coordinates, design, *indices in zip(solved, designs, *chunks, strict=True):
            pools = (self._inside, self._inside, self._outside)
            support, query, ood = map(_gather, pools, indices)
            weights = design.weights(coordinates, with_ones(support))
            linear = [weights[..., :-1] @ values.mT for values in (query, ood)]
            outputs.append(torch.cat(linear, -1) + weights[..., -1:])
        # Outputs first in memory, as in `Objective`.
        return torch.cat([part.transpose(0, 1) for part in outputs], 1).movedim(0, -1)

    def _first_slopes(self) -> Tensor:
        """Return the gradient of the loss at zero weights, the same for all episodes: (M, N)."""
        shape = (1, self.objective.outputs, len(self.objective.labels))
        start = torch.zeros(1, dtype=torch.int32, device=self.device)
        return self.objective(torch.zeros(shape, device=self.device), start)[1][0]

    def _batch(self, numbers: tuple[int, int]) -> dict[str, Tensor]:
        with torch.no_grad(), kernels.disabled():
            outputs = self.outputs(self.sampler.draw(*numbers))
            bad = (~outputs.isfinite()).flatten(1).any(-1).nonzero().flatten().tolist()
            if bad:
                raise DubitoError(
                    f"the outputs of {len(bad)} episodes are not finite, the first is episode "
                    f"{numbers[0] + bad[0]} of {self.setting} with {self.method}"
                )
            labels = self.sampler.query_labels.to(self.device)
            return evaluate_scores(self.method.distribution(outputs), labels)

    def _batch_size(self, episodes: int) -> int:
        """Return the size of batches that fit the memory, one or more for each thread."""
        support, queries = len(self.objective.labels), len(self.sampler.query_labels)
        rank = min(support, self._inside.shape[1] + 1)
        solver = (2 * self.solver.history + 20) * rank + 80 * (support + queries)
        each = 4 * (self.objective.outputs * solver + 3 * support * rank)
        threads = torch.get_num_threads() if self.device.type == "cpu" else 1
        share = threads * max(1, BATCH[self.device.type] // each)
        return max(1, -(-episodes // (threads * -(-episodes // share))))


def evaluate_scores(dist: Distribution, labels: Tensor) -> dict[str, Tensor]:
    """Compute the metrics of E episodes, (E,) each: "accuracy", "confidence/max_prob/aupr", ...

    Positives are correct queries for confidence, and in-distribution queries for OOD detection. An
    episode whose queries are all correct has a confidence AUPR of 1 and no AUROC; one whose queries
    are all wrong has neither. A metric that an episode does not have is NaN.

    Args:
        dist: Distribution of (E, N + M) samples: N queries, then M out-of-distribution queries.
        labels: Labels of the queries, (N,).

    >>> from dubito import Dirichlet
    >>> alpha = torch.tensor([[[9.0, 1.0], [1.0, 5.0], [3.0, 1.0], [1.0, 2.0]]])
    >>> result = evaluate_scores(Dirichlet(alpha), torch.tensor([0, 0]))
    >>> result["accuracy"], result["confidence/max_prob/aupr"], result["ood/alpha0/auroc"]
    (tensor([0.5000]), tensor([1.]), tensor([1.]))
    """
    count = len(labels)
    predicted: Tensor = dist.probs.argmax(-1)  # type: ignore[attr-defined]
    correct = predicted[:, :count] == labels
    every, none = correct.all(-1), ~correct.any(-1)
    # The metrics reject rows without positives or negatives: give them one, and overwrite.
    first = torch.arange(predicted.shape[-1], device=labels.device)
    mixed = torch.where((every | none).unsqueeze(-1), first[:count] == 0, correct)
    inside = (first < count).expand_as(predicted)
    result = {"accuracy": correct.double().mean(-1).float()}
    for name in dist.default_scores:
        confidence = dist.confidence(name).contiguous()
        for metric, (function, perfect) in METRICS.items():
            value = function(confidence[:, :count].contiguous(), mixed)
            value = torch.where(every, perfect, torch.where(none, math.nan, value))
            result[f"confidence/{name}/{metric}"] = value
            result[f"ood/{name}/{metric}"] = function(confidence, inside)
    return result


def _gather(values: Tensor, index: Tensor) -> Tensor:
    """Gather features: (N, D), (E, M) -> (E, M, D)."""
    return values.index_select(0, index.reshape(-1)).view(*index.shape, -1)


def _check_length(features: Features) -> None:
    """Warn of features for which a round of the solver would end with nothing learned."""
    some = features.values[:: 1 + len(features.values) // 1000].double()
    length = float(some.norm(dim=-1).mean())
    if 0 < length < SHORT or length > LONG:
        factor = 10.0 ** round(1 - math.log10(length))
        expected = f"expected {SHORT:g} to {LONG:g}: multiply all features by {factor:g}"
        text = f"the features of {features.name} have a mean length of {length:.2g}; {expected}"
        warnings.warn(text, stacklevel=3)


@contextmanager
def _workers(device: torch.device, tasks: int) -> Iterator[Callable[..., Iterator[Any]]]:
    """Provide a `map` over batches: in threads on a CPU, one batch each.

    Torch's own threads would wait for each other in each of many small operations.
    """
    before = torch.get_num_threads()
    if device.type != "cpu" or min(before, tasks) <= 1:
        yield map
        return
    pool = ThreadPoolExecutor(before, initializer=torch.set_num_threads, initargs=(1,))
    with one_thread():
        try:
            yield pool.map
        finally:
            pool.shutdown(cancel_futures=True)
