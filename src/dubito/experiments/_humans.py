"""Data uncertainty against people: do the images that a model finds ambiguous divide people too?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["against_people", "entropy_of_counts"]


def entropy_of_counts(counts: Tensor) -> Tensor:
    """The entropy, in nats, of the shares of counts: (..., K) -> (...).

    >>> entropy_of_counts(torch.tensor([[50, 0], [25, 25]]))
    tensor([0.0000, 0.6931], dtype=torch.float64)
    """
    # in order of size: the same counts for other classes are to be a tie, not a rounding apart
    shares = counts.sort(-1).values.double() / counts.sum(-1, keepdim=True)
    entropy: Tensor = torch.special.entr(shares).sum(-1)
    return entropy


def against_people(measures: Mapping[str, Tensor], counts: Tensor) -> dict[str, Any]:
    """The rank correlation of each measure with the entropy of people's labels.

    Shapes: measures (N,), counts (N, K). Ties, of which people's entropy has many, get their mean
    rank. A measure that is the same for all samples has no rank and is left out.
    """
    from scipy.stats import spearmanr

    people = entropy_of_counts(counts).numpy()
    found: dict[str, Any] = {}
    for name, tensor in measures.items():
        values = tensor.double().numpy()
        if values.shape != people.shape:
            raise ValueError(
                f"people were asked about {len(people)} samples, but {name} is of {len(values)}"
            )
        if values.min() < values.max() and people.min() < people.max():
            found[name] = {"spearman": float(spearmanr(values, people).statistic)}
    return {**found, "samples": len(people)}
