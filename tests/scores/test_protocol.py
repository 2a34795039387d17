"""What every score may rely on: options, state, features, the head."""

import pytest
import torch
from torch import Tensor, nn

from dubito.errors import DubitoError
from dubito.model import Model
from dubito.scores import SCORES, Score
from tests.model import models

X, _ = models.samples()
NAMES = models.names()


@SCORES.register("test_density")
class Density(Score):
    """Normal density of outputs, which is computed by a sub-module."""

    needs_features = False

    def fit(self, features: object, outputs: Tensor, target: Tensor, head: object) -> None:
        self._build(outputs.shape[-1])
        flat = outputs.flatten(0, -2)
        self.scale.weight.data = flat.std(0).reciprocal().diag()
        self.scale.bias.data = -flat.mean(0) / flat.std(0)
        self.register_buffer("classes", target.unique())

    def forward(self, features: object, outputs: Tensor) -> Tensor:
        values = -self.scale(outputs).square().sum(-1)
        return values.flatten(1).mean(-1) if values.ndim > 1 else values

    def allocate(self, state: dict[str, Tensor]) -> None:
        super().allocate(state)
        self._build(len(state["scale.bias"]))

    def _build(self, size: int) -> None:
        self.scale = nn.Linear(size, size)


def test_options_are_fixed_and_state_is_not():
    score = SCORES.build("knn", k=3)
    assert SCORES.to_dict(score) == {"name": "knn", "k": 3}
    with pytest.raises(AttributeError, match=r"k is an option of KNN\(k=3\)"):
        score.k = 4
    score.fit(torch.eye(4), torch.zeros(4, 2), torch.zeros(4), None)
    assert score.bank.shape == (4, 4)
    assert score.to(torch.float64).bank.dtype == torch.float64


def test_models_fit_copies_of_a_score():
    score = SCORES.build("knn")
    model = models.build().add_scores([score], X, NAMES)
    assert not score.state_dict()
    assert len(model.scores["knn"].bank) == len(X)


@pytest.mark.parametrize("method", ["iedl", "ensemble", "mc_dropout", "posterior_network"])
@pytest.mark.parametrize("name", ["knn", "test_density"])
def test_saved_scores_are_loaded(name, method, tmp_path):
    model = models.build(method).eval().add_scores([name], X, NAMES)
    loaded = Model.load(model.save(tmp_path))
    for key, value in model.scores[name].state_dict().items():
        assert loaded.scores[name].state_dict()[key].dtype == value.dtype
    expected = model.predict(X[:9] + 1).score(name)
    assert expected.isfinite().all()
    assert torch.equal(loaded.predict(X[:9] + 1).score(name), expected)


# --- the head ---


class Recorded(SCORES["knn"]):
    def fit(self, features, outputs, target, head):
        type(self).seen = features, outputs, head
        super().fit(features, outputs, target, head)


SCORES.register("test_recorded")(Recorded)


def head_of(model):
    return model.add_scores(["test_recorded"], X, NAMES).scores["test_recorded"].seen


def test_head_of_a_plain_network():
    model = models.build()
    features, outputs, head = head_of(model)
    assert head is model.network.head
    torch.testing.assert_close(head(features), outputs)
    assert head_of(models.build("posterior_network").eval())[2] is None  # is not linear


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


# --- errors ---


@pytest.mark.parametrize(
    ("add", "message"),
    [
        (lambda model: model.add_scores(["magic"]), "unknown score 'magic'; known: .*'energy'"),
        (lambda model: model.add_scores(["knn"]), "knn are fitted to train"),
        (lambda model: model.add_scores(["knn"], X), "these inputs have no targets"),
    ],
)
def test_errors(add, message):
    with pytest.raises(DubitoError, match=message):
        add(models.build())


@SCORES.register("test_bad")
class Bad(Score):
    fault: str = ""
    """What is wrong with it."""

    def fit(self, features, outputs, target, head):
        if self.fault == "option":
            features.norm(p="far")
        if self.fault == "lost":
            self.means = features.mean(0)

    def forward(self, features, outputs):
        if self.fault == "infinite":
            return features[:, 0].log()
        return outputs[:, :1] if self.fault == "shape" else outputs[:, 0]


@SCORES.register("test_unfitted")
class Unfitted(Score):
    needs_fit = False
    needs_features = False

    def forward(self, features, outputs):
        return outputs


@pytest.mark.parametrize(
    ("score", "message"),
    [
        ("shape", r"score 'test_bad' returned \(64, 1\); expected \(64,\)"),
        ("infinite", r"score 'test_bad' is not finite for \d+ of 64 training samples"),
        (
            "lost",
            r"'test_bad': .* without self\.means, .* self\.register_buffer\('means', tensor\)",
        ),
        ("option", r"score 'test_bad': \w+Error: "),
    ],
)
def test_a_score_that_could_not_be_used_is_refused(score, message):
    model = models.build()
    with pytest.raises(DubitoError, match=message) as caught:
        model.add_scores([{"name": "test_bad", "fault": score}], X, NAMES)
    assert "\n" not in str(caught.value)
    assert not model.scores


def test_a_score_without_a_fit_is_checked_before_the_training():
    with pytest.raises(DubitoError, match=r"'test_unfitted' returned \(2, 3\); expected \(2,\)"):
        models.build().check_scores([Unfitted()])


def test_a_misspelled_direction_is_refused():
    with pytest.raises(DubitoError, match=r"Bad\.higher 'uncertianty'; known: 'confidence', 'unc"):
        type("Bad", (Score,), {"higher": "uncertianty"})


def test_score_of_a_network_without_features():
    part = models.build()
    network = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3), nn.Unflatten(1, (3, 1)), nn.Flatten())
    model = Model(network, part.method, part.task, part.preprocessing)
    assert head_of(model)[2] is network[1]
    model = Model(nn.Bilinear(4, 4, 3), part.method, part.task, part.preprocessing)
    model.network.forward = lambda x: nn.functional.bilinear(x, x, model.network.weight)
    assert model.add_scores(["energy"]).predict(X[:3]).score("energy").shape == (3,)
    with pytest.raises(DubitoError, match="Bilinear has no features"):
        model.add_scores(["knn"], X, NAMES)
