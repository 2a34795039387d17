r"""The span of the support features, in which a linear classifier moves that starts at zero.

With X (N, D + 1) the support features and a column of ones, every gradient in the weights
W (M, D + 1) is a combination of the rows of X. So W = Z X, and with a factor A A' = X X' the
coordinates B = Z A have the lengths and angles of W: outputs W X' = B A', gradients and steps of
L-BFGS are the same, in N coordinates per output instead of D + 1. If N is larger, A = X and B = W.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

__all__ = ["Design"]

#: share of the largest entry of a Gram matrix below which a pivot is rounding
SINGULAR = 1e-12


class Design(NamedTuple):
    """Factors of the Gram matrices of support features."""

    factor: Tensor
    """(E, N, R), float64: lower triangular unless singular, or the features themselves."""
    singular: Tensor
    """Episodes whose factor has orthogonal columns instead, (E,)."""

    @classmethod
    def of(cls, support: Tensor) -> Design:
        """Factorize.

        Args:
            support: Features with a column of ones, (E, N, D + 1).

        >>> design = Design.of(torch.tensor([[[1.0, 0, 0, 1], [0, 1, 0, 1]]]))
        >>> design.factor @ design.factor.mT
        tensor([[[2., 1.], [1., 2.]]], dtype=torch.float64)
        """
        exact = support.double()
        if support.shape[-2] >= support.shape[-1]:
            return cls(exact, torch.zeros(len(exact), dtype=torch.bool, device=exact.device))
        gram = exact @ exact.mT
        factor, failed = torch.linalg.cholesky_ex(gram)
        # A sample that occurs twice makes a matrix singular, or nearly so.
        least = SINGULAR * gram.diagonal(dim1=-2, dim2=-1).amax(-1)
        pivots = factor.diagonal(dim1=-2, dim2=-1).square().amin(-1)
        singular = (failed != 0) | ~(pivots > least)
        if bool(singular.any()):
            values, vectors = torch.linalg.eigh(gram[singular])
            lengths = torch.where(values > SINGULAR * values[..., -1:], values, 0).sqrt()
            factor[singular] = vectors * lengths.unsqueeze(-2)
        return cls(factor, singular)

    def weights(self, coordinates: Tensor, support: Tensor) -> Tensor:
        """Convert coordinates (E, M, R) to weights and bias (E, M, D + 1)."""
        if support.shape[-2] >= support.shape[-1]:
            return coordinates.to(support.dtype)
        exact = coordinates.to(self.factor.dtype)
        dual: Tensor = torch.linalg.solve_triangular(self.factor, exact, upper=False, left=False)
        if bool(self.singular.any()):
            factor = self.factor[self.singular]
            squares = factor.square().sum(-2, keepdim=True)
            scaled = torch.where(squares > 0, exact[self.singular] / squares, 0)
            dual[self.singular] = scaled @ factor.mT
        return dual.to(support.dtype) @ support


def with_ones(features: Tensor) -> Tensor:
    """Append a column of ones, for the bias."""
    return pad(features, (0, 1), value=1.0)
