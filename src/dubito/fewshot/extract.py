"""From images to features: what a network has before its last layer, for few-shot episodes.

The network is one of ours, from a bundle or a file of weights, or any module of one's own. Images
of a folder are decoded batch by batch, so that no more than the features are ever held at once.
"""

from __future__ import annotations

import importlib
import inspect
import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dubito import _checks, backbones, bundle, data
from dubito.backbones import Backbone
from dubito.bundle import Preprocessing
from dubito.data import Arrays, ImageFolder
from dubito.report import files

__all__ = [
    "WRITERS", "Extractor", "extract", "from_bundle", "from_module", "from_weights", "parts_of",
    "write",
]  # fmt: skip

Batch = tuple[Tensor, Tensor]
BASE = "base"
MODES = {1: "L", 3: "RGB"}


@dataclass(frozen=True, eq=False)
class Extractor:
    """A network in evaluation mode, the shape of its inputs, and how these are made.

    >>> network = backbones.build("mlp", (4,), 3, hidden=(8,))
    >>> Extractor(network, (4,))(torch.rand(5, 4)).shape
    torch.Size([5, 8])
    """

    model: nn.Module = field(repr=False)
    shape: tuple[int, ...]
    preprocessing: Preprocessing = field(default_factory=Preprocessing, repr=False)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        self.model.to(self.device).eval()

    def __call__(self, inputs: Tensor) -> Tensor:
        """Features (N, D) of inputs (N, *shape), bytes or floats; on the CPU, finite."""
        x = self.preprocessing.standardised(inputs.to(self.device))
        kinds = {p.dtype for p in self.model.parameters() if p.is_floating_point()}
        if len(kinds) == 1:  # of several the network makes its own
            x = x.to(kinds.pop())
        own = getattr(self.model, "features", None)
        try:
            with torch.no_grad():
                # a module called `features`, as some networks have, is only a part of the way
                whole = not callable(own) or isinstance(own, nn.Module)
                found = self.model(x) if whole else own(x)  # type: ignore[misc]
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            why = str(error).partition("\n")[0]
            raise ValueError(f"the network fails on inputs {tuple(x.shape)}: {why}") from error
        return _checked(found, len(x)).float().cpu()


def _checked(found: Any, count: int) -> Tensor:
    if not isinstance(found, Tensor) or found.ndim != 2 or len(found) != count:
        seen = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ValueError(f"the network must give features (N, D), N = {count} here, not {seen}")
    if not bool(found.isfinite().all()):
        raise ValueError("the network's features are not finite: NaN or infinity among them")
    return found


# --- networks ------------------------------------------------------------------------------------


def from_bundle(
    folder: Path, device: torch.device, factory: bundle.Factory | None = None
) -> Extractor:
    """The backbone of a bundle, such as the folder of a finished `dubito train`."""
    held = bundle.load(folder, factory=factory)
    inside = [one for one in held.model.modules() if isinstance(one, Backbone)]
    if len(inside) > 1:
        raise ValueError(f"{folder} holds {len(inside)} networks: features are those of one")
    network = inside[0] if inside else held.model
    return Extractor(network, held.shape, held.preprocessing, device)


def from_weights(
    path: Path, name: str, shape: tuple[int, ...], device: torch.device, **options: Any
) -> Extractor:
    """A named backbone with the weights of a .safetensors file; `options` are the backbone's."""
    tensors = _tensors(path)
    if "head.weight" not in tensors or tensors["head.weight"].ndim != 2:
        raise ValueError(
            f"{path} holds no weights of a backbone: its last layer, 'head.weight', is missing"
        )
    network = backbones.build(name, shape, len(tensors["head.weight"]), **options)
    return Extractor(_filled(network, tensors, path), shape, device=device)


def from_module(
    named: str, shape: tuple[int, ...], device: torch.device, weights: Path | None = None
) -> Extractor:
    """What "package.module:factory" makes: code of the user's, which is imported and run.

    The factory takes nothing. Its module has a method `features`, or gives features itself.
    """
    factory = factory_named(named)
    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        raise ValueError(f"{named} must take no arguments here: {error}") from error
    network = factory()  # type: ignore[call-arg]
    if not isinstance(network, nn.Module):
        raise ValueError(f"{named} must make a torch module, not {type(network).__name__}")
    if weights is not None:
        network = _filled(network, _tensors(weights), weights)
    return Extractor(network, shape, device=device)


def factory_named(named: str) -> bundle.Factory:
    """The function "package.module:factory"."""
    module, colon, attribute = named.partition(":")
    if not (module and colon and attribute):
        raise ValueError(f"a module of one's own is named package.module:factory, not {named!r}")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{named}: {error}") from error
    if not callable(found):
        raise ValueError(f"{named} is no function, but {type(found).__name__}")
    made: bundle.Factory = found
    return made


def _tensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if path.suffix != ".safetensors":
        raise ValueError(
            f"weights are the folder of a bundle or a .safetensors file, not {path}: pickles, as "
            "in .pt files, are not read"
        )
    try:
        return dict(load_file(path))
    except SafetensorError as error:
        raise ValueError(f"{path} is no .safetensors file: {error}") from error


def _filled(network: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> nn.Module:
    wanted = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    held = {name: tuple(value.shape) for name, value in tensors.items()}
    wrong = sorted(name for name in {*wanted, *held} if wanted.get(name) != held.get(name))
    if wrong:
        name = wrong[0]
        raise ValueError(
            f"{path} holds the weights of another network: {name!r} has shape "
            f"{held.get(name, 'none')} in it, and {wanted.get(name, 'none')} in "
            f"{type(network).__name__}"
        )
    network.load_state_dict(dict(tensors))
    return network


# --- data ----------------------------------------------------------------------------------------


def parts_of(source: str) -> dict[str, str]:
    """The parts of a folder with base/ and others in it, each a folder of classes; none without.

    Then base/ has the classes to train on, and the others those to tell apart later.
    """
    place = Path(source).expanduser()
    if source in data.DATASETS or not (place / BASE).is_dir():
        return {}
    found = [one for one in sorted(place.iterdir()) if one.is_dir() and one.name[:1] != "."]
    whole = [one for one in found if any(inner.is_dir() for inner in one.iterdir())]
    if BASE not in (one.name for one in whole):
        return {}  # a class of that name, with images in it
    return {one.name: str(one) for one in whole}


def extract(
    network: Extractor,
    source: str,
    *,
    batch_size: int = 64,
    workers: int = 0,
    tell: Callable[[int, int], None] | None = None,
) -> Arrays:
    """The features of all samples of a source, in their order, with their labels and classes.

    The source is an image folder, a known name, or any file that `dubito.data.load` reads. `tell`
    hears of finished samples, and of how many there are.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, not {batch_size}")
    batches, classes, count, name = _batches(network.shape, source, batch_size, workers)
    features: Tensor | None = None
    labels = torch.empty(count, dtype=torch.long)
    done = 0
    for x, y in batches:
        rows = network(x)
        if features is None:
            features = torch.empty(count, rows.shape[1])
        features[done : done + len(rows)], labels[done : done + len(rows)] = rows, y
        done += len(rows)
        if tell is not None:
            tell(done, count)
    assert features is not None
    return Arrays(features, labels, classes, name)


def _batches(
    shape: tuple[int, ...], source: str, batch_size: int, workers: int
) -> tuple[Iterator[Batch], tuple[str, ...], int, str]:
    """Batches of inputs and labels; the classes, how many samples there are, and a name."""
    place = Path(source).expanduser()
    if source in data.DATASETS or not place.is_dir():
        arrays = data.load(source, "all")
        if arrays.shape != shape:
            raise ValueError(
                f"{arrays.name} has inputs of shape {arrays.shape}, but the network takes {shape}"
            )
        pairs = zip(arrays.inputs.split(batch_size), arrays.labels.split(batch_size), strict=True)
        return pairs, arrays.classes, len(arrays), arrays.name
    if len(shape) != 3 or shape[0] not in MODES:
        raise ValueError(f"{source} is a folder of images, but the network takes {shape}")
    images = ImageFolder(place, size=(shape[1], shape[2]), mode=MODES[shape[0]])
    stream = data.from_dataset(images, batch_size, workers=workers)
    return iter(stream), images.classes, len(images), place.resolve().name


# --- files ---------------------------------------------------------------------------------------


def _npz(arrays: Arrays) -> bytes:
    buffer = io.BytesIO()
    np.savez(
        buffer, features=arrays.inputs.numpy(), labels=arrays.labels.numpy(),
        classes=np.array(arrays.classes),
    )  # fmt: skip
    return buffer.getvalue()


def _safetensors(arrays: Arrays) -> bytes:
    from safetensors.torch import save

    tensors = {"features": arrays.inputs.contiguous(), "labels": arrays.labels}
    return save(tensors, {"classes": json.dumps(list(arrays.classes))})


#: suffix -> the bytes of a feature file
WRITERS: dict[str, Callable[[Arrays], bytes]] = {".npz": _npz, ".safetensors": _safetensors}


def write(arrays: Arrays, path: Path) -> Path:
    """Write a feature file, whole or not at all."""
    packed = _checks.entry(WRITERS, path.suffix, f"kind of feature file, {path}:")
    files.folder(path.parent)
    return files.write(path, packed(arrays))
