"""Scores that need what scores may need: an option, a buffer, a sub-module, the head."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from dubito.scores import SCORES, Score


@SCORES.register("test_nearest")
class Nearest(Score):
    """Similarity to the k-th nearest training sample."""

    k: int = 1
    """Neighbor."""

    def fit(self, features: Tensor, outputs: Tensor, target: Tensor, head: object) -> None:
        self.register_buffer("bank", functional.normalize(features))

    def forward(self, features: Tensor, outputs: Tensor) -> Tensor:
        distances = torch.cdist(functional.normalize(features), self.bank)
        return -distances.kthvalue(self.k).values


@SCORES.register("test_residual")
class Residual(Score):
    """Distance of the features from what the head reads, as in ViM."""

    higher = "uncertainty"

    def fit(
        self,
        features: Tensor,
        outputs: Tensor,
        target: Tensor,
        head: nn.Linear | nn.ModuleList | None,
    ) -> None:
        assert isinstance(head, nn.Linear)
        self.register_buffer("origin", -torch.linalg.pinv(head.weight) @ head.bias)
        _, _, rows = torch.linalg.svd(head.weight)
        self.register_buffer("unread", rows[head.out_features :])

    def forward(self, features: Tensor, outputs: Tensor) -> Tensor:
        return ((features - self.origin) @ self.unread.mT).norm(dim=-1)


@SCORES.register("test_density")
class Density(Score):
    """Normal density of outputs, which is computed by a sub-module."""

    needs_features = False

    def fit(self, features: object, outputs: Tensor, target: Tensor, head: object) -> None:
        self._build(outputs.shape[-1])
        flat = outputs.flatten(0, -2)
        self.scale.weight.data = flat.std(0).reciprocal().diag()
        self.scale.bias.data = -flat.mean(0) / flat.std(0)
        self.register_buffer("classes", target.unique())

    def forward(self, features: object, outputs: Tensor) -> Tensor:
        values = -self.scale(outputs).square().sum(-1)
        return values.flatten(1).mean(-1) if values.ndim > 1 else values

    def allocate(self, state: dict[str, Tensor]) -> None:
        super().allocate(state)
        self._build(len(state["scale.bias"]))

    def _build(self, size: int) -> None:
        self.scale = nn.Linear(size, size)
