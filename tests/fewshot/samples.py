"""Features for the few-shot tests: non-negative, with classes that overlap."""

from __future__ import annotations

import torch

from dubito.data import Arrays
from dubito.fewshot import Pool


def arrays(classes: int = 8, each: int = 40, size: int = 64, seed: int = 0) -> Arrays:
    drawn = torch.Generator().manual_seed(seed)
    centres = 0.25 * torch.randn(classes, size, generator=drawn) + 0.3
    labels = torch.arange(classes).repeat_interleave(each)
    noise = 0.4 * torch.randn(len(labels), size, generator=drawn)
    # mixed up, as samples of a file may be
    order = torch.randperm(len(labels), generator=drawn)
    names = tuple(f"class-{i}" for i in range(classes))
    return Arrays((centres[labels] + noise).relu()[order], labels[order], names, f"made-{seed}")


def pool(classes: int = 8, each: int = 40, size: int = 64, seed: int = 0) -> Pool:
    return Pool.of(arrays(classes, each, size, seed))
