"""Distance from the space of the training features, as ViM (Wang et al., CVPR 2022).

Paper: https://arxiv.org/abs/2203.10807
"""

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from dubito.errors import DubitoError
from dubito.scores import SCORES, Score


@SCORES.register("vim_like")
class VimLike(Score):
    """Distance of the features from their principal directions, less the energy of the outputs."""

    higher: ClassVar[Literal["confidence", "uncertainty"]] = "uncertainty"

    dimensions: Annotated[int, Field(ge=1)] = 2
    """Principal directions of the training features."""

    def fit(
        self, features: Tensor, outputs: Tensor, target: Tensor, head: nn.Module | None
    ) -> None:
        if not isinstance(head, nn.Linear):
            raise DubitoError("vim_like needs a network with a linear head")
        self.register_buffer("origin", -torch.linalg.pinv(head.weight) @ head.bias)
        centered = features - self.origin
        directions = torch.linalg.eigh(centered.mT @ centered).eigenvectors
        self.register_buffer("rest", directions[:, : -self.dimensions].contiguous())
        self.register_buffer(
            "scale", outputs.amax(-1).mean().abs() / self.distance(features).mean()
        )

    def distance(self, features: Tensor) -> Tensor:
        return ((features - self.origin) @ self.rest).norm(dim=-1)

    def forward(self, features: Tensor, outputs: Tensor) -> Tensor:
        return self.scale * self.distance(features) - outputs.logsumexp(-1)
