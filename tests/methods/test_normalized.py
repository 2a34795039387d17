"""LogitNorm and T2FNorm: one length in training, the published reading in evaluation."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize

from dubito.errors import DubitoError
from dubito.methods import METHODS
from dubito.methods.base import Network
from dubito.methods.features import linear_head
from tests.methods.digits import Backbone, digits, loss_of, task_of

X, Y, _, _ = digits()
X, Y = X[:32], Y[:32]


def network_of(method: Any) -> Any:
    torch.manual_seed(0)
    network = method.network(partial(Backbone, 64), task_of(method))
    for layer in network.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    return network


def part(network: Any) -> tuple[torch.Tensor, nn.Linear]:
    """Features and the linear layer of a network."""
    (layer,) = (m for m in network.head.modules() if isinstance(m, nn.Linear))
    return network.backbone(X), layer


def test_logit_norm_is_the_published_loss_and_reads_the_logits_themselves():
    method = METHODS.build("logit_norm")
    network = network_of(method)
    features, layer = part(network)
    z = layer(features)
    loss, _ = loss_of(method, network.train(), X, Y)
    expected = cross_entropy(z / (z.norm(dim=-1, keepdim=True) + 1e-7) / 0.04, Y, reduction="sum")
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(network.eval()(X), z)


def test_t2f_norm_is_the_published_network():
    network = network_of(METHODS.build("t2f_norm"))
    features, layer = part(network)
    torch.testing.assert_close(network.train()(X), layer(normalize(features) / 0.1))
    torch.testing.assert_close(network.eval()(X), layer(features / 0.1))


@pytest.mark.parametrize("name", ["logit_norm", "t2f_norm"])
def test_members_are_normalized_inside_of_others(name):
    inner = {"name": name, "member": "iedl"}
    outer = {"name": name, "member": {"name": "ensemble", "member": "iedl", "size": 2}}
    for method in (METHODS.build("ensemble", member=inner, size=2), METHODS.build(outer)):
        network = network_of(method)
        alone = [network_of(METHODS.build(name, member="iedl")).eval() for _ in range(2)]
        assert all(isinstance(member, Network) for member in network)
        for one, member in zip(alone, network, strict=True):
            one.load_state_dict(member.state_dict())
        outputs = torch.stack([one(X) for one in alone], 1)
        torch.testing.assert_close(network.eval()(X), outputs)
        assert method.distribution(outputs).epistemic.shape == (32,)


@pytest.mark.parametrize(("name", "scale"), [("logit_norm", 1.0), ("t2f_norm", 10.0)])
def test_scores_of_the_last_layer_read_its_logits(name, scale):
    network = network_of(METHODS.build(name)).eval()
    features, outputs = network.forward_with_features(X)
    layer = linear_head(network, features, outputs)
    torch.testing.assert_close(layer(features), outputs)
    torch.testing.assert_close(layer.weight, scale * part(network)[1].weight)


def test_logit_norm_is_for_classes():
    with pytest.raises(DubitoError, match=r"the member must be a method for classes, not DER\("):
        METHODS.build("logit_norm", member="der")
