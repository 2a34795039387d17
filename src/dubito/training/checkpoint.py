"""Checkpoints: one safetensors file, written beside and then put in place, never unpickled."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dubito._whole import left_over, whole

__all__ = ["CheckpointError", "Pace", "load", "save", "tidy"]

FORMAT = "dubito-checkpoint-1"
SHARE, CHEAP = 0.05, 0.1  # of the time that checkpoints may take; seconds that are no matter


class CheckpointError(RuntimeError):
    """A checkpoint that can't be written or read."""


class Pace:
    """When a checkpoint is due: each time if it is cheap, else they take a twentieth of the time.

    Large networks on fast devices would otherwise spend more time on files than on training. Of
    several that are saved when one is due, each adds to the time until the next.
    """

    def __init__(self) -> None:
        self._next = -math.inf

    def due(self) -> bool:
        """Whether the last one has paid off."""
        return time.perf_counter() >= self._next

    def save(self, path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Save, and take note of how long that took."""
        start = time.perf_counter()
        save(path, tensors, facts)
        end = time.perf_counter()
        if end - start > CHEAP:
            self._next = max(self._next, end) + (end - start) / SHARE


def save(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Tensors and plain facts in one file; whatever fails, the file there before stays whole."""
    from safetensors.torch import save_file

    held = _apart(tensors)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path) as part:
            save_file(held, part, {FORMAT: json.dumps(facts)})  # several would come in any order
            with part.open("rb+") as file:
                os.fsync(file.fileno())
    except Exception as error:
        raise CheckpointError(
            f"could not write {path}: {error}; an earlier checkpoint there is untouched"
        ) from error


def tidy(path: Path) -> None:
    """Remove what a process left that was killed while it wrote."""
    for left in left_over(path):
        left.unlink(missing_ok=True)


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the CPU, none in the memory of another: the format has no tied weights."""
    held: dict[str, Tensor] = {}
    places: set[int] = set()
    for name, value in tensors.items():
        one = value.detach().cpu().contiguous()
        place = one.untyped_storage().data_ptr()
        held[name] = one.clone() if place in places else one
        places.add(place)
    return held


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `save` wrote."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            before = header.get("facts") if header.get("format") == FORMAT else None
            facts = header.get(FORMAT, before)  # files up to 2026-11 have two entries
            if facts is None:
                raise CheckpointError(f"{path} is no dubito checkpoint")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return tensors, json.loads(facts)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"could not read {path}: {error}") from error


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state as named tensors; numbers become 0-dim tensors."""
    return {
        f"optimizer.{index}.{key}": torch.as_tensor(value)
        for index, state in optimizer.state_dict()["state"].items()
        for key, value in state.items()
        if value is not None
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Put what `optimizer_tensors` gave into a new optimiser of the same parameters."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".", 2)
            state.setdefault(int(index), {})[key] = value
    # in the order of the parameters, which a file with names in theirs (1, 10, 11, 2) has not
    ordered = dict(sorted(state.items()))
    optimizer.load_state_dict({**optimizer.state_dict(), "state": ordered})
    for parameter, held in optimizer.state.items():
        for key, value in held.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                # laid out in memory as the parameter is: fused optimisers take nothing else
                held[key] = torch.empty_like(parameter, requires_grad=False).copy_(value)
