"""Training: ours against a plain PyTorch loop with a DataLoader and the textbook loss.

On a CPU an MNIST epoch of the ConvNet, both loops in the same run. On a GPU whole epochs of the
two published set-ups, and five seeds at once. MNIST is the real one where DUBITO_DATA has it; the
images of the CIFAR-10 rows are random, as speed does not depend on them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks import Row
from benchmarks.textbook import iedl
from dubito import _legacy as methods
from dubito import backbones, data
from dubito.data import Arrays, Augment
from dubito.training import Settings, fit, fit_many

METHOD = methods.method("iedl", fisher_weight=0.005)


def _random(count: int, shape: tuple[int, ...]) -> Arrays:
    drawn = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, *shape), dtype=torch.uint8, generator=drawn)
    labels = torch.randint(10, (count,), generator=drawn)
    return Arrays(images, labels, tuple("0123456789"), "random")


def _mnist(count: int) -> Arrays:
    try:
        return data.load("mnist", "train", download=False).subset(range(count))
    except OSError:
        return _random(count, (1, 28, 28))


def _ours(train: Arrays, backbone: str, epochs: int, seeds: int = 1, **options: object) -> float:
    """Seconds of the last epoch, validation left out."""
    shape, check = train.shape, train.subset(range(1000))
    torch.manual_seed(0)
    models = [backbones.build(backbone, shape, 10) for _ in range(seeds)]
    settings = [
        Settings(epochs=epochs, validate_every=epochs, seed=seed, **options)  # type: ignore[arg-type]
        for seed in range(seeds)
    ]
    runs = fit_many(METHOD, models, train, check, settings)
    return min(entry["seconds"] for entry in runs[0].history[1:] or runs[0].history)


def _written_plainly() -> nn.Module:
    """The ConvNet as one writes it down: each convolution with its ReLU, then its pool."""
    layers: list[nn.Module] = []
    for channels in (1, 64, 64):
        layers += [nn.Conv2d(channels, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    layers.append(nn.Flatten())
    for size in (576, 64, 64):
        layers += [nn.Linear(size, 64), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(64, 10))


def _plain(train: Arrays, device: torch.device, network: nn.Module) -> Callable[[], float]:
    """What one writes without a library: a DataLoader over the tensors, the paper's formula."""
    model = network.to(device)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    loader = DataLoader(TensorDataset(train.floats().cpu(), train.labels.cpu()), 64, shuffle=True)

    def epoch() -> float:
        start = time.perf_counter()
        for x, y in loader:
            optimizer.zero_grad()
            iedl(model(x.to(device)), y.to(device), 0.005, 0.5).mean().backward()
            optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    return epoch


def _row(what: str, ours: float, images: int, plain: float | None = None) -> Row:
    row: Row = {"what": what, "seconds": round(ours, 4), "images_per_s": round(images / ours)}
    return row | ({"plain_s": round(plain, 4), "ratio": round(plain / ours, 2)} if plain else {})


def run() -> list[Row]:
    """One row a set-up."""
    if torch.cuda.is_available():
        return _on_gpu()
    train = _mnist(6400)
    cpu, same = torch.device("cpu"), backbones.build("convnet", train.shape, 10)
    plain, like = (_plain(train, cpu, one) for one in (_written_plainly(), same))
    times = [(plain(), like(), _ours(train, "convnet", 1)) for _ in range(4)]
    theirs, like_ours, ours = (min(values[1:]) for values in zip(*times, strict=True))
    what = "ConvNet, 6,400 MNIST images, batch 64, CPU"
    return [
        _row(what, ours, len(train), theirs),
        _row("the same, plain loop with our network", ours, len(train), like_ours),
        *_three_epochs(),
    ]


def _three_epochs() -> list[Row]:
    """The test accuracy of I-EDL after each of three epochs, on the real MNIST alone.

    The network starts as He et al. do: with the published start the signal fades, and the first
    epoch is spent on finding it.
    """
    try:
        full, test = (data.load("mnist", part, download=False) for part in ("train", "test"))
    except OSError:
        return []
    train, _, _ = data.split(full, 0.8, seed=0)
    torch.manual_seed(0)
    model = backbones.build("convnet", train.shape, 10, init="he")
    run = fit(METHOD, model, train, test, Settings(epochs=3, validate_every=1))
    return [
        _row(f"48,000 images, epoch {entry['epoch']}", entry["seconds"], len(train))
        | {"test_accuracy": entry["validation_accuracy"]}
        for entry in run.history
    ]


def _on_gpu() -> list[Row]:
    device = torch.device("cuda")
    mnist, cifar = _mnist(48_000).to(device), _random(47_500, (3, 32, 32)).to(device)
    paper = {"augment": Augment()}
    plain = _plain(mnist, device, _written_plainly())
    plain()
    one = _ours(mnist, "convnet", 4)
    five = _ours(mnist, "convnet", 4, seeds=5)
    return [
        _row("ConvNet, 48,000 MNIST images, batch 64", one, 48_000, plain()),
        _row("the same, five seeds at once", five, 5 * 48_000) | {"ratio_to_one": five / one},
        _row("the same, float32", _ours(mnist, "convnet", 4, precision="float32"), 48_000),
        _row("the same, bfloat16", _ours(mnist, "convnet", 4, precision="bfloat16"), 48_000),
        _row("VGG16, 47,500 augmented images", _ours(cifar, "vgg16", 3, **paper), 47_500),
        _row("the same, bfloat16", _ours(cifar, "vgg16", 3, precision="bfloat16", **paper), 47_500),
    ]
