"""Networks of one hidden layer side by side: one for each split and trial of hyperparameters.

Products of matrices are batched over all networks, so that a step of a hundred networks takes about
as long as five steps of one. The loss is that of the library's methods.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from dubito.distributions import RealDistribution
from dubito.losses import weighted_sums
from dubito.methods import METHODS
from dubito.methods.ensemble import MixtureMethod

__all__ = ["Networks", "Plan", "Setting", "standardized"]

BETAS, EPSILON = (0.9, 0.999), 1e-8
#: decay per step of the average of the weights
AVERAGE = 0.99
ONE = SimpleNamespace(size=1)  # one target


@dataclass(frozen=True)
class Plan:
    """Sizes of a training: hidden units, epochs, samples of a batch, and looks at the weights."""

    hidden: int
    epochs: int
    batch: int
    looks: int = 20

    @property
    def epochs_of_looks(self) -> list[int]:
        """Numbers of epochs after which the weights are looked at."""
        count = min(self.looks, self.epochs)
        return [round(self.epochs * (i + 1) / count) for i in range(count)]


@dataclass(frozen=True)
class Setting:
    """Hyperparameters: method with its options, learning rate, and weight decay as in AdamW."""

    method: Mapping[str, Any]
    rate: float
    decay: float = 0.0


class Networks:
    """Networks and the averages of their weights.

    Networks of one task have the same samples, batches and initial weights.

    Args:
        settings: Hyperparameters of each of S networks.
        task: Task of each network, (S,).
        features: Number of inputs D.
        hidden: Number of hidden units.
        generator: Draws weights, batches and dropout.
    """

    def __init__(
        self, settings: Sequence[Setting], task: Tensor, features: int, hidden: int,
        generator: torch.Generator,
    ) -> None:  # fmt: skip
        methods = [METHODS.build(setting.method) for setting in settings]
        self.task, self.generator = task, generator
        column = torch.tensor([[s.rate, s.decay] for s in settings])[:, :, None, None]
        self.rate, self.decay = column.unbind(1)
        self.dropout = torch.tensor([getattr(m, "dropout", 0.0) for m in methods])[:, None, None]
        self.samples = getattr(methods[0], "samples", 1)
        #: methods, and the numbers of their networks
        self.groups = [
            (method, torch.tensor([i for i, other in enumerate(methods) if other == method]))
            for i, method in enumerate(methods)
            if method not in methods[:i]
        ]
        outputs = methods[0].outputs(ONE)
        self.weights: list[Tensor] = []
        for before, after in pairwise((features, hidden, outputs)):
            for rows in (before, 1):  # weight and bias, as nn.Linear draws them
                drawn = torch.rand(int(task.max()) + 1, rows, after, generator=generator)
                self.weights.append(((2 * drawn - 1) / math.sqrt(before))[task])
        self.averages = [weight.clone() for weight in self.weights]

    def outputs(self, x: Tensor, weights: Sequence[Tensor], drop: bool = False) -> Tensor:
        """Return outputs for the inputs of each network, (S, N, D): (S, N, M)."""
        w1, b1, w2, b2 = weights
        features = torch.baddbmm(b1, x, w1).relu()
        if drop:
            noise = torch.rand(features.shape, generator=self.generator)
            features = features * (noise >= self.dropout) / (1 - self.dropout)
        return torch.baddbmm(b2, features, w2)

    def train(self, x: Tensor, y: Tensor, plan: Plan) -> Iterator[int]:
        """Train with Adam, and yield the epoch whenever the averages are to be looked at.

        Args:
            x: Inputs of each task, (P, N, D).
            y: Targets, (P, N, 1).
            plan: Sizes.
        """
        moments = [(torch.zeros_like(w), torch.zeros_like(w)) for w in self.weights]
        place, step, drop = torch.arange(len(x))[:, None], 0, bool((self.dropout > 0).any())
        for epoch in range(plan.epochs):
            order = torch.rand(x.shape[:2], generator=self.generator).argsort(1)
            for rows in order.split(plan.batch, 1):
                for weight in self.weights:
                    weight.requires_grad_()
                outputs = self.outputs(x[place, rows][self.task], self.weights, drop)
                loss = self._loss(outputs, y[place, rows][self.task], epoch, plan)
                gradients = torch.autograd.grad(loss / rows.shape[1], self.weights)
                step += 1
                self._update(gradients, moments, step)
            if epoch + 1 in plan.epochs_of_looks:
                yield epoch + 1

    def _loss(self, outputs: Tensor, target: Tensor, epoch: int, plan: Plan) -> Tensor:
        total = outputs.new_zeros(())
        for method, own in self.groups:
            mine = own if len(self.groups) > 1 else slice(None)
            plain = method.member if isinstance(method, MixtureMethod) else method
            factors = plain.weight_tensor(epoch, plan.epochs)
            dist = plain.distribution(outputs[mine])
            total = total + weighted_sums(plain.terms, dist, target[mine], factors)[0]
        return total

    @torch.no_grad()
    def _update(
        self, gradients: Sequence[Tensor], moments: list[tuple[Tensor, Tensor]], step: int
    ) -> None:
        """Make a step of AdamW; every network has its own rate and decay."""
        corrections = [1 - beta**step for beta in BETAS]
        share = 1 - min(AVERAGE, step / (9 + step))  # as `TrainConfig.ema_decay`
        parts = zip(self.weights, self.averages, gradients, moments, strict=True)
        for weight, average, gradient, (first, second) in parts:
            weight.requires_grad_(False)
            first.lerp_(gradient, 1 - BETAS[0])
            second.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
            scale = (second / corrections[1]).sqrt_().add_(EPSILON)
            weight.mul_(1 - self.rate * self.decay)
            weight.sub_(self.rate / corrections[0] * first / scale)
            average.lerp_(weight, share)

    @torch.no_grad()
    def predict(self, x: Tensor) -> list[tuple[Tensor, RealDistribution]]:
        """Predict with the averaged weights.

        Args:
            x: Inputs of each task, (P, N, D).

        Returns:
            Numbers of networks that share a method, (G,), and their distributions, (G, N).
        """
        inputs = x[self.task]
        if self.samples == 1:
            outputs = self.outputs(inputs, self.averages)
        else:
            sampled = [self.outputs(inputs, self.averages, True) for _ in range(self.samples)]
            outputs = torch.stack(sampled, -2)
        found: list[tuple[Tensor, Any]] = [
            (own, method.distribution(outputs[own])) for method, own in self.groups
        ]
        return found


def standardized(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of the samples of each task, 1 if they are constant.

    Args:
        values: Inputs or targets, (P, N, D).
    """
    std = values.std(1, keepdim=True)
    return values.mean(1, keepdim=True), torch.where(
        std > 1e-9 * values.abs().amax(1, True), std, 1
    )
