"""Losses of alpha: which terms with which weights, and how they are reduced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypedDict, Unpack

import torch
from torch import Tensor

from dubito import _checks
from dubito._forms import FORMS, evaluate
from dubito._reduction import averaged, class_weights, reduced
from dubito.evidence import alpha_from_logits
from dubito.kernels import fused_from_logits, fused_loss

Reduction = Literal["mean", "sum", "none"]
Weight = float | Tensor

#: EDL's three likelihood terms (Sensoy et al. 2018)
EDL_LIKELIHOODS: dict[str, tuple[str, ...]] = {
    "mse": ("mse_bias", "mse_variance"),
    "marginal": ("marginal_nll",),
    "cross_entropy": ("expected_cross_entropy",),
}
_GROW_WITH_CLASSES = {"fisher_penalty", "label_removed_kl"}
_SCALES = ("paper", "per_class")
_REDUCTIONS = ("mean", "sum", "none")


class LossOptions(TypedDict, total=False):
    """What every loss takes besides its weights."""

    class_weight: Tensor | None
    """(K,), >= 0; the mean is then weighted, as torch's cross entropy does. Default: none.

    A sample with a soft target y counts sum_k w_k y_k times, in the sum of weights that the mean
    divides by too. `cross_entropy` alone has torch's rule there: each class's part counts w_k
    times, and the mean divides by the number of samples.
    """
    ignore_index: int
    """Samples with this label count for nothing. Default: -100."""
    reduction: Reduction
    """"mean" (the default), "sum" or "none". The mean of a batch of which nothing counts is 0."""
    scale: str
    """"paper" (the default) or "per_class": see `dubito.losses`."""
    class_dim: int
    """The axis of the classes; 1 for images (N, K, H, W). Default: -1."""


@dataclass(frozen=True)
class Loss:
    """A weighted sum of terms, reduced: what the loss functions and modules share."""

    class_weight: Tensor | None = None
    ignore_index: int = -100
    reduction: Reduction = "mean"
    scale: str = "paper"
    class_dim: int = -1

    def __post_init__(self) -> None:
        _checks.one_of(_REDUCTIONS, self.reduction, "reduction")
        _checks.one_of(_SCALES, self.scale, "scale")
        _checks.whole_number(self.ignore_index, "ignore_index")
        _checks.whole_number(self.class_dim, "class_dim")

    def classes_last(self, predictions: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Both with the class axis at the end, where the target has one."""
        if self.class_dim == -1 and isinstance(predictions, Tensor) and predictions.ndim > 0:
            return predictions, target  # without a view, whose gradient would be one more step
        predictions = _checks.classes_last(predictions, self.class_dim, "predictions")
        soft = isinstance(target, Tensor) and target.is_floating_point()
        if soft and target.ndim == predictions.ndim:
            target = target.movedim(self.class_dim, -1)
        return predictions, target

    def __call__(
        self,
        weights: dict[str, Weight],
        predictions: Tensor,
        target: Tensor,
        evidence: str | None = None,
    ) -> Tensor:
        """Classes last. The predictions are alpha, or the logits of an evidence function.

        A term whose weight is the number 0 is not computed.
        """
        used = {name: w for name, w in weights.items() if isinstance(w, Tensor) or w != 0}
        alpha = predictions
        if evidence is not None:
            fused = self._from_logits(used, predictions, target, evidence)
            if fused is not None:
                return fused
            alpha = alpha_from_logits(predictions, evidence)
        alpha = _checks.floating(alpha, "alpha")
        if self.scale == "per_class":
            factor = growth(self.scale, alpha.shape[-1])
            used = {n: w * factor if n in _GROW_WITH_CLASSES else w for n, w in used.items()}
        fused = fused_loss(
            self._plain,
            used,
            alpha,
            target,
            class_weight=self.class_weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
        )
        return self._plain(used, alpha, target) if fused is None else fused

    def _from_logits(
        self, weights: Mapping[str, Weight], logits: Tensor, target: Tensor, evidence: str
    ) -> Tensor | None:
        """By a kernel that starts from logits, where there is one."""
        if not (isinstance(logits, Tensor) and logits.ndim > 0):
            return None
        return fused_from_logits(
            weights,
            logits,
            target,
            evidence=evidence,
            growth=growth(self.scale, logits.shape[-1]),
            class_weight=self.class_weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
        )

    def _plain(self, weights: Mapping[str, Weight], alpha: Tensor, target: Tensor) -> Tensor:
        alpha = _checks.concentration(alpha)
        y = _checks.distribution(target, alpha, self.ignore_index)
        _checks.not_empty(alpha)
        values = evaluate(tuple(weights), alpha, y)
        loss = torch.zeros_like(values[0])
        for weight, value in zip(weights.values(), values, strict=True):
            loss = loss + weight * value
        return self._reduced(loss, y, target)

    def _reduced(self, loss: Tensor, y: Tensor, target: Tensor) -> Tensor:
        return reduced(loss, y, target, self.class_weight, self.ignore_index, self.reduction)


def growth(scale: str, classes: int) -> float:
    """What the terms that grow with the number of classes are multiplied by.

    >>> growth("paper", 1000), growth("per_class", 1000)
    (1.0, 0.01)
    """
    return 10 / classes if scale == "per_class" else 1.0


def iedl_weights(fisher_weight: Weight, kl_weight: Weight) -> dict[str, Weight]:
    """I-EDL's terms and their weights."""
    return {
        "fisher_bias": 1.0,
        "fisher_variance": 1.0,
        "fisher_penalty": _checks.non_negative(fisher_weight, "fisher_weight"),
        "label_removed_kl": _checks.non_negative(kl_weight, "kl_weight"),
    }


def edl_weights(likelihood: str, kl_weight: Weight) -> dict[str, Weight]:
    """EDL's terms and their weights."""
    names = _checks.entry(EDL_LIKELIHOODS, likelihood, "likelihood")
    kl = _checks.non_negative(kl_weight, "kl_weight")
    return {**dict.fromkeys(names, 1.0), "label_removed_kl": kl}


def weighted(
    weights: Mapping[str, Weight], alpha: Tensor, target: Tensor, **options: Unpack[LossOptions]
) -> Tensor:
    r"""Any weighted sum of terms, by their names.

    Shapes: alpha (..., K); target (...) or (..., K) -> scalar, or (...) unreduced.

    >>> weighted({"mse_bias": 1.0, "vacuity": 1.0}, torch.ones(1, 2), torch.tensor([0]))
    Traceback (most recent call last):
    ValueError: unknown term 'vacuity'; known: 'entropy_of_mean', ...
    """
    for name in weights:
        _checks.one_of(FORMS, name, "term")
    loss = Loss(**options)
    return loss(dict(weights), *loss.classes_last(alpha, target))


def iedl(
    alpha: Tensor,
    target: Tensor,
    *,
    fisher_weight: Weight = 0.05,
    kl_weight: Weight = 1.0,
    **options: Unpack[LossOptions],
) -> Tensor:
    r"""The I-EDL loss (obj_final): I-MSE - fisher_weight ln|I| + kl_weight KL.

    Shapes: alpha (..., K); target (...) or (..., K) -> scalar, or (...) unreduced.

    >>> iedl(torch.tensor([[5.0, 1.0]]), torch.tensor([0]), fisher_weight=0.01)
    tensor(0.1255)
    """
    loss = Loss(**options)
    return loss(iedl_weights(fisher_weight, kl_weight), *loss.classes_last(alpha, target))


def edl(
    alpha: Tensor,
    target: Tensor,
    *,
    likelihood: str = "mse",
    kl_weight: Weight = 1.0,
    **options: Unpack[LossOptions],
) -> Tensor:
    r"""The EDL loss (Sensoy et al. 2018): a likelihood of `EDL_LIKELIHOODS` + kl_weight KL.

    Shapes: alpha (..., K); target (...) or (..., K) -> scalar, or (...) unreduced.

    >>> edl(torch.tensor([[5.0, 1.0]]), torch.tensor([0]))
    tensor(0.0952)
    """
    loss = Loss(**options)
    return loss(edl_weights(likelihood, kl_weight), *loss.classes_last(alpha, target))


def uce(
    alpha: Tensor,
    target: Tensor,
    *,
    entropy_weight: float = 1e-5,
    **options: Unpack[LossOptions],
) -> Tensor:
    r"""Posterior Networks' loss: E[-ln p_y] - entropy_weight H[Dir(alpha)].

    Shapes: alpha (..., K); target (...) or (..., K) -> scalar, or (...) unreduced.

    >>> uce(torch.tensor([[5.0, 1.0]]), torch.tensor([0]))
    tensor(0.2000)
    """
    _checks.non_negative(entropy_weight, "entropy_weight")
    loss = Loss(**options)
    weights: dict[str, Weight] = {
        "expected_cross_entropy": 1.0,
        "differential_entropy": -entropy_weight,
    }
    return loss(weights, *loss.classes_last(alpha, target))


def cross_entropy(
    logits: Tensor, target: Tensor, *, smoothing: float = 0.0, **options: Unpack[LossOptions]
) -> Tensor:
    r"""Softmax cross entropy with label smoothing, with the axes and options of the other losses.

    It is `torch.nn.functional.cross_entropy`, also for soft targets and with smoothing, where a
    class's weight counts for its part of the smoothed target.

    Shapes: logits (..., K); target (...) or (..., K) -> scalar, or (...) unreduced.

    >>> cross_entropy(torch.zeros(2, 4), torch.tensor([0, 3]), smoothing=0.1)
    tensor(1.3863)
    """
    if not 0 <= smoothing < 1:
        raise ValueError(f"smoothing must be in [0, 1), not {smoothing!r}")
    loss = Loss(**options)
    logits, target = loss.classes_last(logits, target)
    logits = _checks.logits(logits)
    y = _checks.distribution(target, logits, loss.ignore_index)
    _checks.not_empty(logits)
    by_class = class_weights(loss.class_weight, y)
    smooth = y * (1 - smoothing) + smoothing / logits.shape[-1]
    each = -(by_class * smooth * logits.log_softmax(-1)).sum(-1)
    weight = torch.ones_like(each) if target.is_floating_point() else (by_class * y).sum(-1)
    return averaged(each, weight, target, loss.ignore_index, loss.reduction)
