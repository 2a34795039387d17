r"""Prior Networks: a sharp Dirichlet for data, a flat one for out-of-distribution inputs.

KL-PN (Malinin and Gales, NeurIPS 2018) and RKL-PN (Malinin and Gales, NeurIPS 2019) minimise

.. math::
    L_\mathrm{KL} &= \mathrm{KL}(\mathrm{Dir}(\beta^y)\,\|\,\mathrm{Dir}(\alpha))
                   + \gamma\,\mathrm{KL}(\mathrm{Dir}(1)\,\|\,\mathrm{Dir}(\alpha^\mathrm{ood})) \\
    L_\mathrm{RKL} &= \mathrm{KL}(\mathrm{Dir}(\alpha)\,\|\,\mathrm{Dir}(\beta^y))
                    + \gamma\,\mathrm{KL}(\mathrm{Dir}(\alpha^\mathrm{ood})\,\|\,\mathrm{Dir}(1))

where beta^y is beta for the label and 1 for other classes. alpha = exp(logits) may fall below 1: it
is no prior plus evidence. So a prediction has the prior 0; its belief is its probability, it has
no `vacuity`, and `alpha0` is what tells how much the network knows.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dubito import _checks
from dubito.evidence import alpha_from_logits
from dubito.losses import forward_kl, label_dirichlet, reverse_kl
from dubito.methods.base import Method
from dubito.prediction import Prediction


@dataclass(frozen=True, kw_only=True)
class PriorNetwork(Method):
    """What the two share: alpha, the targets, and the OOD inputs that they train with.

    Each batch is joined by as many OOD inputs: uniform noise in [0, 1], or draws from a bank `ood`
    (M, *shape), floating or uint8 images, best kept on the model's device. They share one pass of
    the model: batch norm then normalises in training by the mixture that its averages describe.
    """

    beta: float = 100.0
    ood_weight: float = 1.0
    ood: Tensor | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 1 < self.beta < float("inf"):
            raise ValueError(f"beta must be a finite number > 1, not {self.beta!r}")
        _checks.non_negative(self.ood_weight, "ood_weight")
        if self.ood is not None and (self.ood.ndim < 2 or not len(self.ood)):
            raise ValueError(f"ood has shape {tuple(self.ood.shape)}; expected (M, *shape), M >= 1")

    def inputs(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The batch (N, *shape) and as many OOD inputs: (2N, *shape)."""
        return torch.cat([x, self._outside(x, generator)])

    def _outside(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        if self.ood is None:
            return torch.rand(x.shape, generator=generator, dtype=x.dtype, device=x.device)
        if self.ood.shape[1:] != x.shape[1:]:
            raise ValueError(
                f"ood holds inputs of shape {tuple(self.ood.shape[1:])}, "
                f"but the batch of shape {tuple(x.shape[1:])}"
            )
        bank = self.ood.to(x.device)
        drawn = torch.randint(len(bank), x.shape[:1], generator=generator, device=x.device)
        return bank[drawn].to(x.dtype) / (1 if bank.is_floating_point() else 255)

    def weights(self, epoch: int, epochs: int) -> dict[str, float]:
        """The weight of each term."""
        return {"id_kl": 1.0, "ood_kl": self.ood_weight}

    def terms_of(self, outputs: Tensor, target: Tensor) -> dict[str, Tensor]:
        """The divergences of the batch and of its OOD inputs: outputs (..., 2N, K) -> (..., N)."""
        alpha = alpha_from_logits(outputs, "exp", prior=0.0)
        sharp = label_dirichlet(target, alpha.shape[-1], self.beta).to(alpha.dtype)
        both = self.divergence(alpha, torch.cat([sharp, torch.ones_like(sharp)], dim=-2))
        return dict(zip(self.weights(0, 1), both.chunk(2, dim=-1), strict=True))

    @abstractmethod
    def divergence(self, alpha: Tensor, target_alpha: Tensor) -> Tensor:
        """How far Dir(alpha) is from the target: (..., K) -> (...)."""

    def prediction(self, outputs: Tensor) -> Prediction:
        """Dir(exp(logits))."""
        return Prediction.from_logits(outputs, "exp", prior=0.0)


@dataclass(frozen=True, kw_only=True)
class KLPriorNetwork(PriorNetwork):
    """KL-PN: the target first, mass covering.

    >>> KLPriorNetwork().inputs(torch.zeros(8, 1, 28, 28)).shape
    torch.Size([16, 1, 28, 28])
    """

    def divergence(self, alpha: Tensor, target_alpha: Tensor) -> Tensor:
        """KL(Dir(target_alpha) || Dir(alpha))."""
        return forward_kl(alpha, target_alpha)


@dataclass(frozen=True, kw_only=True)
class ReverseKLPriorNetwork(PriorNetwork):
    """RKL-PN: the model first, mode seeking.

    Labels with probabilities p ask for alpha = 1 + (beta - 1) p: doubt shares evidence out among
    classes and leaves `alpha0` as it is; `max_prob` tells of it. In long trainings `alpha0` may
    turn round: more of it where the network is wrong.

    >>> ReverseKLPriorNetwork(ood_weight=0.5).weights(epoch=0, epochs=1)
    {'id_kl': 1.0, 'ood_kl': 0.5}
    """

    def divergence(self, alpha: Tensor, target_alpha: Tensor) -> Tensor:
        """KL(Dir(alpha) || Dir(target_alpha))."""
        return reverse_kl(alpha, target_alpha)
