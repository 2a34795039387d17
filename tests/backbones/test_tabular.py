from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.stats import norm

from dubito.backbones import BACKBONES
from dubito.backbones.default import default_for
from dubito.backbones.tabular import PiecewiseLinear
from dubito.errors import DubitoError


def test_shares_interpolate_between_quantiles_of_a_normal_distribution():
    edges = norm.ppf(np.arange(1, 8) / 8)
    x = np.linspace(-4, 4, 101)
    shares = PiecewiseLinear(8).shares(torch.tensor(x)).numpy()
    for i, (low, high) in enumerate(pairwise(edges), 1):
        np.testing.assert_allclose(shares[:, i], np.interp(x, [low, high], [0, 1]), atol=1e-6)


@pytest.mark.parametrize("bins", [2, 3, 16])
def test_encoded_standard_normals_are_centered_and_of_one_scale(bins):
    x = torch.randn(200_000, 1, generator=torch.Generator().manual_seed(0))
    encoded = PiecewiseLinear(bins)(x)
    torch.testing.assert_close(encoded[:, :1], x)
    torch.testing.assert_close(encoded[:, 1:].mean(0), torch.zeros(bins), atol=1e-2, rtol=0)
    torch.testing.assert_close(encoded[:, 1:].std(0), torch.full((bins,), 0.5), atol=1e-2, rtol=0)


def test_numbers_beyond_the_edges_differ():
    encoded = PiecewiseLinear(16).shares(torch.tensor([-7.0, -6.0, 6.0, 7.0]))
    assert encoded[0, 0] < encoded[1, 0] < 0
    assert 1 < encoded[2, -1] < encoded[3, -1]
    assert encoded[:, 1:-1].unique().tolist() == [0, 1]


def test_features_have_the_size_of_the_last_layer():
    network = BACKBONES.build({"name": "tabular", "hidden": (20, 10), "bins": 4}).build((3,))
    assert network(torch.randn(5, 3)).shape == (5, 10)
    assert network.out_features == 10


def test_shapes_other_than_numbers_raise():
    with pytest.raises(DubitoError, match="needs numbers"):
        BACKBONES.build("tabular").build((3, 8, 8))


def test_auto_is_tabular_for_few_numbers_in_regression():
    assert default_for((13,), "table", "regression") == "tabular"
    assert default_for((13,), "table") == "mlp"
    assert default_for((784,), "array", "regression") == "mlp"
