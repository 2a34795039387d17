"""The score protocol: what is fitted to features and outputs after training."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, dataclass_transform, get_args

import torch
from pydantic import Field
from torch import Tensor, nn

from dubito import _checks
from dubito.distributions.base import Higher
from dubito.errors import DubitoError, reason
from dubito.registry import Entry, Registry

__all__ = ["SCORES", "Score"]

#: last layer of a network, those of the members of an ensemble, or None if it is not linear
Head = nn.Linear | nn.ModuleList | None


@dataclass_transform(kw_only_default=True, field_specifiers=(Field,))
class Score(Entry, nn.Module, ABC, frozen=False):
    """A score of samples that is fitted after training.

    Fields are options. What `fit` finds is kept in buffers and sub-modules, which are saved with a
    model; they need no annotation, which would make them fields.

    Attributes:
        higher: What a higher value means.
        tasks: Kinds of tasks that the score is for.
        needs_features: Whether it reads features, which a network must have then.
        needs_fit: Whether `fit` reads training data.
        needs_head: Whether `fit` reads the last layer, which must be linear then.
    """

    higher: ClassVar[Higher] = "confidence"
    tasks: ClassVar[tuple[str, ...]] = ("classification", "regression")
    needs_features: ClassVar[bool] = True
    needs_fit: ClassVar[bool] = True
    needs_head: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(frozen=False, **options)
        _checks.one_of(get_args(Higher), cls.higher, f"value of {cls.__name__}.higher")

    def __post_init__(self) -> None:
        nn.Module.__init__(self)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dataclass_fields__:
            raise AttributeError(f"{name} is an option of {self!r}: build another score")
        super().__setattr__(name, value)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Tensor:
            """Return a buffer."""

    def fit(self, features: Tensor, outputs: Tensor, target: Tensor, head: Head) -> None:
        """Fit to training data; default: nothing.

        Args:
            features: Inputs of the last layer: (N, D); of an ensemble those of the S members side
                by side, (N, S D); of MC Dropout their mean. None if the score needs none.
            outputs: Outputs of the network, (N, M), or (N, S, M) for S members or samples.
            target: Encoded targets.
            head: Linear layer from features to outputs; of an ensemble a ModuleList of those of the
                members, of MC Dropout the layer from mean to mean. None if there is none.
        """

    def check_head(self, head: Head) -> None:
        """Raise if the score reads the last layer, and there is no linear one.

        Args:
            head: Last layer, as in `fit`.
        """
        if self.needs_head and head is None:
            raise DubitoError(
                f"the score {SCORES.name_of(self)!r} reads a linear layer from features to "
                "outputs, and this network ends with none: choose a score of features, as 'knn'"
            )

    @abstractmethod
    def forward(self, features: Tensor, outputs: Tensor) -> Tensor:
        """Compute the score: (N,).

        Args:
            features: Features, as in `fit`.
            outputs: Outputs of the network, as in `fit`.
        """

    def allocate(self, state: Mapping[str, Tensor]) -> None:
        """Make room for saved state before it is loaded; default: a buffer for each tensor.

        A score whose `fit` creates sub-modules creates them here too, in the shapes of their state.

        Args:
            state: Saved tensors by name, such as "bank" or "flow.weight".
        """
        for name, tensor in state.items():
            if "." not in name and name not in self._parameters:
                self.register_buffer(name, torch.empty_like(tensor))

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Tensor], prefix: str, *args: Any
    ) -> None:
        own = {k.removeprefix(prefix): t for k, t in state_dict.items() if k.startswith(prefix)}
        if own:
            self.allocate(own)
        super()._load_from_state_dict(state_dict, prefix, *args)


SCORES: Registry[Score] = Registry("score", Score)

#: field for a score: a score, its name, or a dict with its name
AnyScore = Annotated[Score, SCORES]

#: training samples that a fitted score is tried on
TRIED = 64


def fit(score: Score, features: Any, outputs: Tensor, target: Tensor, head: Head) -> None:
    """Fit a score, and raise if it could not be used or saved.

    Args:
        score: Score.
        features: Features of the training samples, as in `Score.fit`.
        outputs: Outputs of the network.
        target: Encoded targets.
        head: Last layer.
    """
    before = {*vars(score)}
    with _named(score):
        score.fit(features, outputs, target, head)
    name = SCORES.name_of(score)
    for lost in sorted(vars(score).keys() - before):
        raise DubitoError(
            f"score {name!r}: a model would be saved without self.{lost}, which fit sets: call "
            f"self.register_buffer({lost!r}, tensor)"
        )
    values = check(score, None if features is None else features[:TRIED], outputs[:TRIED])
    if not bool(values.isfinite().all()):
        count = int((~values.isfinite()).sum())
        raise DubitoError(
            f"score {name!r} is not finite for {count} of {len(values)} training samples"
        )


def check(score: Score, features: Any, outputs: Tensor) -> Tensor:
    """Compute a score, and raise if it has the wrong shape.

    Args:
        score: Score that is fitted, or needs no fit.
        features: Features, as in `Score.fit`.
        outputs: Outputs of the network.
    """
    with _named(score):
        values: Tensor = score.eval()(features, outputs)
    if values.shape != outputs.shape[:1]:
        raise DubitoError(
            f"score {SCORES.name_of(score)!r} returned {tuple(values.shape)}; expected "
            f"{tuple(outputs.shape[:1])}"
        )
    return values


@contextmanager
def _named(score: Score) -> Iterator[None]:
    """Name the score in an error of another package, such as one about a bad option."""
    try:
        yield
    except DubitoError:
        raise
    except Exception as error:
        what = f"{SCORES.name_of(score)!r}: {type(error).__name__}"
        raise DubitoError(f"score {what}: {reason(error)}") from error


#: buffers of a member by name
State = dict[str, Tensor]


class HeadScore(Score):
    """A score of features and of the logits that a linear layer makes of them.

    The score of an ensemble is the mean of those of its members. MC Dropout has one member, the
    mean of its samples.
    """

    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    needs_head: ClassVar[bool] = True

    def fit(self, features: Tensor, outputs: Tensor, target: Tensor, head: Head) -> None:
        self.check_head(head)
        layers = list[Any](head if isinstance(head, nn.ModuleList) else [head])
        weights = torch.stack([layer.weight.detach().float() for layer in layers])
        zeros = weights.new_zeros(weights.shape[1])
        biases = [zeros if layer.bias is None else layer.bias.detach().float() for layer in layers]
        self.register_buffer("weight", weights)
        self.register_buffer("bias", torch.stack(biases))
        parts = zip(*self._parts(features), self.weight, self.bias, strict=True)
        states = [self.state(*part) for part in parts]
        for name in states[0]:
            values = torch.stack([state[name] for state in states])
            self.register_buffer(name, values.float())

    def forward(self, features: Tensor, outputs: Tensor) -> Tensor:
        """Return the mean score of the members: (N,)."""
        return self.values(*self._parts(features)).mean(0)

    def _parts(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return features and logits of each member, (S, N, D) and (S, N, K)."""
        members, _, size = self.weight.shape
        each = _checks.at_least_float32(features).unflatten(1, (members, size)).transpose(0, 1)
        return each, torch.baddbmm(self.bias.unsqueeze(1), each, self.weight.mT)

    def state(self, features: Tensor, logits: Tensor, weight: Tensor, bias: Tensor) -> State:
        """Return the buffers of one member; default: none.

        Args:
            features: Features of the training samples, (N, D).
            logits: Their logits, (N, K).
            weight: Weight of the last layer, (K, D).
            bias: Its bias, (K,).
        """
        return {}

    @abstractmethod
    def values(self, features: Tensor, logits: Tensor) -> Tensor:
        """Return the score for each member: (S, N).

        Args:
            features: Features, (S, N, D).
            logits: Logits, (S, N, K).
        """
