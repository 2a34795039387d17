"""Energy of the outputs (Liu et al., NeurIPS 2020, https://arxiv.org/abs/2010.03759)."""

from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from dubito import _checks
from dubito.distributions import Categorical
from dubito.scores.base import SCORES, Score

__all__: list[str] = []


@SCORES.register("energy")
class Energy(Score):
    r"""Negative free energy of the outputs, :math:`T \ln \sum_k e^{z_k/T}`.

    The mean over members or samples, if there are several. A softmax has this score already.

    >>> import torch
    >>> Energy()(None, torch.zeros(1, 2))
    tensor([0.6931])
    """

    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    needs_features: ClassVar[bool] = False
    needs_fit: ClassVar[bool] = False

    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Temperature T."""

    def forward(self, features: Tensor | None, outputs: Tensor) -> Tensor:
        """Return the energy; higher means more familiar: (N,)."""
        scaled = _checks.at_least_float32(outputs) / self.temperature
        energy = self.temperature * Categorical(scaled).energy
        return energy.flatten(1).mean(-1) if energy.ndim > 1 else energy
