"""Functions of alpha, (..., K), with exact gradients: closed forms, divergences and moments."""

from functools import partial

import numpy as np
import torch
from torch import Tensor

from dubito.numerics.autograd import Tensors, by_formula, by_rows, is_wide
from dubito.numerics.dissonance import dissonance_slope, dissonance_value
from dubito.numerics.float32 import FastQuantities, above, classes_first
from dubito.numerics.forms import FORMS, weighted_gradient
from dubito.numerics.quantities import KL, Quantities

__all__: list[str] = []


def _quantities(alpha: Tensor) -> Quantities:
    return Quantities(alpha, wide=is_wide(alpha))


def evaluate(
    forms: tuple[str, ...],
    alpha: Tensor,
    y: Tensor | None = None,
    *,
    prior: float = 1.0,
    beta: float = 1.0,
    wide: bool = True,
) -> tuple[Tensor, ...]:
    """Evaluate closed forms, differentiable in alpha.

    Args:
        forms: Names of `FORMS`.
        alpha: Concentrations > 0, (..., K).
        y: Soft target, a constant, (..., K), if a form needs one.
        prior: Constant in alpha = evidence + prior; 0 if there is none.
        beta: Concentration of the target class for "reverse_kl" and "forward_kl".
        wide: Compute float32 in float64 if possible, which only alpha below 1 needs.

    Returns:
        Values of the forms, (...) each.
    """
    wide = wide and is_wide(alpha)

    def quantities(alpha: Tensor, y: Tensor | None = None) -> Quantities:
        return Quantities(alpha, y, prior=prior, beta=beta, wide=wide)

    def values(*tensors: Tensor) -> Tensors:
        m = quantities(*tensors)
        return tuple(FORMS[form].value(m).squeeze(-1).to(alpha.dtype) for form in forms)

    def slopes(*tensors: Tensor) -> Tensors:
        inputs, grads = tensors[: -len(forms)], tensors[-len(forms) :]
        weights = [grad.unsqueeze(-1).to(torch.float64 if wide else grad.dtype) for grad in grads]
        return (weighted_gradient(quantities(*inputs), forms, weights).to(alpha.dtype),)

    def gradients(grads: Tensors, *tensors: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = by_rows(slopes, *tensors, *grads)
        return (slope, *(None for _ in tensors[1:]))

    tensors = (alpha,) if y is None else (alpha, y)
    return by_formula(partial(by_rows, values), gradients, *tensors)


def _kl_values(alpha: Tensor, beta: Tensor) -> Tensors:
    return (KL(_quantities(alpha), _quantities(beta)).value.squeeze(-1).to(alpha.dtype),)


def _kl_gradients(grads: Tensors, alpha: Tensor, beta: Tensor) -> Tensors:
    kl, grad = KL(_quantities(alpha), _quantities(beta)), grads[0].unsqueeze(-1)
    return tuple((grad * slope).to(alpha.dtype) for slope in (kl.slope, kl.slope_second))


def kl_divergence(alpha: Tensor, beta: Tensor) -> Tensor:
    """Compute KL(Dir(alpha) || Dir(beta)), differentiable in both: (..., K), (..., K) -> (...)."""
    return by_formula(_kl_values, _kl_gradients, alpha, beta)[0]


def _dissonance_gradients(grads: Tensors, belief: Tensor) -> Tensors:
    return (grads[0].unsqueeze(-1) * dissonance_slope(belief),)


def dissonance(belief: Tensor) -> Tensor:
    """Compute the dissonance of belief masses >= 0: (..., K) -> (...)."""
    return by_formula(lambda b: (dissonance_value(b),), _dissonance_gradients, belief)[0]


def uncertainty(alpha: Tensor) -> Tensors:
    """Compute total, aleatoric and epistemic uncertainty, sharing their work.

    Returns:
        entropy_of_mean, expected_entropy and mutual_information, (...) each.
    """
    wants_grad = alpha.requires_grad and torch.is_grad_enabled()
    if not wants_grad and above(alpha, 1.0):
        m = FastQuantities(classes_first(alpha))
        with np.errstate(all="ignore"):
            gaps = m.sum(m.each.digamma_gap_scaled) - m.total.digamma_gap_scaled
            scores = gaps / m.alpha0, FORMS["entropy_of_mean"].value(m)
        mutual, entropy = (torch.asarray(score).view(alpha.shape[:-1]) for score in scores)
        return entropy, entropy - mutual, mutual
    return evaluate(("entropy_of_mean", "expected_entropy", "mutual_information"), alpha)


# --- densities ---


def log_density(alpha: Tensor, logs: Tensor) -> Tensor:
    """Compute ln Dir(pi; alpha), in float64, where its large terms cancel least: (...).

    Args:
        alpha: Concentrations > 0, (..., K).
        logs: ln pi, (..., K).
    """
    alpha = alpha.double()
    constant = torch.lgamma(alpha.sum(-1)) - torch.lgamma(alpha).sum(-1)
    return constant + ((alpha - 1) * logs.double()).sum(-1)


def log_density_ratio(alpha: Tensor, tau: Tensor, logs: Tensor) -> Tensor:
    """Compute ln Dir(pi; alpha + tau e_k) - ln Dir(pi; alpha) for each k, in float64: (..., K).

    Args:
        alpha: Concentrations > 0, (..., K).
        tau: Concentration that goes to one class, > 0, (..., 1), or to each, (..., K).
        logs: ln pi, (..., K).
    """
    alpha, tau = alpha.double(), tau.double()
    total = alpha.sum(-1, keepdim=True)
    whole = torch.lgamma(total + tau) - torch.lgamma(total)
    return whole + torch.lgamma(alpha) - torch.lgamma(alpha + tau) + tau * logs.double()


# --- moments ---


def mean(alpha: Tensor) -> Tensor:
    """Compute E[p] = alpha/alpha0: (..., K) -> (..., K)."""
    return _mean(_quantities(alpha)).to(alpha.dtype)


def _mean(m: Quantities) -> Tensor:
    # Near one the gradient of 1 - rest/alpha0 does not cancel.
    top = torch.where(m.dominant, 1 - m.rest / m.alpha0, m.at_top(m.probs))
    return m.with_top(m.probs, top)


def log_mean(alpha: Tensor) -> Tensor:
    """Compute ln(alpha/alpha0), exact near 0 and near 1: (..., K) -> (..., K)."""
    return -_quantities(alpha).surprise.to(alpha.dtype)


def variance(alpha: Tensor) -> Tensor:
    """Compute Var[p] = p (1 - p)/(alpha0 + 1): (..., K) -> (..., K)."""
    m = _quantities(alpha)
    return (_mean(m) * m.complement / (m.alpha0 + 1)).to(alpha.dtype)


def fisher_information(alpha: Tensor) -> Tensor:
    """Compute diag(psi_1(alpha)) - psi_1(alpha0): (..., K) -> (..., K, K)."""
    m = _quantities(alpha)
    diagonal = torch.eye(m.num_classes, dtype=torch.bool, device=alpha.device)
    off = -m.total.trigamma.unsqueeze(-1)
    return torch.where(diagonal, m.trigamma_differences.unsqueeze(-1), off).to(alpha.dtype)
