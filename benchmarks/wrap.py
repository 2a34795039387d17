"""Wrap a network that a plain loop trained, and show what its policy answers.

    python -m benchmarks.wrap FOLDER [EPOCHS]

trains on 80 % of FOLDER/photos with cross entropy, wraps the network with the rest, and evaluates
it on FOLDER/test, which has another share of each class, and on the inputs of other kinds in
FOLDER/strange.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import dubito
from benchmarks import Row
from benchmarks.__main__ import table
from dubito import data
from dubito.formats import ImageFormat

SIZE, BATCH, LR = 64, 64, 2e-3
#: widths of the stages
WIDTHS = (32, 64, 128, 256)


class Block(nn.Module):
    """Two convolutions beside a 1x1 convolution; the resolution is halved."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.shortcut = nn.Conv2d(inputs, outputs, 1, 2)
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.layers(x) + self.shortcut(x))


def build(classes: int) -> nn.Module:
    first = nn.Conv2d(3, WIDTHS[0], 3, 2, 1), nn.BatchNorm2d(WIDTHS[0]), nn.ReLU()
    blocks = (Block(*pair) for pair in pairwise(WIDTHS))
    last = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTHS[-1], classes)
    return nn.Sequential(*first, *blocks, *last)


def train(network: nn.Module, x: Tensor, y: Tensor, epochs: int) -> None:
    """Train as one writes it down: AdamW, one cycle, flips and shifts."""
    optimizer = torch.optim.AdamW(network.parameters(), LR, weight_decay=0.05)
    steps = epochs * -(-len(x) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LR, total_steps=steps)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(BATCH):
            batch = x[rows].flip(-1) if torch.rand(()) < 0.5 else x[rows]
            batch = batch.roll(tuple(torch.randint(-4, 5, (2,)).tolist()), (2, 3))
            loss = functional.cross_entropy(network(batch), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()


def rows(folder: Path, epochs: int) -> list[Row]:
    """Return a row for each score of foreign inputs, in percent."""
    torch.manual_seed(0)
    format = ImageFormat(size=(SIZE, SIZE), mode="RGB", transparency="drop", draft=False)
    fitted, held = data.split(data.open(folder / "photos", format=format), 0.8, seed=0)
    classes = sorted({*np.asarray(fitted.target).tolist()})
    network = build(len(classes))
    y = torch.tensor([classes.index(name) for name in fitted.target])
    train(network, fitted.load() / 255, y, epochs)
    strange = [str(place) for place in sorted((folder / "strange").iterdir())]
    found = []
    for score, settings in {"mahalanobis": {}, "energy": {"ood_score": "energy"}}.items():
        model = dubito.wrap(network, held, **settings)
        test = data.open(folder / "test", format=format)
        result = dubito.evaluate(model, test, ood=strange, report=False)
        shares = {
            "accuracy": result["metrics"]["accuracy"],
            "answered": result["policy"]["accepted"],
        }
        shares["wrong"] = result["policy"].get("error_rate", 0.0)
        shares |= {Path(k).name: v["policy"]["accepted"] for k, v in result["ood"].items()}
        found.append({"score": score} | {f"{k}_%": round(100 * v, 1) for k, v in shares.items()})
    return found


if __name__ == "__main__":
    print(table(rows(Path(sys.argv[1]), int((*sys.argv[2:], 14)[0]))))
