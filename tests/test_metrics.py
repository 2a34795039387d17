"""Metrics against scikit-learn, SciPy and brute force, and their algebraic properties."""

import math
from collections.abc import Callable
from itertools import pairwise, permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk
from torch import Tensor

from dubito import metrics as m

SIZES = [2, 3, 150, 10_000]
TOLERANCE = 1e-6
Metric = Callable[[Tensor, Tensor], Tensor]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def close(ours: Tensor, expected: object, tolerance: float = TOLERANCE) -> None:
    exact = torch.as_tensor(np.asarray(expected), dtype=torch.float64)
    torch.testing.assert_close(ours.double(), exact, rtol=0.0, atol=tolerance)


def ranked(size: int, tied: bool, batch: int = 4) -> tuple[Tensor, Tensor]:
    """Scores, all distinct or of four values, and a mask with both classes in every row."""
    g = generator(size + tied)
    positive = torch.rand(batch, size, generator=g) < 0.3
    positive[:, 0], positive[:, -1] = True, False
    scores = torch.randn(batch, size, generator=g) + 0.5 * positive
    return ((2 * scores).round().clamp(-1, 2) if tied else scores), positive


def predictions(shape: tuple[int, ...], classes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = generator(seed)
    probs = (2 * torch.randn(*shape, classes, generator=g, dtype=torch.float64)).softmax(-1)
    return probs, torch.randint(classes, shape, generator=g)


def sk_fpr(positive: np.ndarray, scores: np.ndarray) -> float:
    fpr, tpr, _ = sk.roc_curve(positive, scores, drop_intermediate=False)
    return float(fpr[tpr >= 0.95].min())


RANKING: dict[str, tuple[Metric, Callable[[np.ndarray, np.ndarray], float]]] = {
    "aupr": (m.aupr, sk.average_precision_score),
    "auroc": (m.auroc, sk.roc_auc_score),
    "fpr95": (m.fpr95, sk_fpr),
}
SCORED: dict[str, Metric] = {"aupr": m.aupr, "auroc": m.auroc, "fpr95": m.fpr95, "aurc": m.aurc}
LABELED: dict[str, Metric] = {"accuracy": m.accuracy, "brier": m.brier, "ece": m.ece}
NUMBERS: dict[str, Metric] = {"rmse": m.rmse, "mae": m.mae}
EVERY: dict[str, Metric] = SCORED | LABELED | NUMBERS
EACH = pytest.mark.parametrize("name", EVERY)


def drawn(name: str, batch: int, size: int) -> tuple[Tensor, Tensor]:
    """Arguments of a metric: (batch, size, ...)."""
    if name in SCORED:
        return ranked(size, tied=True, batch=batch)
    if name in LABELED:
        return predictions((batch, size), 4)
    first, second = torch.randn(2, batch, size, generator=generator(0))
    return first, second


# --- ranking -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RANKING)
@pytest.mark.parametrize("factor", [0.0, 1.0, 2.0], ids=["constant", "tied", "distinct"])
@pytest.mark.parametrize("size", SIZES)
def test_ranking_equals_sklearn(name, factor, size):
    ours, reference = RANKING[name]
    scores, positive = ranked(size, tied=factor < 2)
    scores = factor * scores
    rows = zip(positive.numpy(), scores.numpy(), strict=True)
    expected = [reference(p, s) for p, s in rows]
    close(ours(scores, positive), expected)
    close(ours(scores.double(), positive), expected)


def test_fpr_at_a_rate_that_is_met_exactly():
    for count in range(20, 2000, 20):
        positive = torch.arange(count + 1) != 19 * count // 20
        assert m.fpr95(-torch.arange(count + 1.0), positive) == 0


def test_aupr_and_auroc_of_a_million_scores():
    scores, positive = ranked(1_000_000, tied=False, batch=1)
    scores, positive = (scores[0] * 1e5).round(), positive[0]  # many small groups of ties
    close(m.aupr(scores, positive), sk.average_precision_score(positive, scores))
    close(m.auroc(scores, positive), sk.roc_auc_score(positive, scores))


def test_counts_go_past_the_integers_of_float32():
    # 95 % of 18 million positives are reached just after half of the negatives, in the group after
    # an odd count, which float32 would round up.
    size, reached = 18_000_002, 17_100_000
    positive = torch.ones(size, dtype=torch.bool)
    positive[reached - 1], positive[-1] = False, False
    scores = -((torch.arange(size) + 1) // 2).float()
    assert m.fpr95(scores, positive).item() == 0.5


def test_infinite_scores_are_ranked():
    scores = torch.tensor([math.inf, 1.0, -math.inf, -math.inf])
    finite = torch.tensor([9.0, 1.0, -9.0, -9.0])
    positive = torch.tensor([True, False, True, False])
    for metric in SCORED.values():
        assert metric(scores, positive) == metric(finite, positive)
        assert metric(scores[:3], positive[:3]) == metric(finite[:3], positive[:3])


# --- probabilities -------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("classes", [2, 10])
def test_probability_metrics_equal_sklearn(size, classes):
    probs, target = predictions((3, size), classes)
    rows = list(zip(target.numpy(), probs.numpy(), strict=True))
    close(m.accuracy(probs, target), [sk.accuracy_score(t, p.argmax(-1)) for t, p in rows])
    expected = [((p - np.eye(classes)[t]) ** 2).sum(-1).mean() for t, p in rows]
    close(m.brier(probs, target), expected)


def test_accuracy_gives_ties_to_the_lower_class():
    probs = torch.tensor([[0.25, 0.375, 0.375]]).expand(3, 3)
    assert m.accuracy(probs.unsqueeze(-2), torch.tensor([[0], [1], [2]])).tolist() == [0, 1, 0]


def width_groups(confidence: np.ndarray, bins: int) -> list[np.ndarray]:
    edges = np.arange(bins + 1) / bins
    edges[0] = -1.0  # zero belongs to the first bin
    return [np.flatnonzero((confidence > a) & (confidence <= b)) for a, b in pairwise(edges)]


@pytest.mark.parametrize("bins", [1, 2, 15, 40])
@pytest.mark.parametrize("size", [1, 2, 3, 150, 10_000])
def test_ece_equals_its_definition(bins, size):
    probs, target = predictions((3, size), 5, seed=size)
    probs[0] = (probs[0] * 8).round() + 1e-9  # tied confidences, many on the edge of a bin
    probs[0] /= probs[0].sum(-1, keepdim=True)
    expected = []
    for p, t in zip(probs.numpy(), target.numpy(), strict=True):
        gap = (p.argmax(-1) == t) - p.max(-1)
        expected.append(sum(abs(gap[g].sum()) for g in width_groups(p.max(-1), bins)) / size)
    close(m.ece(probs, target, bins=bins), expected, 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ece_puts_an_edge_in_the_bin_below(dtype):
    # Confidence 9/15 right, just above it wrong: one bin would let the two gaps cancel.
    edge = torch.tensor(9 / 15, dtype=dtype)
    above = torch.nextafter(edge, torch.ones_like(edge))
    confidence = torch.stack([edge, above])
    probs = torch.stack([confidence, 1 - confidence], -1)
    close(m.ece(probs, torch.tensor([0, 1])), (0.4 + 0.6) / 2)
    below = torch.nextafter(edge, torch.zeros_like(edge))
    probs = torch.stack([torch.stack([below, edge]), 1 - torch.stack([below, edge])], -1)
    close(m.ece(probs, torch.tensor([0, 1])), 0.1)


def test_ece_is_exact_whatever_the_order():
    probs, target = predictions((5000,), 10)
    shuffled = torch.randperm(5000, generator=generator(1))
    assert m.ece(probs[shuffled], target[shuffled]) == m.ece(probs, target)


# --- risk and coverage ---------------------------------------------------------------------------


def aurc_in_order(correct: np.ndarray) -> float:
    return float((np.cumsum(~correct) / np.arange(1, len(correct) + 1)).mean())


@pytest.mark.parametrize("size", [1, *SIZES])
def test_aurc_without_ties_equals_its_definition(size):
    g = generator(size)
    confidence = torch.randn(3, size, generator=g, dtype=torch.float64)
    correct = torch.rand(3, size, generator=g) < 0.7
    order = (-confidence).numpy().argsort(-1)
    rows = [c[o] for c, o in zip(correct.numpy(), order, strict=True)]
    close(m.aurc(confidence, correct), [aurc_in_order(row) for row in rows], 1e-12)


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=6))
@settings(max_examples=40)
def test_aurc_of_ties_is_the_mean_over_all_orders(samples):
    orders = []
    for order in permutations(samples):
        by_confidence = sorted(order, key=lambda sample: -sample[0])  # stable: keeps the order
        orders.append(aurc_in_order(np.array([right for _, right in by_confidence])))
    confidence = torch.tensor([float(level) for level, _ in samples], dtype=torch.float64)
    correct = torch.tensor([right for _, right in samples])
    close(m.aurc(confidence, correct), np.mean(orders), 1e-12)


# --- numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, *SIZES])
def test_regression_metrics_equal_sklearn(size):
    prediction, target = torch.randn(2, 4, size, generator=generator(size))
    rows = list(zip(target.numpy(), prediction.numpy(), strict=True))
    close(m.rmse(prediction, target), [sk.root_mean_squared_error(t, p) for t, p in rows])
    close(m.mae(prediction, target), [sk.mean_absolute_error(t, p) for t, p in rows])
    lower, upper = prediction - 0.5, prediction + 1
    inside = [np.mean((t >= p - 0.5) & (t <= p + 1)) for t, p in rows]
    close(m.coverage(lower, upper, target), inside)


def test_small_errors_far_from_zero_in_float32():
    target = torch.full((1000,), 2.0**20)
    assert m.rmse(target + 0.125, target) == 0.125
    assert m.mae(target - 0.125, target) == 0.125


def test_intervals_are_closed_and_may_be_infinite():
    target = torch.tensor([0.0, 1.0, 5.0])
    lower, upper = torch.tensor([0.0, 0.0, -math.inf]), torch.tensor([1.0, 1.0, math.inf])
    assert m.coverage(lower, upper, target) == 1


# --- shapes, layouts, dtypes, devices ------------------------------------------------------------


@EACH
def test_leading_axes_are_kept(name):
    metric = EVERY[name]
    first, second = drawn(name, 6, 30)
    expected = torch.stack([metric(*row) for row in zip(first, second, strict=True)])
    torch.testing.assert_close(metric(first, second), expected)
    folded = metric(first.unflatten(0, (2, 3)), second.unflatten(0, (2, 3)))
    torch.testing.assert_close(folded, expected.view(2, 3))
    assert metric(first[:0], second[:0]).shape == (0,)


@EACH
def test_non_contiguous_arguments(name):
    arguments = drawn(name, 4, 60)
    spread = [part.new_zeros(*part.mT.shape, 2) for part in arguments]
    for wide, part in zip(spread, arguments, strict=True):
        wide[..., 0] = part.mT
    strided = [wide[..., 0].mT for wide in spread]
    assert not strided[0].is_contiguous()
    torch.testing.assert_close(EVERY[name](*strided), EVERY[name](*arguments))


@EACH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_dtypes(name, dtype):
    first, second = drawn(name, 3, 500)
    rounded = first.to(dtype)  # what rounding changes is in the data
    value = EVERY[name](rounded, second)
    assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    close(value, EVERY[name](rounded.double(), second))


def test_a_float64_rank_survives():
    # Distinct in float64, tied in float32.
    scores = 1 + torch.tensor([3.0, 2.0, 1.0, 0.0], dtype=torch.float64) * 1e-12
    positive = torch.tensor([True, True, False, False])
    assert m.auroc(scores, positive) == 1
    assert m.auroc(scores.float(), positive) == 0.5


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int32, torch.uint16, torch.uint32, torch.uint64]
)
def test_masks_and_labels_of_any_integer_type(dtype):
    scores, positive = ranked(40, tied=True)
    for metric in SCORED.values() if dtype in (torch.uint8, torch.int32) else ():
        assert torch.equal(metric(scores, positive.to(dtype)), metric(scores, positive))
    probs, target = predictions((40,), 4)
    for metric in LABELED.values():
        assert metric(probs, target.to(dtype)) == metric(probs, target)
    with pytest.raises(ValueError, match="labels must be from 0 to 3"):
        m.accuracy(probs, (target + 1).to(dtype))


@EACH
def test_nothing_carries_a_gradient_or_changes_its_input(name):
    first, second = drawn(name, 1, 40)
    copy = first.clone()
    assert not EVERY[name](first.requires_grad_(), second).requires_grad
    assert torch.equal(first, copy)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@EACH
def test_cuda_agrees_and_repeats(name):
    arguments = drawn(name, 3, 10_000)
    there = [part.cuda() for part in arguments]
    value = EVERY[name](*there)
    close(value.cpu(), EVERY[name](*arguments))
    assert all(torch.equal(value, EVERY[name](*there)) for _ in range(5))


# --- errors --------------------------------------------------------------------------------------

S, P = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([True, False, True])
Q, T = torch.full((3, 2), 0.5), torch.tensor([0, 1, 1])
NAN = torch.tensor([[0.1, 0.2], [0.3, math.nan]])


def mask(*rows: list[int]) -> Tensor:
    return torch.tensor(rows)


RANKING_ERRORS = [
    ((S[:0], P[:0]), ValueError, r"scores: got shape \(0,\), expected at least one sample"),
    ((S[0], P[0]), ValueError, r"scores: got shape \(\), expected at least one sample"),
    ((S, P[:2]), ValueError, r"scores, positive: got shapes \(3,\) and \(2,\).* same shape"),
    ((S.expand(2, 3), P), ValueError, r"scores, positive: got shapes \(2, 3\) and \(3,\)"),
    ((NAN, mask([0, 1], [0, 1])), ValueError, r"scores: got NaN at index \(1, 1\), expected"),
    ((S, torch.tensor([0, 1, 2])), ValueError, r"positive: got a value other .* at index \(2,\)"),
    ((S, P.float()), TypeError, r"positive: got torch.float32, expected bool or integers"),
    ((S, [True, False, True]), TypeError, r"positive must be a torch.Tensor, not list"),
    ((P, P), TypeError, r"scores: got torch.bool, expected a floating point tensor"),
    ((NAN[:1], mask([0, 0])), ValueError, r"positive: got no positives at index \(0,\), expected"),
    ((NAN[:1], mask([1, 1])), ValueError, r"positive: got no negatives at index \(0,\), expected"),
]


LABELED_ERRORS = [
    ((Q[:0], T[:0]), ValueError, r"probs: got shape \(0, 2\), expected \(\.\.\., N, K\)"),
    ((Q[0], T[0]), ValueError, r"probs: got shape \(2,\), expected \(\.\.\., N, K\)"),
    ((Q, T[:2]), ValueError, r"labels have shape \(2,\), but probs of shape \(3, 2\) need \(3,\)"),
    ((Q, T.float()), TypeError, r"labels must be integers, not torch.float32"),
    ((Q, T.bool()), TypeError, r"labels must be integers, not torch.bool"),
    ((Q, [0, 1, 1]), TypeError, r"target must be a torch.Tensor, not list"),
    ((Q.long(), T), TypeError, r"probs: got torch.int64, expected a floating point tensor"),
    ((Q, T + 1), ValueError, r"labels must be from 0 to 1, but span \[1, 2\]"),
    ((Q * 1.02, T), ValueError, r"probs: got a row that does not sum to 1 at index \(0,\)"),
    ((Q * 0.98, T), ValueError, r"probs: got a row that does not sum to 1 at index \(0,\)"),
    ((Q + torch.tensor([-1.0, 1.0]), T), ValueError, r"probs: got a negative .* at index \(0, 0\)"),
    ((Q * math.nan, T), ValueError, r"probs: got a negative value or NaN at index \(0, 0\)"),
]

NUMBER_ERRORS = [
    ((S, S / 0), ValueError, r"target: got a value that is not finite at index \(0,\)"),
    ((S, S[:2]), ValueError, r"prediction, target: got shapes \(3,\) and \(2,\)"),
    ((S.long(), S), TypeError, r"prediction: got torch.int64, expected a floating point"),
]
OTHER_ERRORS = [
    (m.aurc, (NAN, mask([0, 1], [0, 1])), ValueError, r"confidence: got NaN at index \(1, 1\)"),
    (m.aurc, (S, P[:2]), ValueError, r"confidence, correct: got shapes \(3,\) and \(2,\)"),
    (m.aurc, (S, P.float()), TypeError, r"correct: got torch.float32"),
    (m.coverage, (S * math.nan, S, S), ValueError, r"lower: got NaN at index \(0,\)"),
    *((m.ece, (Q, T, bins), ValueError, f"bins: got {bins}, expected an int") for bins in (0, 2.5)),
]
ERRORS = [
    *((metric, *case) for metric, _ in RANKING.values() for case in RANKING_ERRORS),
    *((metric, *case) for metric in LABELED.values() for case in LABELED_ERRORS),
    *((metric, *case) for metric in NUMBERS.values() for case in NUMBER_ERRORS),
    *OTHER_ERRORS,
]


@pytest.mark.parametrize(("metric", "arguments", "error", "match"), ERRORS)
def test_bad_arguments_are_named(metric, arguments, error, match):
    with pytest.raises(error, match=match):
        metric(*arguments)


def test_one_class_is_no_error_of_the_risk():
    assert m.aurc(S, P | True) == 0
