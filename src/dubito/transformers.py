"""Train a classifier of transformers with the loss of a method, in its `Trainer`.

The loss divides by the samples of a step, however often gradients accumulate, and replaces
`label_smoothing_factor`. Weights that rise follow the epoch, so the loss is a callback, too:

    criterion = dubito.transformers.loss("iedl")
    trainer = Trainer(network, args, compute_loss_func=criterion, callbacks=[criterion], ...)

An evaluation has the final weights, so that `load_best_model_at_end` can compare epochs.
"""

import sys
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError(
        "transformers is not installed: pip install 'dubito[transformers]'", name=error.name
    ) from error

from dubito.errors import DubitoError
from dubito.losses import LAST_EPOCH
from dubito.methods import METHODS, Method, MethodLoss

__all__ = ["loss"]


class TrainerLoss(TrainerCallback):
    """Loss for `Trainer(compute_loss_func=...)`, and the callback that reads the epoch."""

    def __init__(self, method: Method) -> None:
        self.method = method
        self.criterion = MethodLoss(method, reduction="sum")
        #: number of the epoch, from 0; None if the loss needs it and nothing has told it yet
        self.epoch = 0 if self.criterion.epoch_is_set else None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Read the number of epochs."""
        if args.label_smoothing_factor:
            warnings.warn(
                f"label_smoothing_factor={args.label_smoothing_factor:g} has no effect: this loss "
                "replaces it",
                stacklevel=2,
            )
        if self.epoch is None and state.num_train_epochs == sys.maxsize:
            raise DubitoError("the loss needs epochs, which endless data lacks: pass kl_ramp=0")
        epochs = max(1, state.num_train_epochs)
        self.criterion = MethodLoss(self.method, epochs=epochs, reduction="sum")

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Read the epoch, also of a training that is resumed."""
        self.epoch = int(state.epoch or 0)

    def __call__(
        self, outputs: Any, labels: Tensor | None, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Return the sum over a batch, divided by the samples of the step, or of the batch."""
        if labels is None:
            raise DubitoError("the batches have no 'labels': is label_names=['labels'] set?")
        logits: Tensor = outputs["logits"] if isinstance(outputs, Mapping) else outputs[0]
        epoch = self.epoch if torch.is_grad_enabled() else LAST_EPOCH
        if epoch is None:
            raise DubitoError(
                "weights of this loss rise over epochs: pass it to the Trainer in callbacks, too"
            )
        self.criterion.to(logits.device).set_epoch(epoch)
        total: Tensor = self.criterion(logits.float(), labels)
        count = (labels != -100).sum() if num_items_in_batch is None else num_items_in_batch
        return total / count


def loss(method: str | Mapping[str, object] | Method, **options: object) -> TrainerLoss:
    """Return the loss of a method for the `Trainer` of transformers.

    Args:
        method: Method for classification, its name, or a dict with its name and options.
        **options: Options of the method.

    >>> criterion = loss("edl", kl_ramp=0)
    >>> criterion({"logits": torch.zeros(2, 3)}, torch.tensor([0, 1]), num_items_in_batch=4)
    tensor(0.7126)
    """
    built = METHODS.build(method, **options)
    head = ("outputs", "head", "network")
    own = any(getattr(type(built), name) is not getattr(Method, name) for name in head)
    if own or "classification" not in built.tasks:
        raise DubitoError(
            f"the method {METHODS.name_of(built)!r} needs a head of its own: train it with "
            "dubito.train(data, backbone='hf:FOLDER', method=...)"
        )
    return TrainerLoss(built)
