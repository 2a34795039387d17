"""One example of each kind of distribution, for the contract tests."""

from collections.abc import Callable

import torch
from torch import Tensor

from dubito.distributions import (
    Categorical,
    Dirichlet,
    Distribution,
    FlexibleDirichlet,
    NormalInverseGamma,
    NormalInverseWishart,
)
from dubito.distributions.dirichlet_mixture import DirichletMixture
from dubito.distributions.normal import Normal
from dubito.distributions.quantiles import Quantiles

CLASSES = 4
#: name -> (outputs per sample, distribution of outputs (..., M))
KINDS: dict[str, tuple[int, Callable[[Tensor], Distribution]]] = {
    "dirichlet": (CLASSES, lambda z: Dirichlet(z.exp() + 0.1, prior=0.1)),
    "dirichlet_from_logits": (CLASSES, Dirichlet.from_logits),
    "dirichlet_small_prior": (CLASSES, lambda z: Dirichlet.from_logits(z, prior=0.1)),
    "dirichlet_without_prior": (CLASSES, lambda z: Dirichlet.from_logits(z, "exp", prior=0.0)),
    "flexible_dirichlet": (2 * CLASSES + 1, FlexibleDirichlet.from_outputs),
    "dirichlet_mixture": (3 * CLASSES, DirichletMixture.from_outputs),
    "categorical": (CLASSES, Categorical.from_logits),
    "normal": (4, Normal.from_outputs),
    "normal_inverse_gamma": (8, NormalInverseGamma.from_outputs),
    "normal_inverse_wishart": (6, NormalInverseWishart.from_outputs),
    "regression_quantiles": (10, lambda z: Quantiles.from_outputs(z, (0.05, 0.25, 0.5, 0.75, 0.9))),
}


Build = Callable[[Tensor], Distribution]


def _mixture(build: Build, axes: int) -> Build:
    def mixed(outputs: Tensor) -> Distribution:
        dist = build(outputs)
        for _ in range(axes):
            dist = dist.mixture()
        return dist

    return mixed


#: name -> (shape of the outputs of one sample, distribution of outputs (..., *shape))
EXAMPLES: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Distribution]]] = {
    **{name: ((size,), build) for name, (size, build) in KINDS.items()},
    **{
        f"mixture_of_{name}": ((3, size), _mixture(build, 1))
        for name, (size, build) in KINDS.items()
        if name not in ("dirichlet", "dirichlet_small_prior")  # like the one from logits
    },
    "mixture_of_mixtures": ((2, 3, CLASSES), _mixture(Dirichlet.from_logits, 2)),
    "mixture_of_regression_mixtures": ((2, 3, 8), _mixture(NormalInverseGamma.from_outputs, 2)),
}


def outputs_of(name: str, *batch: int, seed: int = 0) -> Tensor:
    shape, _ = EXAMPLES[name]
    return torch.randn(*batch, *shape, generator=torch.Generator().manual_seed(seed))


def build(name: str, outputs: Tensor) -> Distribution:
    return EXAMPLES[name][1](outputs)
