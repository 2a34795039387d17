r"""Energy of scaled features (Xu et al., ICLR 2024, https://arxiv.org/abs/2310.00227).

.. math:: s = \ln\sum_k e^{z_k}, \quad z = W f e^{r} + b, \quad
    r = \sum_j f_j \Big/ \sum_{j \in P} f_j

with the largest features P. It gains with many classes, and costs with ten.
"""

from typing import Annotated

from pydantic import Field
from torch import Tensor

from dubito.distributions import Categorical
from dubito.errors import DubitoError
from dubito.scores.base import SCORES, HeadScore, State

__all__: list[str] = []

#: least sum of features that is divided by
LEAST = 1e-12


@SCORES.register("scale")
class Scale(HeadScore):
    """Energy after features have been scaled up, the more the less their largest ones stand out."""

    percentile: Annotated[float, Field(ge=0, lt=100)] = 85.0
    """Percentage of the features that are not among the largest ones."""

    def state(self, features: Tensor, logits: Tensor, weight: Tensor, bias: Tensor) -> State:
        if bool((features < 0).any()):
            raise DubitoError(
                "the score 'scale' needs features >= 0, such as those behind a ReLU: use another "
                "score, or another backbone"
            )
        return {}

    def values(self, features: Tensor, logits: Tensor) -> Tensor:
        size = features.shape[-1]
        kept = max(1, size - round(size * self.percentile / 100))
        largest = features.topk(kept, sorted=False).values.sum(-1, keepdim=True)
        factor = (features.sum(-1, keepdim=True) / largest.clamp_min(LEAST)).exp()
        # W (f r) + b = (W f + b - b) r + b
        bias = self.bias.unsqueeze(1)
        return Categorical((logits - bias) * factor + bias).energy
