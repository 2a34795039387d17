r"""Distance from the decision boundaries (Liu and Qin, ICML 2024, https://arxiv.org/abs/2312.11536).

.. math:: s = \frac{1}{K - 1} \sum_{c \ne \hat y}
    \frac{z_{\hat y} - z_c}{\|w_{\hat y} - w_c\|} \Big/ \|f - \mu\|

with the predicted class, the logits z = W f + b and the mean mu of the training features.
"""

import torch
from torch import Tensor

from dubito.scores.base import SCORES, HeadScore, State

__all__: list[str] = []

#: least distance from the mean that is divided by
LEAST = 1e-12


@SCORES.register("fdbd")
class FDBD(HeadScore):
    """Mean distance of the features from the boundaries to the other classes.

    Relative to their distance from the mean of the training features. Classes with the same
    weights have no boundary, and count as one at distance zero.
    """

    def state(self, features: Tensor, logits: Tensor, weight: Tensor, bias: Tensor) -> State:
        exact = weight.double()
        lengths = torch.stack([(exact - row).norm(dim=-1) for row in exact])
        factors = torch.where(lengths > 0, 1 / lengths, 0) / (len(weight) - 1)
        return {"mean": features.mean(0, dtype=torch.float64), "factors": factors}

    def values(self, features: Tensor, logits: Tensor) -> Tensor:
        top, label = logits.max(-1, keepdim=True)
        factors = self.factors.gather(1, label.expand(-1, -1, logits.shape[-1]))
        squares = (features - self.mean.unsqueeze(1)).square().sum(-1)
        return ((top - logits) * factors).sum(-1) / squares.sqrt().clamp_min(LEAST)
