"""Training: ours against a plain PyTorch loop with a DataLoader and the textbook loss.

On a CPU an MNIST epoch of the ConvNet, both loops in the same run; on a GPU epochs of the two
published set-ups, and five seeds at once. Images are random: speed does not depend on them.

    python benchmarks/training.py OLD NEW

compares two checkouts. Each trains in its own process with its own copy of this file, and
their epochs take turns. Epoch seconds are those of the steps; "all" adds the validation.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

Row = dict[str, object]
Samples = tuple[Tensor, Tensor]


class Case(NamedTuple):
    """A training."""

    what: str
    backbone: str
    shape: tuple[int, ...]
    samples: int
    epochs: int = 6
    seeds: int = 1
    options: dict[str, Any] | None = None
    augmented: bool = False
    device: str = "cuda"


MNIST = Case("ConvNet, 48,000 images 28x28", "convnet", (1, 28, 28), 48_000)
VGG = Case(
    "VGG16, 9,600 augmented images 32x32, bfloat16, compiled, five seeds",
    "vgg16", (3, 32, 32), 9_600, epochs=4, seeds=5, augmented=True,
    options={"precision": "bfloat16", "compile": True},
)  # fmt: skip
TABLE = Case("MLP, 4,000 rows of 20 features, CPU", "mlp", (20,), 4_000, epochs=30, device="cpu")
DIGITS = Case("MLP, 1,440 images 8x8, CPU", "mlp", (1, 8, 8), 1_440, epochs=30, device="cpu")
CONVNET = Case("ConvNet, 2,560 images 28x28, CPU", "convnet", (1, 28, 28), 2_560, device="cpu")
ON_GPU = (
    MNIST,
    MNIST._replace(what=f"{MNIST.what}, five seeds", seeds=5),
    VGG,
    TABLE,
)
ON_CPU = (TABLE, DIGITS, CONVNET)


def samples(case: Case) -> tuple[Samples, Samples]:
    """Return random training and validation samples."""
    generator = torch.Generator().manual_seed(0)

    def part(count: int) -> Samples:
        target = torch.randint(10, (count,), generator=generator)
        if len(case.shape) == 1:
            return torch.randn(count, *case.shape, generator=generator), target
        size = (count, *case.shape)
        return torch.randint(256, size, dtype=torch.uint8, generator=generator), target

    return part(case.samples), part(1_000)


Report = Callable[[int, float], None]


def train(case: Case, report: Report) -> None:
    """Train with this library; `report` gets each epoch and its seconds."""
    from dubito.formats import ArrayFormat, Preprocessing
    from dubito.model import Model
    from dubito.tasks import Classification
    from dubito.training import Callback, Progress, TrainConfig, Trainer

    parts = samples(case)
    task = Classification(classes=tuple("0123456789"))
    dtype: Any = str(parts[0][0].dtype).removeprefix("torch.")
    preprocessing = Preprocessing(inputs=ArrayFormat(shape=case.shape, dtype=dtype))
    seeds = range(case.seeds)
    models = [Model.build("iedl", task, preprocessing, case.backbone, seed=seed) for seed in seeds]
    config = TrainConfig(
        epochs=case.epochs, validate_every=1, patience=0,
        augment="shift" if case.augmented else None, **(case.options or {}),
    )  # fmt: skip

    class Reporting(Callback):
        def on_epoch_end(self, progress: Progress) -> None:
            if progress.record is not None and progress.seed == case.seeds - 1:
                report(progress.epoch, progress.record["seconds"])

    trainer = Trainer(config, callbacks=[Reporting()], device=case.device)
    trainer.fit_many(models, *parts, seeds=seeds)


# --- two checkouts ---


def cases() -> tuple[Case, ...]:
    """Return the cases that this machine can run."""
    return ON_GPU if torch.cuda.is_available() else ON_CPU


def work() -> None:
    """Run all cases in this process; each epoch waits for a line from the parent."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))

    def report(epoch: int, seconds: float) -> None:
        print(json.dumps([epoch, seconds]), flush=True)
        sys.stdin.readline()

    for case in cases():
        train(case, report)


class Checkout:
    """A process that trains with one checkout."""

    def __init__(self, root: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(root, "benchmarks", "training.py")), "--worker"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(self._path(root))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @staticmethod
    def _path(root: str) -> list[str]:
        inherited = os.environ.get("PYTHONPATH")
        return [str(Path(root).resolve() / "src"), *([inherited] if inherited else [])]

    def go(self) -> None:
        """Let the process begin its next epoch."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def seconds(self) -> float:
        """Wait for the end of an epoch and return the time of its steps."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a worker ended with status {self.process.wait()}")
        return float(json.loads(line)[1])


def compare(old: str, new: str) -> list[Row]:
    """Run all cases with both checkouts, their epochs in turns.

    Args:
        old: Folder of one checkout.
        new: Folder of the other.
    """
    checkouts = {"old": Checkout(old), "new": Checkout(new)}
    rows: list[Row] = []
    for case in cases():
        for checkout in checkouts.values():  # together: torch.compile takes a minute
            checkout.seconds()
        steps: dict[str, list[float]] = {name: [] for name in checkouts}
        complete: dict[str, list[float]] = {name: [] for name in checkouts}
        for _ in range(case.epochs - 1):
            for name, checkout in checkouts.items():
                start = time.perf_counter()
                checkout.go()
                steps[name].append(checkout.seconds())
                complete[name].append(time.perf_counter() - start)
        for checkout in checkouts.values():
            checkout.go()
        row: Row = {"what": case.what}
        for label, times in (("epoch", steps), ("all", complete)):
            row |= {f"{label}_old": min(times["old"]), f"{label}_new": min(times["new"])}
            ratios = [a / b for a, b in zip(times["old"], times["new"], strict=True)]
            row |= {f"{label}_ratio": min(times["old"]) / min(times["new"])}
            row |= {f"{label}_median_ratio": median(ratios)}
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


# --- a plain loop ---


def _ours(case: Case) -> float:
    """Return the seconds of the fastest epoch after the first."""
    times: list[float] = []
    train(case, lambda _, seconds: times.append(seconds))
    return min(times[1:] or times)


def _plain_network() -> nn.Module:
    """Build the ConvNet as one writes it down: each convolution with its ReLU, then its pool."""
    layers: list[nn.Module] = []
    for channels in (1, 64, 64):
        layers += [nn.Conv2d(channels, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    layers.append(nn.Flatten())
    for size in (576, 64, 64):
        layers += [nn.Linear(size, 64), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(64, 10))


def _plain(case: Case) -> float:
    """Return the seconds of the fastest of three epochs of a loop without a library."""
    from benchmarks.textbook import iedl

    (x, target), _ = samples(case)
    model = _plain_network().to(case.device)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    loader = DataLoader(TensorDataset(x / 255, target), 64, shuffle=True)

    def epoch() -> float:
        start = time.perf_counter()
        for batch, labels in loader:
            optimizer.zero_grad()
            loss = iedl(model(batch.to(case.device)), labels.to(case.device), 0.005, 0.5)
            loss.mean().backward()
            optimizer.step()
        if case.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    return min(epoch() for _ in range(3))


def run() -> list[Row]:
    """Return one row per set-up."""
    rows: list[Row] = []
    for case in cases():
        ours = _ours(case)
        images = case.samples * case.seeds
        row: Row = {"what": case.what, "seconds": ours, "samples_per_s": round(images / ours)}
        if case.backbone == "convnet" and case.seeds == 1:
            plain = _plain(case)
            row |= {"plain_s": plain, "ratio": plain / ours}
        rows.append(row)
    return rows


if __name__ == "__main__":
    if sys.argv[1:] == ["--worker"]:
        work()
    elif len(sys.argv) == 3:
        compare(sys.argv[1], sys.argv[2])
    else:
        sys.exit("usage: python benchmarks/training.py OLD NEW")
