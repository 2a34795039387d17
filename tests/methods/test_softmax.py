"""Softmax, label smoothing and MC Dropout: against torch, and which modules draw."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dubito.methods import LabelSmoothing, MCDropout, Softmax, method
from dubito.methods.mc_dropout import dropout_on
from methods.digits import digits, predict, trained

LOGITS, TARGET = (
    torch.randn(16, 4, generator=torch.Generator().manual_seed(0)),
    torch.arange(16) % 4,
)


@pytest.mark.parametrize(
    ("name", "smoothing"), [("softmax", 0.0), ("mc_dropout", 0.0), ("label_smoothing", 0.1)]
)
def test_loss_is_that_of_torch(name: str, smoothing: float) -> None:
    expected = cross_entropy(LOGITS, TARGET, reduction="none", label_smoothing=smoothing)
    torch.testing.assert_close(method(name).terms_of(LOGITS, TARGET)["cross_entropy"], expected)


def test_probabilities_have_no_evidence() -> None:
    for one in (Softmax(), LabelSmoothing()):
        said = one.prediction(LOGITS)
        torch.testing.assert_close(said.probs, LOGITS.softmax(-1))
        assert said.available == ("max_prob", "entropy_of_mean")


def small() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(4, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 3)]
    return nn.Sequential(*layers)


def test_only_dropout_is_turned_on_and_all_is_restored() -> None:
    network = small().eval()
    with dropout_on(network):
        assert [module.training for module in network] == [False, False, False, True, False]
    assert not any(module.training for module in network.modules())
    network.train()
    with dropout_on(network):
        pass
    assert all(module.training for module in network.modules())
    network[3].eval()
    with suppress(KeyboardInterrupt), dropout_on(network):
        assert network[3].training
        raise KeyboardInterrupt
    assert [module.training for module in network] == [True, True, True, False, True]


def test_passes_are_samples_whose_mean_is_told() -> None:
    network, x = small().eval(), torch.randn(6, 4)
    said = predict(MCDropout(passes=7), network, x)
    assert said.samples.shape == (7, 6, 3)
    torch.testing.assert_close(said.probs, said.samples.mean(0))
    assert (said.mutual_information > 0).all()
    assert not torch.equal(said.samples[0], said.samples[1])
    assert torch.equal(predict(MCDropout(passes=7), network, x).samples, said.samples)


def test_many_passes_tell_the_mean_network_over_dropout() -> None:
    """By hand: all masks of two units, each kept with probability 1/2 and then doubled."""
    last = nn.Linear(2, 2, bias=False)
    network, x = nn.Sequential(nn.Dropout(0.5), last).eval(), torch.tensor([[1.0, -2.0]])
    masks = torch.cartesian_prod(torch.tensor([0.0, 2.0]), torch.tensor([0.0, 2.0]))
    with torch.no_grad():
        expected = last(masks * x).softmax(-1).mean(0)
    said = predict(MCDropout(passes=4000), network, x)
    torch.testing.assert_close(said.probs[0], expected, rtol=0, atol=0.02)


def test_disagreement_is_larger_on_noise() -> None:
    one = MCDropout()
    _, _, x, _ = digits()
    noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(5))
    inside, outside = (predict(one, trained(one, "mlp"), inputs) for inputs in (x, noise))
    assert outside.mutual_information.mean() > inside.mutual_information.mean()


def test_a_backbone_without_dropout_is_refused() -> None:
    for network in (nn.Linear(4, 3), nn.Sequential(nn.Dropout(0.0), nn.Linear(4, 3))):
        with pytest.raises(ValueError, match="MC Dropout needs dropout modules with p > 0, but"):
            MCDropout().model(network, 3)


def test_wrong_hyperparameters() -> None:
    with pytest.raises(ValueError, match=r"dropout must be in \(0, 1\), not 0\.0"):
        MCDropout(dropout=0.0)
    with pytest.raises(ValueError, match="passes must be at least 1, not 0"):
        MCDropout(passes=0)
    with pytest.raises(ValueError, match=r"smoothing must be in \[0, 1\), not 1\.0"):
        LabelSmoothing(smoothing=1.0)
