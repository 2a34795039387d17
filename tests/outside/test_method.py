"""A method from outside the package with its own distribution, head, loss and score."""

import json

import pytest
import torch
from torch import nn

from dubito.calibration import Calibration
from dubito.evaluation import evaluate, ood_detection
from dubito.methods import METHODS, Ensemble
from dubito.policy import Policy
from dubito.tasks import Classification
from tests.methods.digits import Backbone, digits, predict
from tests.outside.method import DirichletMixture, MoDEX

METHOD = MoDEX()


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    x, y, _, _ = digits()
    torch.manual_seed(0)
    task = Classification.from_target(y)
    network = METHOD.network(lambda: Backbone(64), task)
    optimizer = torch.optim.Adam(network.parameters(), lr=4e-3)
    weights = METHOD.weight_tensor(0, 1)
    for _ in range(6):
        for batch in torch.randperm(len(x)).split(16):
            total, _ = METHOD.loss(METHOD.distribution(network(x[batch])), y[batch], weights)
            optimizer.zero_grad()
            (total / len(batch)).backward()
            optimizer.step()
    return network


def test_trains_and_evaluates(trained):
    _, y, x_test, y_test = digits()
    task, dist = Classification.from_target(y), predict(METHOD, trained, x_test)
    calibration = Calibration.fit(dist[:200], y_test[:200])
    result = evaluate(task, dist[200:], y_test[200:], calibration=calibration)
    assert result["metrics"]["accuracy"] > 0.9
    assert result["calibrated"]["nll"] < result["metrics"]["nll"]
    assert result["error_detection"]["variance"]["auroc"] > 0.8
    assert "largest_tau" in result["error_detection"]


def test_ranks_ood_inputs_by_its_own_score(trained):
    _, _, x, _ = digits()
    dist, ood = predict(METHOD, trained, x), predict(METHOD, trained, torch.rand_like(x))
    detection = ood_detection(dist, ood)
    assert detection[METHOD.ood_score]["auroc"] > 0.8
    assert detection["largest_tau"]["auroc"] != detection["variance"]["auroc"]


def test_abstains_at_a_controlled_error_rate(trained):
    _, y, x, y_test = digits()
    task, dist = Classification.from_target(y), predict(METHOD, trained, x)
    errors = task.errors(task.point(dist), y_test)
    policy = Policy.control_error(dist, errors, level=0.05, score="variance")
    assert 0.3 < (policy.decide(dist) == 0).double().mean() <= 1


def test_moments_are_those_of_the_mixture():
    outputs = torch.tensor([[0.5, -0.3, 0.1, 0.2, 0.4, -0.6, 1.0, 0.0, 0.5]])
    log_alpha, logits, log_tau = outputs[0].chunk(3)
    component = torch.distributions.Categorical(logits=logits).sample((200_000,))
    alpha = log_alpha.exp() + torch.diag(log_tau.exp())[component]
    samples = torch.distributions.Dirichlet(alpha).sample()
    dist = DirichletMixture(outputs)
    torch.testing.assert_close(dist.probs[0], samples.mean(0), atol=5e-3, rtol=0)
    torch.testing.assert_close(dist.variance[0], samples.var(0).sum(), atol=5e-3, rtol=0)
    gini = (1 - samples.square().sum(-1)).mean()
    torch.testing.assert_close(dist.aleatoric[0], gini, atol=5e-3, rtol=0)


def test_is_registered_and_combines_with_others(trained):
    assert METHODS.build(json.loads(json.dumps(METHODS.to_dict(METHODS.build("modex"))))) == METHOD
    ensemble = Ensemble(member="modex", size=2)
    network = ensemble.network(lambda: Backbone(64), Classification(classes=("a", "b", "c")))
    dist = predict(ensemble, network, torch.rand(5, 64))
    torch.testing.assert_close(dist.total, 1 - dist.probs.square().sum(-1))
    loss, _ = ensemble.loss(dist, torch.tensor([0, 1, 2, 0, 1]), ensemble.weight_tensor(0, 1))
    assert loss.isfinite()
