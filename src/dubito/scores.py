"""Post-hoc scores: functions of features and outputs, fitted after training.

A distribution has scores of its own. `Model.add_score` adds one of these, and evaluation, policy
and export then treat all alike. A new score is one class like `Energy`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal, TypeVar

from torch import Tensor, nn

from dubito import _checks
from dubito.errors import DubitoError
from dubito.plugins import load_plugins

__all__ = ["SCORES", "Score", "register"]


class Score(nn.Module, ABC):
    """A score of samples.

    State that `fit` finds lives in buffers of this module, which are saved with a model.

    Args:
        **options: Parameters of the score, saved as JSON.

    Attributes:
        higher: What a higher value means.
        tasks: Kinds of tasks that the score is for.
    """

    higher: ClassVar[Literal["confidence", "uncertainty"]] = "confidence"
    tasks: ClassVar[tuple[str, ...]] = ("classification", "regression")

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def fit(self, features: Tensor | None, outputs: Tensor, target: Tensor) -> None:
        """Fit to training data; default: nothing.

        Args:
            features: Inputs of the head, (N, D); None if the network does not expose them.
            outputs: Outputs of the network, (N, M), or (N, S, M) for S members or samples.
            target: Encoded targets.
        """

    @abstractmethod
    def forward(self, features: Tensor | None, outputs: Tensor) -> Tensor:
        """Compute the score: (N,).

        Args:
            features: Inputs of the head, (N, D); None if the network does not expose them.
            outputs: Outputs of the network, (N, M), or (N, S, M) for S members or samples.
        """

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        # `fit` may have added buffers.
        for name, tensor in state_dict.items():
            if name.startswith(prefix):
                self.register_buffer(name.removeprefix(prefix), tensor)
        super()._load_from_state_dict(state_dict, prefix, *args)


#: name -> score
SCORES: dict[str, type[Score]] = {}
S = TypeVar("S", bound=type[Score])


def register(name: str) -> Callable[[S], S]:
    """Register a score under a name, for files and the command line.

    Args:
        name: Name, such as "energy".
    """

    def add(score: S) -> S:
        _checks.not_built_in(SCORES.get(name), name, "score")
        SCORES[name] = score
        return score

    return add


def build(name: str, **options: Any) -> Score:
    """Build a registered score.

    Args:
        name: One of `SCORES`.
        **options: Parameters of the score.

    >>> build("energy", temperature=2.0).options
    {'temperature': 2.0}
    """
    if name not in SCORES:
        load_plugins()
    kind = _checks.entry(SCORES, name, "score")
    try:
        return kind(**options)
    except TypeError as error:
        raise DubitoError(f"score {name!r}: {error}") from error


@register("energy")
class Energy(Score):
    r"""Energy of the outputs, :math:`T \ln \sum_k e^{z_k/T}` (Liu et al., NeurIPS 2020).

    The mean over members or samples, if there are several.

    Args:
        temperature: Temperature T.

    >>> import torch
    >>> Energy()(None, torch.zeros(1, 2))
    tensor([0.6931])
    """

    tasks: ClassVar[tuple[str, ...]] = ("classification",)

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__(temperature=_checks.positive(temperature, "temperature"))

    def forward(self, features: Tensor | None, outputs: Tensor) -> Tensor:
        """Compute the energy; see `Score.forward`."""
        temperature: float = self.options["temperature"]
        energy = temperature * (outputs.float() / temperature).logsumexp(-1)
        return energy.flatten(1).mean(-1) if energy.ndim > 1 else energy
