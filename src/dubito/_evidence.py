"""The evidence functions: what `evidence.py` and the kernels share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

#: logits above this give no more evidence under "exp"
EXP_BOUND = 60.0


def _exp(logits: Tensor) -> Tensor:
    return logits.clamp(max=EXP_BOUND).exp()


#: name -> function from logits to evidence >= 0
EVIDENCE: dict[str, Callable[[Tensor], Tensor]] = {
    "softplus": torch.nn.functional.softplus,
    "relu": torch.nn.functional.relu,
    "exp": _exp,
}
