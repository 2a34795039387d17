"""The trainer: any method and network, on a CPU, a GPU or several processes."""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor, nn

from dubito import _checks
from dubito.errors import DubitoError
from dubito.model import Model
from dubito.training import parallel, soft_targets, stacked
from dubito.training.batches import TRAINING, Reader, Samples
from dubito.training.callbacks import MIN_INTERVAL, Callback, Progress
from dubito.training.config import TrainConfig
from dubito.training.graph import GraphedRun, capture, is_graphed
from dubito.training.optimizer import frozen
from dubito.training.run import History, Record, Run

__all__ = ["Trainer"]

#: share of the time that checkpoints may take, and seconds below which they are free
_SHARE, _FREE = 0.05, 0.1


class Trainer:
    """Trains models.

    Args:
        config: Training configuration.
        callbacks: Objects whose methods are called at the events of a training.
        device: Device to train on; None is the device of the model.

    >>> from dubito import data
    >>> from dubito.model import Model
    >>> from dubito.formats import Preprocessing
    >>> from dubito.tasks import Classification
    >>> train, validation = data.split(data.open("digits"), 0.8, seed=0, stratify=True)
    >>> task = Classification.from_target(train.target)
    >>> model = Model.build("iedl", task, Preprocessing(inputs=train.format), "mlp")
    >>> history = Trainer(TrainConfig(epochs=4, batch_size=16)).fit(
    ...     model,
    ...     (train.load(), task.encode(train.target)),
    ...     (validation.load(), task.encode(validation.target)),
    ... )
    >>> history.best["validation"]["accuracy"] > 0.5
    True
    """

    def __init__(
        self,
        config: TrainConfig | None = None,
        *,
        callbacks: Sequence[Callback] = (),
        device: torch.device | str | None = None,
    ) -> None:
        self.config = TrainConfig() if config is None else config
        for callback in callbacks:
            if not isinstance(callback, Callback):
                raise DubitoError(
                    f"callbacks must be objects of subclasses of dubito.training.Callback, not "
                    f"{callback!r}"
                )
        self.callbacks, self.device = tuple(callbacks), device

    def fit(
        self,
        model: Model,
        train: Samples,
        validation: Samples | None = None,
        *,
        ood: Tensor | None = None,
        class_weight: Tensor | None = None,
        out: Path | None = None,
        finish: bool = False,
    ) -> History:
        """Train a model in place, and load the weights of the best validation or the last ones.

        If `out` has a checkpoint of the same configuration and data, training resumes from it and
        ends with the weights of a run without interruption.

        Args:
            model: Model to train.
            train: Training samples: encoded inputs (N, *shape) or a source to stream them from,
                and their targets, from `Task.encode` or, with weights, `Task.target`.
            validation: Samples that select the best weights; None needs `keep="last"`.
            ood: Encoded out-of-distribution inputs (M, *shape), for methods that train with them;
                None uses noise.
            class_weight: Weight of each class, (K,).
            out: Folder of the checkpoint; None saves none.
            finish: End an interrupted training now, with the weights of its checkpoint that a
                finished one would keep.

        Returns:
            Record of each epoch.

        Raises:
            NonFiniteLoss: If a loss or an output is infinite or NaN.
        """
        (history,) = self.fit_many(
            [model], train, validation, seeds=[self.config.seed], ood=ood,
            class_weight=class_weight, out=None if out is None else [out], finish=finish,
        )  # fmt: skip
        return history

    def fit_many(
        self,
        models: Sequence[Model],
        train: Samples | list[Samples],
        validation: Samples | list[Samples] | None = None,
        *,
        seeds: Sequence[int],
        ood: Tensor | None = None,
        class_weight: Tensor | None = None,
        out: Sequence[Path] | None = None,
        finish: bool = False,
        one_epoch: bool = False,
    ) -> list[History]:
        """Train several models in place.

        They train concurrently if their steps are captured in CUDA graphs (see
        `TrainConfig.graph`), or on a CPU if they are multilayer perceptrons; otherwise one after
        another.

        Args:
            models: Models with the same method, task and preprocessing, and different initial
                weights.
            train: Training samples, see `fit`; or a list of those of each model.
            validation: Validation samples, alike.
            seeds: Seed of each model, in place of that of the configuration.
            ood: Out-of-distribution inputs, see `fit`.
            class_weight: Weight of each class, (K,).
            out: Folder of each model's checkpoint; None saves none.
            finish: End interrupted trainings now, see `fit`.
            one_epoch: Keep the weights of one epoch, the best on average over the models that train
                concurrently without checkpoints, which depends less on a few validation samples.
        """
        _check_alike(models)
        first, count = models[0], len(models)
        # A tensor's device has an index: "cuda" becomes "cuda:0".
        device = torch.empty(0, device=self.device or next(first.parameters()).device).device
        if class_weight is not None:
            classes = torch.zeros(first.task.size, device=device)
            class_weight = _checks.class_weight(class_weight, classes)
        if first.method.teachers:  # they were trained with the class weights
            class_weight = None
        config = self.config

        def readers(samples: Samples | list[Samples], part: str) -> list[Reader]:
            each = samples if isinstance(samples, list) else [samples] * count
            distinct = {id(own): own for own in each}
            foreign = ood if part == TRAINING else None
            made = {k: Reader(v, first, config, device, part, foreign) for k, v in distinct.items()}
            return [made[id(own)] for own in each]

        trains = readers(train, TRAINING)
        for reader in trains:
            soft_targets.check(config, first, reader)
        held_out = readers(validation, "validation") if validation else [None] * count
        kind = GraphedRun if is_graphed(config, min(trains, key=len)) else Run
        folders = [None] * count if out is None else [Path(folder) for folder in out]
        gpus = [device] if device.type == "cuda" else []
        # Restore the caller's random state and frozen parameters on exit.
        with (
            _tf32(config.precision != "float32", device),
            torch.random.fork_rng(gpus),
            frozen(config, [model.network for model in models]),
        ):
            runs: list[Run] = []
            for model, seed, folder, own, other in zip(
                models, seeds, folders, trains, held_out, strict=True
            ):
                seeded = config.for_samples(len(own)).model_copy(update={"seed": seed})
                run = kind(model.to(device), seeded, own, other, class_weight, folder)
                run.resume(self.callbacks)
                runs.append(run)
            for group in stacked.grouped(runs):
                self._train(group, finish, one_epoch)
            return [run.history for run in runs]

    def _train(self, runs: Sequence[Run], finish: bool, one_epoch: bool) -> None:
        """Train runs that advance together, until all are finished."""
        active = trained = [run for run in runs if not (finish or run.finished)]
        if graphed := [run for run in active if isinstance(run, GraphedRun)]:
            capture(graphed)
        for run in active:
            self._call("on_train_begin", run, run.epoch + 1)
        next_save = -math.inf
        while active:
            self._epoch(active, one_epoch)
            start = time.perf_counter()
            for run in active:
                if start >= next_save or run.finished:
                    run.save(self.callbacks)
            end = time.perf_counter()
            if end - start > _FREE:
                next_save = max(next_save, end) + (end - start) / _SHARE
            active = [run for run in active if not run.finished]
        for run in runs:
            run.finish()
        for run in trained:
            last = run.history.records[-1]
            self._call("on_train_end", run, run.epoch, len(run.counts), last["seconds"], last)

    def _epoch(self, runs: Sequence[Run], one_epoch: bool) -> None:
        """Train one epoch."""
        epoch_start = time.perf_counter()
        for run in runs:
            run.begin_epoch()
            self._call("on_epoch_begin", run, run.epoch + 1)
        steps_start = last_report = time.perf_counter()
        # Each item takes one step of every run. strict=True exhausts all generators: the code
        # after their last yield waits for the CUDA streams.
        each: Iterator[object] = zip(*(run.steps() for run in runs), strict=True)
        if len(runs) > 1 and not isinstance(runs[0], GraphedRun):
            each = stacked.steps(runs)
        for step, _ in enumerate(each, 1):
            if time.perf_counter() - last_report > MIN_INTERVAL:
                last_report = time.perf_counter()
                for run in runs:
                    seconds = last_report - steps_start
                    self._call("on_progress", run, run.epoch + 1, step, seconds)
        for run in runs:
            run.check_finite()
        seconds = time.perf_counter() - steps_start
        records = [run.end_epoch(seconds) for run in runs]
        metric = runs[0].metric
        found = [r["validation"][metric] for r in records if metric in r.get("validation", {})]
        # Interrupted runs may resume in different epochs: with checkpoints each keeps its own best.
        is_shared = one_epoch and found and all(run.folder is None for run in runs)
        value = fmean(found) if is_shared else None
        for run, record in zip(runs, records, strict=True):
            run.keep(record, value)
        elapsed = time.perf_counter() - epoch_start
        for run, record in zip(runs, records, strict=True):
            # Before the checkpoint: a resumed run repeats an epoch that is not in it, and its log
            # replaces the entry.
            self._call("on_epoch_end", run, run.epoch + 1, len(run.counts), seconds, record)
            run.history.records.append(record)
            run.history.seconds += elapsed

    def _call(
        self,
        event: str,
        run: Run,
        epoch: int,
        step: int = 0,
        seconds: float = 0.0,
        record: Record | None = None,
    ) -> None:
        """Call a method of the callbacks, in the first process only."""
        if not self.callbacks or parallel.rank() != 0:
            return
        steps, history = len(run.counts), run.history
        if run.epoch:
            per_epoch = history.seconds / run.epoch
        else:
            per_epoch = seconds * steps / step if step else math.inf
        progress = Progress(
            seed=run.config.seed,
            epoch=epoch,
            epochs=run.config.num_epochs,
            step=step,
            steps=steps,
            record=record,
            samples_per_second=sum(run.counts[:step]) / seconds if step else 0.0,
            seconds_left=per_epoch * (run.config.num_epochs - (epoch - 1 + step / steps)),
            network=run.evaluated,
            metrics=run.latest_metrics() if event == "on_progress" else {},
        )
        for callback in self.callbacks:
            getattr(callback, event)(progress)


def _check_alike(models: Sequence[Model]) -> None:
    """Raise unless the models differ in their weights only."""
    if not models:
        raise DubitoError("there are no models to train")
    for name in ("method", "task", "preprocessing"):
        if any(getattr(model, name) != getattr(models[0], name) for model in models):
            raise DubitoError(f"models that train together need the same {name}")


@contextmanager
def _tf32(allowed: bool, device: torch.device) -> Iterator[None]:
    """Set whether matrix products and convolutions of a GPU may use TF32."""
    if device.type != "cuda":
        yield
        return
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


# --- speed ---


def seconds_per_sample(
    model: Model, inputs: Tensor, config: TrainConfig, device: torch.device
) -> tuple[float, float]:
    """Return the seconds of a forward pass and of a training step, both per sample.

    Neither weights nor statistics nor random states change.

    Args:
        model: Model.
        inputs: Encoded inputs of a batch.
        config: Configuration of the training.
        device: Device of the training.
    """
    network, x = model.to(device).network, model.preprocessing.normalize(inputs.to(device))
    if config.channels_last:
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    is_training = network.training
    is_half = config.precision == "bfloat16"
    gpus = [device] if device.type == "cuda" else []
    try:
        with (
            torch.random.fork_rng(gpus),
            frozen(config, [network]),
            torch.autocast(device.type, torch.bfloat16, enabled=is_half),
        ):
            network.eval()  # batch norm keeps its statistics
            with torch.no_grad():
                forward = _fastest(network, x, backward=False)
            return forward, _fastest(network, x, backward=True)
    finally:
        network.train(is_training)
        for parameter in network.parameters():
            parameter.grad = None


def _fastest(network: nn.Module, x: Tensor, *, backward: bool) -> float:
    """Return the seconds of the fastest of three passes; the first one prepares kernels."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        outputs = network(x)
        if backward:
            outputs.float().sum().backward()
        outputs.sum().item()  # waits for a GPU
        times.append(time.perf_counter() - start)
    return min(times) / len(x)
