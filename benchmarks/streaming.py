"""Images per second from disk: a source, and a plain DataLoader with the same decoding.

    python benchmarks/streaming.py --images 600 --repeats 3

The images are drawn, 500 x 375 pixels, and stored as JPEG. Both sides decode with `ImageFormat`;
the plain side has a dataset of one image at a time, as most training loops do. Runs of the sides
alternate; the median counts.
"""

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from dubito import data
from dubito.formats import ImageFormat, Resize

BATCH = 32
SIZES, WORKERS = (96, 224), (0, 2)


def draw(folder: Path, count: int) -> list[Path]:
    """Write smooth color images with some noise."""
    drawn, files = np.random.default_rng(0), []
    for number in range(count):
        coarse = Image.fromarray(drawn.integers(256, size=(12, 16, 3), dtype=np.uint8))
        image = np.asarray(coarse.resize((500, 375), Image.Resampling.BICUBIC)).astype(int)
        noisy = (image + drawn.normal(0, 8, image.shape)).clip(0, 255).astype(np.uint8)
        files.append(folder / f"{number}.jpg")
        Image.fromarray(noisy).save(files[-1], quality=90)
    return files


class Plain(Dataset[torch.Tensor]):
    """One image at a time."""

    def __init__(self, files: list[Path], format: ImageFormat) -> None:
        self.files, self.format = files, format

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.format.encode([self.files[index]]).inputs[0]


def rate(read: Callable[[], Iterable[Any]], count: int) -> float:
    """Return images per second."""
    start = time.perf_counter()
    assert sum(len(batch) for batch in read()) == count
    return count / (time.perf_counter() - start)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=600, help="number of images")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each side")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", message=".*'pin_memory'.*")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        files = draw(Path(folder), args.images)
        print(f"{'size':>5} {'workers':>8} {'plain':>8} {'source':>8} {'batches()':>10}")
        for size in SIZES:
            format = ImageFormat(size=(size, size), mode="RGB", resize=Resize(fit="crop"))
            start = time.perf_counter()
            source = data.open(files, format=format, labeled=False, stream=True)
            opened = time.perf_counter() - start
            for workers in WORKERS:
                options: Any = {"batch_size": BATCH, "num_workers": workers}
                sides: dict[str, Callable[[], Iterable[Any]]] = {
                    "plain": lambda o=options, f=format: DataLoader(Plain(files, f), **o),
                    "source": lambda o=options, s=source: DataLoader(s, **o),
                    "batches": lambda s=source: (batch.inputs for batch in s.batches(BATCH)),
                }
                runs = [
                    {name: rate(read, len(files)) for name, read in sides.items()}
                    for _ in range(args.repeats)
                ]
                rates = {name: median(run[name] for run in runs) for name in sides}
                print(
                    f"{size:5} {workers:8} {rates['plain']:8.0f} {rates['source']:8.0f} "
                    f"{rates['batches']:10.0f}"
                )
            print(f"      opened, every file decoded once: {len(files) / opened:.0f} per second")


if __name__ == "__main__":
    main()
