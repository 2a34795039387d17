"""Photos: from a folder to a model that abstains, and the speed of fine-tuning.

    python -m benchmarks.photos FOLDER [OPTION...]

trains on FOLDER/photos by the defaults of `dubito train`, with two threads and perhaps further
options, and evaluates the first model, as of 90 seconds, and the last one on FOLDER/test, which
has another share of each class, and on the inputs of other kinds in FOLDER/strange. "matched"
weights the test samples as the classes of the training.

`python -m benchmarks photos` times features and fine-tuning in turns with a bare forward pass and
a plain loop over the same images.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks import Row, seconds
from dubito import data
from dubito.augmentations import AUGMENTATIONS
from dubito.backbones import BACKBONES
from dubito.model import Model
from dubito.tasks import Classification
from dubito.training import TrainConfig, Trainer
from dubito.training.optimizer import frozen
from dubito.training.recipes import with_recipe

THREADS = 2
#: seconds after which the first model is evaluated
FIRST = 90
#: images, their classes and turns of the comparison of speeds
IMAGES, CLASSES, TURNS = 256, 6, 5


# --- the walk ---


def walk(folder: Path, options: list[str]) -> list[Row]:
    """Train, and return a row for the first model and one for the last.

    Args:
        folder: Folder with photos/, test/ and strange/.
        options: Further options of `dubito train`.
    """
    with tempfile.TemporaryDirectory() as place:
        out, first = Path(place) / "run", Path(place) / "first"
        command = ["-m", "dubito", "train", str(folder / "photos"), "--out", str(out), *options]
        threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(THREADS))}
        start = time.perf_counter()
        process = subprocess.Popen([sys.executable, *command], env={**os.environ, **threads})
        cost: dict[str, tuple[float, float]] = {}
        while process.poll() is None:
            now, cpu = time.perf_counter() - start, cpu_seconds(process.pid)
            cost["last"] = now, cpu
            saved = (out / "model.json").exists()
            if saved and "first" not in cost:
                cost["first"] = now, cpu
            if "first" in cost and not first.exists() and cpu / THREADS < FIRST:
                shutil.copytree(out, first)
            time.sleep(0.1)
        if process.returncode:
            raise SystemExit(process.returncode)
        places = {"first": first, "last": out}
        return [
            {"model": name, "wall_s": cost[name][0], "cpu_s": cost[name][1]} | scores(model, folder)
            for name, model in places.items()
            if model.exists()
        ]


def cpu_seconds(process: int) -> float:
    """Return the CPU time of a process so far.

    Args:
        process: Its number.
    """
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def scores(place: Path, folder: Path) -> Row:
    """Return what a model does on test images and on inputs of other kinds, in percent.

    Args:
        place: Folder of the model.
        folder: Folder with test/ and strange/.
    """
    model = Model.load(place)
    model.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    task: Any = model.task
    format = model.preprocessing.inputs
    test = data.open(folder / "test", format=format)
    prediction, target = model.predict(test), task.encode(test.target)
    accepted, wrong = prediction.accepted, prediction.point != target
    assert accepted is not None
    prior = torch.tensor(task.counts) / sum(task.counts)
    weight = (prior / (torch.bincount(target) / len(target)))[target]
    strange = {
        f"{kind.name}_%": data.open(kind, "all", format=format, labeled=False)
        for kind in sorted((folder / "strange").iterdir())
    }
    shares = {
        "accuracy_%": 1 - wrong.double().mean(),
        "answered_%": accepted.double().mean(),
        "wrong_%": wrong[accepted].double().mean(),
        "matched_accuracy_%": 1 - (weight * wrong).sum() / weight.sum(),
        "matched_wrong_%": (weight * wrong)[accepted].sum() / weight[accepted].sum(),
    }
    for name, inputs in strange.items():
        taken = model.predict(inputs).accepted
        assert taken is not None
        shares[name] = taken.double().mean()
    return {name: round(100 * float(share), 1) for name, share in shares.items()}


# --- speed ---


def run() -> list[Row]:
    """Return a row for frozen features, and one for fine-tuning, with two threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        return [_features(), _fine_tuning()]
    finally:
        torch.set_num_threads(threads)


def _model() -> tuple[Model, Tensor, Tensor]:
    """Return a network with random weights, images and labels."""
    generator = torch.Generator().manual_seed(0)
    entry = BACKBONES.build("efficientnet_lite0")
    inputs: Any = entry.inputs()
    images = torch.randint(256, (IMAGES, *inputs.shape), dtype=torch.uint8, generator=generator)
    task = Classification(classes=tuple(map(str, range(CLASSES))))
    model = Model.build("softmax", task, inputs, entry)
    model.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model, images, torch.arange(IMAGES) % CLASSES


def _features() -> Row:
    model, images, _ = _model()
    source = data.open((images.numpy(), ["unknown"] * IMAGES))
    network: Any = model.network

    @torch.no_grad()
    def bare() -> None:
        network.eval()
        for batch in images.split(128):
            network.backbone((batch.float() / 255 - 0.5) / 0.5)

    ours_s = bare_s = math.inf
    for _ in range(TURNS):  # in turns, so that a disturbance meets both
        bare_s = min(bare_s, seconds(bare))
        ours_s = min(ours_s, seconds(lambda: model.features(source)))
    return _row("frozen features, bare forward pass", ours_s, bare_s)


def _fine_tuning() -> Row:
    model, images, target = _model()
    config = with_recipe(TrainConfig(epochs=1, keep="last"), model, IMAGES, "cpu")
    trainer = Trainer(config)
    plain = _plain_epoch(config, images, target)
    ours_s = plain_s = math.inf
    for _ in range(TURNS):
        (record,) = trainer.fit(model, (images, target)).records
        ours_s, plain_s = min(ours_s, record["seconds"]), min(plain_s, seconds(plain))
    return _row("fine-tuning, plain loop with a DataLoader", ours_s, plain_s)


def _plain_epoch(config: TrainConfig, images: Tensor, target: Tensor) -> Any:
    """Return a function that trains an epoch as one writes it down."""
    model, _, _ = _model()
    network: Any = model.network
    augment, generator = AUGMENTATIONS.build("photo"), torch.Generator().manual_seed(0)
    loader = DataLoader(TensorDataset(images, target), config.batch_size, shuffle=True)
    with frozen(config, [network]):
        trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, config.lr, weight_decay=0.05)
    for parameter in network.parameters():
        parameter.requires_grad_(any(parameter is other for other in trained))

    def epoch() -> None:
        network.train()
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        for batch, labels in loader:
            x = augment.apply(batch, augment.draw(len(batch), generator))
            x = ((x.float() / 255 - 0.5) / 0.5).contiguous(memory_format=torch.channels_last)
            optimizer.zero_grad()
            functional.cross_entropy(network(x), labels).backward()
            nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()

    return epoch


def _row(what: str, ours_s: float, other_s: float) -> Row:
    return {
        "what": what, "ours_images_per_s": IMAGES / ours_s, "other_images_per_s": IMAGES / other_s,
        "ratio": other_s / ours_s,
    }  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python -m benchmarks.photos FOLDER [OPTION...]")
    for line in walk(Path(sys.argv[1]), sys.argv[2:]):
        print(json.dumps(line))
