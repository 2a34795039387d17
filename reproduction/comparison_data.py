"""Images of the comparison: its parts, foreign images, corruptions and a long tail."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from dubito import data
from dubito._files import make_folder
from dubito.backbones import BACKBONES
from dubito.data import Source
from dubito.formats import InputFormat

__all__ = ["CORRUPTIONS", "FOREIGN", "Images", "long_tail"]

#: images that a frozen backbone embeds at once
EMBEDDED = 256
#: sides of the patches that are shuffled, as a share of the image
PATCHES = 4
#: parameter of each severity, as for CIFAR-10-C (Hendrycks and Dietterich, ICLR 2019,
#: https://arxiv.org/abs/1903.12261)
CORRUPTIONS: dict[str, tuple[float, ...]] = {
    "gaussian_noise": (0.04, 0.06, 0.08, 0.09, 0.10),
    "shot_noise": (500, 250, 100, 75, 50),
    "gaussian_blur": (0.4, 0.6, 0.7, 0.8, 1.0),
    "contrast": (0.75, 0.5, 0.4, 0.3, 0.15),
    "brightness": (0.05, 0.1, 0.15, 0.2, 0.3),
}


def corrupted(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Corrupt images, each in one of the ways in turn.

    Args:
        images: Images (N, C, H, W), uint8.
        severity: 1 to 5.
        generator: Source of random numbers.
    """
    x, result = images.float() / 255, torch.empty_like(images)
    for place, (kind, amounts) in enumerate(CORRUPTIONS.items()):
        rows = slice(place, None, len(CORRUPTIONS))
        changed = _corrupted(x[rows], kind, amounts[severity - 1], generator)
        result[rows] = (255 * changed.clamp(0, 1)).to(torch.uint8)
    return result


def _corrupted(x: Tensor, kind: str, amount: float, generator: torch.Generator) -> Tensor:
    if kind == "gaussian_noise":
        return x + amount * torch.randn(x.shape, generator=generator)
    if kind == "shot_noise":
        return torch.poisson(x * amount, generator=generator) / amount
    if kind == "contrast":
        mean = x.mean((2, 3), keepdim=True)
        return (x - mean) * amount + mean
    if kind == "brightness":  # the value of HSV, at the same hue and saturation
        value = x.amax(1, keepdim=True)
        brighter = (value + amount).clamp(max=1)
        return torch.where(value > 0, x / value * brighter, brighter)
    radius = int(4 * amount + 0.5)
    weights = torch.exp(-0.5 * (torch.arange(-radius, radius + 1) / amount).square())
    kernel = (weights / weights.sum()).expand(x.shape[1], 1, 1, -1)
    for axes in ((radius, radius, 0, 0), (0, 0, radius, radius)):
        x = functional.conv2d(functional.pad(x, axes, "replicate"), kernel, groups=x.shape[1])
        kernel = kernel.mT
    return x


def shuffled(images: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
    """Shuffle the patches of each image."""
    side = images.shape[-1] // PATCHES
    cropped = images[..., : PATCHES * side, : PATCHES * side]
    patches = cropped.unfold(2, side, side).unfold(3, side, side).flatten(2, 3)
    order = torch.rand(len(images), PATCHES**2, generator=generator).argsort(1)
    index = order[:, None, :, None, None].expand_as(patches)
    mixed = patches.gather(2, index).unflatten(2, (PATCHES, PATCHES))
    result = images.clone()
    result[..., : PATCHES * side, : PATCHES * side] = mixed.transpose(3, 4).flatten(4).flatten(2, 3)
    return result


def blended(images: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
    """Average each image with one of another class."""
    drawn = torch.rand(len(images), len(images), generator=generator)
    other = drawn.masked_fill(labels[:, None] == labels, -1).argmax(1)
    return ((images.int() + images[other].int()) // 2).to(torch.uint8)


def inverted(images: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
    """Invert the colors."""
    return 255 - images


#: foreign images that are made of validation images (N, C, H, W), their labels (N,)
FOREIGN: dict[str, Callable[[Tensor, Tensor, torch.Generator], Tensor]] = {
    "patches": shuffled,
    "blended": blended,
    "inverted": inverted,
}
#: noise by name, (N, C, H, W) in [0, 1]
NOISE: dict[str, Callable[[Sequence[int], torch.Generator], Tensor]] = {
    "gaussian": lambda shape, generator: 0.5 + torch.randn(shape, generator=generator),
    "uniform": lambda shape, generator: torch.rand(shape, generator=generator),
}


def long_tail(labels: Tensor, ratio: float, generator: torch.Generator) -> Tensor:
    """Return rows with classes of exponentially falling sizes: the last has `ratio` of the first.

    >>> long_tail(torch.arange(200) // 100, 0.1, torch.Generator().manual_seed(0)).shape
    torch.Size([110])
    """
    counts, rows = torch.bincount(labels), []
    for number, count in enumerate(counts.tolist()):
        members = (labels == number).nonzero().flatten()
        kept = round(count * ratio ** (number / (len(counts) - 1)))
        rows.append(members[torch.randperm(count, generator=generator)[:kept]])
    return torch.cat(rows).sort().values


class Images:
    """The images of a setting, or the features that a frozen backbone has of them.

    Args:
        setting: Section `images` of a setting: source, train, test, tail, ood, severities, embed.
        cache: Folder of the features.
    """

    def __init__(self, setting: Mapping[str, Any], cache: Path) -> None:
        self.setting, self.cache = setting, cache

    def _generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(0)

    def _drawn(self, source: Source, count: int | None) -> Source:
        """Return so many samples at random."""
        rows = torch.randperm(len(source), generator=self._generator())
        return source.subset(rows[: count or len(source)].sort().values.tolist())

    @cached_property
    def _train(self) -> Source:
        setting = self.setting
        source = data.open(setting["source"], "train")
        if "tail" in setting:
            labels = torch.tensor(np.unique(np.asarray(source.target), return_inverse=True)[1])
            return source.subset(long_tail(labels, setting["tail"], self._generator()).tolist())
        return self._drawn(source, setting.get("train"))

    @cached_property
    def _test(self) -> Source:
        source = data.open(self.setting["source"], "test", format=self._train.format)
        return self._drawn(source, self.setting.get("test"))

    @cached_property
    def train(self) -> Source:
        """Training images, of which some choose and calibrate."""
        return self._source(self._train.load(), self._train.target)

    @cached_property
    def test(self) -> Source:
        """Test images."""
        return self._source(self._test.load(), self._test.target, self.train.format)

    @cached_property
    def foreign(self) -> dict[str, Source]:
        """OOD test sets, by name."""
        shape, found = (len(self._test), *self._train.format.shape), {}
        for name in self.setting["ood"]:
            if name in NOISE:
                noise = NOISE[name](shape, self._generator())
                images = (255 * noise.clamp(0, 1)).to(torch.uint8)
            else:
                source = data.open(
                    name, "test", format=self._train.format, resize=True, labeled=False
                )
                images = self._drawn(source, self.setting.get("test")).load()
            found[name] = self._source(images, None, self.train.format)
        return found

    @cached_property
    def shifted(self) -> dict[int, Source]:
        """Corrupted test images, by severity."""
        images, target, format = self._test.load(), self._test.target, self.train.format
        return {
            severity: self._source(corrupted(images, severity, self._generator()), target, format)
            for severity in self.setting.get("severities", ())
        }

    def changed(self, rows: Sequence[int], labels: Tensor) -> dict[str, Source]:
        """Return foreign images that are made of some training images, by name.

        Args:
            rows: Positions of these images in `train`.
            labels: Their labels, (N,).
        """
        images = self._train.load(rows)
        return {
            name: self._source(change(images, labels, self._generator()), None, self.train.format)
            for name, change in FOREIGN.items()
        }

    def _source(self, images: Tensor, target: Any, format: InputFormat | None = None) -> Source:
        inputs = images.numpy() if "embed" not in self.setting else self._embedded(images)
        labeled = target is not None
        content = (inputs, target) if labeled else inputs
        return data.open(content, format=format, labeled=labeled)

    def _embedded(self, images: Tensor) -> np.ndarray[Any, Any]:
        """Return the features of images, (N, D), which are computed once."""
        entry = BACKBONES.build(self.setting["embed"])
        name = json.dumps(self.setting["embed"], sort_keys=True)
        digest = hashlib.sha256(name.encode() + images.contiguous().numpy().tobytes())
        path = self.cache / f"{digest.hexdigest()[:24]}.npy"
        if not path.exists():
            make_folder(self.cache)
            wanted: Any = entry.inputs()
            network = entry.build(wanted.shape, pretrained=True).eval()
            parts = []
            with torch.no_grad():
                for batch in images.split(EMBEDDED):
                    source = data.open(
                        batch.numpy(), format=wanted.inputs, resize=True, labeled=False
                    )
                    parts.append(network(wanted.normalize(source.load())))
            with path.with_suffix(".part").open("wb") as file:
                np.save(file, torch.cat(parts).numpy())
            path.with_suffix(".part").rename(path)
        features: np.ndarray[Any, Any] = np.load(path)
        return features
