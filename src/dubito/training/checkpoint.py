"""Checkpoints: one safetensors file with tensors and JSON, replaced atomically."""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dubito._files import atomic_path, make_folder
from dubito.errors import DubitoError
from dubito.model.folder import unshared
from dubito.types import Json

__all__: list[str] = []

FORMAT = "dubito-checkpoint-3"


def save(path: Path, tensors: dict[str, Tensor], state: Json) -> None:
    """Write tensors and JSON values to a file; if that fails, the old file stays."""
    make_folder(path.parent)
    # A single entry: safetensors writes several in any order, and equal states are equal files.
    metadata = {FORMAT: json.dumps(state)}
    with atomic_path(path) as partial:
        try:
            save_file(unshared(tensors), partial, metadata)
        except SafetensorError as error:  # wraps the errors of the file system
            raise OSError(str(error)) from error


def load(path: Path) -> tuple[dict[str, Tensor], Json]:
    """Read a file of `save`."""
    try:
        with safe_open(path, framework="pt") as file:
            state = (file.metadata() or {}).get(FORMAT)
            if state is None:
                raise DubitoError(f"{path} is not a checkpoint of this version of dubito")
            return {name: file.get_tensor(name) for name in file.keys()}, json.loads(state)  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise DubitoError(
            f"cannot read the checkpoint {path}: {error}; remove it to train from the start"
        ) from error


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the state of an optimizer as named tensors; numbers become scalars."""
    return {
        f"{index}.{key}": torch.as_tensor(value)
        for index, state in optimizer.state_dict()["state"].items()
        for key, value in state.items()
        if value is not None
    }


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Load the result of `optimizer_tensors` into an optimizer of the same parameters."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        index, key = name.split(".", 1)
        state.setdefault(int(index), {})[key] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    for parameter, entry in optimizer.state.items():
        for key, value in entry.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                # Fused optimizers need the memory format of the parameter.
                entry[key] = torch.empty_like(parameter, requires_grad=False).copy_(value)
