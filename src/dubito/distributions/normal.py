"""Normal distribution of a number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from dubito import _checks
from dubito.distributions.normal_inverse_gamma import blocks, positive
from dubito.distributions.regression import PredictiveOnly, StudentT
from dubito.numerics import student

__all__: list[str] = []

#: Lower bound of the outputs of a network: a deviation of 3e-7 is less than float32 resolves.
LEAST_OUTPUT = -30.0


class Normal(PredictiveOnly):
    """Normal distribution of each of T values, without uncertainty about its parameters.

    All uncertainty is aleatoric. A mixture of these, as of an ensemble or of MC Dropout samples,
    has an epistemic part: the disagreement of its members.

    Args:
        mu: Means, (..., T).
        sigma: Standard deviations > 0, (..., T).

    >>> dist = Normal.from_outputs(torch.tensor([[1.0, 0.5413]]))
    >>> dist.mean, dist.aleatoric, dist.epistemic
    (tensor([[1.]]), tensor([1.0000]), tensor([0.]))
    """

    tensors: ClassVar[Mapping[str, int]] = {"mu": 1, "sigma": 1}
    mu: Tensor
    sigma: Tensor

    def __init__(self, mu: Tensor, sigma: Tensor) -> None:
        values = (("mu", mu), ("sigma", sigma))
        self.mu, self.sigma = torch.broadcast_tensors(
            *(_checks.at_least_float32(_checks.tensor(value, name)) for name, value in values)
        )

    @classmethod
    def from_outputs(cls, outputs: Tensor) -> Normal:
        """Create from the outputs of a network.

        Args:
            outputs: Two blocks of T values, (..., 2T): mu, and the variance before its softplus,
                where outputs below -30 count as -30 but keep their gradient.
        """
        mu, raw = blocks(outputs, 2)
        return cls(mu, positive(raw, LEAST_OUTPUT).sqrt())

    @property
    def mean(self) -> Tensor:
        """Mean mu: (..., T)."""
        return self.mu

    @property
    def variance(self) -> Tensor:
        """Variance sigma^2: (..., T)."""
        return self.sigma.square()

    @property
    def predictive(self) -> StudentT:
        """Normal distribution, as a Student-t of many degrees of freedom."""
        return StudentT(torch.full_like(self.mu, student.NORMAL), self.mu, self.sigma)

    def affine(self, scale: Tensor, shift: Tensor) -> Normal:
        """Return the distribution about scale * y + shift; see `RealDistribution.affine`."""
        return Normal(self.mu * scale + shift, self.sigma * scale)
