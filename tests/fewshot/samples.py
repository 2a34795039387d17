"""Features for the few-shot tests: non-negative, with classes that overlap."""

import torch

from dubito.fewshot import Features


def draw_features(classes: int = 8, each: int = 40, size: int = 64, seed: int = 0) -> Features:
    drawn = torch.Generator().manual_seed(seed)
    centers = 0.25 * torch.randn(classes, size, generator=drawn) + 0.3
    labels = torch.arange(classes).repeat_interleave(each)
    noise = 0.4 * torch.randn(len(labels), size, generator=drawn)
    order = torch.randperm(len(labels), generator=drawn)
    names = tuple(f"class-{i}" for i in range(classes))
    return Features((centers[labels] + noise).relu()[order], labels[order], names, f"sample-{seed}")
