"""Equal mixtures: deep ensembles, MC Dropout, and mixtures of these."""

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch import distributions as td
from torch.distributions import constraints

from dubito.distributions.base import Distribution, _Score
from dubito.errors import DubitoError
from dubito.numerics import student
from dubito.targets import Target

__all__: list[str] = []

#: largest asinh of a deviation in scales that counts for a score, and nodes and weights up to it
REACH = 12.0
RULE = [(u * u, 2 * u * w) for u, w in zip(*student.rule(32), strict=True)]


class Mixture(Distribution):
    """Equal mixture of `members`, whose last batch axis counts them.

    The aleatoric part is the mean of the members'. The epistemic part is the mean of the members'
    plus their disagreement, a divergence that matches the unit: total = aleatoric + epistemic
    is exact. Other scores of the members are averaged.

    Attributes:
        members: Distribution with batch shape (..., S).
    """

    children: ClassVar[Mapping[str, int]] = {"members": 1}

    def __init__(self, members: Distribution) -> None:
        if not members.batch_shape:
            raise DubitoError("a mixture needs a batch axis of members")
        self.members = members

    @property
    @abstractmethod
    def disagreement(self) -> Tensor:
        """Mean divergence of the members' predictions from their mean, >= 0: (...)."""

    def for_loss(self, target: Tensor) -> tuple[Distribution, Tensor, int]:
        """Return the members, the target repeated for each, and their number."""
        axes, members = len(self.batch_shape), self.members.batch_shape[-1]
        each = target.unsqueeze(axes).expand(*target.shape[:axes], members, *target.shape[axes:])
        return self.members, each, members

    def validate(self) -> None:
        """Raise a ValueError if a parameter of a member is not finite."""
        self.members.validate()

    @property
    def decomposition(self) -> tuple[str, str, str]:  # type: ignore[override]
        """Names of the members' parts."""
        return self.members.decomposition

    @property
    def unit(self) -> str:  # type: ignore[override]
        """Unit of the members."""
        return self.members.unit

    @property
    def scores(self) -> tuple[str, ...]:
        """Names of the scores: those of the mixture, then those averaged over the members."""
        names = (*super().scores, *self.decomposition, *self.members.scores)
        return tuple(dict.fromkeys(names))

    def _compute(self, name: str) -> Tensor:
        total, aleatoric, epistemic = self.decomposition
        if name == total:
            return self._compute(aleatoric) + self._compute(epistemic)
        if name in self._declared or name in self._added:
            return super()._compute(name)
        mean = self.members._compute(name).mean(-1)
        return mean + self.disagreement if name == epistemic else mean

    def _declaration(self, name: str) -> _Score:
        if name in self._declared or name in self._added:
            return super()._declaration(name)
        return self.members._declaration(name)


class MixturePredictive(td.Distribution):
    """Equal mixture of the predictives of members.

    Args:
        components: Predictives with batch shape (..., S) and one event axis.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}

    def __init__(self, components: Any) -> None:  # only those of numbers have a scale
        self.components = components
        super().__init__(components.batch_shape[:-1], components.event_shape, validate_args=False)

    @property
    def mean(self) -> Tensor:
        """Mean of the target: (..., T)."""
        mean: Tensor = self.components.mean.mean(-2)
        return mean

    @property
    def scale(self) -> Tensor:
        """Mean scale of the components: (..., T)."""
        scale: Tensor = self.components.scale.mean(-2)
        return scale

    def log_prob(self, value: Tensor | Target) -> Tensor:
        """Log density of a target (..., T), or of the values of it that are known: (...)."""
        if isinstance(value, Target):
            cells = value.weight is not None and value.weight.ndim == value.values.ndim
            each: Any = value.map(lambda part: part.unsqueeze(-2), weight=cells)
        else:
            each = value.unsqueeze(-2)
        logs: Tensor = self.components.log_prob(each)
        return logs.logsumexp(-1) - math.log(logs.shape[-1])

    def cdf(self, value: Tensor) -> Tensor:
        """Cumulative distribution of each value (..., T): (..., T)."""
        below: Tensor = self.components.cdf(value.unsqueeze(-2)).mean(-2)
        return below

    def crps(self, value: Tensor) -> Tensor:
        """Continuous ranked probability score of each value of a target: (..., T).

        To 1e-5, relative, if the densities of the members are smooth, to 0.01 if they have steps.
        The integral of (F(x) - [x >= value])^2, with x = mean +- scale sinh(v).
        """
        center, scale = self.mean.double(), self.scale.double()
        place = ((value.double() - center) / scale).asinh()
        total = torch.zeros_like(place)
        for sign in (-1, 1):
            split = (sign * place).clamp(min=0)
            for start, end, inner in ((0 * split, split, True), (split, split + REACH, False)):
                for node, weight in RULE:
                    v = start + (end - start) * node
                    x = center + sign * scale * v.sinh()
                    # The tail beyond x, seen from the value.
                    upper = (sign > 0) is not inner
                    tail = 1 - self.cdf(x) if upper else self.cdf(x)
                    total += weight * (end - start) * scale * v.cosh() * tail.square()
        return total.to(value.dtype)
