"""Closed forms of the Dirichlet and evidence functions: values and derivatives by formula."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dubito.numerics.quantities import Quantities
from dubito.numerics.spec import EXP_BOUND

__all__: list[str] = []


class Slopes(NamedTuple):
    """Partial derivatives: the gradient in alpha is direct + centered(probs)/alpha0.

    `direct` is (..., K) or (..., 1); `probs` (..., K) is the derivative in the probabilities.
    """

    direct: Tensor | None = None
    probs: Tensor | None = None


class Form(NamedTuple):
    """Value (..., 1) and partial derivatives of a closed form."""

    value: Callable[[Quantities], Tensor]
    slopes: Callable[[Quantities], Slopes]


def _fisher_variance_slopes(m: Quantities) -> Slopes:
    direct = m.fisher_spread * m.each.log_trigamma_slope - m.fisher_spread_sum * m.inverse1
    return Slopes(direct, m.spread_slope * m.fisher_weight)


def _fisher_penalty(m: Quantities) -> Tensor:
    each, total = m.sum(m.each.log_inverse_trigamma), m.total.log_inverse_trigamma
    value: Tensor = each + (total - m.xp.log(m.bracket))
    return value


def _fisher_penalty_slopes(m: Quantities) -> Slopes:
    inverse, each, total = m.xp.reciprocal(m.bracket), m.each, m.total
    common = total.log_trigamma_slope + total.inverse_trigamma_excess_slope * inverse
    slopes = each.inverse_trigamma_excess_slope * inverse - each.log_trigamma_slope
    return Slopes(slopes - common)


def _entropy_of_mean(m: Quantities) -> Tensor:
    return m.sum(m.probs * m.surprise)


def _expected_entropy_slopes(m: Quantities) -> Slopes:
    deficits = m.each.trigamma_deficit - m.total.trigamma_deficit
    return Slopes(deficits * m.inverse0, m.digamma_steps)


def _mutual_information(m: Quantities) -> Tensor:
    return m.sum(m.probs * m.gap_differences)


def _mutual_information_slopes(m: Quantities) -> Slopes:
    moments = m.each.digamma_gap_moment - m.total.digamma_gap_moment
    return Slopes((moments - _mutual_information(m)) * m.inverse0)


FORMS: dict[str, Form] = {
    "mse_bias": Form(
        lambda m: m.sum(m.residual * m.residual),
        lambda m: Slopes(probs=m.residual + m.residual),
    ),
    "mse_variance": Form(
        lambda m: m.mean_spread,
        lambda m: Slopes(-m.mean_spread * m.inverse1, m.spread_slope * m.inverse1),
    ),
    "fisher_bias": Form(
        lambda m: m.sum(m.fisher_squares),
        lambda m: Slopes(
            m.fisher_squares * m.each.log_trigamma_slope, m.fisher_residual + m.fisher_residual
        ),
    ),
    "fisher_variance": Form(lambda m: m.fisher_spread_sum, _fisher_variance_slopes),
    "fisher_penalty": Form(_fisher_penalty, _fisher_penalty_slopes),
    "label_removed_kl": Form(
        lambda m: m.label_removed.value, lambda m: Slopes(m.label_removed.slope * m.non_target)
    ),
    "marginal_nll": Form(lambda m: m.sum(m.y * m.surprise), lambda m: Slopes(m.residual / m.alpha)),
    "expected_cross_entropy": Form(
        lambda m: m.sum(m.y * m.digamma_differences),
        lambda m: Slopes(m.non_target * m.total.trigamma - m.y * m.trigamma_differences),
    ),
    "entropy_of_mean": Form(_entropy_of_mean, lambda m: Slopes(probs=m.surprise)),
    "expected_entropy": Form(lambda m: m.sum(m.probs * m.digamma_steps), _expected_entropy_slopes),
    "mutual_information": Form(_mutual_information, _mutual_information_slopes),
    "differential_entropy": Form(
        lambda m: -m.from_one.value - math.lgamma(m.num_classes),
        lambda m: Slopes(-m.from_one.slope),
    ),
    "kl_to_uniform": Form(lambda m: m.from_one.value, lambda m: Slopes(m.from_one.slope)),
    "kl_from_uniform": Form(
        lambda m: m.from_uniform.value, lambda m: Slopes(m.from_uniform.slope_second)
    ),
    "reverse_kl": Form(lambda m: m.to_target.value, lambda m: Slopes(m.to_target.slope)),
    "forward_kl": Form(lambda m: m.from_target.value, lambda m: Slopes(m.from_target.slope_second)),
}


def weighted_gradient(
    m: Quantities, forms: Sequence[str], weights: Sequence[float | Tensor]
) -> Tensor:
    """Gradient of the weighted sum of forms, with weights () or (..., 1): (..., K)."""
    direct: list[Tensor] = []
    probs: list[Tensor] = []
    for form, weight in zip(forms, weights, strict=True):
        for parts, slope in zip((direct, probs), FORMS[form].slopes(m), strict=True):
            if slope is not None:
                parts.append(slope * weight)
    if probs:
        direct.append(m.centered(sum(probs[1:], probs[0])) * m.inverse0)
    return sum(direct[1:], direct[0])


# --- evidence functions ---


def _exp(logits: Tensor) -> Tensor:
    return logits.clamp(max=EXP_BOUND).exp()


#: name -> function from logits to evidence >= 0, and its derivative from logits and evidence
EVIDENCE: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    "softplus": (torch.nn.functional.softplus, lambda x, e: x.sigmoid()),
    "relu": (torch.nn.functional.relu, lambda x, e: (x > 0).to(x.dtype)),
    "exp": (_exp, lambda x, e: torch.where(x > EXP_BOUND, 0, e)),
}
