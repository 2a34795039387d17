"""Deep ensembles: of every method, with members that differ from the start."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from dubito.backbones import build
from dubito.methods import METHODS, Ensemble, method
from dubito.methods.ensemble import redrawn
from methods.digits import CLASSES, digits, predict, total, untrained


@pytest.mark.parametrize("member", METHODS)
def test_any_method_can_be_the_member(member: str) -> None:
    one = Ensemble(member=member, size=2, options={"size": 2} if member == "ensemble" else {})
    model = untrained(one)
    x, y, _, _ = digits()
    terms = one.terms(model, x[:6], y[:6])
    assert all(term.shape == (6,) for term in terms.values())
    total(one, terms).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    said = predict(one, model, x[:6])
    assert said.samples.shape == (2, 6, CLASSES)
    assert said.available == (
        "max_prob",
        "mutual_information",
        "expected_entropy",
        "entropy_of_mean",
    )


def test_terms_and_predictions_are_the_means_of_the_members() -> None:
    one = Ensemble(member="edl", size=3)
    model = untrained(one).eval()
    x, y, _, _ = digits()
    x, y = x[:6], y[:6]
    members = list(model.children())
    each = [one.method.terms(member, x, y) for member in members]
    for name, term in one.terms(model, x, y).items():
        torch.testing.assert_close(term, torch.stack([terms[name] for terms in each]).mean(0))
    probs = torch.stack([predict(one.method, member, x).probs for member in members])
    torch.testing.assert_close(predict(one, model, x).probs, probs.mean(0))


def test_members_differ_in_every_layer() -> None:
    first, second = untrained(Ensemble(size=2), "convnet").children()
    for (name, one), other in zip(first.named_parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other) == (name.endswith("bias") and "head" not in name), name


def test_the_members_hyperparameters() -> None:
    one = Ensemble(member="iedl", options={"fisher_weight": 0.7})
    assert one.weights(0, 1)["fisher_penalty"] == 0.7
    assert one.outputs(10) == 10
    assert Ensemble(member="posterior_network").outputs(10) == 6
    assert Ensemble(member="mc_dropout", options={"dropout": 0.4}).dropout == 0.4
    assert one.hyperparameters() == {"member": "iedl", "size": 5, "options": {"fisher_weight": 0.7}}
    bank = Ensemble(member="kl_pn", options={"beta": 50.0, "ood": torch.zeros(1, 4)})
    assert bank.hyperparameters()["options"] == {"beta": 50.0}


@pytest.mark.parametrize(
    ("hyperparameters", "message"),
    [
        ({"member": "svm"}, "unknown method 'svm'; known: 'iedl'"),
        ({"options": {"beta": 1}}, "unknown hyperparameter of the method 'iedl': 'beta'; known"),
        ({"size": 0}, "size must be at least 1, not 0"),
    ],
)
def test_wrong_hyperparameters(hyperparameters: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        method("ensemble", **hyperparameters)


@pytest.mark.parametrize(("name", "shape"), [("vgg16", (3, 32, 32)), ("wide_resnet", (3, 8, 8))])
def test_a_redrawn_backbone_keeps_its_own_way_to_start(name: str, shape: tuple[int, ...]) -> None:
    options = {"depth": 10, "width": 4} if name == "wide_resnet" else {}
    network = build(name, shape, 2, **options)
    copy = redrawn(network)
    for (key, old), new in zip(network.named_parameters(), copy.parameters(), strict=True):
        if old.ndim == 4:
            assert not torch.equal(old, new), key
            torch.testing.assert_close(new.std(), old.std(), rtol=0.15, atol=0)


def test_a_trained_network_is_redrawn_with_its_statistics() -> None:
    network = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    network(torch.randn(8, 4) + 5)
    copy = redrawn(network)
    assert torch.equal(copy[1].running_mean, torch.zeros(3))  # type: ignore[index]
    assert not torch.equal(network[1].running_mean, torch.zeros(3))


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def test_what_cannot_be_redrawn_is_named() -> None:
    with pytest.raises(TypeError, match=r"Own \(0\) has parameters and no reset_parameters"):
        redrawn(nn.Sequential(Own()))
    with pytest.raises(TypeError, match=r"Own \(the backbone itself\)"):
        Ensemble(size=2).model(Own(), 3)
    with pytest.raises(TypeError, match="has parameters and no reset_parameters"):
        redrawn(spectral_norm(nn.Linear(4, 3)))
