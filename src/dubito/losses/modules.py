"""Losses of logits, as modules."""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

import torch
from torch import Tensor

from dubito import _checks
from dubito.evidence import EVIDENCE, alpha_from_logits
from dubito.losses.functions import (
    EDL_LIKELIHOODS,
    Loss,
    LossOptions,
    Weight,
    edl_weights,
    iedl_weights,
)
from dubito.losses.terms import terms
from dubito.schedules import Schedule


class _EvidentialLoss(torch.nn.Module):
    """Evidence, alpha, terms, weights, reduction."""

    kl_weight: Tensor
    class_weight: Tensor | None

    def __init__(self, kl_weight: float | Schedule, evidence: str, options: LossOptions) -> None:
        super().__init__()
        _checks.entry(EVIDENCE, evidence, "evidence function")
        self.evidence = evidence
        self.schedule = kl_weight if callable(kl_weight) else None
        first = kl_weight(0) if callable(kl_weight) else kl_weight
        # a buffer: a new weight each epoch neither recompiles a step nor breaks a captured one
        weight = torch.tensor(_checks.non_negative(float(first), "kl_weight"))
        self.register_buffer("kl_weight", weight, persistent=False)
        self.register_buffer("class_weight", options.get("class_weight"), persistent=False)
        self.loss = Loss(**options)

    def set_epoch(self, epoch: int) -> None:
        """Move the KL weight's schedule to `epoch` (from 0); a constant weight stays."""
        if self.schedule is not None:
            weight = _checks.non_negative(self.schedule(epoch), f"kl_weight in epoch {epoch}")
            self.kl_weight.fill_(weight)

    def weights(self) -> dict[str, Weight]:
        """The weight of each term."""
        raise NotImplementedError

    def terms(self, logits: Tensor, target: Tensor) -> dict[str, Tensor]:
        """The unweighted terms of each sample: {name: (...)}."""
        loss = self._loss()
        logits, target = loss.classes_last(logits, target)
        alpha = alpha_from_logits(logits, self.evidence)
        return terms(tuple(self.weights()), alpha, target, loss.ignore_index)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Logits (..., K) or with classes at `class_dim`; target (...) or of the logits' shape."""
        loss = self._loss()
        logits, target = loss.classes_last(logits, target)
        return loss(self.weights(), logits, target, self.evidence)

    def _loss(self) -> Loss:
        return replace(self.loss, class_weight=self.class_weight)  # on the module's device

    def extra_repr(self) -> str:
        """What the loss was made with."""
        kl = self.schedule if self.schedule is not None else f"{self.kl_weight.item():g}"
        return f"kl_weight={kl}, evidence={self.evidence!r}, scale={self.loss.scale!r}"


class IEDLLoss(_EvidentialLoss):
    """I-EDL from logits, in place of `nn.CrossEntropyLoss`; see `iedl` and `LossOptions`.

    `kl_weight` is a number or a schedule of `dubito.schedules`, moved by `set_epoch`.

    >>> from dubito.schedules import Linear
    >>> criterion = IEDLLoss(fisher_weight=0.05, kl_weight=Linear(10))
    >>> criterion(torch.zeros(2, 3), torch.tensor([0, 1]))
    tensor(0.7383)
    >>> images = torch.zeros(2, 3, 8, 8), torch.zeros(2, 8, 8, dtype=torch.long)
    >>> IEDLLoss(class_dim=1, reduction="none")(*images).shape
    torch.Size([2, 8, 8])
    """

    def __init__(
        self,
        fisher_weight: float = 0.05,
        kl_weight: float | Schedule = 1.0,
        *,
        evidence: str = "softplus",
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(kl_weight, evidence, options)
        self.fisher_weight = _checks.non_negative(fisher_weight, "fisher_weight")

    def weights(self) -> dict[str, Weight]:
        """The weight of each term."""
        return iedl_weights(self.fisher_weight, self.kl_weight)

    def extra_repr(self) -> str:
        """What the loss was made with."""
        return f"fisher_weight={self.fisher_weight:g}, {super().extra_repr()}"


class EDLLoss(_EvidentialLoss):
    """EDL from logits; see `edl` and `LossOptions`.

    >>> EDLLoss(likelihood="marginal")(torch.zeros(2, 3), torch.tensor([0, 1]))
    tensor(1.2933)
    """

    def __init__(
        self,
        likelihood: str = "mse",
        kl_weight: float | Schedule = 1.0,
        *,
        evidence: str = "softplus",
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(kl_weight, evidence, options)
        _checks.entry(EDL_LIKELIHOODS, likelihood, "likelihood")
        self.likelihood = likelihood

    def weights(self) -> dict[str, Weight]:
        """The weight of each term."""
        return edl_weights(self.likelihood, self.kl_weight)

    def extra_repr(self) -> str:
        """What the loss was made with."""
        return f"likelihood={self.likelihood!r}, {super().extra_repr()}"
