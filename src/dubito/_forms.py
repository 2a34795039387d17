"""The closed forms: value and gradient of every scalar that dubito derives from a Dirichlet.

Each entry of `FORMS` is a pair of functions of `Moments` (and of the soft target `y`): the value
(...) and its gradient with respect to alpha (..., K). Both are written so that nothing cancels in
float32: what is large and equal is removed in algebra (`special.py`), and the one class that may
hold nearly all of alpha0 is treated apart from the rest (`Moments.top`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from dubito._moments import Moments
from dubito.special import bregman_excess, bregman_excess_from_one, log_gap

Value = Callable[[Moments, Tensor], Tensor]
Outputs = tuple[Tensor, ...]


class Form(NamedTuple):
    """A closed form: `value(moments, y)` (...) and `gradient(moments, y)` (..., K)."""

    value: Value
    gradient: Value


def _entropy_of_mean(m: Moments, y: Tensor) -> Tensor:
    return (m.probs * m.surprise).sum(-1)


def _entropy_of_mean_gradient(m: Moments, y: Tensor) -> Tensor:
    return m.centred(m.surprise) / m.alpha0


def _expected_entropy(m: Moments, y: Tensor) -> Tensor:
    return (m.probs * m.digamma_steps).sum(-1)


def _expected_entropy_gradient(m: Moments, y: Tensor) -> Tensor:
    slopes = m.each.trigamma_deficit - m.total.trigamma_deficit
    return (m.centred(m.digamma_steps) + slopes) / m.alpha0


def _mutual_information(m: Moments, y: Tensor) -> Tensor:
    return (m.probs * m.gap_differences).sum(-1)


def _mutual_information_gradient(m: Moments, y: Tensor) -> Tensor:
    value = _mutual_information(m, y).unsqueeze(-1)
    moments = m.each.digamma_gap_moment - m.total.digamma_gap_moment
    return (moments - value) / m.alpha0


def _kl_to_uniform(m: Moments, y: Tensor) -> Tensor:
    # Bregman divergences of ln Gamma; their leading parts sum to K KL(uniform || mean)
    spread = m.evidence - m.evidence.mean(-1, keepdim=True)
    inverse = m.classes / m.alpha0
    leading = log_gap(spread * inverse, m.alpha * inverse).sum(-1)
    classes = torch.full_like(m.alpha0, float(m.classes))
    total = bregman_excess(m.alpha0, classes, m.evidence.sum(-1, keepdim=True)).squeeze(-1)
    return leading + (bregman_excess_from_one(m.alpha, m.evidence).sum(-1) - total)


def kl_gradient(m: Moments, d: Tensor, beta: Tensor, d0: Tensor, beta0: Tensor) -> Tensor:
    """d psi_1(alpha) - d0 psi_1(alpha0), d = alpha - beta; for large alpha both tend to 1."""
    each, total = d * m.each.trigamma, d0 * m.total.trigamma
    each_deficit = beta * m.each.trigamma - m.each.trigamma_excess
    total_deficit = beta0 * m.total.trigamma - m.total.trigamma_excess
    return torch.where(total < 0.5, each - total, total_deficit - each_deficit)


def _kl_to_uniform_gradient(m: Moments, y: Tensor) -> Tensor:
    one = torch.ones_like(m.alpha0)
    d0 = m.evidence.sum(-1, keepdim=True)
    return kl_gradient(m, m.evidence, one, d0, m.classes * one)


def _differential_entropy(m: Moments, y: Tensor) -> Tensor:
    return -_kl_to_uniform(m, y) - math.lgamma(m.classes)


def _differential_entropy_gradient(m: Moments, y: Tensor) -> Tensor:
    return -_kl_to_uniform_gradient(m, y)


def _fisher_logdet(m: Moments, y: Tensor) -> Tensor:
    total = m.total.trigamma.log() + m.bracket.log()
    return m.each.trigamma.log().sum(-1) + total.squeeze(-1)


def _fisher_logdet_gradient(m: Moments, y: Tensor) -> Tensor:
    slopes = m.total.inverse_trigamma_excess_slope - m.each.inverse_trigamma_excess_slope
    return m.each.log_trigamma_slope + m.total.log_trigamma_slope + slopes / m.bracket


def _fisher_penalty(m: Moments, y: Tensor) -> Tensor:
    return -_fisher_logdet(m, y)


def _fisher_penalty_gradient(m: Moments, y: Tensor) -> Tensor:
    return -_fisher_logdet_gradient(m, y)


def _mse_bias(m: Moments, y: Tensor) -> Tensor:
    return m.residual(y).square().sum(-1)


def _mse_bias_gradient(m: Moments, y: Tensor) -> Tensor:
    return -2 * m.centred(m.residual(y)) / m.alpha0


def _mse_variance(m: Moments, y: Tensor) -> Tensor:
    return (m.probs * m.complement).sum(-1) / (m.alpha0 + 1).squeeze(-1)


def _mse_variance_gradient(m: Moments, y: Tensor) -> Tensor:
    value = _mse_variance(m, y).unsqueeze(-1)
    return (m.centred(m.complement - m.probs) / m.alpha0 - value) / (m.alpha0 + 1)


def _fisher_bias(m: Moments, y: Tensor) -> Tensor:
    return (m.residual(y).square() * m.each.trigamma).sum(-1)


def _fisher_bias_gradient(m: Moments, y: Tensor) -> Tensor:
    d = m.residual(y)
    return d.square() * m.each.tetragamma - 2 * m.centred(d * m.each.trigamma) / m.alpha0


def _fisher_variance(m: Moments, y: Tensor) -> Tensor:
    return (m.probs * m.complement * m.each.trigamma).sum(-1) / (m.alpha0 + 1).squeeze(-1)


def _fisher_variance_gradient(m: Moments, y: Tensor) -> Tensor:
    value = _fisher_variance(m, y).unsqueeze(-1)
    inner = m.centred((m.complement - m.probs) * m.each.trigamma) / m.alpha0
    return (m.probs * m.complement * m.each.tetragamma + inner - value) / (m.alpha0 + 1)


def _label_removed(m: Moments, y: Tensor) -> Moments:
    evidence = m.evidence * (1 - y)
    return Moments(1 + evidence, evidence)


def _label_removed_kl(m: Moments, y: Tensor) -> Tensor:
    return _kl_to_uniform(_label_removed(m, y), y)


def _label_removed_kl_gradient(m: Moments, y: Tensor) -> Tensor:
    return (1 - y) * _kl_to_uniform_gradient(_label_removed(m, y), y)


def _marginal_nll(m: Moments, y: Tensor) -> Tensor:
    return (y * m.surprise).sum(-1)


def _marginal_nll_gradient(m: Moments, y: Tensor) -> Tensor:
    return -m.residual(y) / m.alpha


def _expected_cross_entropy(m: Moments, y: Tensor) -> Tensor:
    halves = 0.5 * (m.each.reciprocal - m.total.reciprocal)
    return (y * (m.surprise + halves + (m.each.delta - m.total.delta))).sum(-1)


def _expected_cross_entropy_gradient(m: Moments, y: Tensor) -> Tensor:
    return (1 - y) * m.total.trigamma - y * m.trigamma_differences


FORMS: dict[str, Form] = {
    "entropy_of_mean": Form(_entropy_of_mean, _entropy_of_mean_gradient),
    "expected_entropy": Form(_expected_entropy, _expected_entropy_gradient),
    "mutual_information": Form(_mutual_information, _mutual_information_gradient),
    "kl_to_uniform": Form(_kl_to_uniform, _kl_to_uniform_gradient),
    "differential_entropy": Form(_differential_entropy, _differential_entropy_gradient),
    "fisher_logdet": Form(_fisher_logdet, _fisher_logdet_gradient),
    "fisher_penalty": Form(_fisher_penalty, _fisher_penalty_gradient),
    "mse_bias": Form(_mse_bias, _mse_bias_gradient),
    "mse_variance": Form(_mse_variance, _mse_variance_gradient),
    "fisher_bias": Form(_fisher_bias, _fisher_bias_gradient),
    "fisher_variance": Form(_fisher_variance, _fisher_variance_gradient),
    "label_removed_kl": Form(_label_removed_kl, _label_removed_kl_gradient),
    "marginal_nll": Form(_marginal_nll, _marginal_nll_gradient),
    "expected_cross_entropy": Form(_expected_cross_entropy, _expected_cross_entropy_gradient),
}


#: entries worked on at once: on a CPU what its cache holds, elsewhere a small part of the memory
AT_ONCE_ON_CPU, AT_ONCE = 1 << 17, 1 << 22


def _by_rows(function: Callable[..., Outputs], alpha: Tensor, *others: Tensor) -> Outputs:
    """`function` of rows, so many at a time that its forty numbers an entry are little memory."""
    most = AT_ONCE_ON_CPU if alpha.is_cpu else AT_ONCE
    lead = alpha.shape[:-1]
    if torch.compiler.is_compiling() or alpha.numel() <= most or not lead:
        return function(alpha, *others)
    rows = max(most // alpha.shape[-1], 1)
    flat = [part.reshape(-1, *part.shape[len(lead) :]).split(rows) for part in (alpha, *others)]
    found = [function(*parts) for parts in zip(*flat, strict=True)]
    whole = (torch.cat(parts) for parts in zip(*found, strict=True))
    return tuple(part.reshape(*lead, *part.shape[1:]) for part in whole)


def _values(names: tuple[str, ...], alpha: Tensor, y: Tensor) -> Outputs:
    moments = Moments(alpha)
    return tuple(FORMS[name].value(moments, y) for name in names)


def _slopes(names: tuple[str, ...], alpha: Tensor, y: Tensor, *grads: Tensor) -> Outputs:
    moments = Moments(alpha)
    parts = [
        grad.unsqueeze(-1) * FORMS[name].gradient(moments, y)
        for name, grad in zip(names, grads, strict=True)
    ]
    return (torch.stack(parts).sum(0) if len(parts) > 1 else parts[0],)


class _Evaluate(torch.autograd.Function):
    """Several forms at once, their gradients by formula; these differentiate too."""

    generate_vmap_rule = True

    @staticmethod
    def forward(names: tuple[str, ...], alpha: Tensor, y: Tensor) -> Outputs:
        return _by_rows(partial(_values, names), alpha, y)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
        ctx.names, alpha, y = inputs
        ctx.save_for_backward(alpha, y)
        ctx.save_for_forward(alpha, y)

    @staticmethod
    def backward(ctx, *grads: Tensor):  # type: ignore[no-untyped-def]
        alpha, y = ctx.saved_tensors
        (slopes,) = _by_rows(partial(_slopes, ctx.names), alpha, y, *grads)
        return None, slopes, None


class _EvaluateForwards(_Evaluate):
    """The same for forward differentiation too, with which torch.compile takes no function."""

    @staticmethod
    def jvp(ctx, _, tangent: Tensor, __) -> Outputs:  # type: ignore[no-untyped-def]
        moments, y = Moments(ctx.saved_tensors[0]), ctx.saved_tensors[1]
        return tuple((FORMS[name].gradient(moments, y) * tangent).sum(-1) for name in ctx.names)


def evaluate(names: tuple[str, ...], alpha: Tensor, y: Tensor | None = None) -> tuple[Tensor, ...]:
    """The named forms at alpha (..., K), each (...); `y` (..., K) where a form has a target."""
    kind = _Evaluate if torch.compiler.is_compiling() else _EvaluateForwards
    # without a target anything of its shape; torch.compile takes no tensor twice
    target = alpha.detach() if y is None else y
    return kind.apply(names, alpha, target)  # type: ignore[no-any-return, no-untyped-call]
