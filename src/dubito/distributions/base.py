"""The distribution protocol.

A network's output is a distribution over distributions of the target: a Dirichlet over class
probabilities, a normal-inverse-gamma over the mean and variance of a number. A subclass of
`Distribution` declares its tensors and its scores. Indexing, `to`, `detach`, `cat`, mixtures,
torch.compile and vmap follow from that declaration.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self, TypeVar

import torch
from torch import Tensor
from torch import distributions as td
from torch.utils import _pytree

from dubito import _checks
from dubito.errors import DubitoError
from dubito.numerics.tracing import lazy

__all__ = ["Distribution", "confidence_score", "uncertainty_score"]

T = TypeVar("T")
Higher = Literal["confidence", "uncertainty"]
#: methods of one class of distributions, whichever it is
Ranking = Callable[[Any], Tensor]
Condition = Callable[[Any], bool]
#: static parameters of a distribution, and what its added scores mean
Context = tuple[tuple[tuple[str, object], ...], tuple[tuple[str, Higher], ...]]
#: common names of the three parts of the uncertainty, in the order of `decomposition`
COMMON = ("total", "aleatoric", "epistemic")


class cached_tensor(lazy[T]):
    """Property of a `Distribution` that is computed once.

    A value computed without gradients is not stored if the tensors require them: a loss may read
    it later.
    """

    @staticmethod
    def may_store(instance: Distribution) -> bool:
        """Return whether a loss could use the value as well."""
        if torch.is_grad_enabled():
            return True
        tensors = [tensor for tensor, _ in instance._leaves()]
        if any(tensor.requires_grad for tensor in tensors):
            return False
        if torch.compiler.is_compiling() or not torch.is_inference_mode_enabled():
            return True
        return tensors[0].is_inference()  # else autograd could not use the value later


class _Score(cached_tensor[Tensor]):
    """A tensor (...) that ranks samples."""

    def __init__(
        self,
        function: Ranking,
        higher: Higher,
        label: str = "",
        when: Condition | None = None,
        expensive: bool = False,
    ) -> None:
        super().__init__(function)
        self.higher, self.label, self.when, self.expensive = higher, label, when, expensive


def uncertainty_score(
    label: str = "", *, when: Condition | None = None, expensive: bool = False
) -> Callable[[Ranking], _Score]:
    """Declare a score: a cached property (...) that is higher for uncertain samples.

    Args:
        label: Short name for tables; the name of the property if empty.
        when: Condition on the distribution for the score to exist.
        expensive: Leave the score out of `Distribution.default_scores`.
    """
    return lambda function: _Score(function, "uncertainty", label, when, expensive)


def confidence_score(label: str = "") -> Callable[[Ranking], _Score]:
    """Declare a score: a cached property (...) that is higher for confident samples.

    Args:
        label: Short name for tables; the name of the property if empty.
    """
    return lambda function: _Score(function, "confidence", label)


class Distribution(ABC):
    """Distribution over the distribution of a target, for a batch of samples.

    Batch axes come first. A subclass sets the class attributes below and stores the tensors under
    the declared names.

    Attributes:
        tensors: Name of each tensor and its number of event axes, which follow the batch axes.
        static: Names of parameters that are not tensors; hashable.
        children: Name of each inner distribution and how many batch axes it has in addition.
        decomposition: Names of the scores that are the total, aleatoric and epistemic uncertainty;
            total = aleatoric + epistemic.
        unit: Unit of the three: nats, or a variance.
    """

    tensors: ClassVar[Mapping[str, int]] = {}
    static: ClassVar[tuple[str, ...]] = ()
    children: ClassVar[Mapping[str, int]] = {}
    decomposition: ClassVar[tuple[str, str, str]]
    unit: ClassVar[str]
    _declared: ClassVar[Mapping[str, _Score]] = {}
    #: scores that were computed elsewhere: name -> (tensor (...), what a higher value means)
    _added: Mapping[str, tuple[Tensor, Higher]] = {}

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        members = {name: v for base in reversed(cls.__mro__) for name, v in vars(base).items()}
        cls._declared = {name: v for name, v in members.items() if isinstance(v, _Score)}
        _pytree.register_pytree_node(cls, cls._flatten, cls._unflatten)

    # --- defined by each distribution ---

    @property
    @abstractmethod
    def predictive(self) -> td.Distribution:
        """Distribution of the target itself, batch shape (...)."""

    @abstractmethod
    def mixture(self) -> Distribution:
        """Mix the last batch axis with equal weights: (..., S) -> (...)."""

    @property
    def calibration_bounds(self) -> tuple[float, ...]:
        """Bound on the absolute value of each calibration parameter; one log of a factor."""
        return (12.0,)

    @abstractmethod
    def calibrated(self, theta: Tensor) -> td.Distribution:
        """Predictive under calibration parameters.

        Args:
            theta: One value per entry of `calibration_bounds`; zeros leave `predictive` unchanged.
        """

    def with_calibrated_members(self, theta: Tensor) -> td.Distribution:
        """Predictive whose members have been calibrated; the only member is the distribution.

        Args:
            theta: One value per entry of the members' `calibration_bounds`.
        """
        return self.calibrated(theta)

    def kernel_input(self) -> tuple[Tensor, str | None, float] | None:
        """What a fused kernel reads in place of this distribution; None if there is no kernel.

        Returns:
            Logits or alpha (..., K); the evidence function of logits, None for alpha; and the
            constant added to the evidence.
        """
        return None

    def for_loss(self, target: Tensor) -> tuple[Distribution, Tensor, int]:
        """Return the distribution to compute a loss of, its target, and how many members it has.

        The loss of a mixture is the mean loss of its members.

        Args:
            target: Targets of the batch.
        """
        return self, target, 1

    def validate(self) -> None:
        """Raise a ValueError if a parameter is not finite.

        Values are read on a CPU only and outside of torch.compile and torch.func.
        """
        for name in self.tensors:
            _checks.finite(getattr(self, name), name.strip("_"))

    # --- scores ---

    @property
    def total(self) -> Tensor:
        """Uncertainty about the target, aleatoric + epistemic: (...)."""
        return self._compute(self.decomposition[0])

    @property
    def aleatoric(self) -> Tensor:
        """Uncertainty that remains with more data: (...)."""
        return self._compute(self.decomposition[1])

    @property
    def epistemic(self) -> Tensor:
        """Uncertainty that more data reduces: (...)."""
        return self._compute(self.decomposition[2])

    @property
    def scores(self) -> tuple[str, ...]:
        """Names of the scores that this distribution has."""
        declared = self._declared.items()
        own = (name for name, s in declared if s.when is None or s.when(self))
        return (*own, *self._added)

    @property
    def default_scores(self) -> tuple[str, ...]:
        """Names of the scores that are cheap to compute."""
        return tuple(name for name in self.scores if not self._declaration(name).expensive)

    def score(self, name: str) -> Tensor:
        """Compute a score: (...).

        Args:
            name: One of `scores`, or "total", "aleatoric", "epistemic".
        """
        return self._compute(self._resolve(name))

    def confidence(self, name: str) -> Tensor:
        """Compute a score, signed so that higher means more confident: (...).

        Args:
            name: One of `scores`, or "total", "aleatoric", "epistemic".
        """
        value = self.score(name)
        return value if self.higher(name) == "confidence" else -value

    def higher(self, name: str) -> Higher:
        """Return "confidence" or "uncertainty": what a higher value of the score means.

        Args:
            name: Name of a score.
        """
        return self._declaration(self._resolve(name)).higher

    def label(self, name: str) -> str:
        """Return the short name of a score for tables.

        Args:
            name: Name of a score.
        """
        name = self._resolve(name)
        return self._declaration(name).label or name

    def with_scores(self, scores: Mapping[str, tuple[Tensor, Higher]]) -> Self:
        """Return this distribution with further scores, such as those of `dubito.scores`.

        Args:
            scores: Values (...) by name, and whether higher means "confidence" or "uncertainty".
        """
        for name in scores:
            if name in (*COMMON, *self.scores):
                raise DubitoError(f"{type(self).__name__} already has a score {name!r}")
        same = self._map(lambda tensor: tensor)
        same._added = {**self._added, **scores}
        return same

    def _compute(self, name: str) -> Tensor:
        value: Tensor = self._added[name][0] if name in self._added else getattr(self, name)
        return value

    def _declaration(self, name: str) -> _Score:
        if name in self._added:
            return _Score(lambda dist: dist.score(name), self._added[name][1])
        return self._declared[name]

    def _resolve(self, name: str) -> str:
        if name in COMMON:
            return self.decomposition[COMMON.index(name)]
        if name not in self.scores:
            known = _checks.listed((*COMMON, *self.scores))
            raise DubitoError(f"{type(self).__name__} has no score {name!r}; known: {known}")
        return name

    # --- tensors ---

    @property
    def batch_shape(self) -> torch.Size:
        """Shape of the batch."""
        tensor, event_dims = self._leaves()[0]
        return tensor.shape[: tensor.ndim - event_dims]

    @property
    def device(self) -> torch.device:
        """Device of the tensors."""
        return self._leaves()[0][0].device

    def __len__(self) -> int:
        return self.batch_shape[0]

    def __getitem__(self, index: Any) -> Self:
        """Index the batch axes."""
        items = index if isinstance(index, tuple) else (index,)
        if not any(item is Ellipsis for item in items):
            items = (*items, ...)
        try:
            indexed = [t[(*items, *[slice(None)] * axes)] for t, axes in self._leaves()]
        except IndexError as error:
            raise IndexError(f"{error}; batch shape {tuple(self.batch_shape)}") from None
        return self._with_tensors(indexed)

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Convert the tensors.

        Args:
            *args: As for `torch.Tensor.to`.
            **kwargs: As for `torch.Tensor.to`.
        """
        return self._map(lambda tensor: tensor.to(*args, **kwargs))

    def detach(self) -> Self:
        """Detach the tensors from the autograd graph."""
        return self._map(lambda tensor: tensor.detach())

    @staticmethod
    def cat(parts: Sequence[D], dim: int = 0) -> D:
        """Concatenate distributions of one kind along a batch axis.

        Args:
            parts: Distributions with equal static parameters.
            dim: Batch axis; negative values count from the last batch axis.
        """
        specs = [_pytree.tree_structure(part) for part in parts]
        if not parts or any(spec != specs[0] for spec in specs):
            raise DubitoError(f"cat needs distributions of one kind, not {list(map(repr, parts))}")
        axes = len(parts[0].batch_shape)
        if not -axes <= dim < axes:
            raise IndexError(f"dim {dim} is not one of the {axes} batch axes")
        columns = zip(*(_pytree.tree_leaves(part) for part in parts), strict=True)
        return parts[0]._with_tensors([torch.cat(column, dim % axes) for column in columns])

    def _map(self, function: Callable[[Tensor], Tensor]) -> Self:
        return self._with_tensors([function(tensor) for tensor, _ in self._leaves()])

    def _with_tensors(self, tensors: list[Tensor]) -> Self:
        """Replace the tensors, in the order of `_leaves`."""
        built: Self = _pytree.tree_unflatten(tensors, _pytree.tree_structure(self))
        return built

    def _leaves(self) -> list[tuple[Tensor, int]]:
        """Return all tensors and their numbers of event axes, in the order of the pytree."""
        leaves = [(getattr(self, name), axes) for name, axes in self.tensors.items()]
        for name, axes in self.children.items():
            leaves += [(tensor, axes + more) for tensor, more in getattr(self, name)._leaves()]
        return leaves + [(tensor, 0) for tensor, _ in self._added.values()]

    def _flatten(self) -> tuple[list[Tensor | Distribution], Context]:
        """Return the parts of the pytree, and the rest: static parameters, meanings of scores."""
        parts = [getattr(self, name) for name in (*self.tensors, *self.children)]
        parts += [tensor for tensor, _ in self._added.values()]
        static = tuple((name, getattr(self, name)) for name in self.static)
        return parts, (static, tuple((name, higher) for name, (_, higher) in self._added.items()))

    @classmethod
    def _unflatten(cls, parts: Iterable[Any], context: Context) -> Self:
        # Bypass __init__: transforms also pass placeholders that are not tensors.
        dist, rest, (static, added) = object.__new__(cls), list(parts), context
        dist.__dict__.update(static)
        for name in (*cls.tensors, *cls.children):
            dist.__dict__[name] = rest.pop(0)
        if added:
            dist._added = {name: (rest.pop(0), higher) for name, higher in added}
        return dist

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_shape={tuple(self.batch_shape)})"


D = TypeVar("D", bound=Distribution)
