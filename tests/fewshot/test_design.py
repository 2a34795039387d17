"""The span of the support: lengths and angles are those of the whole space."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dubito.fewshot.design import design_of

CASES = {
    "triangular": torch.rand(5, 7, 30),
    "support": torch.rand(5, 31, 30),
    "spectral": torch.rand(5, 7, 30)[:, [0, 1, 2, 3, 4, 5, 5]],  # one sample twice
}


@pytest.mark.parametrize(("kind", "features"), CASES.items(), ids=CASES)
def test_the_factor_is_an_isometry(kind: str, features: Tensor) -> None:
    design = design_of(features)
    assert design.is_support == (kind == "support")
    assert design.is_triangular == (kind == "triangular")
    x = torch.nn.functional.pad(features, (0, 1), value=1.0).double()
    torch.testing.assert_close(design.factor @ design.factor.mT, x @ x.mT, rtol=1e-9, atol=1e-9)
    # a gradient by the coordinates, as all that L-BFGS ever adds up are
    slopes = torch.randn(5, features.shape[1], 3, dtype=torch.float64)
    coordinates = design.factor.mT @ slopes
    weights = design.weights(coordinates).double()
    torch.testing.assert_close(weights, x.mT @ slopes, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(x @ weights, design.factor @ coordinates, rtol=1e-4, atol=1e-3)
    lengths = coordinates.flatten(1).norm(dim=-1)
    torch.testing.assert_close(weights.flatten(1).norm(dim=-1), lengths, rtol=1e-5, atol=1e-5)


def test_one_singular_episode_leaves_the_others_right() -> None:
    features = torch.rand(3, 4, 20)
    features[1, 3] = features[1, 0]
    design = design_of(features)
    x = torch.nn.functional.pad(features, (0, 1), value=1.0).double()
    torch.testing.assert_close(design.factor @ design.factor.mT, x @ x.mT, rtol=1e-9, atol=1e-9)
    assert design.weak is not None
    assert design.weak.tolist() == [False, True, False]
    slopes = torch.randn(3, 4, 2, dtype=torch.float64)
    weights = design.weights(design.factor.mT @ slopes).double()
    torch.testing.assert_close(weights, x.mT @ slopes, rtol=1e-4, atol=1e-4)
