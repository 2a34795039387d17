"""The commands `dubito fewshot` and `dubito features`."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from dubito import _checks
from dubito import data as sources
from dubito._files import atomic_write, json_text, make_folder
from dubito.api import AnyPath, Factory, find_device, load_model
from dubito.errors import DubitoError
from dubito.fewshot._engine import Engine, summarize
from dubito.fewshot._episodes import Setting
from dubito.fewshot._features import Features, Scaling, read_features, scale, write_features
from dubito.formats.images import Mode
from dubito.methods import METHODS
from dubito.model import Model
from dubito.plugins import import_function
from dubito.tasks import Classification
from dubito.types import Json

#: name -> method and scaling; "published" is I-EDL as published, and "centered" was chosen on
#: validation classes
PRESETS: dict[str, tuple[Json, Scaling]] = {
    "published": ({"name": "iedl", "fisher_weight": 0.01, "scale": "paper"}, "none"),
    "centered": ({"name": "iedl", "fisher_weight": 0.0, "kl_weight": 0.0}, "centered"),
}


def fewshot(
    features: AnyPath | Features,
    *,
    ood: AnyPath | Features | None = None,
    method: str | Json | None = None,
    preset: str | None = None,
    ways: int = 5,
    shots: int = 5,
    queries: int | None = None,
    episodes: int = 10_000,
    seed: int = 0,
    scaling: Scaling | None = None,
    reference: AnyPath | Features | None = None,
    device: str = "auto",
    out: AnyPath | None = None,
    progress: Callable[[int], None] | None = None,
) -> Json:
    """Evaluate few-shot episodes on frozen features: accuracy, confidence and OOD detection.

    Args:
        features: Features of the classes to distinguish, an .npz file.
        ood: Features of out-of-distribution queries; default: the classes outside an episode.
        method: Name of a method of classification, or its name and hyperparameters; default: iedl.
        preset: Method and scaling by name, in place of both: published or centered.
        ways: Classes of an episode.
        shots: Support samples of each class.
        queries: Queries of each class; default: max(15, shots).
        episodes: Number of episodes.
        seed: Seed of the episodes.
        scaling: Scaling of the features: none (default), unit or centered.
        reference: Features of base or validation classes, for the scaling.
        device: auto, cpu or cuda.
        out: Folder of the result.
        progress: Called with the number of episodes of each finished batch.

    Returns:
        Configuration, and "metrics": mean, interval and episodes of each.
    """
    _checks.positive(episodes, "episodes")
    if preset is not None:
        if method is not None or scaling is not None:
            raise DubitoError(f"preset {preset!r}: pass either preset, or method and scaling")
        method, scaling = _checks.entry(PRESETS, preset, "preset")
    built, scaling = METHODS.build(method or "iedl"), scaling or "none"
    _checks.one_of(get_args(Scaling), scaling, "scaling")
    setting = Setting(ways, shots, queries or 0, seed)
    place = find_device(device)
    with ThreadPoolExecutor() as pool:
        # Initializing a GPU and reading files take about as long.
        pool.submit(lambda: torch.zeros(1, device=place))
        inside, outside, known = (
            one if isinstance(one, Features | None) else read_features(one)
            for one in (features, ood, reference)
        )
    assert inside is not None
    inside = scale(inside, scaling, known)
    outside = None if outside is None else scale(outside, scaling, known)
    engine = Engine(built, inside, outside, setting=setting, device=place)
    metrics = summarize(engine.values(0, episodes, progress))
    result = {**engine.describe(), "episodes": episodes, "metrics": metrics}
    if out is not None:
        atomic_write(make_folder(Path(out)) / "result.json", json_text(result))
    return result


def features(
    model: AnyPath | Model | nn.Module | Callable[[], nn.Module],
    data: Any,
    out: AnyPath | None = None,
    *,
    split: Literal["train", "test", "all"] = "all",
    size: int | None = None,
    mode: Mode | None = None,
    batch_size: int = 64,
    device: str = "auto",
    network: Factory | None = None,
    progress: Callable[[int], None] | None = None,
) -> Features:
    """Extract the features that a network has before its last layer, for few-shot episodes.

    Images are read from disk in batches.

    Args:
        model: Folder of a model, or "module:function" or "file.py:function", a function without
            arguments that builds a network for pixels from 0 to 1. The features of a network are
            those of its method `features`, otherwise its outputs.
        data: Image folder with a folder per class, a known name, or an .npz file.
        out: Features file to write, .npz.
        split: Part of the data: train, test or all.
        size: Side to resize images to, for a network; a model has its own.
        mode: L (gray) or RGB, for a network; a model has its own.
        batch_size: Inputs per batch.
        device: auto, cpu or cuda.
        network: Factory of a model's custom network: a function, "module:function" or
            "file.py:function".
        progress: Called with the number of inputs of each finished batch.

    Returns:
        Features with their labels.
    """
    place, whole = find_device(device), _network(model, network)
    whole.to(place).eval()
    form = whole.preprocessing.inputs if isinstance(whole, Model) else None
    source = sources.open(data, split, size=size, mode=mode, format=form)
    # Some networks have a module called `features`, which is only a part of the way.
    extract: Any = getattr(whole, "features", None)
    if not callable(extract) or isinstance(extract, nn.Module):
        extract = whole
    dtype = next((p.dtype for p in whole.parameters() if p.is_floating_point()), torch.float32)
    task, parts, done = Classification.from_target(source.target), list[Tensor](), 0
    for batch in source.batches(batch_size):
        inputs = batch.checked(lambda row: source.item(done + row)).to(place)  # noqa: B023
        if form is None:  # a model normalizes by itself
            inputs = (inputs / 255 if inputs.dtype == torch.uint8 else inputs).to(dtype)
        with torch.no_grad():
            parts.append(extract(inputs).float().cpu())
        done += len(inputs)
        if progress is not None:
            progress(len(inputs))
    result = Features(torch.cat(parts), task.encode(source.target), task.classes, source.name)
    if out is not None:
        write_features(result, out)
    return result


def _network(model: Any, network: Factory | None) -> nn.Module:
    if isinstance(model, str) and ":" in model and not Path(model).exists():
        model = import_function(model)
    if callable(model) and not isinstance(model, nn.Module):
        model = model()
    return model if isinstance(model, nn.Module) else load_model(model, network=network)
