r"""The span of the support features, in which a linear classifier moves that begins at zero.

With X (N, D + 1) the support features and a column of ones, every gradient by the weights W is
X' times something. So W = X' Z, and with a factor A A' = X X' the coordinates B = A' Z have the
lengths and angles of W: logits X W = A B, gradients A' (...) and steps of L-BFGS are the same, in N
coordinates a class instead of D + 1. Where N is the larger, A = X and B = W.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Design", "design_of"]

_WEAK = 1e-12  # of a Gram matrix's largest entry: what is below is rounding


@dataclass(frozen=True)
class Design:
    """A factor A (E, N, R) of the support's Gram matrices, and the support X (E, N, D + 1).

    The factor is triangular (Cholesky's), but where `weak` (E,) says that it is made of
    eigenvectors, because a matrix is singular; with more samples than dimensions it is X itself.
    """

    factor: Tensor
    support: Tensor
    weak: Tensor | None = None
    is_support: bool = False

    @property
    def is_triangular(self) -> bool:
        """Whether all factors are lower triangles."""
        return self.weak is None and not self.is_support

    def weights(self, coordinates: Tensor) -> Tensor:
        """From coordinates B (E, R, K) to the weights and the bias W (E, D + 1, K)."""
        if self.is_support:
            return coordinates.to(self.support.dtype)
        exact = coordinates.to(self.factor.dtype)
        if self.weak is None:
            dual = _solved(self.factor, exact)
        else:
            dual = torch.empty_like(exact)
            dual[~self.weak] = _solved(self.factor[~self.weak], exact[~self.weak])
            dual[self.weak] = _unrotated(self.factor[self.weak], exact[self.weak])
        return self.support.mT @ dual.to(self.support.dtype)


def _solved(factor: Tensor, coordinates: Tensor) -> Tensor:
    """Z of A' Z = B for a lower triangle A."""
    dual: Tensor = torch.linalg.solve_triangular(factor.mT, coordinates, upper=True)
    return dual


def _unrotated(factor: Tensor, coordinates: Tensor) -> Tensor:
    """The same where the columns of A are orthogonal, and zero where the rank ends."""
    squares = factor.square().sum(-2).unsqueeze(-1)
    return factor @ torch.where(squares > 0, coordinates / squares, 0)


def design_of(features: Tensor) -> Design:
    """The design of support features (E, N, D), its factor in float64.

    >>> design = design_of(torch.eye(3)[None, :2])
    >>> design.factor @ design.factor.mT
    tensor([[[2., 1.], [1., 2.]]], dtype=torch.float64)
    """
    support = torch.nn.functional.pad(features, (0, 1), value=1.0)
    exact = support.double()
    if support.shape[-2] >= support.shape[-1]:
        return Design(exact, support, is_support=True)
    gram = exact @ exact.mT
    factor, failed = torch.linalg.cholesky_ex(gram)
    # a sample that is twice in the support makes a matrix singular, or nearly so
    least = _WEAK * gram.diagonal(dim1=-2, dim2=-1).amax(-1)
    pivots = factor.diagonal(dim1=-2, dim2=-1).square().amin(-1)
    weak = (failed != 0) | ~(pivots > least)
    if not bool(weak.any()):
        return Design(factor, support)
    values, vectors = torch.linalg.eigh(gram[weak])
    lengths = torch.where(values > _WEAK * values[..., -1:], values, 0).sqrt()
    factor[weak] = vectors * lengths.unsqueeze(-2)
    return Design(factor, support, weak)
