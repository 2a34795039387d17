"""The folder of a model.

| file | content |
| --- | --- |
| model.json | `ModelFile`: everything but the tensors, with a hash of itself and of the weights |
| weights-<hash>.safetensors | weights of the network and state of the scores |
| card.md | the model in prose |

New weights get a new name, and replacing model.json is atomic: whenever a save is interrupted, the
folder contains the old model or the new one. Nothing in a folder is executed: networks, methods and
scores are looked up by name.
"""

import hashlib
import json
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, Field, FiniteFloat, NonNegativeInt, PositiveInt, ValidationError
from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor, nn

from dubito import __version__
from dubito._files import ExtendedFloat, atomic_write, json_text, make_folder, remove_partial
from dubito.calibration import Calibration
from dubito.errors import DubitoError
from dubito.formats import Preprocessing
from dubito.policy import Policy
from dubito.tasks import AnyTask
from dubito.types import Json

__all__: list[str] = []

MODEL, CARD = "model.json", "card.md"
FORMAT, VERSION = "dubito-model", 1
WEIGHTS = re.compile(r"weights-[0-9a-f]{12}\.safetensors")


def versions() -> dict[str, str]:
    """Return the versions of dubito, torch and Python."""
    return {
        "dubito": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }


def seed_folders(folder: Path) -> list[Path]:
    """Return the folder of a model, or those of its seeds: folder/seed-1, ...

    Args:
        folder: Folder of a model, or of the models of several seeds.
    """
    seeds = [path for path in folder.glob("seed-*") if (path / MODEL).exists()]
    if (folder / MODEL).exists() or not seeds:
        return [folder]
    return sorted(seeds, key=lambda path: int(path.name.removeprefix("seed-")))


class TrainingRecord(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True):
    """How a model was trained.

    Attributes:
        config: Configuration of the run, as plain values.
        seed: Random seed.
        epochs: Number of epochs that ran.
        best_epoch: Epoch of the weights.
        seconds: Duration of the training.
        samples: Number of samples by their purpose.
        fingerprint: Hash of the data.
        metrics: Metrics of the calibration samples, before calibration.
        recall: Share of right predictions among them, by class.
        device: Device of the training.
        frozen: Whether only the head was trained, on features of a pretrained backbone.
        versions: Versions of dubito, torch and Python.
    """

    config: Json = {}
    seed: int = 0
    epochs: NonNegativeInt = 0
    best_epoch: NonNegativeInt = 0
    seconds: FiniteFloat = 0.0
    samples: dict[str, NonNegativeInt] = {}
    fingerprint: str = ""
    metrics: dict[str, ExtendedFloat] = {}
    recall: dict[str, FiniteFloat] = {}
    device: str = "cpu"
    frozen: bool = False
    versions: dict[str, str] = Field(default_factory=versions)


class WeightsFile(BaseModel, frozen=True, extra="forbid"):
    """File of the weights."""

    name: str = Field(pattern=f"^{WEIGHTS.pattern}$")
    sha256: str
    bytes: PositiveInt


class ModelFile(BaseModel, frozen=True, extra="forbid"):
    """Content of model.json."""

    format: Literal["dubito-model"] = "dubito-model"
    version: Literal[1] = 1
    method: Json
    backbone: Json | None
    task: AnyTask
    preprocessing: Preprocessing
    calibration: Calibration | None = None
    policy: Policy | None = None
    scores: tuple[Json, ...] = ()
    training: TrainingRecord | None = None
    versions: dict[str, str] = Field(default_factory=versions)
    weights: WeightsFile
    sha256: str = ""


def write(folder: Path, tensors: Mapping[str, Tensor], card: str, **content: Any) -> Path:
    """Write a model; weights that are there already are not written again.

    Args:
        folder: Folder, which may contain an earlier model.
        tensors: Weights by name.
        card: Text of card.md.
        **content: Fields of `ModelFile`.
    """
    make_folder(folder)
    data = safetensors.save(unshared(tensors))
    content_hash = hashlib.sha256(data).hexdigest()
    name = f"weights-{content_hash[:12]}.safetensors"
    weights = WeightsFile(name=name, sha256=content_hash, bytes=len(data))
    plain = ModelFile(weights=weights, **content).model_dump(mode="json")
    plain["sha256"] = digest(plain)
    path = folder / weights.name
    is_new = not path.exists()
    if is_new or hashlib.sha256(path.read_bytes()).hexdigest() != content_hash:
        atomic_write(path, data)
    try:
        atomic_write(folder / MODEL, json_text(plain))
    except BaseException:
        if is_new:
            path.unlink(missing_ok=True)
        raise
    for other in folder.iterdir():
        if WEIGHTS.fullmatch(other.name) and other != path:
            other.unlink(missing_ok=True)
    atomic_write(folder / CARD, card)
    for name in (MODEL, CARD, "weights-*.safetensors"):
        remove_partial(folder / name)
    return folder


def read(folder: Path) -> tuple[ModelFile, dict[str, Tensor]]:
    """Read and check model.json and the weights.

    Args:
        folder: Folder that `write` wrote.
    """
    content = _read_json(folder)
    weights = content.weights
    path = folder / weights.name
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DubitoError(f"cannot read {path}: {error.strerror}") from error
    if len(data) != weights.bytes or hashlib.sha256(data).hexdigest() != weights.sha256:
        raise DubitoError(f"{path} is damaged: its content is not the one that was saved")
    try:
        return content, safetensors.load(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise DubitoError(f"cannot read {path}: {error}") from error


def fill(model: nn.Module, tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Set all weights of a model, or raise if they do not fit."""
    try:
        model.load_state_dict(dict(tensors))
    except RuntimeError as error:
        _, problem, *more = str(error).strip().splitlines()
        raise DubitoError(
            f"{folder} has the weights of another network: {problem.strip()[:300]}"
            f"{f' (and {len(more)} more)' if more else ''}"
        ) from error


def _read_json(folder: Path) -> ModelFile:
    path = folder / MODEL
    if not path.is_file():
        raise DubitoError(_not_a_model(folder))
    try:
        plain = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DubitoError(f"{path} is damaged: {error}") from error
    if not isinstance(plain, dict) or plain.get("format") != FORMAT:
        raise DubitoError(f"{path} does not describe a dubito model")
    version = plain.get("version")
    if isinstance(version, int) and version > VERSION:
        raise DubitoError(f"{folder} is from a newer dubito (format {version}): upgrade dubito")
    if plain.get("sha256") != digest(plain):
        raise DubitoError(f"{path} is damaged: its content is not the one that was saved")
    try:
        return ModelFile.model_validate(plain)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise DubitoError(f"{path} is not valid: {where}: {problem['msg']}") from error


def _not_a_model(folder: Path) -> str:
    if not folder.is_dir():
        return f"there is no folder {folder}"
    several = sorted(path.parent.name for path in folder.glob(f"*/{MODEL}"))
    if several:
        return f"{folder} contains several models, choose one: {', '.join(several)}"
    return (
        f"{folder} is not a model: it has no {MODEL}. If its training was interrupted, run the "
        "same command again to resume, or with --finish (finish=True) to use the weights so far"
    )


def digest(plain: Mapping[str, Any]) -> str:
    """Hash the content of model.json without its own hash."""
    rest = {key: value for key, value in plain.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def unshared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors to the CPU, each to its own memory: the format has no tied weights."""
    return {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
