"""Distance from the k-th nearest neighbor against scikit-learn."""

import numpy as np
import pytest
from sklearn.neighbors import NearestNeighbors

from tests.scores.features import draw, unit, values

X, Y = draw(600)
FAR, _ = draw(50, seed=1, shift=3.0)


@pytest.mark.parametrize(("options", "k"), [({}, 30), ({"k": 10}, 10), ({"k": 1}, 1)])
def test_equals_scikit_learn(options, k):
    bank, x = unit(X.double().numpy()), unit(FAR.double().numpy())
    distances, _ = NearestNeighbors(n_neighbors=k).fit(bank).kneighbors(x)
    found = values("knn", FAR, X, Y, **options)
    np.testing.assert_allclose(found, -distances[:, -1], rtol=1e-4, atol=1e-6)


def test_close_neighbors_keep_their_digits():
    bank = X + 1e-4 * draw(600, seed=2)[0]
    index = NearestNeighbors(n_neighbors=1).fit(unit(bank.double().numpy()))
    distances, _ = index.kneighbors(unit(X.double().numpy()))
    np.testing.assert_allclose(values("knn", X, bank, Y, k=1), -distances[:, -1], rtol=0.02)
