"""Memory of a prediction: the peak over that of the loaded model.

Images of 224 x 224 in files are predicted with a ResNet-18, in a process of its own.

    python -m benchmarks.memory --count 2000
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from benchmarks import Row
from dubito.formats import ImageFormat, Preprocessing
from dubito.methods import Softmax
from dubito.model import Model
from dubito.tasks import Classification

SIDE, FILES = 224, 50
CLASSES = ("cat", "dog", "eel")


class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        changes = stride > 1 or inputs != outputs
        shortcut = [nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)]
        self.shortcut = nn.Sequential(*shortcut) if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.layers(x) + self.shortcut(x)
        return total.relu_()


def resnet18() -> nn.Module:
    """Build a ResNet-18 for large images (He et al., CVPR 2016)."""
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    widths = [64, 64, 128, 256, 512]
    blocks = [
        Block(widths[i] if first else widths[i + 1], widths[i + 1], 2 if i and first else 1)
        for i in range(4)
        for first in (True, False)
    ]
    pool = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    layers = [*stem, nn.MaxPool2d(3, 2, 1), *blocks, *pool, nn.Linear(512, len(CLASSES))]
    return nn.Sequential(*layers)


def peak(count: int) -> float:
    """Predict images, and return the peak of memory over that of the loaded model, in GB.

    Args:
        count: Number of images.
    """
    preprocessing = Preprocessing(inputs=ImageFormat(size=(SIDE, SIDE), mode="RGB"))
    model = Model(resnet18(), Softmax(), Classification(classes=CLASSES), preprocessing).eval()
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}.jpg" for number in range(FILES)]
        for number, path in enumerate(paths):
            pixels = np.random.default_rng(number).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
            Image.fromarray(pixels).save(path)
        model.predict(paths[:1])  # loads what the first call loads
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
        before = _status("VmRSS")
        model.predict((paths * (count // FILES + 1))[:count])
    return (_status("VmHWM") - before) / 1e9


def _status(name: str) -> int:
    """Return a size from /proc/self/status in bytes."""
    text = Path("/proc/self/status").read_text("utf-8")
    return 1024 * int(text.partition(f"{name}:")[2].split()[0])


def run() -> list[Row]:
    """Rows of the table, from a fresh process."""
    command = [sys.executable, "-m", "benchmarks.memory"]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=True)
    return [{"prediction": "2,000 images of 224 x 224, ResNet-18", "peak GB": float(done.stdout)}]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory")
    parser.add_argument("--count", type=int, default=2000, help="number of images")
    torch.manual_seed(0)
    print(f"{peak(parser.parse_args().count):.3f}")
