r"""The span of the support features, in which a linear classifier moves that starts at zero.

With X (N, D + 1) the support features and a column of ones, every gradient in the weights
W (M, D + 1) is a combination of the rows of X. So W = Z X, and with a factor A A' = X X' the
coordinates B = Z A have the lengths and angles of W: outputs W X' = B A', gradients and steps of
L-BFGS are the same, in N coordinates per output instead of D + 1. If N is larger, A = X and B = W.
"""

import torch
from torch import Tensor

#: share of the largest entry of a Gram matrix below which a pivot is rounding
SINGULAR = 1e-12


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
