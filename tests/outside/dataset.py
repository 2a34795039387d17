"""Photos of three colors."""

import numpy as np

from dubito.data import DATASETS, Dataset, Source, open

COLORS = {"red": (200, 80, 80), "green": (80, 200, 80), "blue": (80, 80, 200)}


def photos(count: int, seed: int) -> tuple[np.ndarray, list[str]]:
    """Return photos (N, 20, 28, 3) and their colors."""
    labels = [*COLORS] * (count // len(COLORS))
    noise = np.random.default_rng(seed).normal(0, 60, (len(labels), 20, 28, 3))
    colors = np.array([COLORS[label] for label in labels])[:, None, None]
    return (colors + noise).clip(0, 255).astype(np.uint8), labels


@DATASETS.register("color_photos")
class ColorPhotos(Dataset):
    def load(self, part: str) -> Source:
        return open(photos(300 if part == "train" else 90, len(part)))
