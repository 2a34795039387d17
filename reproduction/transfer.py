"""What pretrained weights bring: `python -m reproduction.transfer`.

CIFAR-10 at 128 pixels with few and with all training images: a head on frozen features,
fine-tuning by the defaults of `dubito train`, and the same network from random weights. Each model
is fitted as by `dubito train`: a fifth of the images calibrates. OOD inputs are SVHN and CIFAR-100.
Nothing is chosen on test images. Results are lines of JSON, and the same command runs what is
missing.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from dubito import data
from dubito.augmentations import AUGMENTATIONS
from dubito.backbones import BACKBONES
from dubito.config import RunConfig
from dubito.data import Source
from dubito.data.base import Items
from dubito.model import Model, Prediction
from dubito.pipeline import Pipeline
from dubito.runs import Runs
from dubito.training import TrainConfig
from dubito.types import Json

__all__ = ["main"]

METHODS = ("iedl", "re_edl", "softmax")
COUNTS = (100, 400, 1_600, 50_000)
WAYS = ("frozen", "fine-tuned", "scratch")
OOD = ("svhn", "cifar-100")
SCORES = ("mahalanobis", "knn")
#: side of the images in pixels
SIDE = 128
#: inputs of each kind that are evaluated
EVALUATED = 10_000
#: training from random weights, for as many samples as fine-tuning sees
SCRATCH = TrainConfig(
    batch_size=32, optimizer="adamw", lr=2e-3, optimizer_options={"weight_decay": 0.05},
    schedule="cosine", warmup_steps=0.1, max_grad_norm=1.0, precision="bfloat16",
    augment=AUGMENTATIONS.build("photo", scale=0.7),
)  # fmt: skip
#: fields of fine-tuning that training from random weights shares
SHARED = ("epochs", "precision")


def run(network: str, method: str, count: int, device: str) -> Iterator[tuple[str, Json]]:
    """Train a network in each way, and yield the way and its results.

    Args:
        network: Name of the backbone.
        method: Name of the method.
        count: Number of images, calibration samples included.
        device: Device.
    """
    settings = {"method": method, "backbone": network, "posthoc": SCORES, "size": SIDE}
    config = RunConfig.merge(None, settings)
    source, pipeline = sample(network, count), Pipeline(config, device=device)
    prepared = pipeline.prepare(source)
    with tempfile.TemporaryDirectory() as place:
        for way, freeze in (("frozen", True), ("fine-tuned", False)):
            runs = Runs(pipeline, prepared, {0: Path(place)}, report=False, freeze=freeze)
            model, seconds = timed(runs.train)
            yield way, {"seconds": seconds, **results(model, network)}
    entry = BACKBONES.build(network)
    tuned = RunConfig.merge(model.record.config if model.record else None, {}).training
    shared = {name: getattr(tuned, name) for name in SHARED}
    config = config.model_copy(update={"training": SCRATCH.model_copy(update=shared)})
    pipeline = Pipeline(config, device=device, backbone=entry.build)

    def scratch() -> list[Model]:
        prepared = pipeline.prepare(source)
        model = pipeline.build(prepared, seed=0)
        (history,) = pipeline.train([model], prepared)
        pipeline.finish(model, prepared, history, seed=0)
        return [model]

    model, seconds = timed(scratch)
    yield "scratch", {"seconds": seconds, **results(model, network)}


def timed(train: Callable[[], list[Model]]) -> tuple[Model, float]:
    """Return a trained model and the seconds of its training."""
    start = time.perf_counter()
    (model,) = train()
    return model, time.perf_counter() - start


@cache
def images(network: str, name: str, split: str) -> Source:
    """Open images as a backbone wants them, in memory."""
    config = RunConfig.merge(None, {"backbone": network, "size": SIDE, "data.stream": False})
    source = config.open(name, split)
    if split == "test":
        rows = torch.randperm(len(source), generator=torch.Generator().manual_seed(0))
        source = source.subset(rows[:EVALUATED].tolist())
    return source


def sample(network: str, count: int) -> Source:
    """Return some training images, with every class in the same proportion."""
    source = images(network, "cifar-10", "train")
    if count >= len(source):
        return source
    part = data.split(source, count / len(source), seed=0, stratify=True)[0]
    encoded = part.encode(range(len(part)))
    return Items(source.name, source.format, encoded.inputs.numpy(), part.target, encoded=encoded)


def results(model: Model, network: str) -> Json:
    """Evaluate a model on test images and on OOD inputs."""
    test = images(network, "cifar-10", "test")
    prediction = model.predict(test)
    accepted, target = prediction.accepted, model.task.encode(test.target)
    assert accepted is not None
    errors = model.task.errors(prediction.point, target)
    found: Json = {
        "accuracy": share(~errors),
        "answered": share(accepted),
        "wrong": share(errors[accepted]) if bool(accepted.any()) else 0.0,
    }
    own = model.method.ood_score
    for name in OOD:
        other = model.predict(images(network, name, "test"))
        kept = other.accepted
        assert kept is not None
        found[name] = {"accepted": share(kept)} | {
            score: auroc(prediction, other, score) for score in (own, *SCORES)
        }
    return {"score": own, **found}


def share(mask: Tensor) -> float:
    """Return the mean of a mask."""
    return mask.double().mean().item()


def auroc(inside: Prediction, outside: Prediction, score: str) -> float:
    """Return how well a score separates test images from others."""
    from dubito.evaluation import ood_detection

    return ood_detection(inside.distribution, outside.distribution, [score])[score]["auroc"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: Command line without the program's name.
    """
    parser = argparse.ArgumentParser(
        prog="python -m reproduction.transfer",
        description="Measure what pretrained weights bring. The same command resumes.",
    )
    parser.add_argument("networks", nargs="+", help="backbones: efficientnet_lite0 hf:FOLDER")
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS, help="training images")
    parser.add_argument("--methods", nargs="+", default=METHODS, help="names of methods")
    parser.add_argument("--device", default="cuda", help="device; cuda")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin nothing after these")
    parser.add_argument("--out", type=Path, default=Path("runs/transfer.jsonl"), help="results")
    options = parser.parse_args(arguments)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    done = {tuple(line["key"]) for line in map(json.loads, lines)}
    start = time.perf_counter()
    for count, network, method in product(options.counts, options.networks, options.methods):
        if done.issuperset((network, method, count, way) for way in WAYS):
            continue
        for way, found in run(network, method, count, options.device):
            if time.perf_counter() - start > 60 * options.minutes:
                return 0
            key = (network, method, count, way)
            if key not in done:
                with options.out.open("a") as file:
                    file.write(json.dumps({"key": key, **found}) + "\n")
                print(*key, json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
