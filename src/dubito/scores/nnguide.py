r"""Energy guided by nearest neighbors (Park et al., ICCV 2023, https://arxiv.org/abs/2309.14888).

.. math:: s = E(x) \cdot \frac1k \sum_{i \in \mathrm{top}_k} \cos(f, f_i)\, E(x_i), \quad
    E = \ln\sum_c e^{z_c}
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from dubito.distributions import Categorical
from dubito.scores.base import SCORES, HeadScore, State

__all__: list[str] = []

#: share of the training samples that is kept, but at least so many
SHARE, LEAST = 0.01, 500
#: kept samples for each neighbor
RATIO = 5


@SCORES.register("nnguide")
class NNGuide(HeadScore):
    """Energy times the mean similarity of the features to confident training samples.

    Every hundredth training sample is kept, but at least 500.
    """

    k: Annotated[int, Field(ge=1)] = 100
    """Neighbors; at most a fifth of the samples that are kept."""

    def state(self, features: Tensor, logits: Tensor, weight: Tensor, bias: Tensor) -> State:
        kept = min(len(features), max(LEAST, round(SHARE * len(features))))
        rows = torch.linspace(0, len(features) - 1, kept, device=features.device).round().long()
        energy = Categorical(logits[rows]).energy
        return {"bank": normalize(features[rows], dim=-1) * energy.unsqueeze(-1)}

    def values(self, features: Tensor, logits: Tensor) -> Tensor:
        similarity = torch.bmm(normalize(features, dim=-1), self.bank.mT)
        k = max(1, min(self.k, self.bank.shape[1] // RATIO))
        guidance = similarity.topk(k, sorted=False).values.mean(-1)
        return Categorical(logits).energy * guidance
