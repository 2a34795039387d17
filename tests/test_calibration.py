"""Calibration by one number: it helps, keeps the label, and refuses what it can't use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from dubito import calibration, data, evaluation, runs
from dubito.calibration import EvidenceScaling, Temperature
from dubito.prediction import Prediction

N, K = 4000, 10


def calibrated_evidence(factor: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """alpha whose labels are drawn from its own probabilities, then evidence times a factor."""
    generator = torch.Generator().manual_seed(seed)
    evidence = 0.3 * torch.rand(N, K, generator=generator, dtype=torch.float64)
    top = torch.randint(K, (N, 1), generator=generator)
    amount = 60 * torch.rand(N, 1, generator=generator, dtype=torch.float64)
    alpha = 1 + evidence.scatter_add(1, top, amount)
    labels = torch.multinomial(alpha / alpha.sum(-1, keepdim=True), 1, generator=generator)[:, 0]
    return 1 + factor * (alpha - 1), labels


@pytest.mark.parametrize("factor", [0.05, 20.0], ids=["underconfident", "overconfident"])
def test_it_undoes_a_factor(factor: float) -> None:
    alpha, labels = calibrated_evidence(factor)
    other, truth = calibrated_evidence(factor, seed=1)
    scaling = EvidenceScaling.fit(alpha, labels)
    assert scaling.power == pytest.approx(1, abs=0.1)
    assert EvidenceScaling.fit(alpha, labels, power=False).factor == pytest.approx(
        1 / factor, rel=0.1
    )
    before = evaluation.calibration(other, truth)
    after = evaluation.calibration(scaling.apply(other), truth)
    assert before["ece"] > 0.1
    assert after["ece"] < 0.03
    assert after["nll"] < before["nll"]
    assert after["brier"] < before["brier"]


def test_a_second_fit_finds_nothing_to_do() -> None:
    alpha, labels = calibrated_evidence(0.05)
    once = EvidenceScaling.fit(alpha, labels).apply(alpha)
    again = EvidenceScaling.fit(once, labels)
    assert again.factor == pytest.approx(1, abs=1e-4)
    assert again.power == pytest.approx(1, abs=1e-4)
    probs = Prediction.from_alpha(alpha).probs
    warm = Temperature.fit(probs, labels).apply(probs)
    assert Temperature.fit(warm, labels).temperature == pytest.approx(1, abs=1e-5)


def test_the_fit_is_the_best_that_scipy_finds() -> None:
    alpha, labels = calibrated_evidence(0.3)

    def nll(log_factor: float) -> float:
        scaled = 1 + torch.tensor(log_factor, dtype=torch.float64).exp() * (alpha - 1)
        return evaluation.calibration(scaled, labels)["nll"]

    best = minimize_scalar(nll, bounds=(-12, 12), method="bounded", options={"xatol": 1e-9})
    found = EvidenceScaling.fit(alpha, labels, power=False)
    assert found.power == 1
    assert nll(torch.tensor(found.factor, dtype=torch.float64).log().item()) <= best.fun + 1e-9


def test_a_free_power_is_never_worse() -> None:
    alpha, labels = calibrated_evidence(1.0)
    bent = 1 + (alpha - 1) ** 2.5
    one, two = (EvidenceScaling.fit(bent, labels, power=free) for free in (False, True))
    figures = [evaluation.calibration(s.apply(bent), labels)["nll"] for s in (one, two)]
    assert figures[1] < figures[0]
    assert two.power == pytest.approx(1 / 2.5, rel=0.1)


@given(
    factor=st.floats(1e-4, 1e4), power=st.floats(0.2, 5), seed=st.integers(0, 100),
    prior=st.sampled_from([0.1, 0.7, 1.0]),
)  # fmt: skip
def test_the_order_of_classes_stays(factor: float, power: float, seed: int, prior: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    evidence = torch.rand(20, 5, generator=generator, dtype=torch.float64) * 100
    scaling = EvidenceScaling(factor, power, prior)
    alpha = scaling.apply(prior + evidence)
    assert torch.equal(alpha.argmax(-1), evidence.argmax(-1))
    lower, upper = evidence[:, 0], evidence[:, 1]
    assert bool(((alpha[:, 0] <= alpha[:, 1]) == (lower <= upper)).all())


def test_a_factor_keeps_the_ranks_of_alpha0() -> None:
    alpha, labels = calibrated_evidence(0.05)
    scaling = EvidenceScaling.fit(alpha, labels, power=False)
    after = scaling.apply(Prediction.from_alpha(alpha))
    assert torch.equal(after.alpha0.argsort(), alpha.sum(-1).argsort())
    assert torch.equal(after.label, alpha.argmax(-1))


@pytest.mark.parametrize("method", ["iedl", "redl", "kl_pn", "softmax", "mc_dropout"])
def test_each_kind_of_model_is_calibrated(method: str, tmp_path: Path) -> None:
    options = {"dropout": 0.1} if method == "mc_dropout" else {}
    config = runs.configure(
        {
            "data": {"source": "digits"},
            "backbone": {"hidden": [32]},
            "method": {"name": method, **options},
            "training": {"epochs": 12, "learning_rate": 0.005},
        }
    )
    plan = runs.plan(config, tmp_path)
    runs.train(plan)
    run, test = runs.load(tmp_path), data.load("digits", "test")
    said = run.predict(test.inputs)
    fitted = calibration.fit(run.predict(plan.validation.inputs), plan.validation.labels)
    after = fitted.apply(said)
    evidential = method in ("iedl", "redl")
    assert fitted.kind == ("evidence_scaling" if evidential else "temperature")
    assert torch.equal(after.label, said.label)
    before, now = (evaluation.calibration(one, test.labels) for one in (said, after))
    assert now["nll"] < before["nll"] + 0.02
    if method == "iedl":
        assert before["ece"] > 0.2
        assert now["ece"] < 0.06


def test_perfect_labels_stay_finite() -> None:
    alpha = torch.full((30, 3), 1.5)
    alpha[:, 0] = 4
    scaling = EvidenceScaling.fit(alpha, torch.zeros(30, dtype=torch.long))
    assert bool(scaling.apply(alpha).isfinite().all())
    probs = torch.tensor([[1.0, 0.0]]).repeat(4, 1)
    assert bool(Temperature.fit(probs, torch.tensor([0, 0, 0, 1])).apply(probs).isfinite().all())


def test_the_evidence_of_a_density_stays_in_range() -> None:
    evidence = torch.tensor([[1e26, 1e25, 0.0], [1e3, 0.0, 1e-3], [0.0, 0.0, 0.0]])
    scaling = EvidenceScaling(1e5, 3.0)
    after = scaling.apply(1 + evidence)
    assert bool(after.isfinite().all())
    assert after[0, 0] / after[0, 1] == pytest.approx(1000, rel=1e-5)
    assert after[1, 0] == pytest.approx(1e14, rel=1e-5)
    assert after[2].tolist() == [1, 1, 1]
    labels = torch.tensor([0, 0, 1])
    fitted = EvidenceScaling.fit((1 + evidence).repeat(20, 1), labels.repeat(20))
    assert bool(fitted.apply(1 + evidence).isfinite().all())


def test_a_prior_that_float32_rounds_down_is_no_negative_evidence() -> None:
    alpha = torch.full((2, 3), 0.7)  # 0.69999999
    alpha[:, 0] = 2
    assert bool((EvidenceScaling(2.0, prior=0.7).apply(alpha) >= alpha).all())


@pytest.mark.parametrize("one", [EvidenceScaling(2.0, 0.5, 0.1), Temperature(3.0)])
def test_plain_values_and_back(one: calibration.Calibration) -> None:
    assert calibration.from_dict(json.loads(json.dumps(one.as_dict()))) == one


ALPHA, LABELS = torch.full((4, 3), 2.0), torch.tensor([0, 1, 2, 0])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: EvidenceScaling.fit(ALPHA - 1.5, LABELS), "alpha must be >= 1"),
        (lambda: EvidenceScaling.fit(ALPHA, LABELS[:2]), "labels have shape"),
        (lambda: EvidenceScaling.fit(ALPHA, LABELS + 2), "from 0 to 2"),
        (lambda: EvidenceScaling.fit(ALPHA, LABELS.float()), "must be integers"),
        (lambda: EvidenceScaling.fit(ALPHA[:0], LABELS[:0]), "N >= 1"),
        (lambda: EvidenceScaling.fit(ALPHA.log() * torch.inf, LABELS), "finite"),
        (lambda: EvidenceScaling(0.0), "factor must be"),
        (lambda: EvidenceScaling(prior=0.0), "prior must be"),
        (lambda: EvidenceScaling().apply(Prediction.from_alpha(ALPHA, prior=0.5)), "for the prior"),
        (lambda: Temperature.fit(ALPHA, LABELS), "probs"),
        (lambda: Temperature(-1.0), "temperature must be"),
        (lambda: calibration.from_dict({"kind": "isotonic", "parameters": {}}), "unknown calibr"),
        (lambda: calibration.from_dict({"kind": "temperature"}), "has the keys"),
        (
            lambda: calibration.from_dict({"kind": "temperature", "parameters": {"t": 1}}),
            "parameters of 'temperature'",
        ),
    ],
)
def test_what_it_refuses(call: Any, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        call()


def test_a_few_samples_without_an_error_do_not_ask_for_certainty() -> None:
    alpha = 1 + 4 * torch.eye(3).repeat(10, 1)
    said, labels = Prediction.from_alpha(alpha), torch.arange(30) % 3
    alone = EvidenceScaling.fit(said, labels).apply(said).max_prob.max()
    fitted = calibration.fit(said, labels).apply(said).max_prob.max()
    assert alone > 0.999
    assert 0.9 < fitted < 0.98  # 30 of 31


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_labels_of_any_integer_type(dtype: torch.dtype) -> None:
    said, labels = Prediction.from_alpha(1 + 4 * torch.eye(3).repeat(3, 1)), torch.arange(9) % 3
    labels[-1] = 0  # an error
    functions = (calibration.fit, evaluation.calibration, evaluation.misclassification)
    for function in functions:
        assert function(said, labels.to(dtype)) == function(said, labels)
    wanted = evaluation.reliability(said.probs, labels)
    assert evaluation.reliability(said.probs, labels.to(dtype)) == wanted
    with pytest.raises(ValueError, match="labels must be from 0 to 2"):
        calibration.fit(said, (labels + 1).to(dtype))


@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_label_changes_where_rounding_ties(classes: int, dtype: torch.dtype) -> None:
    """A model that is always wrong asks for as little of its evidence as may be."""
    generator = torch.Generator().manual_seed(0)
    alpha = 1 + 5 * torch.rand(200, classes, generator=generator).to(dtype)
    said = Prediction.from_alpha(alpha)
    wrong = (said.label + 1) % classes
    for one in (said, Prediction.from_probs(said.probs)):
        fitted = calibration.fit(one, wrong)
        assert torch.equal(fitted.apply(one).label, one.label)
    little = Prediction.from_alpha(1 + 1e-4 * (alpha - 1))  # and here no bound is near
    after = EvidenceScaling(power=3.0).apply(little)
    assert torch.equal(after.label, little.label)
    torch.testing.assert_close(after.alpha, torch.ones_like(alpha), rtol=1e-6, atol=0)
