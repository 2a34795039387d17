"""A method from outside the package with its own distribution, head, loss and score."""

import json

import torch

from dubito.methods import METHODS, Ensemble
from dubito.tasks import Classification
from tests.methods.digits import Backbone, predict
from tests.outside.method import DirichletMixture, MyMoDEX

METHOD = MyMoDEX()


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


def test_is_registered_and_combines_with_others():
    assert (
        METHODS.build(json.loads(json.dumps(METHODS.to_dict(METHODS.build("my_modex"))))) == METHOD
    )
    ensemble = Ensemble(member="my_modex", size=2)
    network = ensemble.network(lambda: Backbone(64), Classification(classes=("a", "b", "c")))
    dist = predict(ensemble, network, torch.rand(5, 64))
    torch.testing.assert_close(dist.total, 1 - dist.probs.square().sum(-1))
    loss, _ = ensemble.loss(dist, torch.tensor([0, 1, 2, 0, 1]), ensemble.weight_tensor(0, 1))
    assert loss.isfinite()
