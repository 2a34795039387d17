"""How the losses of samples become one."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dubito import _checks


def reduced(
    loss: Tensor,
    y: Tensor,
    target: Tensor,
    class_weight: Tensor | None,
    ignore_index: int,
    reduction: str,
) -> Tensor:
    """The weighted mean or sum of loss (...), or each; y (..., K) is the target's distribution."""
    weight = torch.ones_like(loss)
    if class_weight is not None:
        weight = (y * class_weights(class_weight, y)).sum(-1)
    loss = torch.where(weight == 0, 0, weight * loss)
    return averaged(loss, weight, target, ignore_index, reduction)


def averaged(
    loss: Tensor, weight: Tensor, target: Tensor, ignore_index: int, reduction: str
) -> Tensor:
    """The sum of loss (...), over that of weight (...) for the mean, or each."""
    if not target.is_floating_point():
        ignored = target.long() == ignore_index
        loss, weight = torch.where(ignored, 0, loss), torch.where(ignored, 0, weight)
    if reduction == "none":
        return loss
    total = weight.sum() if reduction == "mean" else torch.ones_like(weight.sum())
    return loss.sum() / torch.where(total == 0, math.inf, total)  # 0 where nothing counts


def class_weights(class_weight: Tensor | None, y: Tensor) -> Tensor:
    """The weight of each class, (K,), checked and as y (..., K) is; ones where none are given."""
    if class_weight is None:
        return y.new_ones(y.shape[-1])
    weight = _checks.tensor(class_weight, "class_weight").to(y)
    if weight.shape != y.shape[-1:]:
        raise ValueError(
            f"class_weight has shape {tuple(weight.shape)}; expected one per class, "
            f"({y.shape[-1]},)"
        )
    if _checks.visible(weight) and not bool(((weight >= 0) & weight.isfinite()).all()):
        raise ValueError(
            f"class_weight must be >= 0 and finite, but spans [{weight.min():g}, {weight.max():g}]"
        )
    return weight
