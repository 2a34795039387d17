"""Closed forms of the Dirichlet: values, gradients and their losses.

Each entry of `FORMS` has a value (..., 1) and its partial derivatives, both functions of `Terms`.
`evaluate` is differentiable twice, forwards and backwards, and works under torch.func,
torch.compile and torch.export. `weighted_sums` computes a loss and its gradient in one pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dubito import _eager
from dubito._special import constant, namespace
from dubito.distributions._dirichlet_terms import KL, Terms
from dubito.distributions._dissonance import dissonance_slope, dissonance_value
from dubito.distributions._fast_terms import FastTerms
from dubito.kernels._spec import EXP_BOUND, PER_CLASS, LossSpec

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

LEAST = 0.01
#: form -> the least prior for which `FastTerms` computes it; 0: if alpha is at least 1e-8
FAST_FORMS: dict[str, float] = {
    **dict.fromkeys(("fisher_bias", "fisher_variance", "fisher_penalty"), 1.0),
    "expected_cross_entropy": 1.0,
    **dict.fromkeys(("mse_bias", "mse_variance", "marginal_nll"), LEAST),
    **dict.fromkeys(("label_removed_kl", "kl_to_uniform", "differential_entropy"), 0.0),
    **dict.fromkeys(("kl_from_uniform", "reverse_kl", "forward_kl"), 0.0),
}
#: forms that need the gamma family at alpha
GAMMA_FORMS = {form for form, prior in FAST_FORMS.items() if prior == 1}


def _gradient(m: Terms, forms: Sequence[str], weights: Sequence[Any]) -> Tensor:
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


class _Formula(NamedTuple):
    """`values(*tensors)`, (...) each, and `gradients(grads, *tensors)`, one for each tensor."""

    values: Callable[..., Tensors]
    gradients: Callable[..., tuple[Tensor | None, ...]]


class _ByFormula(torch.autograd.Function):
    """Values by one formula, gradients by another, which is differentiable too."""

    generate_vmap_rule = True

    @staticmethod
    def forward(formula: _Formula, *tensors: Tensor) -> Tensors:
        values = formula.values(*tensors)
        if not torch.compiler.is_compiling():
            return values
        # Compiled by torch 2.11, an output that is a view would get no gradient.
        return tuple(value.clone() for value in values)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.formula, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *ctx.formula.gradients(grads, *ctx.saved_tensors))


class _ByFormulaForward(_ByFormula):
    """With forward-mode AD, which torch.compile does not accept in a function."""

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor | None) -> Tensors:
        tensors = ctx.saved_tensors
        count = len(ctx.formula.values(*tensors))
        ones, zeros = (f(tensors[0][..., 0]) for f in (torch.ones_like, torch.zeros_like))
        outputs = []
        for i in range(count):
            grads = tuple(ones if j == i else zeros for j in range(count))
            slopes = ctx.formula.gradients(grads, *tensors)
            parts = [
                (slope * tangent).sum(-1)
                for slope, tangent in zip(slopes, tangents, strict=True)
                if slope is not None and tangent is not None
            ]
            outputs.append(sum(parts[1:], parts[0]))
        return tuple(outputs)


def _apply(formula: _Formula, *tensors: Tensor) -> Tensors:
    if torch.compiler.is_compiling() and not any(tensor.requires_grad for tensor in tensors):
        return formula.values(*tensors)  # Dynamo counts arguments, and miscounts *tensors
    function = _ByFormula if torch.compiler.is_compiling() else _ByFormulaForward
    return function.apply(formula, *tensors)  # type: ignore[no-any-return, no-untyped-call]


#: entries evaluated at once: a CPU's cache, or a small part of an accelerator's memory
CHUNK_CPU, CHUNK = 1 << 16, 1 << 22


def _by_rows(function: Callable[..., Tensors], alpha: Tensor, *more: Tensor) -> Tensors:
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


def _is_wide(alpha: Tensor) -> bool:
    """Return whether to compute float32 in float64, which not every device or file supports."""
    has_float64 = alpha.device.type in ("cpu", "cuda")
    return alpha.dtype == torch.float32 and has_float64 and not _is_exporting()


def _terms(alpha: Tensor) -> Terms:
    return Terms(alpha, wide=_is_wide(alpha))


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
    wide = wide and _is_wide(alpha)

    def terms(alpha: Tensor, y: Tensor | None = None) -> Terms:
        return Terms(alpha, y, prior=prior, beta=beta, wide=wide)

    def values(*tensors: Tensor) -> Tensors:
        m = terms(*tensors)
        return tuple(FORMS[form].value(m).squeeze(-1).to(alpha.dtype) for form in forms)

    def slopes(*tensors: Tensor) -> Tensors:
        inputs, grads = tensors[: -len(forms)], tensors[-len(forms) :]
        weights = [grad.unsqueeze(-1).to(torch.float64 if wide else grad.dtype) for grad in grads]
        return (_gradient(terms(*inputs), forms, weights).to(alpha.dtype),)

    def gradients(grads: Tensors, *tensors: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = _by_rows(slopes, *tensors, *grads)
        return (slope, *(None for _ in tensors[1:]))

    formula = _Formula(partial(_by_rows, values), gradients)
    return _apply(formula, alpha) if y is None else _apply(formula, alpha, y)


def _kl_values(alpha: Tensor, beta: Tensor) -> Tensors:
    return (KL(_terms(alpha), _terms(beta)).value.squeeze(-1).to(alpha.dtype),)


def _kl_gradients(grads: Tensors, alpha: Tensor, beta: Tensor) -> Tensors:
    kl, grad = KL(_terms(alpha), _terms(beta)), grads[0].unsqueeze(-1)
    return tuple((grad * slope).to(alpha.dtype) for slope in (kl.slope, kl.slope_second))


def kl_divergence(alpha: Tensor, beta: Tensor) -> Tensor:
    """Compute KL(Dir(alpha) || Dir(beta)), differentiable in both: (..., K), (..., K) -> (...)."""
    return _apply(_Formula(_kl_values, _kl_gradients), alpha, beta)[0]


def _dissonance_gradients(grads: Tensors, belief: Tensor) -> Tensors:
    return (grads[0].unsqueeze(-1) * dissonance_slope(belief),)


def dissonance(belief: Tensor) -> Tensor:
    """Compute the dissonance of belief masses >= 0: (..., K) -> (...)."""
    return _apply(_Formula(lambda b: (dissonance_value(b),), _dissonance_gradients), belief)[0]


def uncertainty(alpha: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute total, aleatoric and epistemic uncertainty, sharing their work.

    Returns:
        entropy_of_mean, expected_entropy and mutual_information, (...) each.
    """
    wants_grad = alpha.requires_grad and torch.is_grad_enabled()
    if not wants_grad and _above(alpha, 1.0):
        m = FastTerms(_classes_first(alpha))
        with np.errstate(all="ignore"):
            gaps = m.sum(m.each.digamma_gap_scaled) - m.total.digamma_gap_scaled
            scores = gaps / m.alpha0, _entropy_of_mean(m)
        mutual, entropy = (torch.asarray(score).view(alpha.shape[:-1]) for score in scores)
        return entropy, entropy - mutual, mutual
    total, aleatoric, epistemic = evaluate(
        ("entropy_of_mean", "expected_entropy", "mutual_information"), alpha
    )
    return total, aleatoric, epistemic


def _above(values: Tensor, bound: float) -> bool:
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


# --- losses ---


def _exp(logits: Tensor) -> Tensor:
    return logits.clamp(max=EXP_BOUND).exp()


#: name -> function from logits to evidence >= 0, and its derivative from logits and evidence
EVIDENCE: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    "softplus": (torch.nn.functional.softplus, lambda x, e: x.sigmoid()),
    "relu": (torch.nn.functional.relu, lambda x, e: (x > 0).to(x.dtype)),
    "exp": (_exp, lambda x, e: torch.where(x > EXP_BOUND, 0, e)),
}


def row_weights(
    target: Tensor, class_weight: Tensor | None, ignore_index: int, like: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Return soft targets (..., K) or labels (..., 1), ignored ones as 0, and weights (..., 1).

    The weights are those of the rows, or None if all are 1.
    """
    if target.is_floating_point():
        y = target.to(like.dtype)
        if class_weight is None:
            return y, None
        return y, (y * class_weight.to(like)).sum(-1, keepdim=True)
    labels = target.long().unsqueeze(-1)
    ignored = labels == ignore_index
    weight: Tensor | None = None
    if not (like.is_cpu and _eager.is_eager(like)) or bool(ignored.any()):
        labels, weight = labels.masked_fill(ignored, 0), (~ignored).to(like.dtype)
    if class_weight is not None:
        by_class = class_weight.to(like)[labels]
        weight = by_class if weight is None else weight * by_class
    return labels, weight


def mean_weights(
    weights: Tensor, row_weight: Tensor | None, reduction: str, like: Tensor
) -> Tensor:
    """Divide the weights (M,) of terms by the weight of all rows of (..., K) if that is needed."""
    weights = weights.to(like)
    if reduction != "mean":
        return weights
    if row_weight is None:
        return weights * (like.shape[-1] / max(like.numel(), 1))
    total = row_weight.sum()
    # A batch without counted samples has loss 0.
    return weights * torch.where(total == 0, 0.0, 1 / total)


def reduced(
    terms: Tensor, row_weight: Tensor | None, weights: Tensor, reduction: str
) -> tuple[Tensor, Tensor]:
    """Reduce terms (..., M) by `mean_weights` (M,) to a loss and the detached sum of each term."""
    if row_weight is not None:
        # where, not a product: 0 * NaN is NaN.
        terms = torch.where(row_weight == 0, 0, terms * row_weight)
    sums = terms.reshape(-1, terms.shape[-1]).sum(0)
    loss = (terms * weights).sum(-1) if reduction == "none" else sums.dot(weights)
    return loss, sums.detach()


def _rows(
    spec: LossSpec, values: Tensor, target: Tensor, class_weight: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return values (..., K) in float32 at least, and the result of `row_weights`."""
    values = values.float() if values.element_size() < 4 else values
    target, weight = row_weights(target, class_weight, spec.ignore_index, values)
    if weight is not None:
        # Rows without weight may contain anything; 1 is a valid logit and a valid alpha.
        values = values.masked_fill(weight == 0, 1.0)
    return values, target, weight


def _one_hot(target: Tensor, values: Tensor) -> Tensor:
    """Return soft targets (..., K) as they are, labels (..., 1) as one-hot vectors."""
    if target.is_floating_point():
        return target
    return torch.zeros_like(values).scatter_(-1, target, 1.0)


def _factors(spec: LossSpec, like: Tensor, num_classes: int) -> Tensor | None:
    """Return the factors of the forms, (T,); None if all are 1."""
    if not spec.per_class:
        return None
    factors = tuple(10 / num_classes if form in PER_CLASS else 1.0 for form in spec.forms)
    return constant(factors, like.device, like.dtype)


def weighted_sums_reference(
    spec: LossSpec, values: Tensor, target: Tensor, weights: Tensor, class_weight: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute the result of `weighted_sums` through `evaluate` and autograd."""
    alpha, target, row_weight = _rows(spec, values, target, class_weight)
    y = _one_hot(target, alpha)
    if spec.evidence is not None:
        alpha = EVIDENCE[spec.evidence][0](alpha) + spec.prior
    wide = spec.evidence is None or spec.prior < 1
    forms = evaluate(spec.forms, alpha, y, prior=spec.prior, beta=spec.beta, wide=wide)
    terms, factors = torch.stack(forms, -1), _factors(spec, alpha, alpha.shape[-1])
    if factors is not None:
        terms = terms * factors
    weights = mean_weights(weights, row_weight, spec.reduction, alpha)
    return reduced(terms, row_weight, weights, spec.reduction)


def _classes_first(values: Tensor) -> Any:
    """Return values (..., K) as the array (K, N) that `FastTerms` takes."""
    rows = values.detach().reshape(-1, values.shape[-1]).T.contiguous()
    return rows.numpy() if rows.is_cpu else rows


def _fast_terms(spec: LossSpec, values: Tensor, evidence: Tensor | None, target: Tensor) -> Terms:
    """Return `FastTerms` of values or evidence (..., K), labels (..., 1) or soft targets."""
    array = _classes_first(values if evidence is None else evidence)
    share, xp = False, namespace(array)
    if target.is_floating_point():
        y = _classes_first(target)
    else:
        labels = target.flatten()
        y = xp.eye(len(array), dtype=array.dtype)[:, labels.numpy() if xp is np else labels]
        share = "label_removed_kl" in spec.forms and not GAMMA_FORMS.isdisjoint(spec.forms)
    options: dict[str, Any] = {"prior": spec.prior, "beta": spec.beta, "share_removed": share}
    if evidence is None:
        return FastTerms(array, y, **options)
    return FastTerms(array + spec.prior, y, evidence=array, **options)


def _value_and_gradient(
    spec: LossSpec, fast: bool, weights: Sequence[Any] | None, values: Tensor, target: Tensor
) -> Tensors:
    """Forms (..., T) and, with weights, the gradient of their weighted sum in the values.

    Args:
        spec: Forms, evidence function and prior.
        fast: Whether to use `FastTerms`.
        weights: Weight of each form, () or one per row; None: no gradient.
        values: Logits, or alpha if the spec has no evidence function, (..., K).
        target: Labels (..., 1) or soft targets (..., K).
    """
    evidence, lead = None, values.shape[:-1]
    if spec.evidence is not None:
        function, derivative = EVIDENCE[spec.evidence]
        evidence = function(values)
    if fast:
        m = _fast_terms(spec, values, evidence, target)
        forms = m.xp.concatenate([FORMS[form].value(m) for form in spec.forms])
        terms = torch.asarray(forms, dtype=values.dtype).T.reshape(*lead, len(spec.forms))
    else:
        alpha = values if evidence is None else evidence + spec.prior
        m = Terms(
            alpha, _one_hot(target, alpha), prior=spec.prior, beta=spec.beta, evidence=evidence,
            wide=_is_wide(alpha),
        )  # fmt: skip
        terms = torch.cat([FORMS[form].value(m) for form in spec.forms], -1).to(values.dtype)
    if weights is None:
        return (terms,)
    gradient = _gradient(m, spec.forms, weights)
    if fast:
        gradient = torch.asarray(gradient).T.reshape(values.shape)
    if evidence is not None:
        gradient = derivative(values, evidence) * gradient
    return terms, gradient.to(values.dtype)


def value_and_gradient(
    spec: LossSpec, values: Tensor, target: Tensor, weights: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Compute a weighted sum of closed forms of each row, and its gradient in the values.

    Sums of `FastTerms` have their accuracy, but no noise: they are computed in float64. Values with
    the classes first in memory are not copied.

    Args:
        spec: Forms, evidence function and prior.
        values: Logits, or alpha if the spec has no evidence function, (N, K).
        target: Labels, (N,).
        weights: Weight of each form, () or (N, 1), float64.

    Returns:
        The sum (N,) and the gradient (N, K).
    """
    num_classes, fast = values.shape[-1], _is_fast(spec, values, target)
    factors = _factors(spec, weights[0], num_classes)
    if factors is not None:
        weights = [w * factor for w, factor in zip(weights, factors, strict=True)]
    exact, each = values, list[Any](weights)
    if fast:
        exact = values.double()
        each = [_classes_first(w) if w.ndim else w.item() if w.is_cpu else w for w in weights]
    with np.errstate(all="ignore"):
        terms, gradient = _value_and_gradient(spec, fast, each, exact, target.unsqueeze(-1))
    parts = [w * term for w, term in zip(weights, terms.split(1, -1), strict=True)]
    return sum(parts[1:], parts[0]).squeeze(-1), gradient.to(values.dtype)


def _is_fast(spec: LossSpec, values: Tensor, target: Tensor) -> bool:
    """Return whether `FastTerms` computes a loss."""
    forms = set(spec.forms)
    is_known = values.dtype == torch.float32 and forms <= FAST_FORMS.keys()
    if not is_known or (target.is_floating_point() and forms & {"reverse_kl", "forward_kl"}):
        return False
    least = max(FAST_FORMS[form] for form in forms)
    if spec.evidence is None:
        return spec.prior in (0.0, 1.0) and _above(values, 1.0)
    return spec.prior >= (least or LEAST) or (least == 0 and _above(values, math.log(1e-8)))


def _compute(
    spec: LossSpec, with_gradient: bool, values: Tensor, target: Tensor, weights: Tensor,
    class_weight: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Return the loss, the sums and, with gradient, that of the loss (of each row if unreduced)."""
    values, target, row_weight = _rows(spec, values, target, class_weight)
    weights = mean_weights(weights, row_weight, spec.reduction, values)
    factors = _factors(spec, weights, values.shape[-1])
    scaled = weights if factors is None else weights * factors
    each: Any = None
    if with_gradient:
        each = scaled.tolist() if scaled.is_cpu else scaled.unbind()
    function = partial(_value_and_gradient, spec, _is_fast(spec, values, target), each)
    with np.errstate(all="ignore"):  # values that are not finite are for the caller, as in torch
        terms, *gradients = _by_rows(function, values, target)
    loss, sums = reduced(
        terms if factors is None else terms * factors, row_weight, weights, spec.reduction
    )
    if not gradients:
        return loss, sums, None
    return loss, sums, gradients[0] if row_weight is None else gradients[0] * row_weight


class _WeightedSums(torch.autograd.Function):
    """Loss and its gradient in one pass."""

    @staticmethod
    def forward(ctx: Any, spec: LossSpec, values: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        loss, sums, gradient = _compute(spec, True, values, *rest)
        assert gradient is not None
        ctx.spec = spec
        ctx.save_for_backward(values, *rest, gradient.to(values.dtype))
        ctx.mark_non_differentiable(sums)
        return loss, sums

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, gradient = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph: differentiate the reference
            loss, _ = weighted_sums_reference(ctx.spec, *tensors)
            (gradient,) = torch.autograd.grad(loss, tensors[0], grad, create_graph=True)
            return None, gradient, None, None, None
        if ctx.spec.reduction == "none":
            grad = grad.unsqueeze(-1)
        return None, gradient * grad, None, None, None


def weighted_sums(
    spec: LossSpec, values: Tensor, target: Tensor, weights: Tensor, class_weight: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute a weighted sum of closed forms over rows, with the gradient in the same pass.

    Args:
        spec: Forms, evidence function, prior and reduction.
        values: Logits, or alpha if the spec has no evidence function, (..., K).
        target: Labels (...) or soft targets (..., K), constants.
        weights: Weights of the forms, constants, (T,).
        class_weight: Weight of each class, (K,), or None.

    Returns:
        The loss, a scalar or (...) without reduction, and the sum of each form times the row
        weights, (T,), detached.
    """
    if not _eager.is_eager(values):
        return weighted_sums_reference(spec, values, target, weights, class_weight)
    if values.requires_grad and torch.is_grad_enabled():
        return _WeightedSums.apply(  # type: ignore[no-any-return, no-untyped-call]
            spec, values, target, weights, class_weight
        )
    with torch.no_grad():
        return _compute(spec, False, values, target, weights, class_weight)[:2]
