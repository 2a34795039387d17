"""Normal-inverse-Wishart distribution over the mean and covariance of several numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from dubito import _checks
from dubito.distributions.normal import LEAST_OUTPUT
from dubito.distributions.normal_inverse_gamma import NormalInverse, positive
from dubito.distributions.regression import StudentT
from dubito.errors import DubitoError
from dubito.numerics import student
from dubito.targets import Target

__all__ = ["NormalInverseWishart"]


class NormalInverseWishart(NormalInverse):
    r"""Normal-inverse-Wishart distribution of T correlated values.

    .. math:: y \sim N(\mu, \Sigma),\quad \mu \sim N(\gamma, \Sigma/\nu),\quad
              \Sigma \sim W^{-1}(\Psi,\ m + T + 1)

    Uncertainties are sums of variances. With T = 1 it is a normal-inverse-gamma of alpha = 1 + m/2
    and beta = Psi/2.

    Args:
        gamma: Means, (..., T).
        nu: Number of virtual observations of the mean, > 0, (..., 1).
        excess: Degrees of freedom m of the predictive beyond 2, > 0, (..., 1).
        scale: Roots > 0 of the diagonal of Psi, (..., T).
        coupling: What the correlations follow from, (..., T (T - 1)/2): the rows below the diagonal
            of a lower triangular matrix with ones on it. Each row, divided by its norm, is one of
            the Cholesky factor of the correlations.

    >>> dist = NormalInverseWishart.from_outputs(torch.tensor([[1.0, 2.0, 0.0, 0.0, 0.0, 1.0]]))
    >>> dist.mean, dist.covariance
    (tensor([[1., 2.]]), tensor([[[2.4427, 1.7273],
             [1.7273, 2.4427]]]))
    """

    tensors: ClassVar[Mapping[str, int]] = {
        "gamma": 1, "nu": 1, "excess": 1, "scale": 1, "coupling": 1,
    }  # fmt: skip
    excess: Tensor
    scale: Tensor
    coupling: Tensor

    def __init__(
        self, gamma: Tensor, nu: Tensor, excess: Tensor, scale: Tensor, coupling: Tensor
    ) -> None:
        values = zip(self.tensors, (gamma, nu, excess, scale, coupling), strict=True)
        for name, value in values:
            setattr(self, name, _checks.at_least_float32(_checks.tensor(value, name)))

    @classmethod
    def from_outputs(cls, outputs: Tensor) -> NormalInverseWishart:
        """Create from the outputs of a network, with nu equal to the excess.

        The likelihood alone does not determine nu.

        Args:
            outputs: The blocks gamma, (..., T), and the squared scale, (..., T), and the excess,
                (..., 1), before their softplus, where outputs below -30 count as -30 but keep their
                gradient; and the coupling.
        """
        size = (math.isqrt(8 * _checks.tensor(outputs, "outputs").shape[-1] + 1) - 3) // 2
        if size < 1 or outputs.shape[-1] != count(size):
            raise DubitoError(
                f"outputs has {outputs.shape[-1]} values per sample: expected 3, 6, 10, ... for "
                "1, 2, 3, ... targets"
            )
        parts = (size, size, 1, count(size) - 2 * size - 1)
        gamma, square, excess, coupling = _checks.at_least_float32(outputs).split(parts, -1)
        excess = positive(excess, LEAST_OUTPUT)
        return cls(gamma, excess, excess, positive(square, LEAST_OUTPUT).sqrt(), coupling)

    @property
    def covariance(self) -> Tensor:
        """Covariance Psi/m (1 + 1/nu) of the predictive: (..., T, T)."""
        factor = self._factor * self.variance.sqrt().unsqueeze(-1)
        covariance: Tensor = factor @ factor.mT
        return covariance.to(self.gamma.dtype)

    @property
    def noise(self) -> Tensor:
        """Diagonal Psi/m of the expected covariance around the means: (..., T)."""
        return self.scale.square() / self.excess

    @property
    def _factor(self) -> Tensor:
        """Cholesky factor of the correlations in float64: (..., T, T)."""
        size = self.gamma.shape[-1]
        place = torch.full((size, size), -2, device=self.device)  # where a matrix has zeros
        rows, columns = torch.tril_indices(size, size, -1, device=self.device)
        place[rows, columns] = torch.arange(len(rows), device=self.device)
        place.fill_diagonal_(-1)
        coupling = self.coupling.double()
        ends = coupling.new_tensor([0, 1]).expand(*coupling.shape[:-1], 2)
        matrix = torch.cat([coupling, ends], -1)[..., place % (len(rows) + 2)]
        factor: Tensor = matrix / torch.linalg.vector_norm(matrix, dim=-1, keepdim=True)
        return factor

    # --- predictive ---

    @property
    def predictive(self) -> MultivariateStudentT:
        """Multivariate Student-t distribution with m + 2 degrees of freedom."""
        share = (1 + self.nu.reciprocal()) / (self.excess + 2)
        return MultivariateStudentT(
            self.excess, self.gamma, self.scale * share.sqrt(), self._factor
        )

    def affine(self, scale: Tensor, shift: Tensor) -> NormalInverseWishart:
        """Return the distribution about scale * y + shift; see `RealDistribution.affine`."""
        gamma = self.gamma * scale + shift
        return NormalInverseWishart(gamma, self.nu, self.excess, self.scale * scale, self.coupling)


def count(size: int) -> int:
    """Return the number of outputs for T targets.

    >>> [count(size) for size in (1, 2, 3)]
    [3, 6, 10]
    """
    return (size + 1) * (size + 2) // 2


class MultivariateStudentT(StudentT):
    """Student-t distribution of T correlated values; those of `StudentT` are its marginals.

    Args:
        df_minus_two: Degrees of freedom less 2: > 0, (..., 1).
        loc: Means, (..., T).
        scale: Scales > 0 of the marginals, (..., T).
        factor: Cholesky factor of the correlations, (..., T, T) float64.
    """

    def __init__(self, df_minus_two: Tensor, loc: Tensor, scale: Tensor, factor: Tensor) -> None:
        super().__init__(df_minus_two, loc, scale)
        self.factor = factor

    def scaled(self, factor: Tensor) -> MultivariateStudentT:
        """Multiply the scale; see `StudentT.scaled`."""
        wide = super().scaled(factor)
        return MultivariateStudentT(wide.df_minus_two, wide.loc, wide.scale, self.factor)

    def log_probs(self, value: Tensor | Target) -> Tensor:
        """Log density of each value of a target (..., T), given those before it: (..., T).

        Samples with missing or censored values count with the marginals of the others.
        """
        if isinstance(value, Target):
            each = super().log_probs(value)
            complete = torch.ones_like(each, dtype=torch.bool) & ~value.censored
            if value.weight is not None and value.weight.ndim == each.ndim:
                complete = complete & (value.weight > 0)
            joint = self._conditionals(value.values)
            return torch.where(complete.all(-1, keepdim=True), joint, each)
        return self._conditionals(value)

    def _conditionals(self, value: Tensor) -> Tensor:
        excess, factor = self.df_minus_two.double(), self.factor
        z = self._standardized(value).unsqueeze(-1)
        z = torch.linalg.solve_triangular(factor, z, upper=False).squeeze(-1)
        before = torch.arange(z.shape[-1], device=z.device)
        past = torch.cat([torch.zeros_like(z[..., :1]), z[..., :-1].square().cumsum(-1)], -1)
        spread = ((excess + 2 + past) / (excess + 2 + before)).sqrt()
        scale = self.scale.double() * factor.diagonal(dim1=-2, dim2=-1)
        each = student.log_density(excess + before, z * scale, spread * scale)
        return each.to(value.dtype)
