"""Mean of token embeddings, the small network for texts."""

import torch
from torch import Tensor, nn

from dubito.backbones.base import BACKBONES, Backbone, Shape, Size, chain
from dubito.backbones.mlp import dense
from dubito.errors import DubitoError

__all__: list[str] = []

PADDING, UNKNOWN = 0, 1


@BACKBONES.register("embedding")
class Embedding(Backbone):
    """Mean of the embeddings of token ids (N, L) int64 other than 0, the padding; then an MLP.

    >>> Embedding(vocabulary=100).build((20,)).out_features
    128
    """

    vocabulary: Size = 10_000
    """Number of token ids; larger ones, of rarer words, count as 1, an unknown word."""
    size: Size = 128
    """Size of an embedding."""
    hidden: tuple[Size, ...] = (128,)
    """Sizes of the dense layers with ReLU."""

    def build(self, shape: Shape, *, pretrained: bool = False) -> nn.Module:
        """Build the network for token ids (L,)."""
        if len(shape) != 1:
            raise DubitoError(f"the backbone 'embedding' needs token ids (L,), not {shape}")
        sizes = (self.size, *self.hidden)
        mean = _MeanEmbedding(self.vocabulary, self.size, padding_idx=PADDING)
        return chain(sizes[-1], embedding=mean, layers=dense(sizes, self.dropout))


class _MeanEmbedding(nn.Embedding):
    """Mean over the tokens of each text; zeros for an empty one."""

    def forward(self, ids: Tensor) -> Tensor:
        if ids.is_floating_point():
            raise DubitoError("the backbone 'embedding' needs token ids, not numbers: use 'mlp'")
        ids = torch.where(ids < self.num_embeddings, ids, UNKNOWN)
        count = (ids != PADDING).sum(1, keepdim=True).clamp(min=1)
        return super().forward(ids).sum(1) / count  # embeddings of the padding are zeros
