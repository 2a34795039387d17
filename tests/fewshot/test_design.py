"""The span of the support."""

import torch

from dubito.fewshot._engine import factorize, to_weights


def test_a_sample_may_occur_twice():
    support = torch.randn(3, 5, 12, dtype=torch.float64)
    support[1, 3], support[2, 4] = support[1, 0], support[2, 1]
    factor = factorize(support)
    torch.testing.assert_close(factor @ factor.mT, support @ support.mT, rtol=1e-9, atol=1e-9)
    coordinates = torch.randn(3, 4, 5, dtype=torch.float64) @ factor  # in the span
    weights = to_weights(coordinates, factor, support)
    torch.testing.assert_close(weights @ support.mT, coordinates @ factor.mT)
    torch.testing.assert_close(weights.norm(dim=-1), coordinates.norm(dim=-1))
