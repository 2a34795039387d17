"""The method protocol: how a network is built, read and trained."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Annotated, ClassVar, Protocol, Unpack

import torch
from pydantic import Field
from torch import Tensor, nn

from dubito import _checks
from dubito.distributions import Distribution
from dubito.distributions.base import COMMON
from dubito.errors import DubitoError
from dubito.losses import LossModule, LossOptions, Term, weighted_sums
from dubito.registry import Entry, Registry
from dubito.targets import Target

__all__ = ["METHODS", "Method", "MethodLoss"]

NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Batches = Iterable[tuple[Tensor, Tensor | Target]]


class TaskLike(Protocol):
    """The part of a task that a method reads."""

    @property
    def size(self) -> int:
        """Number of classes or of target values."""


class Method(Entry, ABC):
    """A way to train a network and to read its outputs.

    Fields are hyperparameters. A subclass defines, in this order, its head, its distribution, its
    terms and their weights.

    Attributes:
        tasks: Kinds of tasks that the method is for.
        error_score: Score that ranks samples by the risk of an error.
        ood_score: Score that ranks samples by the risk of being out of distribution.
    """

    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    error_score: ClassVar[str] = "max_prob"
    ood_score: ClassVar[str] = "epistemic"

    # --- head ---

    def outputs(self, task: TaskLike) -> int:
        """Return the number of outputs M of the head.

        Args:
            task: Task of the network.
        """
        return task.size

    def head(self, in_features: int, task: TaskLike) -> nn.Module:
        """Build the last layers, features (N, D) to outputs (N, M).

        State that is fitted after training lives in buffers.

        Args:
            in_features: Number of features D.
            task: Task of the network.
        """
        return nn.Linear(in_features, self.outputs(task))

    def network(self, make_backbone: Callable[[], nn.Module], task: TaskLike) -> nn.Module:
        """Build the network: inputs to outputs (N, M), or (N, S, M) for S members or samples.

        Args:
            make_backbone: Returns a new module from inputs to features (N, D) with an attribute
                `out_features`, D.
            task: Task of the network.
        """
        backbone = make_backbone()
        size = getattr(backbone, "out_features", None)
        if not isinstance(size, int):
            raise DubitoError(
                f"the backbone {type(backbone).__name__} needs an attribute out_features, the "
                f"number of features, but has {size!r}"
            )
        return Network(backbone, self.head(size, task))

    def finish(self, network: nn.Module, batches: Batches) -> None:
        """Fit what is fitted after training, such as a density of features; default: nothing.

        Args:
            network: Trained network.
            batches: Training samples: inputs and targets.
        """

    # --- distribution ---

    @abstractmethod
    def distribution(self, outputs: Tensor) -> Distribution:
        """Read the outputs of a network; a pure function, the same in training and evaluation.

        Args:
            outputs: Outputs of the network, (..., M).
        """

    def scores(self, task: TaskLike) -> tuple[str, ...]:
        """Return the names of the scores that predictions have.

        Args:
            task: Task of the network.
        """
        outputs = torch.zeros(1, 1, self.outputs(task))
        return (*self.distribution(outputs).scores, *COMMON)

    # --- terms ---

    @property
    def teachers(self) -> tuple[str, ...]:
        """Folders of models whose predictions are targets, log probabilities (..., S, K)."""
        return ()

    @property
    @abstractmethod
    def terms(self) -> Mapping[str, Term]:
        """Loss terms, functions (distribution, target) -> (...), or (..., T) for T numbers."""

    @property
    def ood_terms(self) -> Mapping[str, Term]:
        """Loss terms of out-of-distribution inputs; training needs such inputs if there are any."""
        return {}

    @property
    def per_class(self) -> bool:
        """Whether terms that grow with the number of classes are multiplied by 10/K."""
        return getattr(self, "scale", "paper") == "per_class"

    # --- weights ---

    def weights(self, epoch: int, epochs: int) -> dict[str, float]:
        """Return the weight of each term, OOD terms included.

        Args:
            epoch: Number of the epoch, from 0.
            epochs: Number of epochs in all.
        """
        return dict.fromkeys([*self.terms, *self.ood_terms], 1.0)

    def weight_tensor(self, epoch: int, epochs: int) -> Tensor:
        """Return `weights` as a tensor in the order of `terms`, then `ood_terms`.

        Args:
            epoch: Number of the epoch, from 0.
            epochs: Number of epochs in all.
        """
        names, weights = [*self.terms, *self.ood_terms], self.weights(epoch, epochs)
        missing, extra = set(names) - weights.keys(), weights.keys() - set(names)
        if odd := missing or extra:
            own = {kind: name for name, kind in METHODS.items()}.get(
                type(self), type(self).__name__
            )
            raise DubitoError(
                f"method {own!r}: weights() {'lacks' if missing else 'has'} "
                f"{_checks.listed(sorted(odd))}; its terms are {_checks.listed(names)}"
            )
        return torch.tensor([weights[name] for name in names])

    # --- for trainers ---

    def loss(
        self,
        dist: Distribution,
        target: Tensor | Target,
        weights: Tensor,
        *,
        ood: Distribution | None = None,
        class_weight: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Compute the summed loss of a batch.

        Args:
            dist: Distribution of the batch.
            target: Its targets.
            weights: Weights in the order of `weight_tensor`, on the device of the batch.
            ood: Distribution of out-of-distribution inputs, if the method has `ood_terms`.
            class_weight: Weight of each class, (K,).

        Returns:
            Sum of the loss over the batch, and the sum of each term, detached.
        """
        count = len(self.terms)
        total, sums = weighted_sums(
            self.terms, dist, target, weights[:count],
            class_weight=class_weight, per_class=self.per_class,
        )  # fmt: skip
        if not self.ood_terms:
            return total, sums
        if ood is None:
            raise DubitoError(f"{type(self).__name__} needs out-of-distribution inputs")
        labels = torch.zeros(ood.batch_shape, dtype=torch.long, device=target.device)
        more, more_sums = weighted_sums(self.ood_terms, ood, labels, weights[count:])
        return total + more, torch.cat([sums, more_sums])

    def warning(self, task: TaskLike) -> str | None:
        """Return a warning about hyperparameters that cannot learn the task, or None.

        Args:
            task: Task of the network.
        """
        return None


class Network(nn.Module):
    """A backbone and a head."""

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs: (N, M)."""
        return self.forward_with_features(x)[1]

    def forward_with_features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the input of the head, (N, D), and the outputs, (N, M)."""
        features = self.backbone(x)
        return features, self.head(features)


class MethodLoss(LossModule):
    """Loss of any method as a module of outputs, in place of `nn.CrossEntropyLoss`.

    Args:
        method: The method; without terms for out-of-distribution inputs.
        epochs: Number of epochs, for weights that rise over all of them.
        **options: weight, ignore_index, reduction and class_dim; see `LossModule`.
    """

    def __init__(self, method: Method, *, epochs: int = 1, **options: Unpack[LossOptions]) -> None:
        if method.ood_terms:
            raise DubitoError(
                f"{type(method).__name__} also has a loss of out-of-distribution inputs: "
                "call method.loss"
            )
        check_taught(method)
        weights_at = partial(method.weight_tensor, epochs=epochs)
        super().__init__(method.terms, weights_at, method.distribution, method.per_class, **options)


def check_taught(method: Method) -> None:
    """Raise if a method learns from teachers, which only `dubito.training` runs.

    Args:
        method: Method of another training loop.
    """
    if method.teachers:
        raise DubitoError(
            f"{type(method).__name__} learns from teachers: train with dubito.train, not here"
        )


METHODS: Registry[Method] = Registry("method", Method)

#: field for a method: a method, its name, or a dict with its name
AnyMethod = Annotated[Method, METHODS]
