"""What every score may rely on: options, state, features, the head."""

import pytest
import torch
from torch import nn

from dubito.errors import DubitoError
from dubito.model import Model
from dubito.scores import SCORES
from tests.model import models
from tests.scores import kinds

X, _ = models.samples()
NAMES = models.names()


def test_options_are_fixed_and_state_is_not():
    score = SCORES.build("test_nearest", k=3)
    assert SCORES.to_dict(score) == {"name": "test_nearest", "k": 3}
    with pytest.raises(AttributeError, match=r"k is an option of Nearest\(k=3\)"):
        score.k = 4
    score.fit(torch.eye(4), torch.zeros(4, 2), torch.zeros(4), None)
    assert score.bank.shape == (4, 4)
    assert score.to(torch.float64).bank.dtype == torch.float64


def test_models_fit_copies_of_a_score():
    score = SCORES.build("test_nearest")
    model = models.build().add_scores([score], X, NAMES)
    assert not score.state_dict()
    assert len(model.scores["test_nearest"].bank) == len(X)


@pytest.mark.parametrize("method", ["iedl", "ensemble", "mc_dropout", "posterior_network"])
@pytest.mark.parametrize("name", ["test_nearest", "test_density"])
def test_saved_scores_are_loaded(name, method, tmp_path):
    model = models.build(method).eval().add_scores([name], X, NAMES)
    loaded = Model.load(model.save(tmp_path))
    for key, value in model.scores[name].state_dict().items():
        assert loaded.scores[name].state_dict()[key].dtype == value.dtype
    expected = model.predict(X[:9] + 1).score(name)
    assert expected.isfinite().all()
    assert torch.equal(loaded.predict(X[:9] + 1).score(name), expected)


def test_several_scores_are_fitted_together():
    model = models.build().add_scores([{"name": "test_nearest", "k": 2}, "energy"], X, NAMES)
    assert list(model.scores) == ["test_nearest", "energy"]
    nearest = model.predict(X).score("test_nearest")
    bank = torch.nn.functional.normalize(model.features(X))
    expected = -torch.cdist(bank, bank).sort().values[:, 1]
    torch.testing.assert_close(nearest, expected, atol=1e-3, rtol=0)


# --- the head ---


class Recorded(kinds.Nearest):
    def fit(self, features, outputs, target, head):
        self.seen = features, outputs, head
        super().fit(features, outputs, target, head)


SCORES.register("test_recorded")(Recorded)


def head_of(model):
    return model.add_scores(["test_recorded"], X, NAMES).scores["test_recorded"].seen


def test_head_of_a_plain_network():
    model = models.build()
    features, outputs, head = head_of(model)
    assert head is model.network.head
    torch.testing.assert_close(head(features), outputs)


def test_heads_of_an_ensemble():
    model = models.build("ensemble")
    features, outputs, heads = head_of(model)
    assert [*heads] == [member.head for member in model.network]
    for number, head in enumerate(heads):
        torch.testing.assert_close(head(features[:, 8 * number :][:, :8]), outputs[:, number])


def test_head_of_mc_dropout_maps_the_means():
    features, outputs, head = head_of(models.build("mc_dropout").eval())
    assert outputs.shape[1] == 10
    torch.testing.assert_close(head(features), outputs.mean(1))


def test_spectrally_normalized_head_has_its_effective_weights():
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 3))
            self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())

        def forward(self, x):
            return self.head(self.body(x))

    part = models.build()
    model = Model(Wrapped(), part.method, part.task, part.preprocessing).eval()
    features, outputs, head = head_of(model)
    assert head is model.network.head
    assert torch.linalg.matrix_norm(head.weight, 2).item() == pytest.approx(1, abs=0.01)
    torch.testing.assert_close(features @ head.weight.mT + head.bias, outputs)


def test_head_that_is_not_linear_is_none():
    assert head_of(models.build("posterior_network").eval())[2] is None


def test_residual_is_zero_where_the_head_reads_all():
    model = models.build().add_scores(["test_residual"], X, NAMES)
    head = model.network.head
    inside = model.scores["test_residual"].origin + torch.randn(5, 3) @ head.weight
    score = model.scores["test_residual"](inside, head(inside))
    torch.testing.assert_close(score, torch.zeros(5), atol=1e-5, rtol=0)
    assert (model.predict(X).score("test_residual") > 1e-3).any()


# --- errors ---


@pytest.mark.parametrize(
    ("add", "message"),
    [
        (lambda model: model.add_scores(["magic"]), "unknown score 'magic'; known: .*'energy'"),
        (
            lambda model: model.add_scores(["test_nearest"]),
            "test_nearest are fitted to training data",
        ),
        (lambda model: model.add_scores(["test_nearest"], X), "these inputs have no targets"),
    ],
)
def test_errors(add, message):
    with pytest.raises(DubitoError, match=message):
        add(models.build())


def test_score_of_a_network_without_features():
    part = models.build()
    network = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3), nn.Unflatten(1, (3, 1)), nn.Flatten())
    model = Model(network, part.method, part.task, part.preprocessing)
    assert head_of(model)[2] is network[1]
    model = Model(nn.Bilinear(4, 4, 3), part.method, part.task, part.preprocessing)
    model.network.forward = lambda x: nn.functional.bilinear(x, x, model.network.weight)
    assert model.add_scores(["energy"]).predict(X[:3]).score("energy").shape == (3,)
    with pytest.raises(DubitoError, match="Bilinear has no features"):
        model.add_scores(["test_nearest"], X, NAMES)
