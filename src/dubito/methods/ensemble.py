r"""Deep ensembles: networks from several initial weights (Lakshminarayanan et al., NeurIPS 2017).

.. math::
    L = \tfrac1M \sum_m L_m, \quad p = \tfrac1M \sum_m p_m

with L_m the loss and p_m the expected probabilities of a member. Members see the same batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from dubito.methods.base import Counts, Delegate, Method
from dubito.prediction import Prediction


@dataclass(frozen=True, kw_only=True)
class Ensemble(Delegate):
    """`size` networks of the method `member`, made with the hyperparameters `options`.

    A prediction holds the members' expected probabilities as samples, so that their disagreement is
    its mutual information. The Dirichlets of evidential members are not kept: a mixture of them is
    no Dirichlet and has no alpha0.

    >>> Ensemble(member="edl", size=3, options={"kl_ramp": 0}).method
    EDL(likelihood='mse', kl_weight=1.0, kl_ramp=0, fisher_weight=0.0, evidence=..., scale=...)
    """

    member: str = "iedl"
    size: int = 5
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    method: Method = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        from dubito.methods import method  # here: the table holds this class

        if self.size < 1:
            raise ValueError(f"size must be at least 1, not {self.size!r}")
        object.__setattr__(self, "method", method(self.member, **self.options))

    def model(
        self, backbone: nn.Module, classes: int, class_counts: Counts | None = None
    ) -> nn.Module:
        """The backbone and copies of it with weights drawn anew, each as a member's model."""
        backbones = [backbone, *(redrawn(backbone) for _ in range(self.size - 1))]
        return Members([self.method.model(one, classes, class_counts) for one in backbones])

    def terms_of(self, outputs: Tensor, target: Tensor) -> dict[str, Tensor]:
        """The mean of the members' terms: outputs (M, N, K) -> {name: (N,)}."""
        values = self.method.terms_of(outputs, target.expand(len(outputs), *target.shape))
        return {name: value.mean(0) for name, value in values.items()}

    def prediction(self, outputs: Tensor) -> Prediction:
        """The members' expected probabilities as samples, of outputs (M, N, K)."""
        return Prediction.from_samples(self.method.prediction(outputs).probs)

    def hyperparameters(self) -> dict[str, Any]:
        """The fields that make an equal method again; data given to the members is left out."""
        kept = self.method.hyperparameters()
        options = {name: value for name, value in self.options.items() if name in kept}
        return {**super().hyperparameters(), "options": options}


class Members(nn.ModuleList):
    """Models side by side: (N, *shape) -> (M, N, K)."""

    def forward(self, x: Tensor) -> Tensor:
        """The stacked outputs."""
        return torch.stack([member(x) for member in self])


def redrawn(network: nn.Module) -> nn.Module:
    """A copy of the network with parameters drawn anew, by the `reset_parameters` of its modules.

    A parent's comes after its children's, so that a network's own initialisation has the last word.
    """
    copy = deepcopy(network)
    for name, module in reversed(list(copy.named_modules())):
        reset = getattr(module, "reset_parameters", getattr(module, "_reset_parameters", None))
        if callable(reset):
            reset()
        elif any(True for _ in module.parameters(recurse=False)):
            raise TypeError(
                f"an ensemble draws the weights of each member anew, but {type(module).__name__} "
                f"({name or 'the backbone itself'}) has parameters and no reset_parameters()"
            )
    return copy
