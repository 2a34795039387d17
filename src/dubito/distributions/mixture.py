"""Equal mixtures: deep ensembles, MC Dropout, and mixtures of these."""

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor
from torch import distributions as td
from torch.distributions import constraints

from dubito.distributions.base import Distribution, _Score
from dubito.errors import DubitoError

__all__: list[str] = []


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

    def __init__(self, components: td.Distribution) -> None:
        self.components = components
        super().__init__(components.batch_shape[:-1], components.event_shape, validate_args=False)

    @property
    def mean(self) -> Tensor:
        """Mean of the target: (..., T)."""
        return self.components.mean.mean(-2)

    def log_prob(self, value: Tensor, known: Tensor | None = None) -> Tensor:
        """Log density of a target (..., T), or of the values of it that are known: (...)."""
        rest = () if known is None else (known.unsqueeze(-2),)
        each = self.components.log_prob(value.unsqueeze(-2), *rest)
        return each.logsumexp(-1) - math.log(each.shape[-1])

    def cdf(self, value: Tensor) -> Tensor:
        """Cumulative distribution of each value (..., T): (..., T)."""
        return self.components.cdf(value.unsqueeze(-2)).mean(-2)
