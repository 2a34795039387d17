"""Closed forms of the Dirichlet: values and gradients.

Each entry of `FORMS` has a value (..., 1) and its partial derivatives, both functions of `Terms`.
`evaluate` is differentiable twice, forwards and backwards, and works under torch.func,
torch.compile and torch.export.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dubito import _eager
from dubito.distributions._dirichlet_terms import KL, Terms
from dubito.distributions._dissonance import dissonance_slope, dissonance_value
from dubito.distributions._fast_terms import FastTerms
from dubito.kernels._spec import EXP_BOUND

Tensors = tuple[Tensor, ...]


class Slopes(NamedTuple):
    """Partial derivatives: the gradient in alpha is direct + centered(probs)/alpha0.

    `direct` is (..., K) or (..., 1); `probs` (..., K) is the derivative in the probabilities.
    """

    direct: Tensor | None = None
    probs: Tensor | None = None


class Form(NamedTuple):
    """Value (..., 1) and partial derivatives of a closed form."""

    value: Callable[[Terms], Tensor]
    slopes: Callable[[Terms], Slopes]


def _fisher_variance_slopes(m: Terms) -> Slopes:
    direct = m.fisher_spread * m.each.log_trigamma_slope - m.fisher_spread_sum * m.inverse1
    return Slopes(direct, m.spread_slope * m.fisher_weight)


def _fisher_penalty(m: Terms) -> Tensor:
    each, total = m.sum(m.each.log_inverse_trigamma), m.total.log_inverse_trigamma
    value: Tensor = each + (total - m.xp.log(m.bracket))
    return value


def _fisher_penalty_slopes(m: Terms) -> Slopes:
    inverse, each, total = m.xp.reciprocal(m.bracket), m.each, m.total
    common = total.log_trigamma_slope + total.inverse_trigamma_excess_slope * inverse
    slopes = each.inverse_trigamma_excess_slope * inverse - each.log_trigamma_slope
    return Slopes(slopes - common)


def _entropy_of_mean(m: Terms) -> Tensor:
    return m.sum(m.probs * m.surprise)


def _expected_entropy_slopes(m: Terms) -> Slopes:
    deficits = m.each.trigamma_deficit - m.total.trigamma_deficit
    return Slopes(deficits * m.inverse0, m.digamma_steps)


def _mutual_information(m: Terms) -> Tensor:
    return m.sum(m.probs * m.gap_differences)


def _mutual_information_slopes(m: Terms) -> Slopes:
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


def weighted_gradient(m: Terms, forms: Sequence[str], weights: Sequence[Any]) -> Tensor:
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


# --- differentiable functions whose gradients are formulas ---


_Values = Callable[..., Tensors]
_Gradients = Callable[..., tuple[Tensor | None, ...]]


class _ByFormula(torch.autograd.Function):
    """Values by one formula, gradients by another, which is differentiable too.

    `values(*tensors)` are (...) each, and `gradients(grads, *tensors)` one for each tensor.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(values: _Values, gradients: _Gradients, *tensors: Tensor) -> Tensors:
        outputs = values(*tensors)
        if not torch.compiler.is_compiling():
            return outputs
        # Compiled by torch 2.11, an output that is a view would get no gradient.
        return tuple(output.clone() for output in outputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, ctx.gradients, *tensors = inputs
        ctx.count = len(output)
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return (None, None, *ctx.gradients(grads, *ctx.saved_tensors))


class _ByFormulaForward(_ByFormula):
    """With forward-mode AD, which torch.compile does not accept in a function."""

    @staticmethod
    def jvp(ctx: Any, _values: None, _gradients: None, *tangents: Tensor | None) -> Tensors:
        tensors, count = ctx.saved_tensors, ctx.count
        ones, zeros = (f(tensors[0][..., 0]) for f in (torch.ones_like, torch.zeros_like))
        outputs = []
        for i in range(count):
            grads = tuple(ones if j == i else zeros for j in range(count))
            slopes = ctx.gradients(grads, *tensors)
            parts = [
                (slope * tangent).sum(-1)
                for slope, tangent in zip(slopes, tangents, strict=True)
                if slope is not None and tangent is not None
            ]
            outputs.append(sum(parts[1:], parts[0]))
        return tuple(outputs)


def _apply(values: _Values, gradients: _Gradients, *tensors: Tensor) -> Tensors:
    if torch.compiler.is_compiling() and not any(tensor.requires_grad for tensor in tensors):
        return values(*tensors)  # Dynamo counts arguments, and miscounts *tensors
    function = _ByFormula if torch.compiler.is_compiling() else _ByFormulaForward
    return function.apply(values, gradients, *tensors)  # type: ignore[no-any-return, no-untyped-call]


#: entries evaluated at once: a CPU's cache, or a small part of an accelerator's memory
CHUNK_CPU, CHUNK = 1 << 16, 1 << 22


def by_rows(function: Callable[..., Tensors], alpha: Tensor, *more: Tensor) -> Tensors:
    """Apply a function of rows in chunks, so that its temporary tensors take little memory."""
    limit, lead = CHUNK_CPU if alpha.is_cpu else CHUNK, alpha.shape[:-1]
    if torch.compiler.is_compiling() or alpha.ndim < 2 or alpha.numel() <= limit:
        return function(alpha, *more)
    rows = max(limit // alpha.shape[-1], 1)
    flat = [part.reshape(-1, *part.shape[len(lead) :]).split(rows) for part in (alpha, *more)]
    outputs = [function(*parts) for parts in zip(*flat, strict=True)]
    whole = (torch.cat(parts) for parts in zip(*outputs, strict=True))
    return tuple(part.reshape(*lead, *part.shape[1:]) for part in whole)


#: torch 2.6 cannot tell
_is_exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", lambda: False)


def is_wide(alpha: Tensor) -> bool:
    """Return whether to compute float32 in float64, which not every device or file supports."""
    has_float64 = alpha.device.type in ("cpu", "cuda")
    return alpha.dtype == torch.float32 and has_float64 and not _is_exporting()


def _terms(alpha: Tensor) -> Terms:
    return Terms(alpha, wide=is_wide(alpha))


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

    def terms(alpha: Tensor, y: Tensor | None = None) -> Terms:
        return Terms(alpha, y, prior=prior, beta=beta, wide=wide)

    def values(*tensors: Tensor) -> Tensors:
        m = terms(*tensors)
        return tuple(FORMS[form].value(m).squeeze(-1).to(alpha.dtype) for form in forms)

    def slopes(*tensors: Tensor) -> Tensors:
        inputs, grads = tensors[: -len(forms)], tensors[-len(forms) :]
        weights = [grad.unsqueeze(-1).to(torch.float64 if wide else grad.dtype) for grad in grads]
        return (weighted_gradient(terms(*inputs), forms, weights).to(alpha.dtype),)

    def gradients(grads: Tensors, *tensors: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = by_rows(slopes, *tensors, *grads)
        return (slope, *(None for _ in tensors[1:]))

    tensors = (alpha,) if y is None else (alpha, y)
    return _apply(partial(by_rows, values), gradients, *tensors)


def _kl_values(alpha: Tensor, beta: Tensor) -> Tensors:
    return (KL(_terms(alpha), _terms(beta)).value.squeeze(-1).to(alpha.dtype),)


def _kl_gradients(grads: Tensors, alpha: Tensor, beta: Tensor) -> Tensors:
    kl, grad = KL(_terms(alpha), _terms(beta)), grads[0].unsqueeze(-1)
    return tuple((grad * slope).to(alpha.dtype) for slope in (kl.slope, kl.slope_second))


def kl_divergence(alpha: Tensor, beta: Tensor) -> Tensor:
    """Compute KL(Dir(alpha) || Dir(beta)), differentiable in both: (..., K), (..., K) -> (...)."""
    return _apply(_kl_values, _kl_gradients, alpha, beta)[0]


def _dissonance_gradients(grads: Tensors, belief: Tensor) -> Tensors:
    return (grads[0].unsqueeze(-1) * dissonance_slope(belief),)


def dissonance(belief: Tensor) -> Tensor:
    """Compute the dissonance of belief masses >= 0: (..., K) -> (...)."""
    return _apply(lambda b: (dissonance_value(b),), _dissonance_gradients, belief)[0]


def uncertainty(alpha: Tensor) -> Tensors:
    """Compute total, aleatoric and epistemic uncertainty, sharing their work.

    Returns:
        entropy_of_mean, expected_entropy and mutual_information, (...) each.
    """
    wants_grad = alpha.requires_grad and torch.is_grad_enabled()
    if not wants_grad and above(alpha, 1.0):
        m = FastTerms(classes_first(alpha))
        with np.errstate(all="ignore"):
            gaps = m.sum(m.each.digamma_gap_scaled) - m.total.digamma_gap_scaled
            scores = gaps / m.alpha0, _entropy_of_mean(m)
        mutual, entropy = (torch.asarray(score).view(alpha.shape[:-1]) for score in scores)
        return entropy, entropy - mutual, mutual
    return evaluate(("entropy_of_mean", "expected_entropy", "mutual_information"), alpha)


def classes_first(values: Tensor) -> Any:
    """Return values (..., K) as the array (K, N) that `FastTerms` takes."""
    rows = values.detach().reshape(-1, values.shape[-1]).T.contiguous()
    return rows.numpy() if rows.is_cpu else rows


def above(values: Tensor, bound: float) -> bool:
    """Return whether values are plain float32 on a CPU, and all at least a bound."""
    if not (values.is_cpu and values.dtype == torch.float32 and _eager.is_eager(values)):
        return False
    return values.numel() > 0 and values.min().item() >= bound


# --- moments ---


def mean(alpha: Tensor) -> Tensor:
    """Compute E[p] = alpha/alpha0: (..., K) -> (..., K)."""
    return _mean(_terms(alpha)).to(alpha.dtype)


def _mean(m: Terms) -> Tensor:
    # Near one the gradient of 1 - rest/alpha0 does not cancel.
    top = torch.where(m.dominant, 1 - m.rest / m.alpha0, m.at_top(m.probs))
    return m.with_top(m.probs, top)


def log_mean(alpha: Tensor) -> Tensor:
    """Compute ln(alpha/alpha0), exact near 0 and near 1: (..., K) -> (..., K)."""
    return -_terms(alpha).surprise.to(alpha.dtype)


def variance(alpha: Tensor) -> Tensor:
    """Compute Var[p] = p (1 - p)/(alpha0 + 1): (..., K) -> (..., K)."""
    m = _terms(alpha)
    return (_mean(m) * m.complement / (m.alpha0 + 1)).to(alpha.dtype)


def fisher_information(alpha: Tensor) -> Tensor:
    """Compute diag(psi_1(alpha)) - psi_1(alpha0): (..., K) -> (..., K, K)."""
    m = _terms(alpha)
    diagonal = torch.eye(m.num_classes, dtype=torch.bool, device=alpha.device)
    off = -m.total.trigamma.unsqueeze(-1)
    return torch.where(diagonal, m.trigamma_differences.unsqueeze(-1), off).to(alpha.dtype)


# --- evidence functions ---


def _exp(logits: Tensor) -> Tensor:
    return logits.clamp(max=EXP_BOUND).exp()


#: name -> function from logits to evidence >= 0, and its derivative from logits and evidence
EVIDENCE: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    "softplus": (torch.nn.functional.softplus, lambda x, e: x.sigmoid()),
    "relu": (torch.nn.functional.relu, lambda x, e: (x > 0).to(x.dtype)),
    "exp": (_exp, lambda x, e: torch.where(x > EXP_BOUND, 0, e)),
}
