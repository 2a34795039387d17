"""Label smoothing (Szegedy et al., 2016) and mixup (Zhang et al., ICLR 2018).

Papers: https://arxiv.org/abs/1512.00567 and https://arxiv.org/abs/1710.09412.
"""

import torch
from torch import Tensor

from dubito.errors import DubitoError
from dubito.model import Model
from dubito.targets import Target
from dubito.training.batches import Reader
from dubito.training.config import TrainConfig

__all__: list[str] = []


def check(config: TrainConfig, model: Model, train: Reader) -> None:
    """Raise if a training with soft targets cannot have them.

    Args:
        config: Configuration.
        model: Model to train.
        train: Training samples.
    """
    if not (config.label_smoothing or config.mixup):
        return
    option = "mixup" if config.mixup else "label_smoothing"
    method, size = model.method, model.task.size
    if model.task.kind != "classification":
        raise DubitoError(f"{option} is for classes, not for {model.task.kind}: leave it out")
    if config.label_smoothing and method.teachers:
        raise DubitoError("label_smoothing cannot change what teachers predict: leave it out")
    if config.mixup and isinstance(train.target, Target):
        raise DubitoError("mixup cannot mix samples with weights or missing targets: leave it out")
    if config.mixup and model.preprocessing.inputs.dtype == "int64":
        raise DubitoError("mixup cannot mix indices, as of words: leave it out")
    dist = method.distribution(torch.zeros(1, 1, method.outputs(model.task)))
    target = torch.full((*dist.batch_shape, size), 1 / size)
    try:
        method.loss(
            dist, target, method.weight_tensor(0, 1), ood=dist if method.ood_terms else None
        )
    except Exception as error:
        raise DubitoError(
            f"{type(method).__name__} cannot train with {option}, since its terms do not take "
            f"class probabilities as targets ({error}): leave it out"
        ) from error


def smoothed(target: Tensor | Target, size: int, share: float) -> Tensor | Target:
    """Return targets as class probabilities of which a share is spread evenly over all classes.

    Args:
        target: Class indices (N,) or probabilities (N, K).
        size: Number of classes K.
        share: Share that is spread.
    """
    if isinstance(target, Target):
        return target.map(lambda values: soft(values, size, share), weight=False)
    return soft(target, size, share)


def soft(values: Tensor, size: int, share: float) -> Tensor:
    """Return smoothed class probabilities (N, K) of class indices (N,) or probabilities."""
    if not values.is_floating_point():
        values = (values.unsqueeze(-1) == torch.arange(size, device=values.device)).float()
    return (1 - share) * values + share / size


def mixed(values: Tensor, share: Tensor) -> Tensor:
    """Mix each sample of a batch with the one before, which is a random one.

    Args:
        values: Inputs or targets, (N, ...).
        share: Share of the sample itself, (1,).
    """
    return torch.lerp(values.roll(1, 0), values, share.to(values.dtype))
