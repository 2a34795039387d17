"""The trainer: any method and network, on a CPU, a GPU or several processes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from dubito.model import Model
from dubito.training import _parallel
from dubito.training._batches import Data, Samples
from dubito.training._checkpoint import Pace
from dubito.training._graph import capture, is_graphed
from dubito.training._run import History, Record, Run
from dubito.training._validation import validate
from dubito.training.callbacks import Callback, Progress
from dubito.training.config import TrainConfig

__all__ = ["Trainer"]

#: seconds between two calls of the callbacks during an epoch
_INTERVAL = 0.2


class Trainer:
    """Trains models.

    Args:
        config: Training configuration.
        callbacks: Functions that are called with a `Progress` during and after each epoch.
        device: Device to train on; None is the device of the model.

    >>> from dubito import data
    >>> from dubito.model import Model, Preprocessing
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
        self.callbacks, self.device = tuple(callbacks), device

    def fit(
        self,
        model: Model,
        train: Samples,
        validation: Samples,
        *,
        ood: Tensor | None = None,
        class_weight: Tensor | None = None,
        out: Path | None = None,
    ) -> History:
        """Train a model; its network ends with the best weights.

        Interrupted or not, a training ends with the same weights: call it again with the same
        folder.

        Args:
            model: Model to train.
            train: Training samples: encoded inputs (N, *shape) or a source to stream them from,
                and their targets as the task encodes them.
            validation: Samples that select the best weights.
            ood: Encoded out-of-distribution inputs (M, *shape), for methods that train with them;
                None uses noise.
            class_weight: Weight of each class, (K,).
            out: Folder of the checkpoint; None saves none.
        """
        (history,) = self.fit_many(
            [model], train, validation, seeds=[self.config.seed], ood=ood,
            class_weight=class_weight, out=None if out is None else [out],
        )  # fmt: skip
        return history

    def fit_many(
        self,
        models: Sequence[Model],
        train: Samples,
        validation: Samples,
        *,
        seeds: Sequence[int],
        ood: Tensor | None = None,
        class_weight: Tensor | None = None,
        out: Sequence[Path] | None = None,
    ) -> list[History]:
        """Train several models of one kind: side by side on a GPU, else one after the other.

        Args:
            models: Models that differ in their initial weights.
            train: Training samples, see `fit`.
            validation: Validation samples.
            seeds: Seed of each model, in place of that of the configuration.
            ood: Out-of-distribution inputs, see `fit`.
            class_weight: Weight of each class, (K,).
            out: Folder of each model's checkpoint; None saves none.
        """
        device = torch.device(self.device or next(models[0].parameters()).device)
        config = self.config
        data = Data(models[0], config, device, train, validation, ood, class_weight)
        folders = [None] * len(models) if out is None else [Path(folder) for folder in out]
        runs = [
            Run(model.to(device), data, config.model_copy(update={"seed": seed}), folder)
            for model, seed, folder in zip(models, seeds, folders, strict=True)
        ]
        for run in runs:
            run.resume()
        gpus = [device] if device.type == "cuda" else []
        with _precision(config), torch.random.fork_rng(gpus):  # the user's state stays
            if is_graphed(config, data.train):
                self._train(runs, graphed=True)
            else:
                for run in runs:
                    self._train([run], graphed=False)
            return [run.finish() for run in runs]

    def _train(self, runs: Sequence[Run], *, graphed: bool) -> None:
        """Train runs that advance together, until all are finished."""
        active = [run for run in runs if not run.finished]
        if graphed and active:
            capture(active)
        pace = Pace()  # of all runs: together their checkpoints take their share of the time
        while active:
            self._epoch(active, pace)
            active = [run for run in active if not run.finished]

    def _epoch(self, runs: Sequence[Run], pace: Pace) -> None:
        """Train one epoch."""
        start = time.perf_counter()
        for run in runs:
            run.begin_epoch()
        begin = shown = time.perf_counter()
        for step, _ in enumerate(zip(*(run.steps() for run in runs), strict=True), 1):
            if time.perf_counter() - shown > _INTERVAL:
                shown = time.perf_counter()
                for run in runs:
                    self._report(run, step, shown - begin)
        for run in runs:
            run.check_finite()
        seconds = time.perf_counter() - begin
        save = pace.due
        for run in runs:
            record = run.end_epoch(seconds)
            if self.config.validates(record["epoch"]):
                record["validation"] = validate(run)
                run.keep_best(record)
            run.history.records.append(record)
            run.history.seconds += time.perf_counter() - start
            # Callbacks first: a log has at least the epochs of the checkpoint.
            self._report(run, len(run.counts), seconds, record)
            if save or run.finished:
                run.save(pace)

    def _report(self, run: Run, step: int, seconds: float, record: Record | None = None) -> None:
        """Call the callbacks."""
        if not self.callbacks or _parallel.rank() != 0:
            return
        steps, epochs, history = len(run.counts), self.config.epochs, run.history
        done = run.epoch if record else run.epoch + step / steps
        per_epoch = history.seconds / run.epoch if run.epoch else seconds * steps / step
        progress = Progress(
            seed=run.config.seed,
            epoch=run.epoch if record else run.epoch + 1,
            epochs=epochs,
            step=step,
            steps=steps,
            record=record,
            samples_per_second=sum(run.counts[:step]) / seconds,
            seconds_left=per_epoch * (epochs - done),
            network=run.evaluated,
        )
        for callback in self.callbacks:
            callback(progress)


@contextmanager
def _precision(config: TrainConfig) -> Iterator[None]:
    """Allow TF32 in matrix products and convolutions of a GPU, and restore the user's choice."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = config.precision != "float32"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
