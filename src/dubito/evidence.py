"""From logits to evidence to alpha.

| name | evidence | note |
| --- | --- | --- |
| softplus | ln(1 + e^x) | the default: positive and with a gradient everywhere |
| relu | max(x, 0) | a sample whose logits are all negative has no gradient and never learns |
| exp | e^min(x, 60) | steep; the bound keeps alpha0 finite in float32 up to 10,000 classes |
"""

from __future__ import annotations

from torch import Tensor

from dubito import _checks
from dubito._evidence import EVIDENCE, EXP_BOUND

__all__ = ["EVIDENCE", "EXP_BOUND", "alpha_from_logits", "evidence"]


def evidence(logits: Tensor, function: str = "softplus") -> Tensor:
    """Evidence >= 0 of finite logits, in float32 at least: (..., K) -> (..., K).

    >>> import torch
    >>> evidence(torch.tensor([-1.0, 2.0]), "relu")
    tensor([0., 2.])
    """
    return _checks.entry(EVIDENCE, function, "evidence function")(_checks.logits(logits))


def alpha_from_logits(logits: Tensor, function: str = "softplus", prior: float = 1.0) -> Tensor:
    """alpha = evidence + prior: (..., K) -> (..., K).

    >>> import torch
    >>> alpha_from_logits(torch.tensor([0.0, 100.0]))
    tensor([  1.6931, 101.0000])
    """
    return evidence(logits, function) + prior
