"""What a prediction holds, whatever it was made of."""

from __future__ import annotations

import pytest
import torch

from dubito import Prediction, dirichlet
from dubito.calibration import Temperature
from dubito.measures import MEASURES

LOGITS = 4 * torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
ALPHA = torch.nn.functional.softplus(LOGITS) + 1
PROBS = torch.randn(8, 6, 5, generator=torch.Generator().manual_seed(1)).softmax(-1)


def test_a_dirichlet_has_every_measure() -> None:
    said = Prediction.from_logits(LOGITS)
    assert said.available == tuple(MEASURES)
    for name, measure in MEASURES.items():
        expected = measure(ALPHA)
        assert expected.shape == (6,)
        assert torch.equal(said.measure(name), expected)
        assert torch.equal(getattr(said, name), expected)
        sign = 1 if measure.rises_with == "confidence" else -1
        assert torch.equal(said.confidence(name), sign * expected)
    assert torch.equal(said.label, ALPHA.argmax(-1))
    torch.testing.assert_close(said.belief.sum(-1) + said.vacuity, torch.ones(6))


def test_directions_are_declared_right() -> None:
    """A sharper Dirichlet is more confident by every measure of evidence."""
    blunt, sharp = torch.tensor([1.5, 1.2, 1.1]), torch.tensor([150.0, 1.2, 1.1])
    for name, measure in MEASURES.items():
        assert measure.as_confidence(measure(sharp)) > measure.as_confidence(measure(blunt)), name


def test_each_measure_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    said = Prediction.from_alpha(ALPHA)
    assert said.mutual_information is said.mutual_information
    assert said.probs is said.probs


def test_the_prior_moves_belief_and_vacuity() -> None:
    said = Prediction.from_logits(LOGITS, prior=0.5)
    torch.testing.assert_close(said.alpha, ALPHA - 0.5)
    torch.testing.assert_close(said.belief.sum(-1) + said.vacuity, torch.ones(6))
    torch.testing.assert_close(said.vacuity, 2.5 / said.alpha0)


def test_without_a_prior_there_is_no_vacuity() -> None:
    said = Prediction.from_alpha(ALPHA, prior=0.0)
    assert set(MEASURES) - set(said.available) == {"vacuity", "dissonance"}
    torch.testing.assert_close(said.belief, said.probs)
    with pytest.raises(AttributeError, match="no measure 'vacuity'"):
        _ = said.vacuity


def test_probabilities_have_fewer_measures() -> None:
    said = Prediction.from_probs(PROBS[0])
    assert said.available == ("max_prob", "entropy_of_mean")
    expected = torch.distributions.Categorical(probs=PROBS[0]).entropy()
    torch.testing.assert_close(said.entropy_of_mean, expected)
    assert Prediction.from_probs(torch.tensor([0.0, 1.0])).entropy_of_mean == 0


def test_samples_disagree() -> None:
    said = Prediction.from_samples(PROBS)
    assert set(said.available) == {
        "max_prob", "entropy_of_mean", "expected_entropy", "mutual_information"
    }  # fmt: skip
    torch.testing.assert_close(said.probs, PROBS.mean(0))
    torch.testing.assert_close(
        said.mutual_information, said.entropy_of_mean - said.expected_entropy, atol=1e-6, rtol=1e-5
    )
    same = Prediction.from_samples(PROBS[:1].expand(4, -1, -1))
    assert (same.mutual_information >= 0).all()
    assert (same.mutual_information < 1e-12).all()
    certain = torch.eye(2).unsqueeze(1)  # two members, each sure of another class
    assert Prediction.from_samples(certain).mutual_information.item() == pytest.approx(0.6931472)


@pytest.mark.parametrize("least", [1e-30, 1e-38, 1e-42, 1e-45])
def test_samples_may_be_as_small_as_numbers_get(least: float) -> None:
    """One of them far below their mean, or all of them at what rounds to nothing."""
    for samples in ([[1 - least, least], [0.5, 0.5]], [[1.0, least], [1.0, 0.0], [1.0, 0.0]]):
        probs = torch.tensor(samples).requires_grad_()
        found = Prediction.from_samples(probs).mutual_information
        wide = probs.detach().double()
        exact = torch.special.entr(wide.mean(0)).sum() - torch.special.entr(wide).sum(-1).mean()
        torch.testing.assert_close(found.double(), exact, rtol=1e-6, atol=1e-37)
        found.backward()
        assert probs.grad is not None
        assert not probs.grad[probs > 1e-37].isnan().any()


@pytest.mark.parametrize(
    "said",
    [Prediction.from_alpha(ALPHA), Prediction.from_probs(PROBS[0]), Prediction.from_samples(PROBS)],
)
def test_some_samples_of_it(said: Prediction) -> None:
    part = said[2:4]
    assert len(said) == 6
    assert len(part) == 2
    assert torch.equal(part.label, said.label[2:4])
    torch.testing.assert_close(part.entropy_of_mean, said.entropy_of_mean[2:4])
    assert repr(part).startswith("Prediction(2 samples, 5 classes: mean max_prob 0.")


def test_dense_outputs() -> None:
    images = torch.randn(2, 3, 4, 5)
    said = Prediction.from_logits(images, class_dim=1)
    assert said.vacuity.shape == (2, 4, 5)
    assert torch.equal(said.vacuity, dirichlet.vacuity(said.alpha))
    assert repr(said).startswith("Prediction(2x4x5 samples, 3 classes")


@pytest.mark.parametrize("evidence", ["softplus", "relu", "exp"])
def test_evidence_functions(evidence: str) -> None:
    expected = {"softplus": torch.nn.functional.softplus, "relu": torch.relu, "exp": torch.exp}
    said = Prediction.from_logits(LOGITS, evidence)
    torch.testing.assert_close(said.alpha, expected[evidence](LOGITS) + 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_probabilities_may_be_as_far_off_as_their_precision(dtype: torch.dtype) -> None:
    rounded = torch.full((2, 6), 1 / 6).to(dtype)
    assert (rounded.float().sum(-1) - 1).abs().max() > 1e-4
    for said in (Prediction.from_probs(rounded), Prediction.from_samples(rounded[None])):
        assert said.probs.dtype == torch.float32
        assert torch.equal(said.probs, rounded.float())
        assert Temperature.fit(said, torch.tensor([0, 1])).apply(said).probs.shape == (2, 6)
    for values in (rounded.float(), 1.02 * rounded):
        with pytest.raises(ValueError, match="sum to 1 over the classes"):
            Prediction.from_probs(values)
