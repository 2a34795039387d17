"""A LightningModule for any backbone and method (extra `lightning`).

| logged | what |
| --- | --- |
| train_loss, train_TERM | the loss, and its unweighted terms; means of an epoch |
| val_loss, val_accuracy | with the last epoch's weights of the terms, so that epochs compare |
| val_uncertainty | the mean of the measure `unsure`: vacuity where the method has it |
| val_aupr | how well `sure` tells correct (positive) from wrong predictions |
| val_ood_aupr | how well `unsure` tells validation samples (positive) from OOD samples |

OOD samples come from a second validation loader, of inputs or of pairs (input, anything); a third
gives val_ood_aupr_2, and so on.

>>> from dubito import backbones, data
>>> digits = data.load("digits")
>>> network = backbones.build("mlp", digits.shape, 10)
>>> module = EvidentialModule(network, "iedl", digits.classes, learning_rate=0.01)
>>> module.predict(digits.inputs[:2])  # after lightning.Trainer(...).fit(module, loader)
Prediction(2 samples, 10 classes: mean max_prob ..., mean vacuity ...)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

try:
    from lightning import LightningModule
except ImportError as error:
    raise ImportError(
        f"dubito.lightning needs an extra: pip install 'dubito[lightning]' ({error})",
        name=error.name,
    ) from error

from dubito import _checks, _legacy, bundle, methods, metrics
from dubito._legacy import MEASURES, Method, Prediction
from dubito.bundle import Preprocessing, Promise

__all__ = ["EvidentialModule"]

#: measures of what a network does not know, the best first
UNSURE = ("vacuity", "mutual_information", "entropy_of_mean", "alpha0")
Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
Loader = Iterable[Any]


class EvidentialModule(LightningModule):
    """A backbone trained by a method, which reads its outputs too.

    The backbone maps (N, *shape) to (N, method.outputs(K)); `method` is a name, a `Method` or its
    name and hyperparameters; `classes` are K names, or K. Batches are pairs of inputs, floats or
    bytes, and labels (N,); `preprocessing` is applied to the inputs, and goes into the bundle.
    `optimizer` makes one of the parameters; without it Adam has the `learning_rate`. The weights of
    the loss's terms follow the trainer's epochs (`epochs` where it counts only steps).

    `class_counts` are the training samples of each class, for Posterior Networks.
    """

    def __init__(
        self,
        backbone: nn.Module,
        method: Method | methods.Method | str | Mapping[str, Any],
        classes: int | Sequence[str],
        *,
        class_counts: Sequence[int] | None = None,
        preprocessing: Preprocessing | Mapping[str, Any] | None = None,
        learning_rate: float = 1e-3,
        optimizer: Optimizer | None = None,
        epochs: int | None = None,
        sure: str = "max_prob",
        unsure: str | None = None,
    ) -> None:
        super().__init__()
        self.method = _method(method)
        known = range(classes) if isinstance(classes, int | Integral) else classes  # numpy's too
        names = [str(name) for name in known]
        if len(names) < 2:
            raise ValueError(f"classes must be at least two, but are {classes!r}")
        if len(set(names)) < len(names):
            raise ValueError(f"classes must have different names, but are {names}")
        for name in filter(None, (sure, unsure)):
            _checks.one_of(MEASURES, name, "measure")
        self.classes = tuple(names)
        self.class_counts = None if class_counts is None else tuple(int(n) for n in class_counts)
        self.model = self.method.model(backbone, len(names), self.class_counts)
        self.preprocessing = _preprocessing(preprocessing)
        self.learning_rate, self.optimizer, self.epochs = learning_rate, optimizer, epochs
        self.sure, self.unsure = sure, unsure
        self._seen: list[list[tuple[Tensor, ...]]] = []
        self._drawn: torch.Generator | None = None
        self.shape: tuple[int, ...] | None = None
        self._bytes = False
        # plain values: a checkpoint of them is read without running anything from it
        self.save_hyperparameters({
            **_described(self.method), "classes": names, "class_counts": self.class_counts,
            "preprocessing": self.preprocessing.as_dict(), "learning_rate": learning_rate,
            "epochs": epochs, "sure": sure, "unsure": unsure,
        })  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """The outputs that the method reads: (N, *shape) -> (N, K)."""
        outputs: Tensor = self.model(self._prepared(x))
        return outputs

    def predict(self, x: Tensor) -> Prediction:
        """What the network says of inputs (N, *shape), before calibration, in evaluation mode."""
        with torch.no_grad(), _evaluating(self.model):
            return self.method.predict(self.model, self._prepared(x))

    # --- steps -----------------------------------------------------------------------------------

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """What `optimizer` makes, or Adam."""
        if self.optimizer is not None:
            return self.optimizer(self.parameters())
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The mean loss of a batch."""
        x, target = _pair(batch)
        self.shape = tuple(x.shape[1:])
        self._bytes = self._bytes or x.dtype == torch.uint8
        return self._loss(self._prepared(x), target, "train", terms=True)

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Note what is said of a batch: of data by the first loader, of OOD inputs by others."""
        if dataloader_idx:
            said = self.predict(_inputs(batch))
            self._note(dataloader_idx, said.confidence(self._unsure(said)))
            return
        x, target = _pair(batch)
        said = self.predict(x)
        self._loss(self._prepared(x), target, "val", terms=False)
        right = said.label == (target.argmax(-1) if target.is_floating_point() else target.long())
        self._log("val_accuracy", right.float().mean(), right.numel())
        unsure = self._unsure(said)
        self._log("val_uncertainty", said.measure(unsure).mean(), right.numel())
        self._note(0, said.confidence(unsure), said.confidence(self.sure), right)

    def on_validation_epoch_start(self) -> None:
        """Forget what was noted before, and draw what is drawn as at the last check."""
        self._seen = []
        self._drawn = torch.Generator(self.device).manual_seed(0)

    def on_validation_epoch_end(self) -> None:
        """The areas, of all samples of all processes."""
        if not self._seen or not self._seen[0]:
            return
        inside, sure, right = self._gathered(0)
        if bool(right.all()):  # without an error the area is 1 by its definition
            self._log("val_aupr", torch.ones(()))
        elif bool(right.any()):
            self._log("val_aupr", metrics.aupr(sure, right))
        for place in range(1, len(self._seen)):
            (outside,) = self._gathered(place)
            name = "val_ood_aupr" if place == 1 else f"val_ood_aupr_{place}"
            positive = torch.arange(len(inside) + len(outside)) < len(inside)
            self._log(name, metrics.aupr(torch.cat([inside, outside]), positive))
        self._seen = []

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Prediction:
        """What is said of a batch of inputs, or of pairs whose second is ignored."""
        return self.predict(_inputs(batch))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the shape of an input, and whether it was of bytes, which a bundle needs."""
        checkpoint[_SHAPE], checkpoint[_BYTES] = self.shape, self._bytes

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """The shape and the kind that were kept."""
        self.shape = checkpoint.get(_SHAPE, self.shape)
        self._bytes = checkpoint.get(_BYTES, self._bytes)

    # --- a bundle --------------------------------------------------------------------------------

    def to_bundle(
        self,
        folder: str | os.PathLike[str],
        *,
        held_out: Loader | None = None,
        shape: Sequence[int] | None = None,
        backbone: Mapping[str, Any] | None = None,
        promise: Promise | None = None,
        about: Sequence[str] = (),
    ) -> Path:
        """Write a bundle, for `dubito predict`, `export` and `serve`; see `dubito.bundle.save`.

        `held_out`, batches of inputs and labels that training did not see, gives it a calibration,
        and a policy that keeps the `promise`. `shape` is that of one input, known after training.
        With several processes the first one writes.
        """
        inputs = self.shape if shape is None else tuple(shape)
        if inputs is None:
            raise ValueError("shape must be given: this module has not been trained here")
        limits = bundle.Limits() if held_out is None else self._limits(held_out, promise)
        # a network that was trained with bytes is asked with bytes
        prepared = replace(self.preprocessing, pixels=self.preprocessing.pixels or self._bytes)
        if self.global_rank == 0:
            bundle.save(
                folder, self.model, method=self.method, classes=self.classes, shape=inputs,
                backbone=backbone, class_counts=self.class_counts,
                preprocessing=prepared, calibration=limits.calibration,
                policy=limits.policy, about=about,
            )  # fmt: skip
        return Path(folder)

    def _limits(self, held_out: Loader, promise: Promise | None) -> bundle.Limits:
        pairs = [_pair(batch) for batch in held_out]
        if not pairs:
            raise ValueError("held_out must give at least one batch, but gives none")
        said = bundle.joined([self.predict(x.to(self.device)) for x, _ in pairs])
        return bundle.limits(said, torch.cat([target.cpu() for _, target in pairs]), promise)

    # --- parts -----------------------------------------------------------------------------------

    def _prepared(self, x: Tensor) -> Tensor:
        """Inputs as the network takes them, in the precision that the trainer gave it."""
        return self.preprocessing.standardised(x).to(self.dtype)

    def _loss(self, x: Tensor, target: Tensor, stage: str, terms: bool) -> Tensor:
        """The mean loss of a batch, logged, with its terms where that is asked."""
        outputs = self.model(self.method.inputs(x, self._drawn if stage == "val" else None))
        self._check(outputs, target)
        names, weights = zip(*self._weights(last=stage == "val").items(), strict=True)
        total, sums = self.method.loss_of(
            outputs, target, torch.tensor(weights, device=outputs.device)
        )
        count = target[..., 0].numel() if target.is_floating_point() else target.numel()
        loss = total / count
        self._log(f"{stage}_loss", loss, count)
        for name, value in zip(names, sums, strict=True) if terms else ():
            self._log(f"{stage}_{name}", value / count, count)
        return loss

    def _check(self, outputs: Tensor, target: Tensor) -> None:
        """An error for a network of other classes, and for labels that no class has."""
        wanted = self.method.read_outputs(len(self.classes))
        if outputs.shape[-1] != wanted:
            raise ValueError(
                f"the network has {outputs.shape[-1]} outputs, but {len(self.classes)} classes "
                f"need {wanted}"
            )
        if not target.is_floating_point() and _checks.visible(target):
            _checks.labels(target, target.shape, len(self.classes), "")

    def _weights(self, last: bool) -> dict[str, float]:
        """The weight of each term in this epoch, or in the last one, when all have risen."""
        known = self.epochs or self.trainer.max_epochs or 0
        if known < 1 and getattr(self.method, "kl_ramp", None) == "all":
            raise ValueError(
                "kl_ramp='all' needs to know how many epochs there are: give epochs, or max_epochs "
                "to the Trainer"
            )
        end = known - 1 if known > 0 else sys.maxsize
        return self.method.weights(end if last else self.current_epoch, max(known, 1))

    def _log(self, name: str, value: Tensor, count: int | None = None) -> None:
        """The mean over an epoch; what has no count is the same in all processes already."""
        self.log(
            name, value.detach(), on_step=False, on_epoch=True, batch_size=count or 1,
            sync_dist=count is not None, add_dataloader_idx=False, prog_bar=name in _SHOWN,
        )  # fmt: skip

    def _unsure(self, said: Prediction) -> str:
        return self.unsure or next(name for name in UNSURE if name in said.available)

    def _note(self, place: int, *values: Tensor) -> None:
        while len(self._seen) <= place:
            self._seen.append([])
        self._seen[place].append(tuple(value.detach().flatten().cpu() for value in values))

    def _gathered(self, place: int) -> list[Tensor]:
        """What was noted of a loader, by all processes, which may have seen different numbers."""
        ours = [torch.cat(values) for values in zip(*self._seen[place], strict=True)]
        if self.trainer.world_size == 1:
            return ours
        all_of_them: list[Any] = [None] * self.trainer.world_size
        dist.all_gather_object(all_of_them, ours)
        return [torch.cat(values) for values in zip(*all_of_them, strict=True)]


_SHAPE, _BYTES = "dubito_shape", "dubito_bytes"
_SHOWN = ("train_loss", "val_loss", "val_accuracy")


def _method(method: Method | methods.Method | str | Mapping[str, Any]) -> Method:
    if not isinstance(method, Mapping):
        return _legacy.method(method)
    options = dict(method)
    return _legacy.method(options.pop("name"), **options)


def _described(method: Method) -> dict[str, Any]:
    """What makes the method again, where it is one of the table; another has to be given again."""
    known = method.name is not None
    return {"method": {"name": method.name, **method.hyperparameters()}} if known else {}


def _preprocessing(given: Preprocessing | Mapping[str, Any] | None) -> Preprocessing:
    return (
        Preprocessing.from_dict(given) if isinstance(given, Mapping) else given or Preprocessing()
    )


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode, and then each of its parts in the mode that it had."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def _pair(batch: Any) -> tuple[Tensor, Tensor]:
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        raise TypeError(f"a batch must be a pair (inputs, labels), not {type(batch).__name__}")
    x, target = batch
    return _checks.tensor(x, "inputs"), _checks.tensor(target, "labels")


def _inputs(batch: Any) -> Tensor:
    return _checks.tensor(batch[0] if isinstance(batch, list | tuple) else batch, "inputs")
