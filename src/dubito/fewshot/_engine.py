"""Evaluation of episodes in batches."""

import math
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding, pad

from dubito import kernels, metrics
from dubito.distributions import Distribution
from dubito.errors import DubitoError
from dubito.fewshot._episodes import Episodes, Sampler, Setting
from dubito.fewshot._features import Features
from dubito.fewshot._lbfgs import Solver, minimize
from dubito.losses import value_and_gradient
from dubito.methods import METHODS, Method
from dubito.types import Json

#: metrics by name, one value per episode
Values = dict[str, NDArray[np.float32]]
#: bytes of a batch of episodes in the solver, and of features that are gathered at once
BATCH = {"cpu": 1 << 28, "cuda": 1 << 33}
GATHERED = {"cpu": 1 << 23, "cuda": 1 << 30}
#: range of mean lengths of features that suits the first step and the tolerances of the solver
SHORT, LONG = 2.0, 500.0
#: share of the largest entry of a Gram matrix below which a pivot is rounding
SINGULAR = 1e-12
#: metrics, and their value if all samples are positive
METRICS = {"aupr": (metrics.aupr, 1.0), "auroc": (metrics.auroc, math.nan)}


class Engine:
    """Fits and evaluates episodes of one setting.

    Outputs are linear in the features, whatever head the method builds for a network: an episode
    has too few samples for hidden layers. Terms for out-of-distribution inputs do not count, since
    an episode has none to train on.

    Args:
        method: Method of classification, without members.
        features: Features of the classes to distinguish.
        ood: Features of out-of-distribution queries; default: the classes outside an episode.
        setting: Episodes.
        solver: Protocol of the solver; its rounds determine the weights of the terms.
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
        self.sampler = Sampler(features, ood, setting)
        self.labels = self.sampler.labels.to(self.device)
        task: Any = SimpleNamespace(size=setting.ways)
        #: number of outputs M
        self.size = int(method.outputs(task))
        example = method.distribution(torch.zeros(1, 1, self.size))
        if "classification" not in method.tasks or tuple(example.batch_shape) != (1, 1):
            raise DubitoError(
                f"episodes need a method of classification without members, not {method}"
            )
        rounds = [method.weights(i, solver.rounds) for i in range(solver.rounds)]
        columns = [[weights[name] for weights in rounds] for name in method.terms]
        tensors = [torch.tensor(c, dtype=torch.float64, device=self.device) for c in columns]
        # Constant weights are scalars, which are faster.
        self._weights = [w if bool((w != w[0]).any()) else w[0] for w in tensors]
        _check_length(features)
        self._inside = features.values.to(self.device)
        self._outside = self.sampler.ood.values.to(self.device)

    def describe(self) -> Json:
        """Return what the values depend on, as JSON values."""
        return {
            "setting": asdict(self.setting),
            "method": METHODS.to_dict(self.method),
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
        # On a CPU a batch per thread: torch's own threads would wait for each other in each of
        # many small operations.
        available = torch.get_num_threads()
        threads = available if self.device.type == "cpu" else 1
        size = self._batch_size(stop - start, threads)
        ranges = [(first, min(first + size, stop)) for first in range(start, stop, size)]
        pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
        parts = []
        torch.set_num_threads(1)
        try:
            for part in (pool.map if threads > 1 else map)(self._batch, ranges):
                parts.append(part)
                if progress is not None:
                    progress(len(part["accuracy"]))
        finally:
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(available)
        return {name: torch.cat([p[name] for p in parts]).cpu().numpy() for name in parts[0]}

    def loss(self, outputs: Tensor, rounds: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the mean loss over the support samples of each episode, and its gradient.

        Args:
            outputs: Outputs of the support samples, (E, M, N).
            rounds: Round of each episode, (E,).

        Returns:
            Loss (E,) and its gradient (E, M, N).
        """
        count, size, samples = outputs.shape
        now = rounds.clamp(max=self.solver.rounds - 1).long().repeat_interleave(samples)
        weights = [w[now].unsqueeze(-1) if w.ndim else w for w in self._weights]
        # With the outputs first in memory, operations on a class run along it.
        flat = outputs.transpose(0, 1).reshape(size, -1).T
        values, gradient = value_and_gradient(
            self.method.terms, self.method.distribution, flat, self.labels.repeat(count), weights,
            per_class=self.method.per_class,
        )  # fmt: skip
        slopes = (gradient.T / samples).reshape(size, count, samples).transpose(0, 1)
        return values.view(count, samples).mean(-1), slopes

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
        # With zero weights the gradient is the same for all episodes.
        zeros = torch.zeros(1, self.size, len(self.labels), device=self.device)
        start = torch.zeros(1, dtype=torch.int32, device=self.device)
        slopes = self.loss(zeros, start)[1][0]
        factors, scales = [], []
        for index in chunks[0]:
            support = _with_ones(embedding(index, self._inside))
            factors.append(factorize(support))
            scales.append((slopes @ support).abs().sum((-2, -1)))
        factor, scale = torch.cat(factors).float(), torch.cat(scales)
        solved = minimize(self.loss, factor, self.size, scale, self.solver).split(rows)
        outputs = []
        for coordinates, exact, *indices in zip(solved, factors, *chunks, strict=True):
            pools = (self._inside, self._inside, self._outside)
            support, query, ood = map(embedding, indices, pools)
            weights = to_weights(coordinates, exact, _with_ones(support))
            linear = [weights[..., :-1] @ values.mT for values in (query, ood)]
            outputs.append(torch.cat(linear, -1) + weights[..., -1:])
        # Outputs first in memory, as in `loss`.
        return torch.cat([part.transpose(0, 1) for part in outputs], 1).movedim(0, -1)

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

    def _batch_size(self, episodes: int, threads: int) -> int:
        """Return the size of batches that fit the memory, one or more for each thread."""
        support, queries = len(self.labels), len(self.sampler.query_labels)
        rank = min(support, self._inside.shape[1] + 1)
        solver = (2 * self.solver.history + 20) * rank + 80 * (support + queries)
        each = 4 * (self.size * solver + 3 * support * rank)
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


def summarize(metrics: Values) -> dict[str, Json]:
    """Compute the mean of each metric over the episodes that have it.

    Args:
        metrics: Metrics by name, (E,) each; NaN if an episode does not have one.

    Returns:
        By metric: "mean", "interval", half the width of its 95 % confidence interval, and
        "episodes", the number of episodes that have it. A value that does not exist is None.

    >>> summarize({"accuracy": np.array([0.5, 1.0, np.nan], np.float32)})
    {'accuracy': {'mean': 0.75, 'interval': 0.49, 'episodes': 2}}
    """
    summary = {}
    for name, each in metrics.items():
        values = each[~np.isnan(each)].astype(np.float64)
        count = len(values)
        mean = float(values.mean()) if count else None
        interval = 1.96 * float(values.std(ddof=1)) / math.sqrt(count) if count > 1 else None
        summary[name] = {"mean": mean, "interval": interval, "episodes": count}
    return summary


def _with_ones(features: Tensor) -> Tensor:
    """Append a column of ones, for the bias."""
    return pad(features, (0, 1), value=1.0)


def _check_length(features: Features) -> None:
    """Warn of features for which a round of the solver would end with nothing learned."""
    length = float(features.values.norm(dim=-1).mean())
    if 0 < length < SHORT or length > LONG:
        factor = 10.0 ** round(1 - math.log10(length))
        expected = f"expected {SHORT:g} to {LONG:g}: multiply all features by {factor:g}"
        text = f"the features of {features.name} have a mean length of {length:.2g}; {expected}"
        warnings.warn(text, stacklevel=3)


# --- coordinates of a classifier ---

# The span of the support features, in which a linear classifier moves that starts at zero.
#
# With X (N, D + 1) the support features and a column of ones, every gradient in the weights
# W (M, D + 1) is a combination of the rows of X. So W = Z X, and with a factor A A' = X X' the
# coordinates B = Z A have the lengths and angles of W: outputs W X' = B A', gradients and steps of
# L-BFGS are the same, in N coordinates per output instead of D + 1. If N is larger, A = X, B = W.


def factorize(support: Tensor) -> Tensor:
    """Factorize the Gram matrices of support features.

    Args:
        support: Features with a column of ones, (E, N, D + 1).

    Returns:
        Factors (E, N, R), float64: lower triangular, with orthogonal columns where the Gram matrix
        is singular, or the features themselves if N > D.

    >>> factor = factorize(torch.tensor([[[1.0, 0, 0, 1], [0, 1, 0, 1]]]))
    >>> factor @ factor.mT
    tensor([[[2., 1.], [1., 2.]]], dtype=torch.float64)
    """
    exact = support.double()
    if support.shape[-2] >= support.shape[-1]:
        return exact
    gram = exact @ exact.mT
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(gram)
    # A sample that occurs twice makes a matrix singular, or nearly so.
    least = SINGULAR * gram.diagonal(dim1=-2, dim2=-1).amax(-1)
    pivots = factor.diagonal(dim1=-2, dim2=-1).square().amin(-1)
    singular = (failed != 0) | ~(pivots > least)
    if bool(singular.any()):
        values, vectors = torch.linalg.eigh(gram[singular])
        lengths = torch.where(values > SINGULAR * values[..., -1:], values, 0).sqrt()
        factor[singular] = vectors * lengths.unsqueeze(-2)
    return factor


def to_weights(coordinates: Tensor, factor: Tensor, support: Tensor) -> Tensor:
    """Convert coordinates (E, M, R) to weights and bias (E, M, D + 1).

    Args:
        coordinates: Coordinates.
        factor: Result of `factorize`.
        support: Features with a column of ones, (E, N, D + 1).
    """
    if support.shape[-2] >= support.shape[-1]:
        return coordinates.to(support.dtype)
    exact = coordinates.to(factor.dtype)
    dual: Tensor = torch.linalg.solve_triangular(factor, exact, upper=False, left=False)
    # No factor of a singular matrix is triangular: its first column is 0, its first row is not.
    singular = factor.triu(1).flatten(1).any(-1)
    if bool(singular.any()):
        columns = factor[singular]
        squares = columns.square().sum(-2, keepdim=True)
        scaled = torch.where(squares > 0, exact[singular] / squares, 0)
        dual[singular] = scaled @ columns.mT
    return dual.to(support.dtype) @ support
