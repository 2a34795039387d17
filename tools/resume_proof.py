"""Check that trainings which are killed again and again end with the same weights, bit for bit.

    python tools/resume_proof.py --kills 20

Six kinds of training run in processes of their own: in memory, streamed from image files, averaged
over epochs, averaged over steps, fine-tuned from a head on features, and several seeds. Each is
killed (SIGKILL) at random moments of random epochs and started again; the weights and metrics at
the end must equal those of a training that nobody disturbed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import torch
from torch import Tensor, nn

from dubito import api, data
from dubito.backbones import BACKBONES, Backbone
from dubito.formats import Preprocessing
from dubito.model import Model
from dubito.tasks import Classification
from dubito.training import JSONLines, TrainConfig, Trainer

EPOCHS = 60
#: kind of training -> values of its configuration
KINDS: dict[str, dict[str, Any]] = {
    "in memory": {"optimizer": "adamw", "schedule": "cosine"},
    "streamed": {"augment": {"name": "shift", "padding": 1}},
    "averaged over epochs": {"average_epochs": 5},
    "averaged over steps": {
        "optimizer": "adamw", "schedule": "cosine", "warmup_steps": 0.1, "max_grad_norm": 1.0,
        "ema_decay": 0.9, "layer_decay": 0.5, "augment": "photo",
    },
    "fine-tuned": {"freeze_batch_norm": False},
    "several seeds": {"average_epochs": 0},
}  # fmt: skip
SEEDS = (3, 4)


def normed(shape: tuple[int, ...]) -> nn.Module:
    """Build a backbone with batch norm and dropout."""
    layers = [nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2)]
    backbone = nn.Sequential(*layers)
    backbone.out_features = 32  # type: ignore[assignment]
    return backbone


@BACKBONES.register("resume_proof")
class Pretrained(Backbone):
    """The same backbone with weights that are always the same."""

    pretrained: ClassVar[bool] = True

    def build(self, shape: tuple[int, ...], *, pretrained: bool = False) -> nn.Module:
        """Build the network."""
        if pretrained:
            torch.manual_seed(0)
        return normed(shape)


def images() -> tuple[Tensor, Tensor]:
    """Return noisy images of three classes."""
    generator = torch.Generator().manual_seed(0)
    target = torch.arange(240) % 3
    noise = torch.randint(200, (240, 1, 8, 8), generator=generator)
    noise[torch.arange(240), :, 2 * target] += 50
    return noise.to(torch.uint8), target


def write_images(folder: Path) -> Path:
    """Write the images as files, a folder per class."""
    from PIL import Image

    for index, (pixels, label) in enumerate(zip(*images(), strict=True)):
        path = folder / str(int(label)) / f"{index:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[0].numpy()).save(path)
    return folder


def train(kind: str, files: Path, out: Path, result: Path, epochs: int = EPOCHS) -> None:
    """Train in the folder `out`, and write a hash of weights and metrics to `result`."""
    torch.set_num_threads(1)
    if kind == "fine-tuned":
        log = JSONLines(out / "log.jsonl")
        settings = {"epochs": epochs, "backbone": "resume_proof", "report": False, **KINDS[kind]}
        model = api.train(files, out=out / "run", callbacks=[log], **settings)
        metrics = model.record and model.record.metrics
        result.write_text(_hash([model], metrics))
        return
    source = data.open(files, stream=kind == "streamed")
    train, validation = data.split(source, 0.75, seed=0, stratify=True)
    task = Classification.from_target(train.target)
    samples: Any = [
        (part if kind == "streamed" else part.load(), task.encode(part.target))
        for part in (train, validation)
    ]
    seeds = SEEDS if kind == "several seeds" else SEEDS[:1]
    preprocessing = Preprocessing(inputs=source.format)
    models = [Model.build("iedl", task, preprocessing, normed, seed=seed) for seed in seeds]
    values = {"epochs": epochs, "batch_size": 32, "patience": 0, **KINDS[kind]}
    trainer = Trainer(TrainConfig(**values), callbacks=[JSONLines(out / "log.jsonl")])
    histories = trainer.fit_many(
        models, *samples, seeds=seeds, out=[out / str(seed) for seed in seeds]
    )
    metrics = [[(r["loss"], r.get("validation")) for r in h.records] for h in histories]
    result.write_text(_hash(models, metrics))


def _hash(models: list[Model], metrics: Any) -> str:
    digest = hashlib.sha256(json.dumps(metrics).encode())
    for model in models:
        for name, value in model.network.state_dict().items():
            digest.update(name.encode() + value.numpy().tobytes())
    return digest.hexdigest()


@cache
def context() -> ForkServerContext:
    """Return a context whose processes start with the imports done."""
    ctx = multiprocessing.get_context("forkserver")
    ctx.set_forkserver_preload([__name__, "dubito.formats.images", "PIL.Image", "torch._dynamo"])
    with patch.dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)):
        forkserver.ensure_running()
    return ctx


def ended_epochs(out: Path) -> int:
    """Return how many epochs a training has logged."""
    log = out / "log.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def prove(kind: str, kills: int, folder: Path, chance: random.Random, epochs: int = EPOCHS) -> int:
    """Kill a training and compare its end with that of an undisturbed one.

    Args:
        kind: One of `KINDS`.
        kills: How often to kill it.
        folder: Empty folder to work in.
        chance: Source of the moments.
        epochs: Epochs of the training.

    Returns:
        How many kills hit a running training.
    """
    files = write_images(folder / "images")

    def start(out: str) -> Any:
        arguments = (kind, files, folder / out, folder / f"{out}.txt", epochs)
        process = context().Process(target=train, args=arguments)
        process.start()
        return process

    undisturbed = start("undisturbed")
    begin = time.perf_counter()
    undisturbed.join()
    per_epoch = (time.perf_counter() - begin) / epochs
    total = epochs * (len(SEEDS) if kind == "several seeds" else 1)
    hits = 0
    for reached in sorted(chance.sample(range(total - 1), kills)):
        process = start("killed")
        while process.is_alive() and ended_epochs(folder / "killed") < reached:
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 2 * per_epoch))
        process.kill()
        process.join()
        hits += process.exitcode != 0
    last = start("killed")
    last.join()
    expected, actual = ((folder / f"{out}.txt").read_text() for out in ("undisturbed", "killed"))
    if actual != expected:
        raise AssertionError(f"{kind}: the weights differ after {hits} kills")
    return hits


def main() -> None:
    """Prove all kinds and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20, help="kills of each kind of training")
    parser.add_argument("--seed", type=int, default=time.time_ns(), help="seed of the moments")
    options = parser.parse_args()
    print(f"seed {options.seed}")
    chance = random.Random(options.seed)
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            hits = prove(kind, options.kills, Path(folder), chance)
        print(f"{kind}: killed {hits} times, equal weights and metrics", flush=True)


if __name__ == "__main__":
    main()
