"""Scores that read the last layer, against their formulas in NumPy."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from torch import nn

import dubito
from dubito.errors import DubitoError
from dubito.scores import SCORES
from tests.model import models
from tests.scores.features import draw, head, unit, values

X, Y = draw(600)
FAR, _ = draw(50, seed=1, shift=3.0)
BANK, FEATURES = X.double().numpy(), FAR.double().numpy()
LAYER = head()
W, B = (part.detach().double().numpy() for part in (LAYER.weight, LAYER.bias))
NAMES = [name for name in SCORES if SCORES[name].needs_head]


def energy(features):
    return logsumexp(features @ W.T + B, axis=1)


@pytest.mark.parametrize(("options", "principal"), [({}, 6), ({"dimensions": 3}, 3)])
def test_vim_equals_numpy(options, principal):
    origin = -np.linalg.pinv(W) @ B
    rest = BANK - origin
    directions = np.linalg.eigh(rest.T @ rest / len(rest))[1][:, : 12 - principal]
    largest = (BANK @ W.T + B).max(1).mean()
    scale = largest / np.linalg.norm(rest @ directions, axis=1).mean()
    distance = np.linalg.norm((FEATURES - origin) @ directions, axis=1)
    found = values("vim", FAR, X, Y, **options)
    np.testing.assert_allclose(found, energy(FEATURES) - scale * distance, rtol=1e-4, atol=1e-4)


def test_fdbd_equals_numpy():
    truth = []
    for f in FEATURES:
        z = W @ f + B
        top = z.argmax()
        gaps = [(z[top] - z[c]) / np.linalg.norm(W[top] - W[c]) for c in range(4) if c != top]
        truth.append(np.mean(gaps) / np.linalg.norm(f - BANK.mean(0)))
    np.testing.assert_allclose(values("fdbd", FAR, X, Y), truth, rtol=1e-4)


@pytest.mark.parametrize(("options", "k"), [({}, 100), ({"k": 7}, 7)])
def test_nnguide_equals_numpy(options, k):
    rows = np.linspace(0, 599, 500).round().astype(int)
    bank = unit(BANK[rows]) * energy(BANK[rows])[:, None]
    largest = np.sort(unit(FEATURES) @ bank.T, axis=1)[:, -k:]
    truth = energy(FEATURES) * largest.mean(1)
    np.testing.assert_allclose(values("nnguide", FAR, X, Y, **options), truth, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("options", "kept"), [({}, 2), ({"percentile": 50}, 6)])
def test_scale_equals_numpy(options, kept):
    ratio = FEATURES.sum(1) / np.sort(FEATURES, axis=1)[:, -kept:].sum(1)
    truth = energy(FEATURES * np.exp(ratio)[:, None])
    np.testing.assert_allclose(values("scale", FAR, X, Y, **options), truth, rtol=1e-4)


def test_scale_needs_features_that_are_not_negative():
    with pytest.raises(DubitoError, match="'scale' needs features >= 0, such as those behind a"):
        values("scale", FAR, X - 10, Y)


def test_classes_with_the_same_weights_are_finite_in_fdbd():
    layer, score = head(), SCORES.build("fdbd")
    layer.weight.data[3] = layer.weight.data[2]
    score.fit(X, layer(X), Y, layer)
    assert score(X, layer(X)).isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_score_of_an_ensemble_is_the_mean_over_its_members(name):
    layers = nn.ModuleList([head(), nn.Linear(12, 4, bias=False)])
    others, far = draw(600, seed=3)[0].clone(), draw(50, seed=4)[0]
    others[:, 0] = 0  # members span other numbers of directions
    outputs = torch.stack([layers[0](X), layers[1](others)], 1)
    score = SCORES.build(name)
    score.fit(torch.cat([X, others], 1), outputs, Y, layers)
    each = []
    for layer, bank, x in ((layers[0], X, FAR), (layers[1], others, far)):
        own = SCORES.build(name)
        own.fit(bank, layer(bank), Y, layer)
        each.append(own(x, layer(x)))
    torch.testing.assert_close(score(torch.cat([FAR, far], 1), outputs), (each[0] + each[1]) / 2)


@pytest.mark.parametrize("name", NAMES)
def test_a_head_that_is_not_linear_is_an_error(name):
    model = models.build("posterior_network").eval()
    with pytest.raises(DubitoError, match=f"score '{name}' reads a linear layer.*ends with none"):
        model.add_scores([name], models.samples()[0], models.names())


def test_such_a_score_is_refused_before_training(tmp_path):
    data = (models.samples()[0].numpy(), models.names())
    options = {"method": "posterior_network", "backbone": {"hidden": [8]}, "posthoc": ["vim"]}
    with pytest.raises(DubitoError, match="score 'vim' reads a linear layer"):
        dubito.train(data, out=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()
