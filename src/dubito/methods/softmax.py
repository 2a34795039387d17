r"""Softmax cross entropy, with label smoothing (Szegedy et al., CVPR 2016) or without.

.. math::
    L = -\sum_j \left[(1 - \epsilon) y_j + \tfrac{\epsilon}{K}\right] \ln p_j, \quad
    p = \mathrm{softmax}(\mathrm{outputs})
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from dubito import losses
from dubito.distributions import Categorical
from dubito.losses import Term
from dubito.methods.base import METHODS, Method

__all__ = ["Softmax"]


@METHODS.register("softmax")
class Softmax(Method):
    """Ordinary classifier."""

    ood_score: ClassVar[str] = "energy"

    def distribution(self, outputs: Tensor) -> Categorical:
        """softmax(outputs)."""
        return Categorical.from_logits(outputs)

    @property
    def terms(self) -> Mapping[str, Term]:
        """The cross entropy."""
        return {"cross_entropy": losses.cross_entropy}


@METHODS.register("label_smoothing")
class LabelSmoothing(Softmax):
    """Cross entropy with smoothed labels."""

    smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of each label that is spread evenly over all classes."""

    @property
    def terms(self) -> Mapping[str, Term]:
        """The cross entropy of smoothed labels."""
        return {"cross_entropy": partial(losses.cross_entropy, smoothing=self.smoothing)}
