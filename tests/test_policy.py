from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.random import Generator
from scipy.stats import binom, binomtest

from dubito.policy import REASONS, UNFAMILIAR, Bound, Decision, Policy
from dubito.prediction import Prediction

REPETITIONS = 1000
DELTA = 0.05


def binary(confidence: np.ndarray) -> Prediction:
    """Two classes, the first with the given probability >= 1/2."""
    first = torch.as_tensor(confidence, dtype=torch.float64)
    return Prediction.from_probs(torch.stack([first, 1 - first], -1))


def ranked(errors: list[bool] | np.ndarray) -> tuple[Prediction, np.ndarray]:
    """Predictions whose confidence falls from sample to sample, and labels with these errors."""
    wrong = np.asarray(errors, dtype=np.int64)
    return binary(np.linspace(0.99, 0.51, len(wrong))), wrong


# --- the promise of an error rate ----------------------------------------------------------------


def test_the_threshold_is_that_of_the_exact_binomial_test() -> None:
    wrong = np.zeros(400, bool)
    wrong[[150, 220, 260, *range(300, 400, 5)]] = True
    said, labels = ranked(wrong)
    policy = Policy.promise_error(said, labels, error=0.05, start=0.0)
    # by another road: intervals of scipy, rank by rank, until the first that reaches too far
    rank = next(k for k in range(1, 400) if 0.95**k <= DELTA)
    assert rank == 59

    def upper(k: int) -> float:
        test = binomtest(int(wrong[:k].sum()), k)
        return float(test.proportion_ci(1 - 2 * DELTA, method="exact").high)

    while rank < 400 and upper(rank + 1) <= 0.05:
        rank += 1
    assert 250 < rank < 400  # neither the first rank nor the last
    assert policy.sure.value == said.max_prob[rank - 1].item()
    assert policy.decide(said).accept.sum() == rank
    assert policy.seen["errors"] == wrong[:rank].sum()
    assert policy.seen["upper"] == pytest.approx(upper(rank))
    assert policy.seen["accepted"] == rank / 400


@pytest.mark.parametrize(("error", "needed"), [(0.05, 60), (0.01, 300), (0.1, 30)])
def test_too_few_samples_accept_nothing_and_say_so(error: float, needed: int) -> None:
    enough = Policy.promise_error(*ranked([False] * needed), error=error)
    assert not enough.accepts_nothing
    policy = Policy.promise_error(*ranked([False] * (needed - 1)), error=error)
    assert policy.accepts_nothing
    assert f"accepts nothing: error <= {error} " in repr(policy)
    assert not policy.decide(binary(np.array([1.0, 0.5]))).accept.any()
    assert Policy.from_dict(json.loads(json.dumps(policy.as_dict()))) == policy


def test_an_error_among_the_surest_ends_the_search() -> None:
    wrong = np.zeros(1000, bool)
    wrong[:10] = True
    assert Policy.promise_error(*ranked(wrong), error=0.01).accepts_nothing


@pytest.mark.parametrize("count", [200, 400, 1000])
def test_errors_among_the_surest_do_not_hide_what_all_samples_show(count: int) -> None:
    allowed = int(binom(count, 0.05).ppf(0.2 * DELTA)) - 1  # a fifth of DELTA is for all samples
    wrong = np.zeros(count, bool)
    wrong[:allowed] = True
    policy = Policy.promise_error(*ranked(wrong), error=0.05)
    assert policy.seen["accepted"] == 1
    assert policy.seen["errors"] == allowed
    assert policy.seen["upper"] <= 0.05
    wrong[: allowed + 2] = True
    policy = Policy.promise_error(*ranked(wrong), error=0.05)
    assert f"error <= 0.05 with confidence 0.95 was not shown by {count} samples" in repr(policy)


def test_a_search_that_passes_the_others_starts_has_the_whole_chance_to_fail() -> None:
    wrong = np.zeros(400, bool)
    wrong[-12:] = True  # what no search could show with its own part
    assert binom(400, 0.05).cdf(12) <= DELTA
    assert binom(400, 0.05).cdf(12) > 0.4 * DELTA
    assert Policy.promise_error(*ranked(wrong), error=0.05).seen["accepted"] == 1


def test_ties_are_accepted_or_refused_together() -> None:
    confidence = np.repeat([0.9, 0.8, 0.7], 100)
    labels = np.zeros(300, np.int64)
    labels[200:] = 1
    policy = Policy.promise_error(binary(confidence), labels, error=0.05)
    assert policy.sure == Bound("max_prob", 0.8)


def test_data_sorted_by_its_errors_is_no_surer_where_all_is_tied() -> None:
    labels = np.zeros(300, np.int64)
    labels[200:] = 1
    alike = binary(np.full(300, 0.75))
    assert Policy.promise_error(alike, labels, error=0.3).accepts_nothing
    policy = Policy.promise_error(alike, labels, error=0.5, start=0.5)
    assert policy.sure == Bound("max_prob", 0.75)
    assert policy.decide(alike).accept.all()


def test_a_measure_of_uncertainty_is_bounded_from_above() -> None:
    alpha = torch.stack([torch.linspace(50, 2, 200), torch.ones(200)], -1)
    said = Prediction.from_alpha(alpha)
    labels = torch.zeros(200, dtype=torch.long)
    labels[120:] = 1
    policy = Policy.promise_error(said, labels, error=0.05, measure="vacuity")
    accepted = policy.decide(said).accept
    assert policy.sure.measure == "vacuity"
    assert "vacuity <= " in repr(policy)
    assert 100 < accepted.sum() <= 123
    assert accepted.tolist() == (said.vacuity <= policy.sure.value).tolist()


# --- simulations: many validation sets, the true error rate known --------------------------------

# Each gives the rate of errors at a coverage u, and the error rate R(u) among the surest share u.
Rates = tuple[Callable[[np.ndarray], np.ndarray], Callable[[float], float]]
SHARES = np.linspace(0, 1, 20_001)


def rates(rate: Callable[[np.ndarray], np.ndarray]) -> Rates:
    values = rate(SHARES)
    sums = np.concatenate([[0], np.cumsum((values[1:] + values[:-1]) / 2) / 20_000])
    mean = np.divide(sums, SHARES, out=values[:1].repeat(20_001), where=SHARES > 0)
    return rate, lambda u: float(np.interp(u, SHARES, mean))


def waves(u: np.ndarray) -> np.ndarray:
    """R crosses 5 % again and again: no monotone error rate."""
    rate: np.ndarray = 0.05 + 0.05 * np.sin(40 * u)
    return rate


CASES: dict[str, Rates] = {
    "a usual model": rates(lambda u: 0.4 * u**3),
    "just too bad everywhere": rates(lambda u: np.full_like(u, 0.0501)),
    "the surest are the worst": rates(lambda u: 0.3 * np.exp(-20 * u) + 0.02),
    "waves": rates(waves),
}


def simulated(
    case: Rates, generator: Generator, count: int, steps: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """How much each repetition's policy accepts, and its true error rate."""
    rate, risk = case
    covered, risks = [], []
    for _ in range(REPETITIONS):
        u = generator.random(count)
        wrong = generator.random(count) < rate(u)
        if steps:
            u = np.ceil(u * steps) / steps  # ties; errors go with the finer value
        policy = Policy.promise_error(binary(1 - u / 2), wrong.astype(np.int64), error=0.05)
        share = 0.0 if policy.accepts_nothing else 2 * (1 - policy.sure.value)
        covered.append(share)
        risks.append(risk(share) if share else 0.0)
    return np.array(covered), np.array(risks)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("steps", [None, 25], ids=["distinct", "tied"])
def test_the_promise_holds(case: str, steps: int | None) -> None:
    _, risks = simulated(CASES[case], np.random.default_rng(0), count=300, steps=steps)
    broken = int((risks > 0.05).sum())
    # 5 % may fail: more than this many would fail in one of 10,000 simulations of that
    assert broken <= binom(REPETITIONS, DELTA).isf(1e-4)


def test_the_promise_of_a_usual_model_holds_as_often_as_promised_and_costs_little() -> None:
    case = CASES["a usual model"]
    covered, risks = simulated(case, np.random.default_rng(1), count=2000)
    assert (risks <= 0.05).sum() >= (1 - DELTA) * REPETITIONS
    most = 0.5 ** (1 / 3)  # R(u) = 0.1 u^3 reaches 5 % there
    assert np.median(covered) > 0.85 * most
    assert (covered == 0).mean() < 0.05


def test_the_promise_is_no_stronger_than_asked_for() -> None:
    """Where everything errs a little too often, nearly the allowed share of promises is broken."""
    _, risks = simulated(CASES["just too bad everywhere"], np.random.default_rng(2), count=300)
    assert (risks > 0.05).mean() > 0.4 * DELTA


def test_the_promise_covers_what_both_bounds_let_pass() -> None:
    """Errors are among the familiar: with the unfamiliar gone, the rate of the rest is higher."""
    generator = np.random.default_rng(3)
    broken = 0
    for _ in range(400):
        strange = generator.random(300) < 0.3
        wrong = (generator.random(300) < 0.06) & ~strange
        sure = generator.uniform(0.55, 0.95, 300)
        total = np.where(strange, generator.uniform(2.1, 3, 300), generator.uniform(20, 30, 300))
        alpha = torch.as_tensor(np.stack([sure * total, (1 - sure) * total], -1))
        policy = Policy.promise_error(
            Prediction.from_alpha(alpha), wrong.astype(np.int64), 0.05,
            unfamiliar="vacuity", false_alarms=0.3,
        )  # fmt: skip
        assert policy.familiar is not None
        # the true rate is 6 % among the familiar and a little less with strange ones admitted
        admitted = policy.familiar.value > 2 / 3
        broken += not policy.accepts_nothing and not admitted
    assert broken / 400 < 0.1


@pytest.mark.parametrize(("count", "error"), [(100, 0.05), (200, 0.05), (500, 0.02)])
def test_the_promise_holds_where_values_tie_at_the_bound_of_the_familiar(
    count: int, error: float
) -> None:
    """Inputs without evidence are all wrong, a little more of them than promised; others right."""
    share, broken = 1.002 * error, 0.0
    for empty in range(count // 5):  # all that matters of a draw is how many of them it holds
        strange = torch.arange(count) < empty
        alpha = torch.where(strange[:, None], torch.ones(2), torch.tensor([3.0, 1.0]))
        said = Prediction.from_alpha(alpha)
        policy = Policy.promise_error(said, strange.long(), error, unfamiliar="vacuity")
        kinds = Prediction.from_alpha(torch.tensor([[1.0, 1.0], [3.0, 1.0]]))
        if policy.decide(kinds).accept[0]:
            broken += binom(count, share).pmf(empty)
    assert broken <= DELTA


def test_right_samples_that_make_the_bound_of_the_familiar_show_nothing() -> None:
    """Of 100 tied values 61 make no bound; 59 show 5 %, and 74 would show 4 %."""
    said = Prediction.from_alpha(torch.tensor([[3.0, 1.0]]).expand(100, 2))
    asked = {"unfamiliar": "alpha0", "false_alarms": 0.39}
    labels = torch.zeros(100, dtype=torch.long)
    assert Policy.promise_error(said, labels, 0.05, **asked).seen["accepted"] == 1  # type: ignore[arg-type]
    assert Policy.promise_error(said, labels, 0.04, **asked).accepts_nothing  # type: ignore[arg-type]


# --- coverage and familiarity --------------------------------------------------------------------


@pytest.mark.parametrize("unfamiliar", [None, "alpha0"])
def test_the_coverage_is_kept_on_average(unfamiliar: str | None) -> None:
    generator = np.random.default_rng(0)
    shares = []
    for _ in range(300):
        alpha = torch.as_tensor(generator.gamma(3, 2, (40 + 400, 2)) + 1)
        said = Prediction.from_alpha(alpha)
        policy = Policy.promise_coverage(said[:40], 0.7, unfamiliar=unfamiliar, false_alarms=0.2)
        shares.append(policy.decide(said[40:]).accept.double().mean().item())
    # the mean is that of the rank, 29/41; its standard error is about 0.005
    assert np.mean(shares) == pytest.approx(29 / 41, abs=0.02)


def test_false_alarms_are_as_rare_as_asked() -> None:
    generator = np.random.default_rng(0)
    rates = []
    for _ in range(300):
        said = Prediction.from_alpha(torch.as_tensor(generator.gamma(3, 2, (50 + 400, 3)) + 1))
        policy = Policy.promise_coverage(
            said[:50], 0.5, unfamiliar="mutual_information", false_alarms=0.1
        )
        rates.append((policy.decide(said[50:]).reason == "unfamiliar").mean())
    assert np.mean(rates) == pytest.approx(5 / 51, abs=0.02)  # the 46th of 51 places


def test_too_few_samples_raise_no_alarm() -> None:
    said = Prediction.from_alpha(torch.rand(50, 3) + 1)
    policy = Policy.promise_coverage(said, 0.5, unfamiliar="vacuity", false_alarms=0.01)
    assert policy.familiar == Bound("vacuity", math.inf)
    assert "unfamiliar" not in policy.decide(said).reason


def test_reasons() -> None:
    policy = Policy(Bound("max_prob", 0.7), Bound("vacuity", 0.5), {}, {})
    alpha = torch.tensor([[9.0, 1.0], [9.0, 9.0], [1.2, 1.0], [1.9, 0.1 + 1]])
    decision = policy.decide(Prediction.from_alpha(alpha))
    assert decision.reason.tolist() == ["accepted", "ambiguous", "unfamiliar", "unfamiliar"]
    assert decision.accept.tolist() == [True, False, False, False]
    grid = policy.decide(Prediction.from_alpha(alpha.reshape(2, 2, 2)))
    assert grid.reason.shape == grid.accept.shape == (2, 2)
    assert "1 accepted, 1 ambiguous, 2 unfamiliar" in repr(decision)
    assert set(decision.reason) <= set(REASONS)
    assert isinstance(decision, Decision)


# --- plain values --------------------------------------------------------------------------------


def test_a_policy_survives_json() -> None:
    said = Prediction.from_alpha(torch.rand(500, 3, generator=torch.manual_seed(0)) * 9 + 1)
    policy = Policy.promise_error(said, said.label, 0.02, unfamiliar=UNFAMILIAR[0])
    again = Policy.from_dict(json.loads(json.dumps(policy.as_dict(), allow_nan=False)))
    assert again == policy
    assert torch.equal(again.decide(said).codes, policy.decide(said).codes)
    assert not policy.accepts_nothing


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sure": {"measure": "size", "value": 1.0}}, "unknown measure 'size'; known: 'max_prob'"),
        ({"sure": {"measure": "vacuity", "value": "1"}}, "must be a number, 'inf' or '-inf'"),
        ({"sure": {"measure": "vacuity", "value": True}}, "must be a number, 'inf' or '-inf'"),
        ({"sure": {"measure": "vacuity", "value": math.nan}}, "must be a number"),
        ({"sure": None}, "sure has the keys 'measure', 'value'"),
        ({"familiar": 3}, "familiar has the keys"),
        ({"promise": {"error": "low"}}, "promise must hold finite numbers"),
        ({"extra": 1}, "a policy has the keys 'familiar', 'promise', 'seen', 'sure'"),
    ],
)
def test_bad_files_are_refused(change: dict[str, object], message: str) -> None:
    good = Policy(Bound("max_prob", 0.5), None, {"error": 0.1}, {"samples": 9}).as_dict()
    assert Policy.from_dict(good).sure == Bound("max_prob", 0.5)
    with pytest.raises(ValueError, match=message):
        Policy.from_dict({**good, **change})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"error": 0.0}, "error must be between 0 and 1"),
        ({"error": math.nan}, "error must be between 0 and 1"),
        ({"confidence": 1.0}, "confidence must be between 0 and 1"),
        ({"start": -0.1}, "start must be a share"),
        ({"measure": "vacuity"}, "unknown measure 'vacuity'; known: 'max_prob', 'entropy_of_mean'"),
        ({"unfamiliar": "alpha0"}, "unknown measure 'alpha0'"),
        ({"unfamiliar": "max_prob", "false_alarms": 1.0}, "false_alarms must be between"),
        ({"labels": np.zeros(3, np.int64)}, r"labels have shape \(3,\), but 9 predictions"),
        ({"labels": np.full(9, 2)}, r"labels must be from 0 to 1, but span \[2, 2\]"),
        ({"said": binary(np.zeros(0) + 0.5)}, r"shape \(0, 2\); expected \(N, K\), N >= 1"),
        ({"said": binary(np.full((3, 3), 0.5))}, r"shape \(3, 3, 2\); expected \(N, K\)"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, object], message: str) -> None:
    given = {"said": binary(np.linspace(0.5, 0.9, 9)), "labels": np.zeros(9, np.int64)}
    with pytest.raises(ValueError, match=message):
        Policy.promise_error(**{**given, **arguments})  # type: ignore[arg-type]


def test_labels_must_be_integers() -> None:
    with pytest.raises(TypeError, match=r"labels must be integers, not torch\.float64"):
        Policy.promise_error(binary(np.full(3, 0.5)), np.zeros(3))


def test_nan_is_an_error_and_never_a_decision() -> None:
    said = Prediction(torch.tensor([[0.5, 0.5], [math.nan, 0.5]]), "probs")
    policy = Policy(Bound("max_prob", 0.5), None, {}, {})
    with pytest.raises(ValueError, match=r"max_prob is NaN for 1 samples, the first at \[1\]"):
        policy.decide(said)
    with pytest.raises(ValueError, match="max_prob is NaN"):
        Policy.promise_coverage(said, 0.5)


def test_coverage_and_false_alarms_must_fit_together() -> None:
    said = Prediction.from_alpha(torch.rand(200, 3) + 1)
    with pytest.raises(ValueError, match=r"a share of 0\.95 can't be accepted"):
        Policy.promise_coverage(said, 0.95, unfamiliar="vacuity", false_alarms=0.1)
    with pytest.raises(ValueError, match="share must be between 0 and 1"):
        Policy.promise_coverage(said, 1.0)
