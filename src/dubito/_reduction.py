"""How the losses of samples become one."""

from __future__ import annotations

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
    weight = torch.ones_like(loss) if class_weight is None else _class_weights(class_weight, y)
    if not target.is_floating_point():
        weight = torch.where(target.long() == ignore_index, 0, weight)
    loss = torch.where(weight == 0, 0, weight * loss)
    if reduction == "none":
        return loss
    total = weight.sum() if reduction == "mean" else torch.ones_like(weight.sum())
    return loss.sum() / torch.where(total == 0, 1, total)


def _class_weights(class_weight: Tensor, y: Tensor) -> Tensor:
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
    return (y * weight).sum(-1)
