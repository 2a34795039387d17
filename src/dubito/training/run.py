"""A training run of one seed: the state that a checkpoint saves, and the step that changes it."""

import json
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import AveragedModel

from dubito import _checks
from dubito._files import remove_partial
from dubito.errors import DubitoError
from dubito.methods import Method
from dubito.model import Model
from dubito.targets import Target
from dubito.training import checkpoint, parallel, soft_targets
from dubito.training.batches import Reader
from dubito.training.callbacks import Callback, callback_states, load_callback_states
from dubito.training.config import LAST, TrainConfig
from dubito.training.optimizer import (
    averaged,
    build_optimizer,
    moving_average,
    read_rates,
    update_moving_average,
)  # fmt: skip
from dubito.types import Json

__all__: list[str] = []

CHECKPOINT = "checkpoint.safetensors"
#: training samples that determine the batch norm statistics of averaged weights
BATCH_NORM_SAMPLES = 10_000
Loss = Callable[[Tensor, Tensor | Target, Tensor], tuple[Tensor, Tensor]]
Record = Json


class NonFiniteLoss(DubitoError):
    """A loss, or an output of the network, is infinite or NaN."""


@dataclass
class History:
    """History of a training.

    Args:
        records: One dict per epoch: epoch (from 1), loss, terms, lr (of the last step), seconds (of
            the steps), samples_per_second, and after a validation its metrics under "validation".
        best_epoch: Epoch with the weights that are kept: those of the best validation, or the last;
            0 before there are any.
        seconds: Time of all epochs, validations included; shared by runs that train together.
    """

    records: list[Record] = field(default_factory=list, repr=False)
    best_epoch: int = 0
    seconds: float = 0.0

    @property
    def best(self) -> Record:
        """Record of the epoch whose weights are kept."""
        return self.records[self.best_epoch - 1]


def seed_generators(device: torch.device, seed: int) -> None:
    """Seed the default generators of the CPU and of a device; other devices keep their state."""
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).default_generators[device.index].manual_seed(seed)


def loss_function(method: Method, class_weight: Tensor | None = None) -> Loss:
    """Return the loss of outputs (N, M): its sum over the batch, and the sum of each term.

    Outputs beyond the number of targets are those of out-of-distribution inputs.
    """
    has_ood = bool(method.ood_terms)

    def loss(outputs: Tensor, target: Tensor | Target, weights: Tensor) -> tuple[Tensor, Tensor]:
        ood = method.distribution(outputs[len(target) :]) if has_ood else None
        dist = method.distribution(outputs[: len(target)] if has_ood else outputs)
        return method.loss(dist, target, weights, ood=ood, class_weight=class_weight)

    return loss


def add_step(table: Tensor, step: Tensor, loss: Tensor, outputs: Tensor, sums: Tensor) -> None:
    """Write the loss of a step, the range of its outputs and its terms into its row of a table.

    No value is read, for which a GPU would have to wait.

    Args:
        table: One row per step of the epoch, float64.
        step: Number of the step from 0, (1,); increased by one.
        loss: Sum of the loss.
        outputs: Outputs of the network.
        sums: Sum of each term.
    """
    row = torch.cat([torch.stack([loss, *outputs.aminmax()]), sums])
    table.index_copy_(0, step, row.to(table).unsqueeze(0))
    step += 1


def train_mode(network: nn.Module, *, freeze_batch_norm: bool) -> nn.Module:
    """Set a network to training mode, possibly without its batch norm.

    Args:
        network: Network.
        freeze_batch_norm: Whether batch norm uses its statistics and keeps them.
    """
    network.train()
    for module in network.modules():
        if freeze_batch_norm and isinstance(module, _BatchNorm):
            module.eval()
    return network


def merge_adapters(network: nn.Module) -> None:
    """Merge adapters into the weights, in the parts of a network that have some.

    Args:
        network: Trained network.
    """
    for part in [*network.modules()]:
        merge = getattr(part, "merge_adapters", None)
        if callable(merge):
            merge()


class Run:
    """A network in training.

    Everything random in an epoch follows from the seed and the number of the epoch, so that a
    resumed run repeats an epoch exactly.

    Args:
        model: Model on the device.
        config: Configuration, with the seed of this run.
        train: Training samples.
        validation: Validation samples; None only to keep the last weights.
        class_weight: Weight of each class, (K,).
        folder: Folder of the checkpoint; None saves none.
    """

    def __init__(
        self,
        model: Model,
        config: TrainConfig,
        train: Reader,
        validation: Reader | None,
        class_weight: Tensor | None,
        folder: Path | None,
    ) -> None:
        self.model, self.config, self.folder = model, config, folder
        self.train, self.validation, self.class_weight = train, validation, class_weight
        self.device = device = train.device
        if config.channels_last:
            model.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.network = parallel.wrapped(model.network)
        train_mode(self.network, freeze_batch_norm=config.freeze_batch_norm)
        #: network for full batches; a graph may replace it by a compiled one
        self.forward: Callable[[Tensor], Tensor] = self.network
        self.average = self._new_average()
        self.optimizer = build_optimizer(config, model.network, device)
        self.parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        #: precision of the network; losses are computed in float32
        is_half = config.precision == "bfloat16"
        self.autocast = torch.autocast(device.type, torch.bfloat16, enabled=is_half)
        #: network that is validated and saved
        self.evaluated: nn.Module = model.network if self.average is None else self.average.module
        # Functions of tensors that a graph replaces by compiled ones.
        self.loss: Loss = loss_function(model.method, class_weight)
        self.add_step: Callable[..., None] = add_step
        self.terms = (*model.method.terms, *model.method.ood_terms)
        self.metric = config.keep or model.task.monitor
        modes = {**model.task.modes, "loss": "min", LAST: ""}
        self.mode = _checks.entry(modes, self.metric, "metric to keep")
        if validation is None and self.metric != LAST:
            raise DubitoError(
                f"keep={self.metric!r} needs validation samples: pass some, or keep={LAST!r}"
            )
        self.history = History()
        #: outputs and targets of the latest step, if they can be read without waiting
        self.latest: tuple[Tensor, Tensor | Target] | None = None
        self.best: dict[str, Tensor] = {}
        self.best_value: float | None = None
        self.batch_size = config.batch_size * parallel.world()
        self.counts = self._counts()
        # Tensors on the device, for a captured step: it reads nothing from the host.
        self.order = torch.zeros(len(train), dtype=torch.long, device=train.index_device)
        columns = 0 if config.augment is None else config.augment.columns
        self.changes = torch.zeros(len(train), columns, device=device)  # of the augmentation
        self.weights = torch.zeros(len(self.terms), device=device)
        #: learning rate of each group in each step, on the host and on the device
        self.rates: list[list[float]] = []
        groups = len(self.optimizer.param_groups)
        self.rate_table = torch.zeros(groups, len(self.counts), device=device)
        self.lr_on_device = isinstance(self.optimizer.param_groups[0]["lr"], Tensor)
        self.step_number = torch.zeros(1, dtype=torch.long, device=device)
        #: share of each sample in its mixture with another one, in each step
        self.shares = torch.ones(len(self.counts), device=device)
        #: see `add_step`
        self.table = torch.zeros(
            len(self.counts), 3 + len(self.terms), dtype=torch.float64, device=device
        )
        self.generator = torch.Generator(device)

    def _new_average(self) -> AveragedModel | None:
        if self.config.ema_decay is not None:
            return moving_average(self.model.network, self.device)
        epochs = self.config.averaged_epochs
        return averaged(self.model.network, epochs) if epochs else None

    def _counts(self) -> list[int]:
        """Return the number of samples of each step, over all processes."""
        world, count = parallel.world(), len(self.train)
        norms = (m for m in self.model.network.modules() if isinstance(m, _BatchNorm))
        # Batch norm needs two samples: a single one that is left over waits for the next epoch.
        least = world * (2 if any(n.training for n in norms) and count >= 2 * world else 1)
        counts = [min(self.batch_size, count - i) for i in range(0, count, self.batch_size)]
        return counts if counts[-1] >= least else counts[:-1]

    @property
    def epoch(self) -> int:
        """Number of epochs that are done."""
        return len(self.history.records)

    @property
    def finished(self) -> bool:
        """Whether all epochs are done, or validations have not improved for long enough."""
        records, best = self.history.records, self.history.best_epoch  # the last, if that is kept
        stale = sum("validation" in record for record in records[best:])
        return self.epoch >= self.config.num_epochs or 0 < self.config.patience <= stale

    # --- an epoch ---

    def begin_epoch(self) -> None:
        """Draw the order and the augmentation; set learning rates and the loss weights."""
        config, groups = self.config, self.optimizer.param_groups
        self._draw(self.epoch)
        seed_generators(self.device, self.process_seed)  # of dropout
        self.generator.manual_seed(self.process_seed)
        factors = config.lr_factors(self.epoch, len(self.counts))
        self.rates = [[group["initial_lr"] * factor for factor in factors] for group in groups]
        self.rate_table.copy_(torch.tensor(self.rates))
        for group, rates in zip(groups, self.rates, strict=True):
            group["lr"] = group["lr"].fill_(rates[0]) if self.lr_on_device else rates[0]
        self.weights.copy_(config.loss_weights(self.model.method, self.epoch))
        if config.mixup is not None:
            beta, counts = random.Random(self.process_seed).betavariate, self.counts
            self.shares.copy_(torch.tensor([beta(config.mixup, config.mixup) for _ in counts]))
        self.step_number.zero_()
        if not self.model.network.training:  # validated
            train_mode(self.network, freeze_batch_norm=config.freeze_batch_norm)

    def _draw(self, epoch: int) -> None:
        """Draw the order and the augmentation of an epoch."""
        config, count = self.config, len(self.train)
        seed = (config.seed * 1_000_003 + epoch) % (1 << 62)
        #: seed of the epoch in this process, far from that of any other epoch
        self.process_seed = (seed + parallel.rank() * 0x9E3779B97F4A7C15) % (1 << 62)
        drawn = torch.Generator().manual_seed(seed)
        self.order.copy_(torch.randperm(count, generator=drawn))
        if config.augment is not None:
            self.changes.copy_(config.augment.draw(count, drawn))

    def batches(self) -> Iterator[tuple[Tensor, Tensor | Target]]:
        """Read inputs and targets of the steps of the epoch."""
        rank, world, total = parallel.rank(), parallel.world(), sum(self.counts)
        rows, changes = (
            [part[rank::world] for part in values[:total].split(self.counts)]
            for values in (self.order, self.changes)
        )
        return self.train.read(rows, changes, self.process_seed)

    def steps(self) -> Iterator[None]:
        """Take the steps of the epoch, one per iteration."""
        for step, ((x, target), count) in enumerate(zip(self.batches(), self.counts, strict=True)):
            if self.config.changes_lr and not self.lr_on_device:
                for group, rates in zip(self.optimizer.param_groups, self.rates, strict=True):
                    group["lr"] = rates[step]
            outputs = self.step(x, target, count)
            if self.device.type == "cpu":  # reading a value does not wait
                self.check_finite(step, step + 1)
                self.latest = outputs[: len(target)], target
            yield

    def step(self, x: Tensor, target: Tensor | Target, count: int) -> Tensor:
        """Update the weights, and return the outputs before.

        Args:
            x: Inputs, the share of this process.
            target: Their targets in training units.
            count: Number of samples over all processes.
        """
        config = self.config
        if config.changes_lr and self.lr_on_device:
            read_rates(self.optimizer, self.rate_table, self.step_number)
        for parameter in self.parameters:  # Optimizer.zero_grad takes much longer
            parameter.grad = None
        if config.label_smoothing or config.mixup:
            target = soft_targets.smoothed(target, self.model.task.size, config.label_smoothing)
        if config.mixup is not None:
            share = self.shares.index_select(0, self.step_number)
            assert isinstance(target, Tensor)
            x, target = (soft_targets.mixed(values, share) for values in (x, target))
        target = self.train.taught(x, target)
        x = self.train.with_ood(x, self.generator)
        forward = self.forward if count == self.batch_size else self.network
        with self.autocast:
            outputs = forward(x)
        total, sums = self.loss(outputs, target, self.weights)
        self.add_step(self.table, self.step_number, total.detach(), outputs.detach(), sums)
        # The mean over the batch; gradients are averaged over the processes.
        total.backward(torch.full_like(total, parallel.world() / count))
        if config.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters, config.max_grad_norm)
        self.optimizer.step()
        if self.average is not None and config.ema_decay is not None:
            update_moving_average(self.average, self.model.network, config.ema_decay)
        return outputs.detach()

    @torch.no_grad()
    def latest_metrics(self) -> dict[str, float]:
        """Return the accuracy of the latest step; empty if there is none."""
        task = self.model.task
        if self.latest is None or task.kind != "classification":
            return {}
        outputs, target = self.latest
        metrics = task.metrics(self.model.method.distribution(outputs).predictive, target)
        return {task.monitor: metrics[task.monitor]}

    def check_finite(self, start: int = 0, stop: int | None = None) -> None:
        """Raise if a step of the epoch was not finite; waits for the steps of a GPU."""
        for step, (loss, low, high, *sums) in enumerate(self.table[start:stop].tolist(), start):
            if all(map(math.isfinite, (loss, low, high))):
                continue
            count = self.counts[step] / parallel.world()
            means = zip(self.terms, sums, strict=True)
            terms = ", ".join(f"{name} {value / count:g}" for name, value in means)
            raise NonFiniteLoss(
                f"the loss is not finite in epoch {self.epoch + 1}, step {step + 1}: mean terms "
                f"{terms}; outputs span [{low:g}, {high:g}]. Lower lr={self.config.lr:g}, or look "
                "at the inputs of this step"
            )

    def end_epoch(self, seconds: float) -> Record:
        """Average the weights, validate, and return the record of the epoch.

        Args:
            seconds: Time of the steps.
        """
        epoch, count = self.epoch + 1, sum(self.counts)
        means = (parallel.summed(self.table[:, 3:].sum(0)) / count).tolist()
        record: Record = {
            "epoch": epoch,
            "loss": sum(w * mean for w, mean in zip(self.weights.tolist(), means, strict=True)),
            "terms": dict(zip(self.terms, means, strict=True)),
            "lr": self.config.lr * self.config.lr_factors(self.epoch, len(self.counts))[-1],
            "seconds": seconds,
            "samples_per_second": count / seconds,
        }
        self._average_epoch()
        last = epoch == self.config.num_epochs
        if self.validation is not None and (last or epoch % self.config.validate_every == 0):
            record["validation"] = self._validate(self.validation)
        return record

    @torch.no_grad()
    def _average_epoch(self) -> None:
        """Average the weights over epochs, or give a moving average the current buffers."""
        if self.average is None:
            return
        if self.config.ema_decay is None:
            self.average.update_parameters(self.model.network)
            return
        current = self.model.network.buffers()
        for buffer, value in zip(self.average.module.buffers(), current, strict=True):
            buffer.copy_(value)

    # --- validation ---

    @torch.no_grad()
    def _validate(self, reader: Reader) -> dict[str, float]:
        """Compute the metrics of the task and the loss, from one pass over the samples."""
        method, task = self.model.method, self.model.task
        self._settle()
        outputs = self._outputs(reader)
        low, high = (value.item() for value in outputs.aminmax())
        if not (math.isfinite(low) and math.isfinite(high)):
            raise NonFiniteLoss(
                f"outputs for validation samples span [{low:g}, {high:g}] after epoch "
                f"{self.epoch + 1}: lower lr={self.config.lr:g}"
            )
        dist = task.to_user_units(method.distribution(outputs[: len(reader)]))
        metrics = task.metrics(dist.predictive, reader.encoded.to(self.device))
        # With the final loss weights: a KL weight that rises makes epochs incomparable.
        weights = self.config.loss_weights(method, self.config.num_epochs - 1).to(self.device)
        loss = loss_function(method, self.class_weight)
        total, _ = loss(outputs, reader.target.to(self.device), weights)
        metrics["loss"] = total.item() / len(reader)
        if self.metric not in (LAST, *metrics):
            raise DubitoError(
                f"keep={self.metric!r}: {self.model.method!r} has {_checks.listed(metrics)}"
            )
        for name, value in metrics.items():
            if math.isnan(value):
                raise NonFiniteLoss(f"validation {name} is NaN after epoch {self.epoch + 1}")
        return metrics

    def _outputs(self, reader: Reader) -> Tensor:
        """Return the outputs of validation samples, then those of OOD inputs if there are any."""
        rank, world = parallel.rank(), parallel.world()
        generator = torch.Generator(self.device).manual_seed(self.config.seed)
        rows = torch.arange(rank, len(reader), world, device=reader.index_device)
        batches = []
        for x, _ in reader.read(reader.chunks(rows)):
            with self.autocast:
                outputs = self.evaluated(self.train.with_ood(x, generator))
            batches.append(outputs.split(len(x)))
        parts = [torch.cat(part) for part in zip(*batches, strict=True)]
        return torch.cat([parallel.gathered(part, len(reader)) for part in parts])

    @torch.no_grad()
    def _settle(self) -> None:
        """Make the network ready for evaluation: the same in all processes."""
        if self.average is not None:
            self._update_batch_norm()
        parallel.share_buffers(self.evaluated)
        self.evaluated.eval()

    def _update_batch_norm(self) -> None:
        """Recompute the statistics of batch norm for averaged weights, on inputs of the epoch.

        Unlike `torch.optim.swa_utils.update_bn`, layers that the network keeps in evaluation mode
        keep their statistics. Batches count alike and have nearly one size.
        """
        network = train_mode(self.evaluated, freeze_batch_norm=self.config.freeze_batch_norm)
        norms = [m for m in network.modules() if isinstance(m, _BatchNorm) and m.training]
        if not norms:
            return
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # the mean over all batches
        seed_generators(self.device, self.process_seed)  # of dropout, whatever ran before
        generator = torch.Generator(self.device).manual_seed(self.config.seed)
        rows = self.train.chunks(self.order[:BATCH_NORM_SAMPLES])
        changes = self.changes[:BATCH_NORM_SAMPLES].tensor_split(len(rows))
        for x, _ in self.train.read(rows, changes, self.process_seed):
            with self.autocast:
                network(self.train.with_ood(x, generator))

    def keep(self, record: Record, value: float | None = None) -> None:
        """Keep the weights if they are the last or the best; the first of equals stays.

        Args:
            record: Record of the epoch.
            value: Metric of runs that keep the same epoch; None: that of this run.
        """
        history = self.history
        if self.metric == LAST:
            history.best_epoch = record["epoch"]
        elif "validation" in record:
            value = record["validation"][self.metric] if value is None else value
            best = self.best_value
            if best is None or (value < best if self.mode == "min" else value > best):
                self.best = {k: v.clone() for k, v in self.evaluated.state_dict().items()}
                history.best_epoch, self.best_value = record["epoch"], value

    def finish(self) -> History:
        """Load the kept weights, and fit the parts of the method that are fitted after training."""
        if not self.history.best_epoch:
            raise DubitoError(
                f"{self.folder} has no weights to finish with: train until the first "
                f"{'epoch' if self.metric == LAST else 'validation'} is in its checkpoint"
            )
        network = self.model.network
        if self.metric == LAST:
            self._draw(self.epoch - 1)  # a resumed run has not drawn what batch norm sees
            self._settle()
            if not all(weight.isfinite().all() for weight in self.evaluated.parameters()):
                raise NonFiniteLoss(
                    f"weights are not finite after epoch {self.epoch}: lower lr={self.config.lr:g}"
                )
            network.load_state_dict(self.evaluated.state_dict())
        else:
            network.load_state_dict(self.best)
        self.evaluated = network
        merge_adapters(network)
        self.model.method.finish(network.eval(), self.train)
        return self.history

    # --- checkpoints ---

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint, by name."""
        parts = {
            "network": self.model.network.state_dict(),
            "average": {} if self.average is None else self.average.state_dict(),
            "best": self.best,
            "optimizer": checkpoint.optimizer_tensors(self.optimizer),
        }
        return {f"{part}.{k}": v for part, values in parts.items() for k, v in values.items()}

    def save(self, callbacks: Sequence[Callback]) -> None:
        """Save a checkpoint, if there is a folder for it.

        Args:
            callbacks: Callbacks whose states are saved, too.
        """
        if self.folder is not None and parallel.rank() == 0:
            state = {
                "history": asdict(self.history),
                "identity": self._identity(),
                "callbacks": callback_states(callbacks),
            }
            checkpoint.save(self.folder / CHECKPOINT, self.tensors(), state)

    def resume(self, callbacks: Sequence[Callback]) -> None:
        """Continue from the checkpoint in the folder, if there is one.

        Args:
            callbacks: Callbacks whose states are restored, too.
        """
        if self.folder is None or not (path := self.folder / CHECKPOINT).exists():
            return
        if parallel.rank() == 0:
            remove_partial(path)
        tensors, state = checkpoint.load(path)
        self._check_identity(state["identity"])
        parts: dict[str, dict[str, Tensor]] = defaultdict(dict)
        for key, value in tensors.items():
            part, name = key.split(".", 1)
            parts[part][name] = value
        self.model.network.load_state_dict(parts["network"])
        if self.average is not None:
            self.average.load_state_dict(parts["average"])
        self.best = {name: value.to(self.device) for name, value in parts["best"].items()}
        checkpoint.load_optimizer(self.optimizer, parts["optimizer"])
        self.history = History(**state["history"])
        if self.history.best_epoch and self.metric != LAST:
            self.best_value = self.history.best["validation"][self.metric]
        load_callback_states(callbacks, state["callbacks"])

    def _identity(self) -> Json:
        """Return the properties that a checkpoint shares with the run that continues it."""
        weight, network = self.class_weight, self.model.network.state_dict()
        return {
            "method": repr(self.model.method),
            "data": self.train.fingerprint,
            "class_weight": None if weight is None else weight.tolist(),
            "processes": parallel.world(),
            "network": {name: list(value.shape) for name, value in network.items()},
            **self.config.identity(),
        }

    def _check_identity(self, saved: Json) -> None:
        for key, value in json.loads(json.dumps(self._identity())).items():
            if saved.get(key) != value:
                values = f" ({saved.get(key)}, now {value})"
                raise DubitoError(
                    f"{self.folder} contains another training, with another {key}"
                    f"{values if len(values) < 500 else ''}: choose another folder, or the same "
                    "data and settings"
                )
