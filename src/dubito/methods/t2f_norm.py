r"""T2FNorm: training on features of one length (Regmi et al., CVPR workshops 2024).

.. math:: f' = \frac{f}{\tau\,\|f\|} \text{ in training}, \quad f' = \frac{f}{\tau}
    \text{ in evaluation}

replaces the features f that the head reads. https://arxiv.org/abs/2305.17797
"""

from torch import Tensor, nn

from dubito.methods.base import METHODS, Positive
from dubito.methods.logit_norm import NormMethod, OneLength

__all__: list[str] = []


@METHODS.register("t2f_norm")
class T2FNorm(NormMethod):
    """A method whose features have one length in training."""

    temperature: Positive = 0.1
    """Temperature tau; the length of the features in training is 1/tau."""

    def normalized(self, head: nn.Module) -> nn.Module:
        """Normalize the features."""
        return FeatureNorm(head, self.temperature)


class FeatureNorm(OneLength):
    """A head that reads features of one length in training: (N, D) -> (N, M).

    Args:
        head: Head.
        temperature: Inverse of the length.
    """

    def __init__(self, head: nn.Module, temperature: float) -> None:
        super().__init__(temperature)
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs for normalized features."""
        outputs: Tensor = self.head(super().forward(x) if self.training else x / self.temperature)
        return outputs

    @property
    def linear(self) -> nn.Linear | None:
        """The head as a linear layer of features that are not divided; None if it is not linear."""
        if not isinstance(self.head, nn.Linear):
            return None
        layer = nn.Linear(self.head.in_features, self.head.out_features)
        layer.weight = nn.Parameter(self.head.weight / self.temperature)
        layer.bias = self.head.bias
        return layer
