"""DAEDL: the published loss, and the density of the features by SciPy."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.covariance import ledoit_wolf
from torch import nn
from torch.distributions import Dirichlet, kl_divergence
from torch.nn.functional import one_hot
from torch.nn.utils.parametrize import is_parametrized

import dubito
from dubito.errors import DubitoError
from dubito.methods import METHODS
from dubito.methods.daedl import RIDGE, DensityScaled
from dubito.model import Model
from dubito.scores import SCORES
from dubito.targets import Target
from tests.methods.digits import Backbone, digits, task_of
from tests.model import models

METHOD = METHODS.build("daedl")
X, Y, TEST, _ = digits()


def finished(method: Any = METHOD) -> Any:
    torch.manual_seed(0)
    network = method.network(partial(Backbone, 64), task_of(method)).eval()
    method.finish(network, list(zip(X.split(100), Y.split(100), strict=True)))
    return network


@pytest.mark.parametrize("soft", [False, True])
def test_loss_and_gradient_are_the_published_ones(soft):
    generator = torch.Generator().manual_seed(1)
    z = 3 * torch.randn(32, 5, dtype=torch.float64, generator=generator)
    y = one_hot(torch.arange(32) % 5, 5).double()
    y = 0.9 * y + 0.02 if soft else y
    z.requires_grad_()
    alpha = 1e-6 + z.exp()
    total = alpha.sum(-1, keepdim=True)
    error = (y - alpha / total).square() + alpha * (total - alpha) / (total**2 * (total + 1))
    others = alpha * (1 - y) + y
    expected = error.sum() + 0.05 * kl_divergence(Dirichlet(others), Dirichlet(one(others))).sum()
    head = DensityScaled(5, 5).double()
    nn.init.eye_(head.linear.weight)
    nn.init.zeros_(head.linear.bias)
    dist = METHOD.distribution(head(z))
    loss, _ = METHOD.loss(dist, y if soft else y.argmax(-1), METHOD.weight_tensor(0, 1))
    torch.testing.assert_close(loss, expected)
    slopes = (torch.autograd.grad(value, z)[0] for value in (loss, expected))
    torch.testing.assert_close(*slopes)


def one(alpha: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(alpha)


def test_outputs_are_scaled_by_the_density_of_a_gaussian_discriminant():
    network = finished()
    with torch.no_grad():
        features, test = (network.backbone(x).double().numpy() for x in (X, TEST))
        z = network.head.linear(network.backbone(TEST)).numpy()
    normals = []
    for label in range(10):
        rows = features[label == Y]
        covariance = ledoit_wolf(rows)[0]  # 140 samples of 32 features are few
        covariance += RIDGE * np.trace(covariance) / 32 * np.eye(32)
        normals.append(multivariate_normal(rows.mean(0), covariance))
    train, found = (
        logsumexp([normal.logpdf(rows) for normal in normals], axis=0) for rows in (features, test)
    )
    share = np.clip((found - train.min()) / (train.max() - train.min()), 0, 1)
    np.testing.assert_allclose(network(TEST).detach(), z * share[:, None], rtol=1e-3, atol=1e-4)
    far = METHOD.distribution(network(50 + TEST))
    assert torch.equal(far.probs, torch.full_like(far.probs, 0.1))


def test_missing_targets_do_not_count():
    network, other = finished(), METHOD.network(partial(Backbone, 64), task_of(METHOD)).eval()
    other.load_state_dict(network.state_dict())
    wrong = Target(torch.cat([Y, Y.flip(0)]), torch.cat([torch.ones(1400), torch.zeros(1400)]))
    METHOD.finish(other, [(torch.cat([X, X]), wrong)])
    torch.testing.assert_close(other(TEST), network(TEST), rtol=1e-3, atol=1e-4)


def test_constant_features_are_an_error():
    network = finished()
    with pytest.raises(DubitoError, match="the features of a class do not vary, or are not finite"):
        METHOD.finish(network, [(torch.zeros(20, 64), Y[:20])])


@pytest.mark.parametrize("name", ["ensemble", "mc_dropout", "logit_norm", "t2f_norm"])
def test_is_finished_inside_of_others(name):
    options = {"ensemble": {"size": 2}, "mc_dropout": {"samples": 2}}.get(name, {})
    method = METHODS.build(name, member="daedl", **options)
    network = finished(method)
    heads = [part for part in network.modules() if isinstance(part, DensityScaled)]
    assert all(len(head.bounds) == 2 for head in heads)
    near, far = (method.distribution(network(x)).probs for x in (TEST, 50 + TEST))
    torch.testing.assert_close(far, torch.full_like(far, 0.1))
    assert near.amax(-1).mean() > 0.102


def test_backbone_is_normalized_unless_it_is_pretrained(tmp_path):
    model = models.build("daedl")
    layers = [m for m in model.network.backbone.modules() if isinstance(m, nn.Linear)]
    assert layers
    assert all(is_parametrized(layer, "weight") for layer in layers)
    plain = models.build({"name": "daedl", "spectral_norm": False})
    assert not any(is_parametrized(layer) for layer in plain.network.modules())


def test_density_is_saved_exported_and_read_by_scores(tmp_path):
    model = models.train(models.build("daedl"))
    x, _ = models.samples()
    labels = model.task.encode(models.names())
    model.method.finish(model.network, [(model.preprocessing.normalize(x), labels)])
    model.check_scores([SCORES.build("fdbd")])
    model.add_scores(["fdbd"], x, models.names())
    model.save(tmp_path)
    again = Model.load(tmp_path)
    assert torch.equal(again(x).probs, model(x).probs)
    if pytest.importorskip("onnxruntime"):
        assert dubito.export(again, tmp_path / "model.onnx", scores=["fdbd"]).difference < 1e-4
