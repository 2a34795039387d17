"""Mahalanobis distances against scikit-learn's covariances."""

import numpy as np
import pytest
import torch
from sklearn.covariance import EmpiricalCovariance, LedoitWolf

from tests.scores.features import draw, unit, values

X, Y = draw(600)
FAR, _ = draw(50, seed=1, shift=3.0)


def expected(estimator, bank, y, x):
    """Largest negative distance from a class by an estimate of the common covariance."""
    labels = np.unique(y)
    means = np.stack([bank[y == label].mean(0) for label in labels])
    rest = bank - means[np.searchsorted(labels, y)]
    precision = estimator(assume_centered=True).fit(rest).get_precision()
    differences = x[:, None] - means
    return -np.einsum("ncd,de,nce->nc", differences, precision, differences).min(1)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize(
    ("count", "estimator"), [(600, EmpiricalCovariance), (100, LedoitWolf), (8, LedoitWolf)]
)
def test_equals_scikit_learn(count, estimator, normalize):
    bank, x = X[:count].double().numpy(), FAR.double().numpy()
    scaled = (unit(bank), unit(x)) if normalize else (bank, x)
    found = values("mahalanobis", FAR, X[:count], Y[:count], normalize=normalize)
    truth = expected(estimator, scaled[0], Y[:count].numpy(), scaled[1])
    np.testing.assert_allclose(found, truth, rtol=2e-4)


def test_precise_where_classes_are_tight_and_far_apart():
    rng = np.random.default_rng(0)
    y, scales = rng.integers(3, size=900), np.logspace(-3, 0, 8)
    centers = 100 * rng.normal(size=(3, 8))
    bank = (centers[y] + rng.normal(size=(900, 8)) * scales).astype("f4")
    x = (bank[:40] + rng.normal(size=(40, 8)) * scales).astype("f4")
    found = values("mahalanobis", *map(torch.as_tensor, (x, bank, y)), normalize=False)
    truth = expected(EmpiricalCovariance, bank.astype("f8"), y, x.astype("f8"))
    # One unit in the last place of a feature is a hundredth of the least deviation.
    np.testing.assert_allclose(found, truth, rtol=0.02)
