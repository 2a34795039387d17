"""Losses of a Dirichlet: weighted sums of closed forms, with their gradient in one pass."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dubito.numerics.autograd import Tensors, by_rows, is_wide
from dubito.numerics.float32 import FastQuantities, above, classes_first
from dubito.numerics.forms import EVIDENCE, FORMS, weighted_gradient
from dubito.numerics.functions import evaluate
from dubito.numerics.gamma import namespace
from dubito.numerics.quantities import Quantities
from dubito.numerics.spec import LossSpec, form_factors
from dubito.numerics.tracing import constant, is_eager

__all__: list[str] = []

Weights = Sequence[float | Tensor]
#: smallest prior for which probabilities do not underflow in float32
MIN_PRIOR = 0.01
#: form -> the least prior for which `FastQuantities` computes it; 0: if alpha is at least 1e-8
FAST_FORMS: dict[str, float] = {
    **dict.fromkeys(("fisher_bias", "fisher_variance", "fisher_penalty"), 1.0),
    "expected_cross_entropy": 1.0,
    **dict.fromkeys(("mse_bias", "mse_variance", "marginal_nll"), MIN_PRIOR),
    **dict.fromkeys(("label_removed_kl", "kl_to_uniform", "differential_entropy"), 0.0),
    **dict.fromkeys(("kl_from_uniform", "reverse_kl", "forward_kl"), 0.0),
}
#: forms that need the gamma family at alpha, and therefore alpha >= 1
GAMMA_FORMS = {form for form, prior in FAST_FORMS.items() if prior == 1}


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
    if not (like.is_cpu and is_eager(like)) or bool(ignored.any()):
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


def _scaled(spec: LossSpec, values: Tensor, num_classes: int) -> Tensor:
    """Multiply values or weights of the forms, (..., T), by the factors of the forms."""
    if not spec.per_class:
        return values
    return values * constant(form_factors(spec, num_classes), values.device, values.dtype)


def reference_loss(
    spec: LossSpec, values: Tensor, target: Tensor, weights: Tensor, class_weight: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute the result of `loss_and_sums` through `evaluate` and autograd."""
    alpha, target, row_weight = _rows(spec, values, target, class_weight)
    y = _one_hot(target, alpha)
    if spec.evidence is not None:
        alpha = EVIDENCE[spec.evidence][0](alpha) + spec.prior
    wide = spec.evidence is None or spec.prior < 1
    forms = evaluate(spec.forms, alpha, y, prior=spec.prior, beta=spec.beta, wide=wide)
    terms = _scaled(spec, torch.stack(forms, -1), alpha.shape[-1])
    weights = mean_weights(weights, row_weight, spec.reduction, alpha)
    return reduced(terms, row_weight, weights, spec.reduction)


def _fast_quantities(
    spec: LossSpec, values: Tensor, evidence: Tensor | None, target: Tensor
) -> Quantities:
    """Return `FastQuantities` of values or evidence (..., K), labels (..., 1) or soft targets."""
    array, share = classes_first(values if evidence is None else evidence), False
    if target.is_floating_point():
        y = classes_first(target)
    else:
        one_hot = torch.zeros(array.shape, dtype=values.dtype, device=values.device)
        one_hot.scatter_(0, target.reshape(1, -1), 1.0)
        y = one_hot if namespace(array) is torch else one_hot.numpy()
        share = "label_removed_kl" in spec.forms and not GAMMA_FORMS.isdisjoint(spec.forms)
    alpha = array if evidence is None else array + spec.prior
    return FastQuantities(
        alpha, y, prior=spec.prior, beta=spec.beta, share_removed=share,
        evidence=None if evidence is None else array,
    )  # fmt: skip


def _value_and_gradient(
    spec: LossSpec, fast: bool, weights: Weights | None, values: Tensor, target: Tensor
) -> Tensors:
    """Forms (..., T) and, with weights, the gradient of their weighted sum in the values.

    Args:
        spec: Forms, evidence function and prior.
        fast: Whether to use `FastQuantities`.
        weights: Weight of each form, () or one per row; None: no gradient.
        values: Logits, or alpha if the spec has no evidence function, (..., K).
        target: Labels (..., 1) or soft targets (..., K).
    """
    evidence, lead = None, values.shape[:-1]
    if spec.evidence is not None:
        function, derivative = EVIDENCE[spec.evidence]
        evidence = function(values)
    if fast:
        m = _fast_quantities(spec, values, evidence, target)
        forms = m.xp.concatenate([FORMS[form].value(m) for form in spec.forms])
        terms = torch.asarray(forms, dtype=values.dtype).T.view(*lead, len(forms))
    else:
        alpha = values if evidence is None else evidence + spec.prior
        m = Quantities(
            alpha, _one_hot(target, alpha), prior=spec.prior, beta=spec.beta, evidence=evidence,
            wide=is_wide(alpha),
        )  # fmt: skip
        terms = torch.cat([FORMS[form].value(m) for form in spec.forms], -1).to(values.dtype)
    gradient = None if weights is None else weighted_gradient(m, spec.forms, weights)
    m.release()
    if gradient is None:
        return (terms,)
    if fast:
        gradient = torch.asarray(gradient).T.view(values.shape)
    if evidence is not None:
        gradient = derivative(values, evidence) * gradient
    return terms, gradient.to(values.dtype)


def value_and_gradient(
    spec: LossSpec, values: Tensor, target: Tensor, weights: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Compute a weighted sum of closed forms of each row, and its gradient in the values.

    Sums of `FastQuantities` have their accuracy, but no noise: they are computed in float64. Values
    with the classes first in memory are not copied.

    Args:
        spec: Forms, evidence function and prior.
        values: Logits, or alpha if the spec has no evidence function, (N, K).
        target: Labels, (N,).
        weights: Weight of each form, () or (N, 1), float64.

    Returns:
        The sum (N,) and the gradient (N, K).
    """
    fast, factors = is_fast(spec, values, target), form_factors(spec, values.shape[-1])
    if spec.per_class:
        weights = [w * factor for w, factor in zip(weights, factors, strict=True)]
    exact, each = values, list[float | Tensor](weights)
    if fast:
        exact = values.double()
        each = [classes_first(w) if w.ndim else w.item() if w.is_cpu else w for w in weights]
    with np.errstate(all="ignore"):
        terms, gradient = _value_and_gradient(spec, fast, each, exact, target.unsqueeze(-1))
    parts = [w * term for w, term in zip(weights, terms.split(1, -1), strict=True)]
    return sum(parts[1:], parts[0]).squeeze(-1), gradient.to(values.dtype)


def is_fast(spec: LossSpec, values: Tensor, target: Tensor) -> bool:
    """Return whether `FastQuantities` computes a loss."""
    forms = set(spec.forms)
    is_known = values.dtype == torch.float32 and forms <= FAST_FORMS.keys()
    if not is_known or (target.is_floating_point() and forms & {"reverse_kl", "forward_kl"}):
        return False
    least = max(FAST_FORMS[form] for form in forms)
    if spec.evidence is None:
        return spec.prior in (0.0, 1.0) and above(values, 1.0)
    return spec.prior >= (least or MIN_PRIOR) or (least == 0 and above(values, math.log(1e-8)))


def _compute(
    spec: LossSpec, with_gradient: bool, values: Tensor, target: Tensor, weights: Tensor,
    class_weight: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Return the loss, the sums and, with gradient, that of the loss (of each row if unreduced)."""
    values, target, row_weight = _rows(spec, values, target, class_weight)
    weights = mean_weights(weights, row_weight, spec.reduction, values)
    each: Weights | None = None
    if with_gradient:
        scaled = _scaled(spec, weights, values.shape[-1])
        each = scaled.tolist() if scaled.is_cpu else scaled.unbind()
    function = partial(_value_and_gradient, spec, is_fast(spec, values, target), each)
    with np.errstate(all="ignore"):  # values that are not finite are for the caller, as in torch
        terms, *gradients = by_rows(function, values, target)
    terms = _scaled(spec, terms, values.shape[-1])
    loss, sums = reduced(terms, row_weight, weights, spec.reduction)
    if not gradients:
        return loss, sums, None
    return loss, sums, gradients[0] if row_weight is None else gradients[0] * row_weight


class _Loss(torch.autograd.Function):
    """Loss and its gradient in one pass."""

    @staticmethod
    def forward(
        ctx: Any, spec: LossSpec, values: Tensor, target: Tensor, weights: Tensor,
        class_weight: Tensor | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        loss, sums, gradient = _compute(spec, True, values, target, weights, class_weight)
        assert gradient is not None
        ctx.spec = spec
        ctx.save_for_backward(values, target, weights, class_weight, gradient.to(values.dtype))
        ctx.mark_non_differentiable(sums)
        return loss, sums

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, gradient = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph: differentiate the reference
            loss, _ = reference_loss(ctx.spec, *tensors)
            (gradient,) = torch.autograd.grad(loss, tensors[0], grad, create_graph=True)
            return None, gradient, None, None, None
        if ctx.spec.reduction == "none":
            grad = grad.unsqueeze(-1)
        return None, gradient * grad, None, None, None


def loss_and_sums(
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
    if not is_eager(values):
        return reference_loss(spec, values, target, weights, class_weight)
    if values.requires_grad and torch.is_grad_enabled():
        return _Loss.apply(  # type: ignore[no-any-return, no-untyped-call]
            spec, values, target, weights, class_weight
        )
    with torch.no_grad():
        return _compute(spec, False, values, target, weights, class_weight)[:2]
