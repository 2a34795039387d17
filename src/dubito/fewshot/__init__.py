"""Few-shot classification on frozen features.

A linear classifier is fitted to the support samples of each of thousands of episodes, with any
method of classification, and evaluated on queries and out-of-distribution queries.

>>> import torch
>>> values = 3 * torch.eye(8).repeat(30, 1) + torch.rand(240, 8)
>>> data = Features(values, torch.arange(240) % 8, tuple("abcdefgh"))
>>> result = fewshot(data, method="iedl", ways=4, episodes=100)
>>> result["metrics"]["accuracy"]["mean"] > 0.9, result["metrics"]["ood/alpha0/aupr"]["episodes"]
(True, 100)
"""

from dubito.fewshot._commands import features, fewshot
from dubito.fewshot._features import Features, read_features, write_features

__all__ = ["Features", "features", "fewshot", "read_features", "write_features"]
