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


def squared(x, mean, precision):
    return np.einsum("nd,de,ne->n", x - mean, precision, x - mean)


@pytest.mark.parametrize("normalize", [True, False])
def test_relative_distance_equals_scikit_learn(normalize):
    bank, x = X.double().numpy(), FAR.double().numpy()
    bank, x = (unit(bank), unit(x)) if normalize else (bank, x)
    of_all = EmpiricalCovariance().fit(bank)
    truth = expected(EmpiricalCovariance, bank, Y.numpy(), x)
    truth += squared(x, of_all.location_, of_all.get_precision())
    found = values("rmds", FAR, X, Y, normalize=normalize)
    np.testing.assert_allclose(found, truth, rtol=1e-3, atol=1e-3)


def test_relative_distance_of_few_samples_shrinks_within_the_classes():
    bank, y, x = X[:100].double().numpy(), Y[:100].numpy(), FAR.double().numpy()
    labels, counts = np.unique(y, return_counts=True)
    means = np.stack([bank[y == label].mean(0) for label in labels])
    rest = bank - means[np.searchsorted(labels, y)]
    within = LedoitWolf(assume_centered=True).fit(rest).covariance_
    between = np.cov(means.T, fweights=counts, bias=True)
    truth = expected(LedoitWolf, bank, y, x)
    truth += squared(x, bank.mean(0), np.linalg.inv(within + between))
    found = values("rmds", FAR, X[:100], Y[:100], normalize=False)
    np.testing.assert_allclose(found, truth, rtol=1e-3, atol=1e-3)


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
