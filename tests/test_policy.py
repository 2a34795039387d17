"""Policies: the search against SciPy, the guarantee by simulation, JSON files, errors."""

import math
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from numpy.random import Generator
from pydantic import ValidationError
from scipy.stats import binom

from dubito.distributions import Categorical, Dirichlet, Distribution, NormalInverseGamma
from dubito.errors import DubitoError
from dubito.policy import REASONS, Guarantee, Policy, Threshold

REPETITIONS = 1000
DELTA = 0.05
UNFAMILIAR = REASONS.index("unfamiliar")


def binary(confidence: np.ndarray) -> Distribution:
    """Two classes, the first with the given probability >= 1/2."""
    first = torch.as_tensor(confidence, dtype=torch.float64)
    return Categorical.from_probs(torch.stack([first, 1 - first], -1))


def real(variance: np.ndarray) -> NormalInverseGamma:
    """One number with mean 0 and the given predictive variance."""
    beta = torch.as_tensor(variance, dtype=torch.float64)[:, None] / 2
    return NormalInverseGamma(0 * beta, beta / beta, beta / beta, beta)


def ranked(errors: list[bool] | np.ndarray) -> tuple[Distribution, np.ndarray]:
    """Predictions whose confidence falls from sample to sample, with these errors."""
    return binary(np.linspace(0.99, 0.51, len(errors))), np.asarray(errors, bool)


def threshold(score: str, value: float) -> Threshold:
    higher: Any = "uncertainty" if score == "vacuity" else "confidence"
    return Threshold(score=score, higher=higher, value=value)


def coverage(policy: Policy) -> float:
    return policy.validation.coverage


# --- error control -------------------------------------------------------------------------------


def slow_search(wrong: np.ndarray, level: float, delta: float) -> int:
    """The search by its definition, with SciPy and all ranks."""
    count = len(wrong)
    ranks = np.arange(1, count + 1)
    weight = (ranks / count) ** 2 * np.exp(-6 * ranks / count)
    tested = (1 - level) ** ranks <= delta
    tails = binom.cdf(np.arange(count + 1), ranks[:, None], level)
    values = tails[ranks - 1, wrong.cumsum()] / weight

    def crossing(limit: float, some: np.ndarray) -> float:
        state, crossed = np.array([1.0]), 0.0
        for rank in ranks:
            state = np.convolve(state, [1 - level, level])
            if some[rank - 1]:
                passes = tails[rank - 1, : rank + 1] <= limit * weight[rank - 1]
                crossed += state[passes].sum()
                state[passes] = 0
        return crossed

    shown = np.zeros(count, bool)
    candidates = np.unique(tails / weight[:, None])
    while True:
        some = tested & ~shown
        low, high = -1, len(candidates)  # the largest candidate with a small enough probability
        while high - low > 1:
            middle = (low + high) // 2
            small = crossing(candidates[middle] * (1 + 1e-12), some) <= delta
            low, high = (middle, high) if small else (low, middle)
        more = shown | (tested & (values <= (candidates[low] if low >= 0 else -1) * (1 + 1e-12)))
        if ranks[more].max(initial=0) == ranks[shown].max(initial=0):
            return int(ranks[shown].max(initial=0))
        shown = more


@pytest.mark.parametrize(("count", "level"), [(40, 0.1), (90, 0.05), (150, 0.1)])
def test_the_search_is_the_definition(count, level):
    generator, found = np.random.default_rng(count), set()
    for _ in range(20):
        wrong = generator.random(count) < 2 * level * np.linspace(0, 1, count) ** 2
        policy = Policy.control_error(*ranked(wrong), level=level)
        accepted = round(coverage(policy) * count)
        # the search uses between 98 % and all of the failure probability
        assert slow_search(wrong, level, 0.97 * DELTA) <= accepted
        assert accepted <= slow_search(wrong, level, DELTA)
        found.add(accepted)
    assert len(found) > 2


def test_validation_is_about_the_accepted_samples():
    wrong = np.zeros(400, bool)
    wrong[[150, 220, 260, *range(300, 400, 5)]] = True
    dist, errors = ranked(wrong)
    policy = Policy.control_error(dist, errors, level=0.05)
    rank = round(coverage(policy) * 400)
    assert 250 < rank < 400  # neither the first rank nor the last
    assert policy.threshold.value == dist.score("max_prob")[rank - 1].item()
    assert policy.validation.errors == wrong[:rank].sum()


@pytest.mark.parametrize(("level", "needed"), [(0.05, 59), (0.01, 299), (0.1, 29)])
def test_too_few_samples_accept_nothing(level, needed):
    assert not Policy.control_error(*ranked([False] * needed), level=level).accepts_nothing
    policy = Policy.control_error(*ranked([False] * (needed - 1)), level=level)
    assert policy.accepts_nothing
    assert f"accepts nothing: error <= {level} " in repr(policy)
    assert policy.decide(binary(np.array([1.0, 0.5]))).all()


def test_defaults_are_one_percent():
    dist, errors = ranked(np.zeros(600, bool))
    guarantee = Policy.control_error(dist, errors, ood_score="max_prob").guarantee
    assert (guarantee.level, guarantee.confidence, guarantee.false_alarms) == (0.01, 0.95, 0.01)


def test_accepting_nothing_includes_infinite_scores():
    dist = Categorical(torch.tensor([[math.inf, 0.0]]))
    policy = Policy(threshold=threshold("max_logit", math.inf))
    assert policy.decide(dist).all()


def test_early_errors_do_not_end_the_search():
    wrong = np.zeros(1000, bool)
    wrong[:10] = True
    assert coverage(Policy.control_error(*ranked(wrong), level=0.05)) == 1
    assert Policy.control_error(*ranked(wrong), level=0.01).accepts_nothing


def test_thresholds_of_many_samples_are_not_only_the_ends_of_blocks():
    """Above 1,000 samples ranks form blocks."""
    wrong = np.random.default_rng(0).random(100_000) < np.linspace(0, 0.15, 100_000)
    dist, errors = ranked(wrong)
    policy = Policy.control_error(dist, errors, level=0.05)
    assert 0.6 < coverage(policy) < 2 / 3  # where the error rate is 5 %
    assert round(coverage(policy) * 100_000) % 100 != 0
    steps = np.repeat(np.linspace(0.99, 0.51, 7), 14_286)[:100_000]  # ends within blocks
    tied = Policy.control_error(binary(steps), errors, level=0.05)
    assert coverage(tied) == pytest.approx(4 / 7, abs=1e-3)


@pytest.mark.parametrize(("level", "confidence", "count"), [(0.5, 0.75, 2), (0.05, 0.1, 50)])
def test_any_confidence_ends_the_search(level, confidence, count):
    policy = Policy.control_error(*ranked([False] * count), level, confidence)
    assert coverage(policy) == 1
    assert Policy.control_error(*ranked([True] * count), level, confidence).accepts_nothing


def test_ties_are_accepted_or_rejected_together():
    confidence, errors = np.repeat([0.9, 0.8, 0.7], 100), np.arange(300) >= 200
    policy = Policy.control_error(binary(confidence), errors, level=0.05)
    assert policy.threshold.value == pytest.approx(0.8)
    tied = binary(np.full(300, 0.75))  # in the order of their errors
    assert Policy.control_error(tied, errors, level=0.3).accepts_nothing
    assert not Policy.control_error(tied, errors, level=0.5).decide(tied).any()


@pytest.mark.parametrize("score", ["vacuity", "epistemic"])
def test_an_uncertainty_is_bounded_from_above(score):
    dist = Dirichlet(torch.stack([torch.linspace(50, 2, 200), torch.ones(200)], -1))
    policy = Policy.control_error(dist, torch.arange(200) >= 120, level=0.05, score=score)
    accepted = policy.decide(dist) == 0
    assert f"{score} <= " in repr(policy)
    assert 100 < accepted.sum() <= 123
    assert accepted.tolist() == (dist.score(score) <= policy.threshold.value).tolist()


# --- simulations: many validation sets, the true error rate known --------------------------------

# Each gives the error rate at coverage u, and the error rate R(u) among the first share u.
Rates = tuple[Callable[[np.ndarray], np.ndarray], Callable[[float], float]]
SHARES = np.linspace(0, 1, 20_001)


def rates(rate: Callable[[np.ndarray], np.ndarray]) -> Rates:
    values = rate(SHARES)
    sums = np.concatenate([[0], np.cumsum((values[1:] + values[:-1]) / 2) / 20_000])
    mean = np.divide(sums, SHARES, out=values[:1].repeat(20_001), where=SHARES > 0)
    return rate, lambda u: float(np.interp(u, SHARES, mean))


CASES: dict[str, Rates] = {
    "a usual model": rates(lambda u: 0.4 * u**3),
    "slightly too bad everywhere": rates(lambda u: np.full_like(u, 0.0501)),
    "the most confident are the worst": rates(lambda u: 0.3 * np.exp(-20 * u) + 0.02),
    "R crosses the level repeatedly": rates(lambda u: 0.05 + 0.05 * np.sin(40 * u)),
    "R is above the level in parts": rates(lambda u: 0.0505 - 0.05 * np.cos(63 * u)),
    "perfect, then a little above the level": rates(
        lambda u: np.select([u < 0.3, u < 0.3 / 0.949], [0.0, 1.0], 0.0501)
    ),
}


def simulated(
    case: Rates,
    generator: Generator,
    count: int,
    steps: int | None = None,
    repetitions: int = REPETITIONS,
) -> tuple[np.ndarray, np.ndarray]:
    """Coverage of each repetition's policy, and its true error rate."""
    rate, risk = case
    covered, risks = [], []
    for _ in range(repetitions):
        u = generator.random(count)
        wrong = generator.random(count) < rate(u)
        if steps:
            u = np.ceil(u * steps) / steps  # ties; errors depend on the finer value
        policy = Policy.control_error(binary(1 - u / 2), wrong, level=0.05)
        share = 0.0 if policy.accepts_nothing else 2 * (1 - policy.threshold.value)
        covered.append(share)
        risks.append(risk(share) if share else 0.0)
    return np.array(covered), np.array(risks)


@pytest.mark.parametrize("steps", [None, 25])
@pytest.mark.parametrize("case", CASES)
def test_the_guarantee_holds(case, steps):
    generator = np.random.default_rng(0)
    _, risks = simulated(CASES[case], generator, count=300, steps=steps)
    broken = int((risks > 0.05).sum())
    # 5 % may fail: more than this many would fail in one of 10,000 such simulations
    assert broken <= binom(REPETITIONS, DELTA).isf(1e-4)


def test_the_guarantee_costs_little():
    case, generator = CASES["a usual model"], np.random.default_rng(1)
    covered, risks = simulated(case, generator, count=2000, repetitions=200)
    assert (risks <= 0.05).mean() >= 1 - DELTA
    most = 0.5 ** (1 / 3)  # R(u) = 0.1 u^3 reaches 5 % there
    assert np.median(covered) > 0.88 * most
    assert (covered == 0).mean() < 0.05


def test_more_samples_answer_more():
    case, generator, means = CASES["a usual model"], np.random.default_rng(4), []
    for count in (60, 80, 120, 180, 250, 400, 800):
        covered, _ = simulated(case, generator, count, repetitions=200)
        means.append((covered.mean(), covered.std() / 200**0.5))
    for (before, error), (after, other) in pairwise(means):
        assert after > before - 3 * math.hypot(error, other)
    assert means[-1][0] > means[0][0] + 0.4


def test_the_guarantee_is_not_needlessly_strong():
    """If everything errs slightly too often, nearly the allowed share of guarantees fails."""
    case, generator = CASES["slightly too bad everywhere"], np.random.default_rng(2)
    _, risks = simulated(case, generator, count=300)
    assert (risks > 0.05).mean() > 0.4 * DELTA


def test_the_guarantee_is_about_samples_that_pass_both_thresholds():
    """Errors are among the familiar: without the unfamiliar the rate of the rest is higher."""
    generator = np.random.default_rng(3)
    broken = 0
    for _ in range(400):
        strange = generator.random(300) < 0.3
        wrong = (generator.random(300) < 0.06) & ~strange
        top = generator.uniform(0.55, 0.95, 300)
        total = np.where(strange, generator.uniform(2.1, 3, 300), generator.uniform(20, 30, 300))
        dist = Dirichlet(torch.as_tensor(np.stack([top * total, (1 - top) * total], -1)))
        policy = Policy.control_error(dist, wrong, 0.05, ood_score="vacuity", false_alarms=0.3)
        # the true rate is 6 % among the familiar and a little less with strange ones accepted
        admitted = policy.ood_threshold.value > 2 / 3
        broken += not policy.accepts_nothing and not admitted
    assert broken / 400 < 0.1


@pytest.mark.parametrize(("count", "level"), [(100, 0.05), (200, 0.05), (500, 0.02)])
def test_the_guarantee_holds_for_ties_at_the_ood_threshold(count, level):
    """Inputs without evidence are all errors, slightly more often than allowed; others correct."""
    share, broken = 1.002 * level, 0.0
    for empty in range(count // 5):  # all that matters of a draw is how many of them it has
        strange = torch.arange(count) < empty
        alpha = torch.where(strange[:, None], torch.ones(2), torch.tensor([3.0, 1.0]))
        policy = Policy.control_error(Dirichlet(alpha), strange, level, ood_score="vacuity")
        if policy.decide(Dirichlet(torch.tensor([[1.0, 1.0], [3.0, 1.0]])))[0] == 0:
            broken += binom(count, share).pmf(empty)
    assert broken <= DELTA


def test_correct_samples_at_the_ood_threshold_show_nothing():
    """Of 100 tied values 61 are above the threshold; 59 show 5 %, and 74 would show 4 %."""
    dist, errors = Dirichlet(torch.tensor([[3.0, 1.0]]).expand(100, 2)), np.zeros(100, bool)
    policies = [
        Policy.control_error(dist, errors, level, ood_score="alpha0", false_alarms=0.39)
        for level in (0.05, 0.04)
    ]
    assert coverage(policies[0]) == 1
    assert policies[1].accepts_nothing


# --- coverage and OOD ----------------------------------------------------------------------------


@pytest.mark.parametrize("ood_score", [None, "alpha0"])
def test_coverage_holds_on_average(ood_score):
    generator = np.random.default_rng(0)
    shares = []
    for _ in range(300):
        dist = Dirichlet(torch.as_tensor(generator.gamma(3, 2, (40 + 400, 2)) + 1))
        policy = Policy.control_coverage(dist[:40], 0.7, ood_score=ood_score, false_alarms=0.2)
        shares.append((policy.decide(dist[40:]) == 0).double().mean().item())
    # the mean is that of the rank, 29/41; its standard error is about 0.005
    assert np.mean(shares) == pytest.approx(29 / 41, abs=0.02)


def test_false_alarms_are_as_rare_as_requested():
    generator = np.random.default_rng(0)
    alarms = []
    for _ in range(300):
        dist = real(generator.gamma(3, 2, 50 + 400))
        policy = Policy.control_coverage(
            dist[:50], 0.5, "total", ood_score="epistemic", false_alarms=0.1
        )
        alarms.append((policy.decide(dist[50:]) == UNFAMILIAR).double().mean().item())
    assert np.mean(alarms) == pytest.approx(5 / 51, abs=0.02)  # the 46th of 51 places


def test_too_few_samples_raise_no_alarm():
    dist = Dirichlet(torch.rand(50, 3) + 1)
    policy = Policy.control_coverage(dist, 0.5, ood_score="vacuity", false_alarms=0.01)
    assert policy.ood_threshold == threshold("vacuity", math.inf)
    assert UNFAMILIAR not in policy.decide(dist)


def test_reasons():
    policy = Policy(threshold=threshold("max_prob", 0.7), ood_threshold=threshold("vacuity", 0.5))
    alpha = torch.tensor([[9.0, 1.0], [9.0, 9.0], [1.2, 1.0], [1.9, 0.1 + 1]])
    reasons = [REASONS[code] for code in policy.decide(Dirichlet(alpha))]
    assert reasons == ["accepted", "ambiguous", "unfamiliar", "unfamiliar"]
    assert policy.decide(Dirichlet(alpha.reshape(2, 2, 2))).shape == (2, 2)
    codes = policy.decide(Dirichlet(alpha), torch.tensor([False, True, False, True]))
    reasons = [REASONS[code] for code in codes]
    assert reasons == ["out_of_range", "ambiguous", "out_of_range", "unfamiliar"]


def test_table_has_the_coverage_at_each_error_rate():
    wrong = np.zeros(1000, bool)
    wrong[500::4] = True
    dist, errors = ranked(wrong)
    policy = Policy.control_error(dist, errors, level=0.05, confidence=0.9)
    table = policy.with_table(dist, errors, out_of_range=250).table
    for point in table:
        alone = Policy.control_error(dist, errors, level=point.error_rate, confidence=0.9)
        assert point.coverage == pytest.approx(coverage(alone) * 1000 / 1250)
    assert table[-1].coverage > table[0].coverage > 0
    with pytest.raises(DubitoError, match="needs a policy that was fitted"):
        Policy(threshold=threshold("max_prob", 0.5)).with_table(dist, errors)


@pytest.mark.parametrize(
    ("count", "wrong", "level", "ood", "expected"),
    [
        (58, 0, 0.05, False,
         "58 calibration samples are too few for an error rate of 0.05: it needs 59, even without "
         "an error; at 0.1, 100.0% would be answered"),
        (61, 0, 0.05, True, "61 .* too few .* needs 62, .*; at 0.1, 95.1% would be answered"),
        (1000, 100, 0.05, False,
         "the predictions are not accurate enough for an error rate of 0.05: even with many more "
         "calibration samples about 0% could be answered; at 0.2, 100.0% would be answered"),
        (1000, 500, 0.05, False, "the predictions are not accurate enough .* about 0% .*"),
        (100, 2, 0.05, False,
         "100 calibration samples are too few for an error rate of 0.05: with many more about 100% "
         "could be answered; at 0.1, 100.0% would be answered"),
        (59, 0, 0.05, False, ""),
        (62, 0, 0.05, True, ""),
    ],
)  # fmt: skip
def test_advice_names_the_cause(count, wrong, level, ood, expected):
    errors = np.zeros(count, bool)
    errors[: 2 * wrong : 2] = True
    dist = binary(np.linspace(0.99, 0.51, count))
    options: Any = {"ood_score": "max_prob", "false_alarms": 0.05} if ood else {}
    policy = Policy.control_error(dist, errors, level, **options).with_table(dist, errors)
    assert re.fullmatch(expected, policy.advice)
    assert Policy.control_coverage(dist, 0.1).advice == ""


# --- files and errors ----------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0.02, 1e-6], ids=["finite", "infinite"])
def test_json_round_trip(level):
    dist = Dirichlet(torch.rand(500, 3, generator=torch.Generator().manual_seed(0)) * 9 + 1)
    policy = Policy.control_error(dist, np.zeros(500, bool), level, ood_score="mutual_information")
    again = Policy.model_validate_json(policy.model_dump_json())
    assert again == policy == Policy.model_validate(policy.model_dump(mode="json"))
    assert torch.equal(again.decide(dist), policy.decide(dist))
    assert policy.accepts_nothing == (level == 1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"threshold": {"score": "a", "higher": "confidence", "value": "many"}}, "valid number"),
        ({"threshold": {"score": "a", "higher": "confidence", "value": "nan"}}, "not NaN"),
        ({"threshold": {"score": "a", "higher": "risk", "value": 1.0}}, "'confidence' or"),
        ({"threshold": None}, "threshold"),
        ({"guarantee": {"controls": "error", "level": 2.0}}, "less than 1"),
        ({"extra": 1}, "Extra inputs are not permitted"),
    ],
)
def test_bad_files_are_errors(change, message):
    good = Policy(
        threshold=threshold("max_prob", 0.5), guarantee=Guarantee(controls="coverage", level=0.5)
    ).model_dump()
    with pytest.raises(ValidationError, match=message):
        Policy.model_validate({**good, **change})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"level": 0.0}, r"level must be in \(0, 1\)"),
        ({"level": math.nan}, r"level must be in \(0, 1\)"),
        ({"confidence": 1.0}, r"confidence must be in \(0, 1\)"),
        ({"score": "vacuity"}, "Categorical has no score 'vacuity'; known: 'total'"),
        ({"ood_score": "alpha0"}, "no score 'alpha0'"),
        ({"ood_score": "max_prob", "false_alarms": 1.0}, "false_alarms must be in"),
        ({"errors": np.zeros(3, bool)}, r"errors have shape \(3,\), expected \(9,\)"),
        ({"errors": np.zeros(9)}, "errors must be bool, .* not torch.float64"),
        ({"dist": binary(np.zeros(0) + 0.5)}, r"batch shape \(N,\), N >= 1, not .*\(0,\)"),
        ({"dist": binary(np.full((3, 3), 0.5))}, r"batch shape \(N,\), N >= 1, not .*\(3, 3\)"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    defaults = {"dist": binary(np.linspace(0.5, 0.9, 9)), "errors": np.zeros(9, bool)}
    with pytest.raises((ValueError, TypeError), match=message):
        Policy.control_error(**{**defaults, **arguments})


def test_nan_is_an_error_and_never_a_decision():
    dist = Categorical(torch.tensor([[0.5, 0.5], [math.nan, 0.5]]))
    policy = Policy(threshold=threshold("max_prob", 0.5))
    with pytest.raises(ValueError, match=r"max_prob is NaN for 1 samples, the first at \[1\]"):
        policy.decide(dist)
    with pytest.raises(ValueError, match="max_prob is NaN"):
        Policy.control_coverage(dist, 0.5)


@pytest.mark.parametrize(
    ("coverage", "message"), [(0.95, r"0\.95 is impossible"), (1.0, r"must be in \(0, 1\)")]
)
def test_coverage_and_false_alarms_must_fit_together(coverage, message):
    dist = Dirichlet(torch.rand(200, 3) + 1)
    with pytest.raises(ValueError, match=f"coverage {message}"):
        Policy.control_coverage(dist, coverage, ood_score="vacuity", false_alarms=0.1)
