"""Train a `Model` with Lightning.

| logged | meaning |
| --- | --- |
| train_loss, train_TERM | loss and unweighted terms, means over an epoch |
| val_loss | loss with the weights of the last epoch, so that epochs can be compared |
| val_METRIC | metrics of the task, such as val_accuracy |
| val_epistemic | mean epistemic uncertainty |
| val_error_aupr | separation of correct predictions (positive) and errors by the method's score |
| val_ood_aupr | separation of validation samples (positive) and OOD inputs by the method's score |

Batches are pairs of encoded inputs and targets: class indices (N,), or numbers (N, T) in their own
units. Further validation loaders give OOD inputs; the third loader is logged as val_ood_aupr_2, and
so on. Methods that train with OOD inputs take a dict of loaders, {"train": ..., "ood": ...}.

>>> from dubito.formats import ArrayFormat, Preprocessing
>>> from dubito.model import Model
>>> from dubito.tasks import Classification
>>> task = Classification(classes=("cat", "dog"))
>>> model = Model.build("iedl", task, Preprocessing(inputs=ArrayFormat(shape=(4,))))
>>> module = EvidentialModule(model, lr=0.01)  # lightning.Trainer(...).fit(module, loader)
>>> module.to_model().predict(torch.zeros(3, 4))
Prediction(3 inputs)
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as processes

try:
    from lightning import LightningModule
except ImportError as error:
    raise ImportError(
        "lightning is not installed: pip install 'dubito[lightning]'", name=error.name
    ) from error

from dubito import _checks, evaluation
from dubito.distributions import Distribution
from dubito.errors import DubitoError
from dubito.losses import weighted_sums
from dubito.methods.base import check_taught
from dubito.model import Model
from dubito.training.run import loss_function, merge_adapters

__all__ = ["EvidentialModule"]

#: quantities in the progress bar
SHOWN = ("train_loss", "val_loss", "val_accuracy", "val_rmse")


class EvidentialModule(LightningModule):
    """A model in training; its attribute `model`.

    Args:
        model: Model to train, from `Model.build` or around any network.
        lr: Learning rate of Adam.
        optimizer: Function from parameters to an optimizer, in place of Adam.
        epochs: Number of epochs, if the trainer counts steps only.
    """

    def __init__(
        self,
        model: Model,
        *,
        lr: float = 1e-3,
        optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] | None = None,
        epochs: int | None = None,
    ) -> None:
        super().__init__()
        check_taught(model.method)
        self.model, self.lr, self.optimizer, self.epochs = model, lr, optimizer, epochs
        self.save_hyperparameters({"lr": lr, "epochs": epochs})
        #: outputs and targets of each validation loader
        self._outputs: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def forward(self, inputs: Tensor) -> Distribution:
        """Return the distribution before calibration, in units of the target.

        Args:
            inputs: Encoded inputs, (N, *shape).
        """
        dist: Distribution = self.model(inputs)
        return dist

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Build the optimizer."""
        if self.optimizer is not None:
            return self.optimizer(self.parameters())
        return torch.optim.Adam(self.parameters(), lr=self.lr)

    # --- training ---

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the mean loss of a batch."""
        batches = batch if isinstance(batch, Mapping) else {"train": batch}
        inputs, target = _pair(batches["train"])
        method, task, count = self.model.method, self.model.task, len(inputs)
        if method.ood_terms:
            if "ood" not in batches:
                raise DubitoError(
                    f"{type(method).__name__} trains with OOD inputs: pass fit() a dict of "
                    "loaders, {'train': ..., 'ood': ...}"
                )
            inputs = torch.cat([inputs, _inputs(batches["ood"])])
        _, outputs = self.model.run(inputs)
        _checks.finite(outputs, "outputs of the network")
        if task.kind == "classification":
            _checks.targets(target, outputs.new_zeros(count, task.size), -100)
        weights = self._weights(self.current_epoch).to(outputs.device)
        total, sums = loss_function(method)(outputs, task.to_training_units(target), weights)
        loss = total / count
        self._log("train_loss", loss, count)
        for name, value in zip((*method.terms, *method.ood_terms), sums, strict=True):
            self._log(f"train_{name}", value / count, count)
        return loss

    def on_train_end(self) -> None:
        """Fit what the method fits after training."""
        self.model.eval()
        merge_adapters(self.model.network)
        with torch.no_grad():
            self.model.method.finish(self.model.network, _Batches(self))

    def _weights(self, epoch: int) -> Tensor:
        """Return the weights of the loss terms in an epoch."""
        method = self.model.method
        epochs = self.epochs or max(self.trainer.max_epochs or 0, 0)
        if not epochs and getattr(method, "kl_ramp", None) == "all":
            raise DubitoError(
                "kl_ramp='all' needs the number of epochs: pass epochs, or the Trainer max_epochs"
            )
        return method.weight_tensor(min(epoch, epochs - 1) if epochs else epoch, max(epochs, 1))

    # --- validation ---

    def on_validation_epoch_start(self) -> None:
        """Drop outputs of an epoch that did not end."""
        self._outputs = {}

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Run the network: on validation samples of the first loader, on OOD inputs of others."""
        inputs, target = (_inputs(batch), torch.empty(0)) if dataloader_idx else _pair(batch)
        _, outputs = self.model.run(inputs)
        self._outputs.setdefault(dataloader_idx, []).append((outputs.cpu(), target.cpu()))

    def on_validation_epoch_end(self) -> None:
        """Log metrics over the samples of all processes."""
        method, task = self.model.method, self.model.task
        outputs, target = self._gathered(0)
        dist = method.distribution(outputs)
        # With the last weights: a KL weight that rises makes epochs incomparable.
        weights = self._weights(sys.maxsize)[: len(method.terms)]
        loss, _ = weighted_sums(
            method.terms, dist, task.to_training_units(target), weights, per_class=method.per_class
        )
        dist = task.to_user_units(dist)
        result = evaluation.evaluate(task, dist, target, [method.error_score])
        logged = {"loss": loss.item() / len(target), **result["metrics"]}
        logged["epistemic"] = dist.epistemic.mean().item()
        if result.get("error_rate", 1) < 1:
            detection = result.get("error_detection", {}).get(method.error_score)
            logged["error_aupr"] = detection["aupr"] if detection else 1.0  # the limit of no errors
        for loader in sorted(self._outputs.keys() - {0}):
            ood = task.to_user_units(method.distribution(self._gathered(loader)[0]))
            detection = evaluation.ood_detection(dist, ood, [method.ood_score])[method.ood_score]
            logged["ood_aupr" if loader == 1 else f"ood_aupr_{loader}"] = detection["aupr"]
        for name, value in logged.items():
            self._log(f"val_{name}", torch.tensor(value))

    def _gathered(self, loader: int) -> list[Tensor]:
        """Return outputs and targets of a loader, of all processes."""
        parts = [torch.cat(values) for values in zip(*self._outputs[loader], strict=True)]
        if self.trainer.world_size == 1:
            return parts
        gathered: list[Any] = [None] * self.trainer.world_size
        processes.all_gather_object(gathered, parts)
        return [torch.cat(values) for values in zip(*gathered, strict=True)]

    def _log(self, name: str, value: Tensor, count: int | None = None) -> None:
        """Log a mean over an epoch; without a count the value is that of all processes."""
        self.log(
            name,
            value.detach(),
            on_step=False,
            on_epoch=True,
            batch_size=count or 1,
            sync_dist=count is not None,
            prog_bar=name in SHOWN,
        )

    # --- after training ---

    def predict_step(
        self, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> dict[str, Tensor]:
        """Return `Prediction.tensors` of a batch of inputs; targets are ignored."""
        return self.model.predict(_inputs(batch)).tensors()

    def to_model(self, validation: Iterable[Any] | None = None, **policy: Any) -> Model:
        """Return the model for prediction, saving and export, in evaluation mode.

        Args:
            validation: Batches of pairs that were not trained on, to fit the calibration and, if
                the task defines errors, the policy.
            **policy: Arguments of `Model.fit_policy`, such as error_rate.
        """
        model = self.model.eval()
        if validation is not None:
            batches = [_pair(batch) for batch in validation]
            if not batches:
                raise DubitoError("validation has no batches")
            inputs, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
            prediction, target = model.predict(inputs), model.task.decode(targets.cpu())
            model.calibrate(prediction, target)
            if model.task.defines_errors:
                model.fit_policy(prediction, target, **policy)
        return model


class _Batches:
    """Normalized training inputs and targets in training units, for `Method.finish`."""

    def __init__(self, module: EvidentialModule) -> None:
        self.module = module

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        model = self.module.model
        loader: Any = self.module.trainer.train_dataloader
        for batch in loader["train"] if isinstance(loader, Mapping) else loader:
            inputs, target = (part.to(self.module.device) for part in _pair(batch))
            yield model.preprocessing.normalize(inputs), model.task.to_training_units(target)


def _pair(batch: Any) -> tuple[Tensor, Tensor]:
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        raise TypeError(f"a batch must be a pair (inputs, targets), not {type(batch).__name__}")
    inputs, target = batch
    return _checks.tensor(inputs, "inputs"), _checks.tensor(target, "targets")


def _inputs(batch: Any) -> Tensor:
    return _checks.tensor(batch[0] if isinstance(batch, list | tuple) else batch, "inputs")
