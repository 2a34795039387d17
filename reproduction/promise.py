"""How often the guarantees of policies and intervals break: `python -m reproduction.promise`.

Each repetition draws a task, trains networks and compares the guarantee with the truth, which the
generator knows. Designs:

- *80/20*: one network; policy and intervals from the fifth of the samples that is held out;
- *60/40*: the same with two fifths;
- *folds*: an ensemble of five networks; policy and intervals from the prediction of each sample by
  the network that was not trained on it.

Nothing is chosen on held-out samples: the last weights, averaged over ten epochs, are used. The
networks of many repetitions are trained at once.

For numbers the intervals of `EvidentialRegressor`, by its defaults, are compared with those of
scikit-learn's `MLPRegressor`: its error on a fifth of the samples, the same for all inputs.

Results are lines of JSON, and the same command runs what is missing.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from scipy.stats import binomtest, norm
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPRegressor
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from dubito.calibration import conformal_quantiles
from dubito.distributions import ClassDistribution
from dubito.losses import weighted_sums
from dubito.methods import IEDL, Method
from dubito.policy import Policy
from dubito.sklearn import EvidentialRegressor

__all__ = ["CELLS", "Cell", "main", "record", "repetitions", "run", "summary"]

Array = np.ndarray[Any, Any]
FOLDS = 5
WIDTHS = (64, 64)
BATCH, RATE, AVERAGED = 64, 1e-3, 10
DIMENSIONS = 8
#: fresh inputs on which a repetition is judged
FRESH = 10_000
#: error rates of the policies, and levels of the intervals
LEVELS, INTERVALS = (0.02, 0.05, 0.1), (0.5, 0.8, 0.9, 0.95)
#: deviation of the centers by the number of classes: Bayes errors are about 12 %
SPREAD = {2: 1.25, 5: 1.65, 10: 1.85}


@dataclass(frozen=True)
class Cell:
    """Kind of task of an experiment.

    Attributes:
        name: Name in the results.
        classes: Number of classes; 0 for regression.
        samples: Number of labeled samples.
        epochs: Length of the training; None: the default of the estimator.
    """

    name: str
    classes: int
    samples: int
    epochs: int | None = None


CELLS = (
    Cell("K=5, n=300", 5, 300, 150),
    Cell("K=5, n=1000", 5, 1000, 60),
    Cell("K=5, n=3000", 5, 3000, 40),
    Cell("K=2, n=1000", 2, 1000, 60),
    Cell("K=10, n=1000", 10, 1000),
    Cell("regression, n=200", 0, 200),
    Cell("regression, n=1000", 0, 1000),
)


# --- tasks ---


class Clusters:
    """Normal clusters; labels of a quarter of them are often wrong.

    Args:
        classes: Number of classes.
        rng: Draws centers.
    """

    def __init__(self, classes: int, rng: Generator) -> None:
        each = 4 if classes == 2 else 2
        count = classes * each
        self.centers = rng.normal(size=(count, DIMENSIONS)) * SPREAD[classes]
        self.flips = np.where(rng.permutation(count) < count / 4, 0.25, 0.005)
        owner = np.arange(count) % classes
        self.probs = np.full((count, classes), 0.0) + self.flips[:, None] / (classes - 1)
        self.probs[np.arange(count), owner] = 1 - self.flips

    def draw(self, count: int, rng: Generator) -> tuple[Array, Array, Array]:
        """Return inputs (N, D), labels (N,) and the probabilities of the classes (N, K)."""
        cluster = rng.integers(len(self.centers), size=count)
        x = self.centers[cluster] + rng.normal(size=(count, DIMENSIONS))
        logs = x @ self.centers.T - (self.centers**2).sum(1) / 2
        weight = np.exp(logs - logs.max(1, keepdims=True))
        probs = weight @ self.probs / weight.sum(1, keepdims=True)
        label = (rng.random((count, 1)) > self.probs[cluster].cumsum(1)).sum(1)
        return x, label, probs


class Numbers:
    """Numbers with normal noise, whose deviation goes from 0.2 to 1.5."""

    def draw(self, count: int, rng: Generator) -> tuple[Array, Array, Array]:
        """Return inputs (N, D), targets (N,), and means and deviations (N, 2)."""
        x = rng.normal(size=(count, DIMENSIONS))
        mean = 2 * np.sin(x[:, 0]) + 0.7 * x[:, 1] * x[:, 2] + x[:, 3]
        std = 0.2 + 1.3 / (1 + np.exp(-2 * x[:, 4]))
        return x, mean + std * rng.normal(size=count), np.stack([mean, std], 1)


# --- networks ---


class Networks:
    """Many MLPs side by side, each with its own samples, trained as `dubito.train` does.

    Args:
        x: Standardized inputs of each network, (S, N, D).
        outputs: Number of outputs.
        generator: Draws weights and batches.
    """

    def __init__(self, x: Tensor, outputs: int, generator: torch.Generator) -> None:
        self.x, self.generator = x, generator
        self.weights: list[Tensor] = []
        for before, after in pairwise((x.shape[-1], *WIDTHS, outputs)):
            for rows in (before, 1):  # weight and bias
                drawn = torch.rand(len(x), rows, after, generator=generator)
                self.weights.append(((2 * drawn - 1) / math.sqrt(before)).requires_grad_())

    def outputs(self, x: Tensor, networks: slice = slice(None)) -> Tensor:
        """Return the outputs of some networks for inputs (S, N, D): (S, N, M)."""
        weights = [weight[networks] for weight in self.weights]
        for index in range(0, len(weights), 2):
            x = torch.baddbmm(weights[index + 1], x.relu() if index else x, weights[index])
        return x

    def train(self, target: Tensor, method: Method, epochs: int) -> None:
        """Train, and keep the mean of the weights after each of the last epochs."""
        optimizer = torch.optim.Adam(self.weights, lr=RATE, fused=True)
        network = torch.arange(len(self.x))[:, None]
        means = [torch.zeros_like(weight) for weight in self.weights]
        for epoch in range(epochs):
            factors = torch.tensor(list(method.weights(epoch, epochs).values()))
            order = torch.rand(self.x.shape[:2], generator=self.generator).argsort(1)
            for rows in order.split(BATCH, 1):
                dist = method.distribution(self.outputs(self.x[network, rows]))
                loss, _ = weighted_sums(method.terms, dist, target[network, rows], factors)
                optimizer.zero_grad()
                (loss / rows.shape[1]).backward()
                optimizer.step()
            if epoch >= epochs - AVERAGED:
                for mean, weight in zip(means, self.weights, strict=True):
                    mean += weight.detach() / AVERAGED
        self.weights = means


# --- repetitions ---


@dataclass(frozen=True)
class Fitted:
    """Predictions of the networks of one design, in one repetition.

    Attributes:
        held_out: Predictions of samples by a network that was not trained on them, (N,).
        target: Labels of the samples, (N,).
        fresh: Predictions for fresh inputs, of one network or of an ensemble, (FRESH,).
        truth: Probabilities of the classes, (FRESH, K).
    """

    held_out: ClassDistribution
    target: Tensor
    fresh: ClassDistribution
    truth: Tensor


def repetitions(cell: Cell, numbers: Sequence[int]) -> Iterator[dict[str, Fitted]]:
    """Draw tasks, train the networks of all of them, and return each one's designs by name.

    Args:
        cell: Kind of task.
        numbers: Seeds of the repetitions.
    """
    rngs = [np.random.default_rng([number, cell.samples, cell.classes]) for number in numbers]
    tasks = [Clusters(cell.classes, rng) for rng in rngs]
    drawn = [task.draw(cell.samples, rng) for task, rng in zip(tasks, rngs, strict=True)]
    x = torch.as_tensor(np.stack([parts[0] for parts in drawn]), dtype=torch.float32)
    y = torch.as_tensor(np.stack([parts[1] for parts in drawn]))
    generator = torch.Generator().manual_seed(numbers[0])
    fold = torch.arange(cell.samples) * FOLDS // cell.samples
    folds = Trained(cell, x, y, [fold == number for number in range(FOLDS)], generator)
    wide = Trained(cell, x, y, [fold < 2], generator)  # two fifths
    for index, (task, rng) in enumerate(zip(tasks, rngs, strict=True)):
        inputs, _, known = task.draw(FRESH, rng)
        fresh, truth = torch.as_tensor(inputs, dtype=torch.float32), torch.as_tensor(known)
        samples, target = torch.arange(cell.samples), y[index]
        held_out = folds.predict(index, x[index])[samples, fold]
        members, first, two = folds.predict(index, fresh), fold == 0, fold < 2
        yield {
            "80/20": Fitted(held_out[first], target[first], members[:, 0], truth),
            "60/40": Fitted(
                wide.predict(index, x[index, two])[:, 0],
                target[two],
                wide.predict(index, fresh)[:, 0],
                truth,
            ),
            "folds": Fitted(held_out, target, members.mixture(), truth),
        }


class Trained:
    """Networks for each repetition, one for each part that is held out.

    Args:
        cell: Kind of task.
        x: Inputs of each repetition, (R, N, D).
        y: Labels, (R, N).
        parts: Samples that a network is not trained on, bool (N,) each.
        generator: Draws weights and batches.
    """

    def __init__(
        self, cell: Cell, x: Tensor, y: Tensor, parts: list[Tensor], generator: torch.Generator
    ) -> None:
        self.each, self.method = len(parts), IEDL()
        inputs, target = (
            torch.stack([values[~part] for values in each for part in parts]) for each in (x, y)
        )
        self.mean, self.std = inputs.mean(1, keepdim=True), inputs.std(1, keepdim=True)
        inputs = (inputs - self.mean) / self.std
        self.networks = Networks(inputs, cell.classes, generator)
        self.networks.train(target, self.method, cell.epochs or 60)

    def predict(self, repetition: int, x: Tensor) -> ClassDistribution:
        """Predict with all networks of a repetition: (N, D) -> (N, S)."""
        own = slice(repetition * self.each, (repetition + 1) * self.each)
        outputs = self.networks.outputs((x - self.mean[own]) / self.std[own], own)
        return self.method.distribution(outputs.transpose(0, 1))


# --- results ---


def record(fitted: Fitted) -> dict[str, list[float]]:
    """Fit policies, and return the share answered and the true error rate among it, by level."""
    label = fitted.held_out.probs.argmax(-1)
    point = fitted.fresh.probs.argmax(-1)
    risk = 1 - fitted.truth.gather(-1, point[:, None])[:, 0]
    results = {}
    for level in LEVELS:
        policy = Policy.control_error(
            fitted.held_out,
            label != fitted.target,
            level,
            ood_score=IEDL.ood_score,
            false_alarms=0.05,
        )
        accepted = policy.decide(fitted.fresh) == 0
        error = risk[accepted].mean().item() if bool(accepted.any()) else 0.0
        results[str(level)] = [accepted.double().mean().item(), error]
    return results


def intervals(cell: Cell, number: int) -> dict[str, dict[str, list[float]]]:
    """Fit both regressors, and return what their intervals hold, by design and level.

    Args:
        cell: Kind of task.
        number: Seed of the repetition.

    Returns:
        True coverage, mean width, and coverage in the fifths of the inputs by their noise.
    """
    rng, task = np.random.default_rng([number, cell.samples]), Numbers()
    x, y, _ = task.draw(cell.samples, rng)
    fresh, _, known = task.draw(FRESH, rng)
    epochs: dict[str, Any] = {} if cell.epochs is None else {"epochs": cell.epochs}
    model = EvidentialRegressor(levels=INTERVALS, random_state=number, **epochs).fit(x, y)
    train = cell.samples * 4 // 5
    inputs, target = StandardScaler().fit(x[:train]), StandardScaler().fit(y[:train, None])
    plain = MLPRegressor(random_state=number, max_iter=cell.epochs or 200)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # its defaults are what is compared
        plain.fit(inputs.transform(x[:train]), target.transform(y[:train, None])[:, 0])

    def predict(values: Array) -> Array:
        mean: Array = target.inverse_transform(plain.predict(inputs.transform(values))[:, None])
        return mean[:, 0]

    errors = torch.from_numpy(np.abs(y[train:] - predict(x[train:])))[:, None]
    order = np.argsort(known[:, 1])
    results: dict[str, dict[str, list[float]]] = {"default": {}, "plain": {}}
    for level in INTERVALS:
        (half,), middle = conformal_quantiles(errors, level), predict(fresh)
        ends = {
            "default": model.predict_interval(fresh, level),
            "plain": (middle - half, middle + half),
        }
        for design, (lower, upper) in ends.items():
            inside = norm.cdf(upper, *known.T) - norm.cdf(lower, *known.T)
            fifths = [part.mean() for part in np.array_split(inside[order], 5)]
            results[design][str(level)] = [inside.mean(), (upper - lower).mean(), *fifths]
    return results


def run(cell: Cell, path: Path, count: int, at_once: int = 20) -> list[dict[str, Any]]:
    """Return the results of a cell's repetitions; run those that the file does not have.

    Args:
        cell: Kind of task.
        path: File with a line of JSON for each repetition.
        count: Number of repetitions.
        at_once: Number of repetitions whose networks are trained together.
    """
    lines = path.read_text().splitlines() if path.exists() else []
    found = [line for line in map(json.loads, lines) if line["cell"] == cell.name]
    done = {line["number"] for line in found}
    at_once = at_once if cell.classes else 1
    for start in range(0, count, at_once):
        numbers = range(start, min(start + at_once, count))
        if done.issuperset(numbers):
            continue
        if cell.classes:
            designs = [*repetitions(cell, numbers)]
            each = [{name: record(own) for name, own in one.items()} for one in designs]
        else:
            each = [intervals(cell, start)]
        for number, results in zip(numbers, each, strict=True):
            if number not in done:
                found.append({"cell": cell.name, "number": number, "results": results})
                with path.open("a") as file:
                    file.write(json.dumps(found[-1]) + "\n")
    return found


def summary(cell: Cell, lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Return a line of text for each design and setting of a cell."""
    for design, settings in lines[0]["results"].items():
        for setting in settings:
            values = np.array([line["results"][design][setting] for line in lines])
            first, second, *fifths = values.T
            text = f"{cell.name}, {design}, {setting}: {len(values)} repetitions, "
            if cell.classes:
                broken, count = int((second > float(setting)).sum()), len(values)
                low, high = binomtest(broken, count).proportion_ci()
                text += (
                    f"broken {broken / count:.1%} [{low:.1%}, {high:.1%}], "
                    f"answered {first.mean():.1%}, nothing {(first == 0).mean():.0%}"
                )
            else:
                error = first.std() / len(first) ** 0.5
                shares = " ".join(f"{100 * fifth.mean():.0f}" for fifth in fifths)
                text += (
                    f"coverage {first.mean():.1%} ± {error:.1%}, by noise {shares}, "
                    f"width {second.mean():.2f}"
                )
            yield text


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: Command line without the program's name.
    """
    parser = argparse.ArgumentParser(
        prog="python -m reproduction.promise",
        description="Measure how often guarantees break. The same command resumes.",
    )
    parser.add_argument("cells", nargs="*", help="names of cells, such as 'K=5, n=300'; all")
    parser.add_argument("--repetitions", type=int, default=300, help="in each cell; 300")
    parser.add_argument("--out", type=Path, default=Path("runs/promise.jsonl"), help="results")
    options = parser.parse_args(arguments)
    unknown = set(options.cells) - {cell.name for cell in CELLS}
    if unknown:
        parser.error(f"unknown cells: {', '.join(sorted(unknown))}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    for cell in CELLS:
        if not options.cells or cell.name in options.cells:
            lines = run(cell, options.out, options.repetitions)
            print(*summary(cell, lines), sep="\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
