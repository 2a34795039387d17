"""A training run of one seed: the state that a checkpoint saves, and the step that changes it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import AveragedModel

from dubito import _checks
from dubito._files import remove_partial
from dubito.errors import DubitoError
from dubito.methods import Method
from dubito.model import Model
from dubito.training import _checkpoint, _parallel
from dubito.training._batches import Data
from dubito.training.config import TrainConfig

if TYPE_CHECKING:
    from dubito.training._graph import Graph

CHECKPOINT = "checkpoint.safetensors"
Loss = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
Record = dict[str, Any]


class NonFiniteLoss(DubitoError):
    """A loss, or an output of the network, is infinite or NaN."""


@dataclass
class History:
    """History of a training.

    Attributes:
        records: One dict per epoch: epoch (from 1), loss, terms, lr, seconds (of the steps),
            samples_per_second, and after a validation its metrics under "validation".
        best_epoch: Epoch with the best weights; 0 before the first validation.
        seconds: Time of all epochs, validations included; shared by runs that train together.
    """

    records: list[Record] = field(default_factory=list, repr=False)
    best_epoch: int = 0
    seconds: float = 0.0

    @property
    def best(self) -> Record:
        """Record of the best epoch."""
        return self.records[self.best_epoch - 1]

    @property
    def validations_since_best(self) -> int:
        """Number of validations without improvement."""
        return sum("validation" in record for record in self.records[self.best_epoch :])


def default_generator(device: torch.device) -> torch.Generator:
    """Return the default generator of a GPU."""
    index = device.index if device.index is not None else torch.cuda.current_device()
    generator: torch.Generator = torch.cuda.default_generators[index]
    return generator


def seed_generators(device: torch.device, seed: int) -> None:
    """Seed the default generators of the CPU and of a device; other devices keep their state."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        default_generator(device).manual_seed(seed)
    elif device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)


def averaged(network: nn.Module, epochs: int) -> AveragedModel:
    """Create an average of a network's weights, to be updated after each epoch.

    The first epochs count alike; later on the share of an epoch falls by the factor 1 - 1/epochs
    with each that follows.

    Args:
        network: Network in training.
        epochs: Number of epochs that the average covers.
    """

    def update(average: Any, weights: Any, updates: Tensor | int) -> None:
        torch._foreach_lerp_(average, weights, 1 / min(int(updates) + 1, epochs))

    try:
        average = AveragedModel(network, multi_avg_fn=update)
    except Exception as error:
        raise DubitoError(
            f"{type(network).__name__} cannot be copied ({error}), as weight averaging needs: "
            "train it with average_epochs=0"
        ) from error
    average.eval().requires_grad_(False)
    return average


def loss_function(method: Method, class_weight: Tensor | None) -> Loss:
    """Return the loss of outputs (N, M): its sum over the batch, and the sum of each term.

    Outputs beyond the number of targets are those of out-of-distribution inputs.
    """
    has_ood = bool(method.ood_terms)

    def loss(outputs: Tensor, target: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        ood = None
        if has_ood:
            outputs, outside = outputs[: len(target)], outputs[len(target) :]
            ood = method.distribution(outside)
        dist = method.distribution(outputs)
        return method.loss(dist, target, weights, ood=ood, class_weight=class_weight)

    return loss


def add_step(
    epoch_sums: Tensor,
    samples: Tensor,
    failure: Tensor,
    loss: Tensor,
    sums: Tensor,
    outputs: Tensor,
    count: int,
) -> None:
    """Add a step to the tensors of its epoch, without reading a value.

    The first step that is not finite sets `failure` to 1, the number of samples before it, the
    range of its outputs, and its terms.
    """
    # In float64 first: bfloat16 cannot count samples.
    low, high = outputs.amin().to(failure), outputs.amax().to(failure)
    finite = loss.isfinite() & low.isfinite() & high.isfinite()
    place = torch.stack([torch.ones_like(low), samples.to(failure), low, high])
    step = torch.cat([place, sums.to(failure)])
    failure.copy_(torch.where(finite | (failure[0] == 1), failure, step))
    epoch_sums += sums
    samples += count


class Run:
    """A network in training.

    Everything random in an epoch follows from the seed and the number of the epoch, so that a
    resumed run repeats an epoch exactly.

    Args:
        model: Model on the device.
        data: Samples to train on.
        config: Configuration, with the seed of this run.
        folder: Folder of the checkpoint; None saves none.
    """

    def __init__(self, model: Model, data: Data, config: TrainConfig, folder: Path | None) -> None:
        self.model, self.data, self.config, self.folder = model, data, config, folder
        self.device = device = data.device
        if config.channels_last:
            model.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.network = _parallel.wrapped(model.network, device).train()
        #: network for full batches; a graph may replace it by a compiled one
        self.forward: Callable[[Tensor], Tensor] = self.network
        epochs = config.averaged_epochs
        self.average = averaged(model.network, epochs) if epochs else None
        self.optimizer = config.build_optimizer(model.network, device)
        self.parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        #: network that is validated and saved
        self.evaluated: nn.Module = model.network if self.average is None else self.average.module
        # Functions of tensors that a graph replaces by compiled ones.
        self.loss: Loss = loss_function(model.method, data.class_weight)
        self.add_step: Callable[..., None] = add_step
        self.graph: Graph | None = None
        self.terms = (*model.method.terms, *model.method.ood_terms)
        self.metric, self.mode = _monitor(model, config)
        self.history = History()
        self.best: dict[str, Tensor] = {}
        # Tensors on the device, for a captured step: it reads nothing from the host.
        train = data.train
        self.order = torch.zeros(len(train), dtype=torch.long, device=train.index_device)
        self.changes = torch.zeros(len(train), 4, device=device)  # of the augmentation
        self.weights = torch.zeros(len(self.terms), device=device)
        self.sums = torch.zeros(len(self.terms), dtype=torch.float64, device=device)
        self.samples = torch.zeros((), dtype=torch.long, device=device)
        self.failure = torch.zeros(4 + len(self.terms), dtype=torch.float64, device=device)
        self.generator = torch.Generator(device)
        self.batch_size = config.batch_size * _parallel.world()
        self.counts = self._counts()

    def _counts(self) -> list[int]:
        """Return the number of samples of each step, over all processes."""
        world, count = _parallel.world(), len(self.data.train)
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
        patience = self.config.patience
        stale = self.history.validations_since_best
        return self.epoch >= self.config.epochs or 0 < patience <= stale

    # --- an epoch ---

    def begin_epoch(self) -> None:
        """Draw the order and the augmentation; set the learning rate and the loss weights."""
        config, count = self.config, len(self.data.train)
        drawn = torch.Generator().manual_seed(self._seed())
        self.order.copy_(torch.randperm(count, generator=drawn))
        if config.augment is not None:
            self.changes.copy_(config.augment.draw(count, drawn))
        seed_generators(self.device, self.process_seed)  # of dropout
        self.generator.manual_seed(self.process_seed)
        for group in self.optimizer.param_groups:
            lr = config.lr_at(self.epoch)
            group["lr"] = group["lr"].fill_(lr) if isinstance(group["lr"], Tensor) else lr
        self.weights.copy_(config.loss_weights(self.model.method, self.epoch))
        self.sums.zero_()
        self.samples.zero_()
        self.failure.zero_()
        self.network.train()

    def steps(self) -> Iterator[None]:
        """Take the steps of the epoch, one per iteration."""
        if self.graph is not None:
            yield from self.graph.steps()
            return
        shares = [
            slice(
                i * self.batch_size + _parallel.rank(), i * self.batch_size + n, _parallel.world()
            )
            for i, n in enumerate(self.counts)
        ]
        rows, changes = ([part[share] for share in shares] for part in (self.order, self.changes))
        batches = self.data.train.read(rows, changes, self.process_seed)
        for (x, target), count in zip(batches, self.counts, strict=True):
            self.step(x, target, count)
            yield

    def step(self, x: Tensor, target: Tensor, count: int) -> None:
        """Update the weights.

        Args:
            x: Inputs, the share of this process.
            target: Their targets in training units.
            count: Number of samples over all processes.
        """
        for parameter in self.parameters:
            parameter.grad = None
        x = self.data.with_ood(x, self.generator)
        forward = self.forward if count == self.batch_size else self.network
        with self.autocast():
            outputs = forward(x)
        total, sums = self.loss(outputs, target, self.weights)
        self.record(total.detach(), sums, outputs.detach(), count)
        # The mean over the batch; gradients are averaged over the processes.
        total.backward(torch.full_like(total, _parallel.world() / count))
        self.optimizer.step()

    def record(self, loss: Tensor, sums: Tensor, outputs: Tensor, count: int) -> None:
        """Add the terms of a step to those of the epoch, and raise if a value is not finite.

        On a GPU reading a value would wait for the step, so it is read by `check_finite`.
        """
        if self.device.type != "cpu":
            self.add_step(self.sums, self.samples, self.failure, loss, sums, outputs, count)
            return
        low, high = (value.item() for value in outputs.aminmax())
        if not all(map(math.isfinite, (loss.item(), low, high))):
            raise self._failed(int(self.samples), low, high, *sums.tolist())
        self.sums += sums
        self.samples += count

    def check_finite(self) -> None:
        """Raise if a step of the epoch was not finite; waits for the steps of a GPU."""
        failed, samples, *values = self.failure.tolist()
        if failed:
            raise self._failed(int(samples), *values)

    def _failed(self, samples: int, low: float, high: float, *sums: float) -> NonFiniteLoss:
        step = samples // self.batch_size
        count = self.counts[step] / _parallel.world()
        means = {name: value / count for name, value in zip(self.terms, sums, strict=True)}
        terms = ", ".join(f"{name} {mean:g}" for name, mean in means.items())
        return NonFiniteLoss(
            f"the loss is not finite in epoch {self.epoch + 1}, step {step + 1}: mean terms "
            f"{terms}; outputs span [{low:g}, {high:g}]. Lower lr={self.config.lr:g}, or look at "
            "the inputs of this step"
        )

    def end_epoch(self, seconds: float) -> Record:
        """Average the weights, and return the record of the epoch.

        Args:
            seconds: Time of the steps.
        """
        count = int(self.samples)
        means = (_parallel.summed(self.sums.clone()) / count).tolist()
        loss = sum(w * mean for w, mean in zip(self.weights.tolist(), means, strict=True))
        if self.average is not None:
            self.average.update_parameters(self.model.network)
        return {
            "epoch": self.epoch + 1,
            "loss": loss,
            "terms": dict(zip(self.terms, means, strict=True)),
            "lr": self.config.lr_at(self.epoch),
            "seconds": seconds,
            "samples_per_second": count / seconds,
        }

    # --- the end ---

    def keep_best(self, record: Record) -> None:
        """Keep the validated weights if they are the best so far; the first of equals stays."""
        value, history = record["validation"][self.metric], self.history
        best = history.best["validation"][self.metric] if history.best_epoch else None
        if best is None or (value < best if self.mode == "min" else value > best):
            state = self.evaluated.state_dict()
            self.best = {name: value.detach().clone() for name, value in state.items()}
            history.best_epoch = record["epoch"]

    def finish(self) -> History:
        """Load the best weights, and fit the parts of the method that are fitted after training."""
        network = self.model.network
        network.load_state_dict(self.best)
        network.eval()
        self.model.method.finish(network, self.data.train)
        return self.history

    # --- random numbers and precision ---

    def _seed(self) -> int:
        """Return the seed of the epoch, common to all processes."""
        return (self.config.seed * 1_000_003 + self.epoch) % (1 << 62)

    @property
    def process_seed(self) -> int:
        """Seed of the epoch in this process, far from that of any other epoch."""
        return (self._seed() + _parallel.rank() * 0x9E3779B97F4A7C15) % (1 << 62)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the precision of the network; losses are computed in float32."""
        if self.config.precision == "bfloat16":
            return torch.autocast(self.device.type, torch.bfloat16)
        return nullcontext()

    # --- checkpoints ---

    def save(self, pace: _checkpoint.Pace) -> None:
        """Save a checkpoint, if there is a folder for it."""
        if self.folder is None or _parallel.rank() != 0:
            return
        parts = {
            "network": self.model.network.state_dict(),
            "average": {} if self.average is None else self.average.state_dict(),
            "best": self.best,
            "optimizer": _checkpoint.optimizer_tensors(self.optimizer),
        }
        tensors = {f"{part}.{k}": v for part, values in parts.items() for k, v in values.items()}
        state = {"history": asdict(self.history), "identity": self._identity()}
        pace.save(self.folder / CHECKPOINT, tensors, state)

    def resume(self) -> None:
        """Continue from the checkpoint in the folder, if there is one."""
        if self.folder is None or not (self.folder / CHECKPOINT).exists():
            return
        if _parallel.rank() == 0:
            remove_partial(self.folder / CHECKPOINT)
        tensors, state = _checkpoint.load(self.folder / CHECKPOINT)
        self._check_identity(state["identity"])
        parts: dict[str, dict[str, Tensor]] = {"average": {}, "best": {}, "optimizer": {}}
        for key, value in tensors.items():
            part, name = key.split(".", 1)
            parts.setdefault(part, {})[name] = value
        self.model.network.load_state_dict(parts["network"])
        if self.average is not None:
            self.average.load_state_dict(parts["average"])
        self.best = {name: value.to(self.device) for name, value in parts["best"].items()}
        _checkpoint.load_optimizer(self.optimizer, parts["optimizer"])
        self.history = History(**state["history"])

    def _identity(self) -> dict[str, Any]:
        """Return the properties that a checkpoint shares with the run that continues it."""
        weight, network = self.data.class_weight, self.model.network.state_dict()
        return {
            "method": repr(self.model.method),
            "data": self.data.fingerprint,
            "class_weight": None if weight is None else weight.tolist(),
            "processes": _parallel.world(),
            "network": {name: list(value.shape) for name, value in network.items()},
            **self.config.identity(),
        }

    def _check_identity(self, saved: dict[str, Any]) -> None:
        current = json.loads(json.dumps(self._identity()))
        for key, value in current.items():
            if saved.get(key) != value:
                values = f" ({saved.get(key)}, now {value})"
                raise DubitoError(
                    f"{self.folder} contains another training, with another {key}"
                    f"{values if len(values) < 500 else ''}: choose another folder, or the same "
                    "data and settings"
                )


def _monitor(model: Model, config: TrainConfig) -> tuple[str, str]:
    """Return the metric that selects weights, and whether "min" or "max" is better."""
    metric = config.keep or model.task.monitor.metric
    modes = {**model.task.modes, "loss": "min"}
    return metric, _checks.entry(modes, metric, "metric to keep")
