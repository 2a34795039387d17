"""Features for tests of scores: classes of unequal size, with correlated features."""

import numpy as np
import torch
from torch import Tensor, nn

from dubito.scores import SCORES

CLASSES = 4


def draw(count: int, size: int = 12, *, seed: int = 0, shift: float = 0.0) -> tuple[Tensor, Tensor]:
    """Features (N, D), not negative, and classes (N,) of which number 2 has no sample."""
    rng = np.random.default_rng(seed)
    mixing = np.random.default_rng(99).normal(size=(size, size))
    means = np.random.default_rng(98).normal(size=(CLASSES, size)) * 2
    y = rng.choice([0, 1, 3], count, p=[0.6, 0.3, 0.1])
    x = np.abs(means[y] + shift + rng.normal(size=(count, size)) @ mixing)
    return torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y)


def head(size: int = 12) -> nn.Linear:
    torch.manual_seed(5)
    return nn.Linear(size, CLASSES)


def values(name: str, features: Tensor, bank: Tensor, y: Tensor, **options: object) -> np.ndarray:
    """Fit a score to a bank of features, and return that of others in float64."""
    layer, score = head(features.shape[1]), SCORES.build(name, **options)
    with torch.no_grad():
        score.fit(bank, layer(bank), y, layer)
        found = score(features, layer(features))
    assert found.dtype == torch.float32
    assert found.shape == features.shape[:1]
    sign = 1 if score.higher == "confidence" else -1
    return sign * found.double().numpy()


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)
