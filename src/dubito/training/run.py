"""One training run: a network, its optimiser, its data, and the step that joins them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader, Dataset

from dubito._legacy import Method
from dubito.data.arrays import Arrays, as_floats
from dubito.data.augment import Augment
from dubito.training import checkpoint, parallel
from dubito.training.average import SAMPLES, Average
from dubito.training.settings import Settings
from dubito.training.step import Functions, gather, prepare
from dubito.training.stopping import is_best, is_over

__all__ = ["NonFiniteLoss", "Run", "Source", "size"]

#: data held in memory, or any map-style torch dataset of pairs (input, label)
Source = Arrays | Dataset[Any]


def size(source: Source) -> int:
    """How many samples it has."""
    return len(source)  # type: ignore[arg-type]


class NonFiniteLoss(RuntimeError):
    """A loss became infinite or NaN."""


class Run:
    """A network in training. All it needs in an epoch follows from the seed and the epoch's number.

    The step reads its samples from `order` at `position`, both on the device, so that a captured
    step needs nothing from the host.
    """

    def __init__(
        self,
        method: Method,
        model: nn.Module,
        train: Source,
        validation: Source,
        settings: Settings,
        device: torch.device,
    ) -> None:
        for part, source in (("training", train), ("validation", validation)):
            if not size(source):
                raise ValueError(f"there are no {part} samples")
        self.method, self.model, self.settings = method, model, settings
        self.functions = Functions(method.loss_of)
        self.train, self.validation, self.device = train, validation, device
        if settings.channels_last:
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.network = parallel.wrapped(model)
        #: the network for whole batches; a graph may put a faster one here
        self.forward: Callable[[Tensor], Tensor] = self.network
        self.average = Average(model, settings.averaged) if settings.averaged else None
        #: the network that is judged and kept
        self.judged = model if self.average is None else self.average.model
        self.names = tuple(method.weights(0, settings.epochs))
        self.weights = torch.zeros(len(self.names), device=self.device)
        last = method.weights(settings.epochs - 1, settings.epochs)
        #: what the network is judged with: a term's weight that rises would make checks differ
        self.last_weights = torch.tensor([last[name] for name in self.names], device=self.device)
        self.sums = torch.zeros(len(self.names), dtype=torch.float64, device=self.device)
        self.order = torch.zeros(size(train), dtype=torch.long, device=self.device)
        self.changes = torch.zeros(size(train), 4, device=self.device)
        self.position = torch.zeros((), dtype=torch.long, device=self.device)
        self.bad = torch.full(
            (3 + len(self.names),), torch.nan, dtype=torch.float64, device=self.device
        )
        self.generator = torch.Generator(self.device)
        self.optimizer = settings.optimizer_of(model, device)
        self.history: list[dict[str, Any]] = []
        self.epoch = 0
        self.best: dict[str, Tensor] = {}
        self.best_epoch = -1

    @cached_property
    def train_id(self) -> str | None:
        """By which a checkpoint knows its data, where that is in memory."""
        return self.train.fingerprint(numbers=False) if isinstance(self.train, Arrays) else None

    @property
    def whole_batch(self) -> int:
        """Samples a step takes in all processes together."""
        return self.settings.batch_size * parallel.world()

    @cached_property
    def least_batch(self) -> int:
        """Samples that are left over but make a step: one a process, two for batch norm's sake."""
        norms = any(isinstance(one, _BatchNorm) and one.training for one in self.model.modules())
        alone = size(self.train) < 2 * parallel.world()
        return parallel.world() * (2 if norms and not alone else 1)

    def begin_epoch(self) -> None:
        """Draw the epoch's order and augmentation, set its weights, forget its sums."""
        drawn = torch.Generator().manual_seed(self._seed())
        self.order.copy_(torch.randperm(size(self.train), generator=drawn))
        if self.settings.augment is not None:
            self.changes.copy_(self.settings.augment.draw(size(self.train), drawn))
        torch.manual_seed(self.own_seed)  # dropout draws from torch's own generator
        self.generator.manual_seed(self.own_seed)
        weights = self.method.weights(self.epoch, self.settings.epochs)
        self.weights.copy_(torch.tensor([weights[name] for name in self.names]))
        for group in self.optimizer.param_groups:
            rate = self.settings.rate(self.epoch)
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        self.sums.zero_()
        self.position.zero_()
        self.bad.fill_(torch.nan)
        self.network.train()

    def _seed(self) -> int:
        """The epoch's, the same in all processes."""
        return (self.settings.seed * 1_000_003 + self.epoch) % (1 << 62)

    @property
    def own_seed(self) -> int:
        """This process's, far from any other epoch's: masks and noise are not to be the same."""
        return (self._seed() + parallel.rank() * 0x9E3779B97F4A7C15) % (1 << 62)

    def batch(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """The inputs and labels at places of the order, where the data is held in memory."""
        assert isinstance(self.train, Arrays)
        held = self.train.inputs, self.train.labels, self.order, self.changes
        return self.functions.gather(*held, places, *self._preparation)

    @property
    def _preparation(self) -> tuple[Augment | None, bool]:
        return self.settings.augment, self.settings.channels_last

    def share(self, start: int, whole: int) -> range:
        """This process's places in a batch of `whole` samples."""
        return range(start + parallel.rank(), start + whole, parallel.world())

    def stream(self) -> Iterator[tuple[Tensor, Tensor, int]]:
        """The epoch's batches of a dataset, and their size in all processes; `step`'s order."""
        order, count = self.order.cpu(), size(self.train)
        wholes = [min(self.whole_batch, count - i) for i in range(0, count, self.whole_batch)]
        wholes = [whole for whole in wholes if whole >= self.least_batch]
        places = [self.share(i * self.whole_batch, whole) for i, whole in enumerate(wholes)]
        chosen = [order[list(part)].tolist() for part in places]
        loader = self._loader(self.train, chosen)
        for (x, target), part, whole in zip(loader, places, wholes, strict=True):
            where = torch.tensor(part, device=self.device)
            held = x.to(self.device, non_blocking=True)
            ready = prepare(held, self.changes.index_select(0, where), *self._preparation)
            yield ready, target.to(self.device, non_blocking=True), whole

    def _loader(self, source: Source, chosen: list[list[int]]) -> DataLoader[Any]:
        return DataLoader(
            cast("Dataset[Any]", source),
            batch_sampler=chosen,
            num_workers=self.settings.workers,
            pin_memory=self.device.type == "cuda",
            generator=torch.Generator().manual_seed(self.own_seed),  # of its workers
        )

    def step(self, whole: int) -> None:
        """One update from the next `whole` samples of the order, shared among the processes."""
        share = torch.arange(parallel.rank(), whole, parallel.world(), device=self.device)
        self.update(*self.batch(self.position + share), whole)

    def update(self, x: Tensor, target: Tensor, whole: int) -> None:
        """One update from this process's share of a batch of `whole` samples."""
        x = self.method.inputs(x, self.generator)
        self.optimizer.zero_grad(set_to_none=True)
        forward = self.forward if whole == self.whole_batch else self.network
        with self.autocast():
            outputs = forward(x)
        if self.device.type == "cpu" and not outputs.isfinite().all():
            self.note(outputs.sum(), torch.full_like(self.sums, torch.nan), outputs, whole)
            self.check_finite()
        total, sums = self.functions.loss(outputs, target, self.weights)
        loss = total * (parallel.world() / whole)  # gradients are averaged over the processes
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            self.note(loss.detach(), sums.detach(), outputs.detach(), whole)
        if self.device.type == "cpu":
            self.check_finite()

    def note(self, loss: Tensor, sums: Tensor, outputs: Tensor, whole: int) -> None:
        """Add to the epoch's sums; keep where, with which outputs, a loss was first not finite."""
        share = parallel.world() / whole
        self.functions.note(self.sums, self.bad, self.position, loss, sums, outputs, whole, share)

    def check_finite(self) -> None:
        """An error if a loss of this epoch was not finite. On a GPU this waits for the steps."""
        if self.bad[0].isnan():
            return
        position, low, high, *terms = self.bad.tolist()
        batch = int(position) // self.whole_batch
        means = ", ".join(
            f"{name} {value:g}" for name, value in zip(self.names, terms, strict=True)
        )
        raise NonFiniteLoss(
            f"the loss is not finite in epoch {self.epoch}, batch {batch}: mean terms {means}; the "
            f"network's outputs span [{low:g}, {high:g}], alpha follows from them. The last "
            "checkpoint is from before this epoch. Try a smaller learning rate, and look at this "
            "batch's inputs"
        )

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The precision of the network; losses stay in float32."""
        if self.settings.precision == "bfloat16":
            return torch.autocast(self.device.type, torch.bfloat16)
        return contextlib.nullcontext()

    def end_epoch(self, check: bool) -> None:
        """Step on; the mean of the weights, if one is wanted, takes in what this epoch gave."""
        if self.average is not None:
            self.average.add(self.model, self.epoch)
            if check:
                with self.autocast():
                    self.average.settle(self._some())
        self.epoch += 1

    def _some(self, at_once: int = 1000) -> Iterator[Tensor]:
        """Inputs of the epoch's first samples, as they are trained with."""
        drawn = torch.Generator(self.device).manual_seed(self.settings.seed)
        count = min(SAMPLES, size(self.train))
        if isinstance(self.train, Arrays):
            held = self.train.inputs, self.train.labels, self.order, self.changes
            parts = -(-count // at_once)  # of one size: each counts as much as any other
            for places in torch.arange(count, device=self.device).tensor_split(parts):
                x, _ = gather(*held, places, *self._preparation)
                yield self.method.inputs(x, drawn)
        else:
            whole = max(count // self.whole_batch, 1)  # what is left over would count as much
            for x, _, _ in itertools.islice(self.stream(), whole):
                yield self.method.inputs(x, drawn)

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Accuracy and mean loss over all processes' shares, with the last epoch's weights."""
        self.network.eval()
        parallel.share_buffers(self.judged)  # one network is judged, the one that is kept
        seen = torch.zeros(4, dtype=torch.float64, device=self.device)
        drawn = torch.Generator(self.device).manual_seed(self.settings.seed)
        for x, target in self._checks():
            with self.autocast():
                shown = self.method.outputs_for(self.judged, x)
                outputs = shown
                if self.method.trains_with_ood:
                    outputs = self.judged(self.method.inputs(x, drawn))
                self._check_outputs(shown)
                said = self.method.prediction(shown)
            truth = target.argmax(-1) if target.is_floating_point() else target
            seen[0] += (said.label == truth).sum()
            seen[1] += self.method.loss_of(outputs, target, self.last_weights)[0]
            seen[2:] += torch.tensor([truth.numel(), len(target)], device=self.device)
        right, loss, labels, count = parallel.gathered_sum(seen).tolist()
        self.network.train()
        return {"validation_accuracy": right / labels, "validation_loss": loss / count}

    def _check_outputs(self, outputs: Tensor) -> None:
        """An error if the epoch's last step left a network whose outputs are not finite."""
        if outputs.isfinite().all():
            return
        low, high = outputs.aminmax()
        raise NonFiniteLoss(
            f"after epoch {self.epoch} the network's outputs for validation samples are not "
            f"finite: they span [{low:g}, {high:g}]. The last checkpoint is from before this "
            "epoch. Try a smaller learning rate"
        )

    def _checks(self, at_once: int = 1024) -> Iterator[tuple[Tensor, Tensor]]:
        """This process's share of the validation data."""
        share = list(self.share(0, size(self.validation)))
        parts = [share[i : i + at_once] for i in range(0, len(share), at_once)]
        held = self.validation
        if isinstance(held, Arrays):
            for part in parts:
                indices = torch.tensor(part, device=held.device)
                yield as_floats(held.inputs[indices]), held.labels[indices]
        else:
            for x, target in self._loader(held, parts):
                yield as_floats(x.to(self.device)), target.to(self.device)

    def state(self) -> dict[str, Tensor]:
        """All tensors that a resumed run needs."""
        mean = {} if self.average is None else self.average.model.state_dict()
        return {
            **{f"model.{name}": value for name, value in self.model.state_dict().items()},
            **{f"mean.{name}": value for name, value in mean.items()},
            **{f"best.{name}": value for name, value in self.best.items()},
            **checkpoint.optimizer_tensors(self.optimizer),
        }

    def facts(self) -> dict[str, Any]:
        """All numbers that a resumed run needs."""
        return {"epoch": self.epoch, "best_epoch": self.best_epoch, "history": self.history}

    def restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Go on from what `state` and `facts` gave."""
        part = {
            kind: {n.removeprefix(kind): v for n, v in tensors.items() if n.startswith(kind)}
            for kind in ("model.", "mean.", "best.")
        }
        self.model.load_state_dict(part["model."])
        if self.average is not None:
            self.average.model.load_state_dict(part["mean."])
        self.best = {name: value.to(self.device) for name, value in part["best."].items()}
        checkpoint.restore_optimizer(self.optimizer, tensors)
        self.epoch, self.best_epoch = facts["epoch"], facts["best_epoch"]
        self.history = facts["history"]

    def keep_if_best(self, checked: dict[str, float]) -> None:
        """Keep the weights if this check is the best so far; the first of equals stays."""
        if is_best(checked, self.history, self.settings.keep):
            state = self.judged.state_dict()
            self.best = {key: value.detach().clone() for key, value in state.items()}
            self.best_epoch = self.epoch

    def finished(self) -> bool:
        """Whether all epochs are done, or the last `patience` checks brought nothing better."""
        return self.epoch >= self.settings.epochs or is_over(self.history, self.settings)
