"""The loop over epochs: steps, checks, checkpoints, early stopping, resume."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dubito._legacy import Method
from dubito.data.arrays import Arrays
from dubito.training import checkpoint, parallel
from dubito.training.graph import CAPTURABLE, Graph, fuse
from dubito.training.run import NonFiniteLoss, Run, Source, size
from dubito.training.settings import Settings

__all__ = ["Fit", "NonFiniteLoss", "fit", "fit_many"]

CHECKPOINT = "checkpoint.safetensors"
METRICS = "metrics.jsonl"
#: called with what is known after each epoch of a run
Callback = Callable[[dict[str, Any]], None]
Watch = Callable[[nn.Module], Mapping[str, Any]]


@dataclass(frozen=True)
class Fit:
    """A finished run: the network with its best weights, and what happened."""

    model: nn.Module
    history: list[dict[str, Any]] = field(repr=False)
    best_epoch: int
    seconds: float

    @property
    def epochs(self) -> int:
        """Epochs that were trained."""
        return len(self.history)

    @property
    def best(self) -> dict[str, Any]:
        """The history's entry of the best weights."""
        return self.history[self.best_epoch - 1]


def fit(
    method: Method,
    model: nn.Module,
    train: Source,
    validation: Source,
    settings: Settings | None = None,
    *,
    device: torch.device | str | None = None,
    out: str | os.PathLike[str] | None = None,
    callback: Callback | None = None,
    watch: Watch | None = None,
) -> Fit:
    """Train `model` with `method` and give its best weights.

    The data is `Arrays`, on the `device` it is trained on (None: where it is), or any map-style
    torch dataset of pairs (input, label), which is read batch by batch (None: the model's device).

    With a folder `out` the run leaves checkpoints after epochs and its metrics as jsonl,
    and goes on from there if it was stopped: interrupted or not, it ends with the same weights.

    After each epoch `callback` is told what is known of it. Where the network is validated, `watch`
    sees it in evaluation mode and in the training's precision; what it returns, say figures on
    other data, joins the history.

    >>> from dubito import _legacy, backbones, data
    >>> digits, _, _ = data.split(data.load("digits"), 0.2, seed=0)
    >>> train, validation, _ = data.split(digits, 0.8, seed=0)
    >>> method = _legacy.method("iedl")
    >>> network = backbones.build("mlp", train.shape, method.outputs(10))
    >>> run = fit(method, network, train, validation, Settings(epochs=4, batch_size=16))
    >>> run.epochs, run.best["validation_accuracy"] > 0.3
    (4, True)
    """
    chosen = settings or Settings()
    folders = [Path(out)] if out is not None else None
    return fit_many(
        method, [model], train, validation, [chosen], device=device, out=folders,
        callback=callback, watch=watch,
    )[0]  # fmt: skip


def fit_many(
    method: Method,
    models: Sequence[nn.Module],
    train: Source,
    validation: Source,
    settings: Sequence[Settings],
    *,
    device: torch.device | str | None = None,
    out: Sequence[Path] | None = None,
    callback: Callback | None = None,
    watch: Watch | None = None,
) -> list[Fit]:
    """Train several networks at once, say of several seeds; see `fit`.

    On a GPU their steps overlap; elsewhere they take turns. The settings differ in the seed alone.
    """
    place = _device(models[0], train, device)
    data = [_placed(source, place) for source in (train, validation)]
    runs = [
        Run(method, model.to(place), data[0], data[1], one, place)
        for model, one in zip(models, settings, strict=True)
    ]
    folders = list(out) if out is not None else [None] * len(runs)
    for run, folder in zip(runs, folders, strict=True):
        _resume(run, folder)
    start = time.perf_counter()
    with _determined(settings[0]):
        if len(runs) > 1 and not _graphed(runs[0]):
            for run, folder in zip(runs, folders, strict=True):
                _epochs([run], [folder], callback, watch)
        else:
            _epochs(runs, folders, callback, watch)
    seconds = time.perf_counter() - start
    for run in runs:
        run.model.load_state_dict(run.best)
        run.model.eval()
    return [Fit(run.model, run.history, run.best_epoch, seconds) for run in runs]


def _device(model: nn.Module, train: Source, wanted: torch.device | str | None) -> torch.device:
    if wanted is not None:
        return torch.device(wanted)
    return train.device if isinstance(train, Arrays) else next(model.parameters()).device


def _placed(source: Source, device: torch.device) -> Source:
    return source.to(device) if isinstance(source, Arrays) else source


@contextmanager
def _determined(settings: Settings):  # type: ignore[no-untyped-def]
    """The user's random state and precision are theirs again afterwards."""
    tf32 = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    fast = settings.precision != "float32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = fast
    try:
        with torch.random.fork_rng():
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = tf32


def _graphed(run: Run) -> bool:
    wanted = run.settings.graph
    able = (
        run.device.type == "cuda"
        and run.settings.optimizer in CAPTURABLE
        and parallel.world() == 1
        and isinstance(run.train, Arrays)
        and size(run.train) >= run.settings.batch_size
    )
    if wanted and not able:
        raise ValueError(
            "graph=True needs a CUDA device, one process, data in memory, a whole batch and one of "
            f"the optimizers {', '.join(CAPTURABLE)}; here: {run.device.type}, {parallel.world()} "
            f"processes, {type(run.train).__name__} of {size(run.train)} samples, "
            f"{run.settings.optimizer!r}"
        )
    return able if wanted is None else wanted


def _epochs(
    runs: Sequence[Run],
    folders: Sequence[Path | None],
    callback: Callback | None,
    watch: Watch | None,
) -> None:
    """All epochs of runs that go in step; one that is finished leaves the others."""
    active = [
        (run, folder) for run, folder in zip(runs, folders, strict=True) if not run.finished()
    ]
    graphs: dict[Run, Graph] = {}
    graphed = bool(active) and _graphed(active[0][0])
    if graphed:
        fuse([run for run, _ in active])
    pace = checkpoint.Pace()  # one for all: together they take their share of the time
    while active:
        members = [run for run, _ in active]
        for run in members:
            run.begin_epoch()
        if graphed:
            graphs = {run: graphs.get(run) or _captured(run) for run in members}
            for graph in graphs.values():
                graph.begin()
        start = time.perf_counter()
        _steps(members, graphs)
        for run in members:
            run.check_finite()  # waits for a GPU's steps
        seconds = time.perf_counter() - start
        due = pace.due()
        for run, folder in active:
            entry = _end_epoch(run, seconds, watch)
            if parallel.rank() == 0 and folder is not None:
                _write(run, folder, pace if due or run.finished() else None)
            if parallel.rank() == 0 and callback is not None:
                callback({"seed": run.settings.seed, "epochs": run.settings.epochs, **entry})
        active = [(run, folder) for run, folder in active if not run.finished()]


def _captured(run: Run) -> Graph:
    graph = Graph(run)
    run.begin_epoch()  # again: to capture a step takes some of its samples
    return graph


def _steps(runs: Sequence[Run], graphs: Mapping[Run, Graph]) -> None:
    if not isinstance(runs[0].train, Arrays):
        for run in runs:
            for batch in run.stream():
                run.update(*batch)
        return
    batches, left = divmod(len(runs[0].train), runs[0].whole_batch)
    if left < runs[0].least_batch:
        left = 0
    for _ in range(batches):
        for run in runs:
            graphs[run].replay() if graphs else run.step(run.whole_batch)
    for run in runs:
        if graphs:
            graphs[run].finish(left)
        elif left:
            run.step(left)


def _end_epoch(run: Run, seconds: float, watch: Watch | None) -> dict[str, Any]:
    """Check the network where that is due; what is known of the epoch, also in the history."""
    sums = parallel.gathered_sum(run.sums.clone()).tolist()
    count = int(run.position.item())
    terms = {name: value / count for name, value in zip(run.names, sums, strict=True)}
    loss = sum(w * terms[n] for n, w in zip(run.names, run.weights.tolist(), strict=True))
    check = run.settings.checked_after(run.epoch)
    run.end_epoch(check)
    entry: dict[str, Any] = {"epoch": run.epoch, "loss": loss, "terms": terms}
    if check:
        checked = run.validate()
        run.keep_if_best(checked)
        entry |= checked
        if watch is not None:
            run.network.eval()
            with run.autocast():
                seen = watch(run.judged)
            entry["watched"] = {
                name: value.item() if isinstance(value, torch.Tensor) else value
                for name, value in seen.items()
            }
            run.network.train()
    entry |= {"seconds": seconds, "samples_per_second": count / seconds}
    run.history.append(entry)
    return entry


def _write(run: Run, folder: Path, pace: checkpoint.Pace | None) -> None:
    """The checkpoint, where there is a pace for it, and the epoch's line."""
    if pace is not None:
        pace.save(folder / CHECKPOINT, run.state(), run.facts() | _identity(run))
    _write_metrics(folder / METRICS, run.history)


def _write_metrics(path: Path, history: list[dict[str, Any]]) -> None:
    """A line an epoch; all anew where a stopped run left other lines than its checkpoint has."""
    lines = path.read_text().splitlines() if path.exists() else []
    if len(lines) != len(history) - 1:
        _write_lines(path, history)
        return
    with path.open("a") as file:
        file.write(json.dumps(history[-1]) + "\n")


def _write_lines(path: Path, history: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in history))


def _identity(run: Run) -> dict[str, Any]:
    """What a checkpoint must have in common with the run that goes on from it."""
    return {
        "settings": _that_matter(run.settings),
        "method": run.method.identity(),
        "train": [getattr(run.train, "name", type(run.train).__name__), size(run.train)],
        "data": run.train_id,
    }


def _that_matter(settings: Settings) -> dict[str, Any]:
    free = ("graph", "compile", "workers", "channels_last")
    known = {**settings.as_dict(), "average": settings.averaged}
    return {key: value for key, value in known.items() if key not in free}


def _resume(run: Run, folder: Path | None) -> None:
    if folder is None or not (folder / CHECKPOINT).exists():
        return
    if parallel.rank() == 0:
        checkpoint.tidy(folder / CHECKPOINT)
    tensors, facts = checkpoint.load(folder / CHECKPOINT)
    # a setting that is newer than the checkpoint was what its default is, or off
    facts["settings"] = {**_that_matter(Settings(average=0)), **facts.get("settings", {})}
    if None in (facts.get("data"), run.train_id):  # unknown: an old file, or data that is streamed
        facts["data"] = run.train_id
    ours = json.loads(json.dumps(_identity(run)))
    for key, value in ours.items():
        if facts.get(key) != value:
            raise checkpoint.CheckpointError(
                f"{folder} holds another run: its {key} is {facts.get(key)}, and now {value}; "
                "choose another folder, or the same settings"
            )
    run.restore(tensors, facts)
    if parallel.rank() == 0:  # a stopped run leaves more lines, fewer, or half of one
        _write_lines(folder / METRICS, run.history)
