"""The images that a method finds easiest and hardest, class by class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from dubito import data as known_data
from dubito.data import Arrays, as_floats
from dubito.report.figures.pictures import Image, as_image
from dubito.report.reproduction.names import SETS, method_label
from dubito.report.reproduction.records import Records, at

__all__ = ["Sheet", "sheets"]

QUICK = "quick:"
BLOCKS = {"easy": "easy: least data uncertainty", "hard": "hard: most data uncertainty"}


@dataclass(frozen=True)
class Sheet:
    """Images by class, easy and hard, of one run."""

    key: str
    title: str
    method: str
    seed: int
    rows: dict[str, dict[str, list[Image]]]


def sheets(
    records: Records, data: str, variants: Sequence[str], left_out: list[str]
) -> Iterator[Sheet]:
    """A sheet for the first seed of each variant; what can't be shown is said in `left_out`."""
    for variant in variants:
        for record in records.of(f"{data}-{variant}")[:1]:
            classes = at(record, ("extremes", "data_uncertainty"))
            if not classes:
                continue
            title = f"{SETS[data].label}: easy and hard images for {method_label(variant)}"
            source = str(record["config"]["data"]["source"])
            try:
                images = _images(source)
                rows = {
                    name: {words: _shown(images, picks[kind]) for kind, words in BLOCKS.items()}
                    for name, picks in classes.items()
                }
            except (OSError, ValueError, IndexError) as error:
                left_out.append(f"{title}: left out, since {error}")
                continue
            method = method_label(variant)
            yield Sheet(f"images-{data}-{variant}", title, method, record["seed"], rows)


def _images(source: str) -> Arrays:
    """The test images of a source that is at hand; nothing is downloaded for a picture."""
    # quick runs have grown copies of the first of these, in the same order
    held = "digits" if source.startswith(QUICK) else source
    try:
        return known_data.load(held, "test", download=False)
    except OSError as error:
        raise OSError(f"the images of {Path(source).name} are not at hand") from error


def _shown(images: Arrays, indices: Sequence[int]) -> list[Image]:
    """Images (height, width) or (height, width, 3) at some indices."""
    if indices and not 0 <= min(indices) <= max(indices) < len(images):
        raise ValueError(
            f"the records have the indices {list(indices)}, and {images.name} {len(images)} images"
        )
    found = as_floats(images.inputs[torch.as_tensor(indices, dtype=torch.long)])
    return [as_image(x) for x in found]
