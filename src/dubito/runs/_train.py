"""Make a run: find its data, compare it with what its folder holds, train what is left of it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from dubito import data
from dubito._legacy import Method, balanced
from dubito.bundle import Promise
from dubito.data import Arrays
from dubito.report import files
from dubito.runs import _folder
from dubito.runs._config import AUTO, Config, configure
from dubito.runs._data import prepared, training_table
from dubito.runs._finish import finish, finish_again, keeps
from dubito.runs._folder import Facts, Recorded
from dubito.runs._outside import inputs_of
from dubito.runs._scalars import Callback, told
from dubito.training import CheckpointError, NonFiniteLoss, fit_many, parallel
from dubito.training.loop import CHECKPOINT, Watch
from dubito.training.run import Source

__all__ = ["Member", "Plan", "device_named", "plan", "train"]

#: keys that a run may differ in when it goes on: they decide where and how fast, not what
FREE = (
    "training.graph",
    "training.compile",
    "training.workers",
    "training.channels_last",
    "facts.device",
)
SMALLEST_CONVNET = 20  # pixels a side
NEW, STOPPED, FINISHED = "new", "stopped", "finished"


@dataclass(frozen=True)
class Member:
    """One run of a plan: what it is, where, and how far it is."""

    config: Recorded
    folder: Path
    state: str


@dataclass(frozen=True)
class Plan:
    """The data of one or several runs, divided, and the runs; they differ in their seed alone."""

    train: Arrays
    validation: Arrays
    order: Tensor
    members: tuple[Member, ...]
    device: torch.device

    @property
    def config(self) -> Recorded:
        """What all runs share, with the first one's seed."""
        return self.members[0].config


def device_named(name: str) -> torch.device:
    """The device of that name; "auto" is the GPU where there is one.

    >>> device_named("cpu")
    device(type='cpu')
    """
    if name == AUTO:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"unknown device {name!r}; known: 'auto', 'cpu', 'cuda'") from error
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(f"the device {name!r} needs a GPU that torch can use, and finds none")
        index = torch.cuda.current_device() if device.index is None else device.index
        return torch.device("cuda", index)
    return device


def plan(
    config: Config,
    out: str | os.PathLike[str],
    *,
    seeds: Sequence[int] | None = None,
    device: torch.device | str = "cpu",
) -> Plan:
    """Read the data, choose the network, divide, and look at what the folder `out` holds.

    With `seeds` there is a run for each, in out/seed-1, ..., else the one of the configuration.
    A folder of another run is an error that names the first difference.
    """
    folder, place = Path(out), torch.device(device)
    if seeds is not None and (not seeds or len(set(seeds)) < len(seeds)):
        raise ValueError(f"seeds must be different numbers, at least one, not {list(seeds)}")
    arrays, columns = training_table(config)
    chosen = _resolved(config, arrays)
    folders = [folder] if seeds is None else [folder / f"seed-{seed}" for seed in seeds]
    mark = arrays.fingerprint()
    train_part, held_out, order = _divided(chosen, arrays, mark, folders)
    facts = Facts(
        classes=list(arrays.classes),
        shape=list(arrays.shape),
        class_counts=train_part.class_counts.tolist(),
        train=len(train_part),
        validation=len(held_out),
        fingerprint=mark,
        processes=parallel.world(),
        device=_described(place),
    )
    made = prepared(chosen, train_part, columns)
    members = []
    for one, seed in zip(folders, seeds or [chosen.training["seed"]], strict=True):
        sections = chosen.sections()
        sections["training"]["seed"] = seed
        recorded = Recorded(**sections, facts=facts, preprocessing=made.as_dict())
        members.append(Member(recorded, one, _state(one, recorded)))
    return Plan(train_part, held_out, order, tuple(members), place)


def _resolved(config: Config, arrays: Arrays) -> Config:
    """The configuration with what depends on the data: the network, the size of images."""
    sections = config.sections()
    if sections["backbone"]["name"] == AUTO:
        sections["backbone"]["name"] = _suited(arrays.shape)
    if Path(config.data["source"]).is_dir() and config.data["source"] not in data.DATASETS:
        # another part of the folder is to be read as this one was, whatever its files look like
        channels, height, width = arrays.shape
        sections["data"] |= {"size": [height, width], "mode": "L" if channels == 1 else "RGB"}
    if sections["training"]["augment"] is not None and len(arrays.shape) != 3:
        raise ValueError(f"augment is for images, but an input of {arrays.name} is {arrays.shape}")
    return configure(sections)


def _suited(shape: tuple[int, ...]) -> str:
    """The backbone that `auto` means for inputs of this shape."""
    if len(shape) == 3 and shape[0] == 1 and min(shape[1:]) >= SMALLEST_CONVNET:
        return "convnet"
    return "vgg16" if shape == (3, 32, 32) else "mlp"


def _divided(
    config: Config, arrays: Arrays, mark: str, folders: Sequence[Path]
) -> tuple[Arrays, Arrays, Tensor]:
    """Training and validation part: as a folder has them already, or drawn from the seed."""
    for folder in folders:
        if (folder / _folder.SPLIT).exists() and (folder / _folder.CONFIG).exists():
            before = _folder.recorded(folder)
            if before.facts.fingerprint == mark and before.data == config.data:
                train, rest = _folder.read_split(folder, len(arrays))
                return arrays.subset(train), arrays.subset(rest), torch.cat([train, rest])
    settings = config.data
    return data.split(
        arrays,
        1 - settings["validation"],
        settings["split_seed"],
        stratified=settings["stratified"],
    )


def _described(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _state(folder: Path, config: Recorded) -> str:
    """How far the run in a folder is; an error if it is another run."""
    if not (folder / _folder.CONFIG).exists():
        if _folder.has_started(folder) or (folder / _folder.WEIGHTS).exists():
            raise CheckpointError(
                f"{folder} holds weights without a {_folder.CONFIG}; choose another folder"
            )
        return NEW
    before = _flat(_comparable(_folder.recorded(folder)))
    now = _flat(_comparable(config))
    for key in {**before, **now}:
        if key not in FREE and before.get(key) != now.get(key):
            raise CheckpointError(
                f"{folder} holds another run: its {key} is {before.get(key)!r}, and now "
                f"{now.get(key)!r}; choose another folder, or the same configuration"
            )
    if _folder.is_finished(folder):
        return FINISHED
    return STOPPED if _folder.has_started(folder) or _folder.has_weights(folder) else NEW


def _comparable(config: Recorded) -> dict[str, Any]:
    plain = {**config.sections(), "facts": asdict(config.facts)}
    prepared = config.prepared()  # pixels and mode follow from the data, which is compared
    plain["preprocessing"] = {k: prepared.as_dict()[k] for k in ("columns", "mean", "scale")}
    return dict(json.loads(json.dumps(plain)))


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys as one dotted key each."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        inner = isinstance(value, dict)
        found |= _flat(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return found


def train(
    plan: Plan,
    callback: Callback | None = None,
    watch: Watch | None = None,
    *,
    promise: Promise | None = None,
) -> list[dict[str, Any]]:
    """Train the runs that are not finished, and save their best weights; a summary of each run.

    Each epoch `callback` is told what is known after it, with the run's seed, and `watch` sees the
    network when it is validated, as in `dubito.training.fit`. A summary has the
    best weights' `epoch`, `loss`, `terms` and validation figures, and `epochs` and `seconds`.

    The validation samples then give the calibration and the policy, which keeps a `promise` (None:
    the default one). Finished runs get a policy anew where another promise than theirs is given.
    """
    left = [member for member in plan.members if member.state != FINISHED]
    untrained = [member for member in left if not _folder.has_weights(member.folder)]
    if untrained:
        _train(plan, untrained, callback, watch, promise)
    others = [member for member in left if member not in untrained]
    if promise is not None:
        ended = [member for member in plan.members if member.state == FINISHED]
        others += [member for member in ended if not keeps(member.folder, promise)]
    if parallel.rank() == 0:
        for member in others:
            # as it was trained, which may have been elsewhere and with other versions
            made = _folder.recorded(member.folder)
            finish_again(member.folder, made, plan.validation, promise, plan.device)
        for member in plan.members:  # several times the weights
            (member.folder / CHECKPOINT).unlink(missing_ok=True)
    # others wait for the files, whatever of them they saw already when they looked
    parallel.gathered_sum(torch.zeros((), device=plan.device))
    found = [_folder.summary_of(member.folder) for member in plan.members]
    return [summary for summary in found if summary is not None]


def _train(
    plan: Plan,
    members: Sequence[Member],
    callback: Callback | None,
    watch: Watch | None,
    promise: Promise | None,
) -> None:
    """All members, on a GPU side by side; one that fails does not take the others with it."""
    left = [list(members)] if plan.device.type == "cuda" else [[member] for member in members]
    failed: dict[int, NonFiniteLoss] = {}
    while left:
        group = left.pop(0)
        try:
            _train_together(plan, group, callback, watch, promise)
        except NonFiniteLoss as error:
            if len(group) > 1:  # each alone, from where it was
                left = [[member] for member in group]
            else:
                failed[group[0].config.training["seed"]] = error
    if failed and len(plan.members) == 1:
        raise failed.popitem()[1]
    if failed:
        told = "; ".join(f"seed {seed}: {reason}" for seed, reason in failed.items())
        raise NonFiniteLoss(
            f"{len(failed)} of {len(plan.members)} seeds could not be trained. {told}"
        )


def _train_together(
    plan: Plan,
    members: Sequence[Member],
    callback: Callback | None,
    watch: Watch | None,
    promise: Promise | None,
) -> None:
    facts = plan.config.facts
    models = [
        member.config.network(facts.shape, len(facts.classes), facts.class_counts)
        for member in members
    ]
    settings = [member.config.settings() for member in members]
    first = parallel.rank() == 0
    if first:
        for member in members:
            files.folder(member.folder)
            _folder.write_split(member.folder, plan.order, len(plan.train))
            _folder.write_config(member.folder, member.config)
    folders = {member.config.training["seed"]: member.folder for member in members}
    with told(folders, callback) as tell:
        done = fit_many(
            _method(plan), models, *_sources(plan), settings, device=plan.device,
            out=list(folders.values()), callback=tell, watch=watch,
        )  # fmt: skip
    if first:
        for member, run in zip(members, done, strict=True):
            seconds = sum(entry["seconds"] for entry in run.history)
            summary = {**run.best, "epochs": run.epochs, "seconds": seconds}
            finish(member.folder, member.config, run.model, plan.validation, summary, promise)


def _method(plan: Plan) -> Method:
    """The method with its data, and with the weights of classes where they are asked for."""
    config = plan.config
    method = config.make_method(**_outside(config, plan.device))
    if config.data["class_weight"] is None:
        return method
    weights = torch.tensor(balanced(config.facts.class_counts), device=plan.device)
    return replace(method, class_weight=weights)


def _sources(plan: Plan) -> tuple[Source, Source]:
    """Both parts, for the device to hold; batch by batch from the host if it has no room."""
    prepared = plan.config.prepared()
    train_part, held_out = (
        replace(part, inputs=prepared.held(part.inputs)) for part in (plan.train, plan.validation)
    )
    if all(data.fits(part, plan.device, share=0.25) for part in (train_part, held_out)):
        return train_part, held_out
    return _Streamed(train_part), _Streamed(held_out)


class _Streamed(TensorDataset):
    """Arrays as a dataset; its name is theirs, so that a run may go on with less memory free."""

    def __init__(self, part: Arrays) -> None:
        super().__init__(part.inputs, part.labels)
        self.name = part.name


def _outside(config: Recorded, device: torch.device) -> dict[str, Tensor]:
    """The OOD inputs to train with, where some are given."""
    source = config.data["train_ood"]
    if source is None:
        return {}
    inputs = inputs_of(config, source, part="train")
    return {"ood": config.prepared().held(inputs).to(device)}
