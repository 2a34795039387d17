"""Inputs and measures for the tests of the numerics."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from dubito.numerics.spec import LossSpec
from tests.accuracy import LARGEST, MEDIAN, Errors
from tests.accuracy_grid import Case, Grid

IEDL = ("fisher_bias", "fisher_variance", "fisher_penalty", "label_removed_kl")
BETA = 101.0
SAMPLE = {
    2: Grid(2),
    10: Grid(10),
    100: Grid(100, sizes=(0.0, 1e-4, 1e-2, 1.0, 1e3, 1e8, 1e30)),
    1000: Grid(1000, sizes=(0.0, 1e-4, 1.0, 1e5, 1e12, 1e30)),
    10000: Grid(10000, sizes=(0.0, 1e-2, 1e3, 1e20)),
}


def passes(errors: Errors, largest: float = LARGEST, median: float = MEDIAN) -> None:
    figures = ", ".join(f"{key} {value:.1e}" for key, value in errors.figures().items())
    ok = errors.passes(largest, median)
    assert ok, f"{'' if errors.finite else 'NOT FINITE '}{figures}\n{errors.worst}"


def below_one(classes: int, low: float, high: float, draws: int = 6) -> tuple[Case, ...]:
    """Vectors of entries from 10^low to 10^high."""
    seeds = [(97, classes, round(low + 50), round(high + 50), draw) for draw in range(draws)]
    values = (10 ** np.random.default_rng(seed).uniform(low, high, classes) for seed in seeds)
    name = f"1e{low:g} to 1e{high:g}"
    return tuple(Case(name, v.astype(np.float32), s) for v, s in zip(values, seeds, strict=True))


def inputs(lead: tuple[int, ...], classes: int = 3, low: float = -0.7) -> tuple[Tensor, Tensor]:
    """alpha from 10^low to 50 and a soft target, in float64."""
    exponents = torch.empty(*lead, classes, dtype=torch.float64).uniform_(low, 1.7)
    return (10**exponents).requires_grad_(), torch.randn_like(exponents).softmax(-1)


def loss_and_gradient(
    backend: Callable[..., tuple[Tensor, Tensor]],
    spec: LossSpec,
    values: Tensor,
    target: Tensor,
    weights: Tensor,
    class_weight: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    values = values.detach().requires_grad_()
    loss, sums = backend(spec, values, target, weights, class_weight)
    (gradient,) = torch.autograd.grad(loss.sum(), values)
    assert not sums.requires_grad
    return loss.detach(), gradient, sums
