r"""Virtual-logit matching (Wang et al., CVPR 2022, https://arxiv.org/abs/2203.10807).

.. math:: s = \ln\sum_k e^{z_k} - a \|R^T (f - u)\|, \quad u = -W^+ b, \quad
    a = \frac{\sum_i \max_k z_{ik}}{\sum_i \|R^T (f_i - u)\|}

with the directions R in which training features deviate least from u, the point that the last layer
z = W f + b maps to zero.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from dubito.distributions import Categorical
from dubito.scores.base import SCORES, HeadScore, State
from dubito.scores.mahalanobis import ROWS, exceeds_rounding

__all__: list[str] = []


@SCORES.register("vim")
class ViM(HeadScore):
    """Energy, less the distance of the features from their principal directions."""

    dimensions: Annotated[int, Field(ge=1)] = 256
    """Number of principal directions; half of the rank of the features, if that is no larger."""

    def state(self, features: Tensor, logits: Tensor, weight: Tensor, bias: Tensor) -> State:
        count, size = features.shape
        origin = -torch.linalg.pinv(weight.double()) @ bias.double()
        origin = origin.float().double()
        second = torch.zeros(size, size, dtype=torch.float64, device=features.device)
        for rows in features.split(ROWS):
            rest = rows.double() - origin
            second += rest.mT @ rest / count
        variances, directions = torch.linalg.eigh(second)
        present = int(exceeds_rounding(variances, features.double().square().sum() / count).sum())
        principal = self.dimensions if self.dimensions < present else present // 2
        # Zeros in place of the principal directions: members of an ensemble may have other numbers.
        directions[:, size - principal :] = 0
        parts = [(rows.double() - origin) @ directions for rows in features.split(ROWS)]
        distance = torch.cat([part.norm(dim=-1) for part in parts]).mean()
        scale = logits.double().amax(-1).mean() / distance
        return {"origin": origin, "directions": scale * directions}

    def values(self, features: Tensor, logits: Tensor) -> Tensor:
        rest = torch.bmm(features - self.origin.unsqueeze(1), self.directions)
        return Categorical(logits).energy - rest.square().sum(-1).sqrt()
