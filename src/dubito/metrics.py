"""Metrics: ranking, calibration, selective prediction, regression and the distance of two samples.

All functions are batched over leading axes and keep them. Counts are integers
and averages float64, so that ten million samples lose no unit; the result comes back as float64
for float64 input and as float32 otherwise. Half precision is computed in float32. Ties count as
ties: unless stated otherwise, the order of the samples does not matter, and no figure changes from
run to run. A metric is a measurement: it carries no gradient.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from dubito import _checks
from dubito.errors import DubitoError

__all__ = [
    "accuracy", "aupr", "aurc", "auroc", "brier", "coverage",
    "ece", "energy_distance", "excess_aurc", "fpr95", "mae", "nll", "rmse",
]  # fmt: skip

# --- ranking: scores (..., N), the higher the more positive --------------------------------------


def aupr(scores: Tensor, positive: Tensor) -> Tensor:
    """Average precision: the area under the precision-recall steps, positive class = `positive`.

        AP = sum_t (R_t - R_{t-1}) P_t        over the distinct thresholds t, from the highest down

    Tied scores share one threshold, so this is scikit-learn's `average_precision_score`.
    Infinite scores are ranked like any other. Higher is better.

    Shapes: scores (..., N), higher = more positive; positive (..., N), bool or 0/1 -> (...).

    >>> aupr(torch.tensor([0.9, 0.8, 0.7, 0.6]), torch.tensor([True, False, True, False]))
    tensor(0.8333)
    """
    scores, positive = _scored("scores", scores, "positive", positive)
    found, rank, end = _ranking(scores, positive)
    positives, _ = _class_sizes(found)
    # In place and no wider than the scores: a fresh block of memory costs more than its arithmetic.
    # Only the sum needs float64; a precision rounded to float32 is off by 6e-8 of itself.
    gained = found.to(scores.dtype).div_(rank).mul_(_steps(found, end))
    return (gained.sum(-1, dtype=torch.float64) / positives).to(scores.dtype)


def auroc(scores: Tensor, positive: Tensor) -> Tensor:
    """Area under the ROC curve: the chance that a positive outranks a negative, ties counting half.

        AUROC = P(s+ > s-) + P(s+ = s-) / 2

    The pairs are counted in integers: the one rounding is the last division. Higher is better.

    Shapes: scores (..., N), higher = more positive; positive (..., N), bool or 0/1 -> (...).

    >>> auroc(torch.tensor([0.9, 0.8, 0.7, 0.6]), torch.tensor([True, False, True, False]))
    tensor(0.7500)
    """
    scores, positive = _scored("scores", scores, "positive", positive)
    found, rank, end = _ranking(scores, positive)
    positives, negatives = _class_sizes(found)
    gained = _steps(found, end)
    # Trapezoids of width (false positives gained) between the old and the new true positives.
    twice = (_steps(rank - found, end) * (2 * found - gained)).sum(-1)
    return (twice.double() / (2 * positives * negatives)).to(scores.dtype)


def fpr95(scores: Tensor, positive: Tensor, tpr: float = 0.95) -> Tensor:
    """False positive rate at the highest threshold that still finds a share `tpr` of the positives.

        min { FPR_t : TPR_t >= tpr }        over the distinct thresholds t

    Nothing is interpolated: a group of ties is admitted whole. Lower is better.

    Shapes: scores (..., N), higher = more positive; positive (..., N), bool or 0/1 -> (...).

    >>> fpr95(torch.tensor([0.9, 0.8, 0.7, 0.6]), torch.tensor([True, False, True, False]))
    tensor(0.5000)
    """
    if not 0.0 < tpr <= 1.0:
        raise DubitoError(f"tpr: got {tpr}, expected a rate in (0, 1]")
    scores, positive = _scored("scores", scores, "positive", positive)
    found, rank, end = _ranking(scores, positive)
    positives, negatives = _class_sizes(found)
    # A quotient, not tpr * positives: 55 of 100 is 0.55, but 0.55 * 100 rounds to more than 55.
    reached = end & (found.double().div_(positives.unsqueeze(-1)) >= tpr)
    false = torch.where(reached, rank - found, rank[-1]).amin(-1)
    return (false.double() / negatives).to(scores.dtype)


# --- selective prediction: confidence (..., N), the higher the surer -----------------------------


def aurc(confidence: Tensor, correct: Tensor) -> Tensor:
    """Area under the risk-coverage curve: the error rate of the k surest, averaged over all k.

        AURC = (1/N) sum_{k=1..N} E_k / k        E_k: errors among the k most confident

    Within ties the order is taken as random and E_k as its expectation: after a samples with E_a
    errors, k - a of the next m tied ones, e of them wrong, bring (k - a) e / m more on average.
    Lower is better.

    Shapes: confidence (..., N); correct (..., N), bool or 0/1, 1 = a right prediction -> (...).

    >>> aurc(torch.tensor([0.9, 0.8, 0.7, 0.6]), torch.tensor([True, False, True, True]))
    tensor(0.2708)
    """
    confidence, correct = _scored("confidence", confidence, "correct", correct)
    return _mean_risk(confidence, correct).to(confidence.dtype)


def excess_aurc(confidence: Tensor, correct: Tensor) -> Tensor:
    """AURC above that of the best possible order, which puts every error after every success.

        E-AURC = AURC - (1/N) sum_{k>N-r} (k - (N - r)) / k        r: errors among the N samples

    The optimum is that of the finite sample, not its limit; zero is perfect, lower is better.

    Shapes: confidence (..., N); correct (..., N), bool or 0/1, 1 = a right prediction -> (...).

    >>> excess_aurc(torch.tensor([0.9, 0.8, 0.7, 0.6]), torch.tensor([True, True, True, False]))
    tensor(0.)
    """
    confidence, correct = _scored("confidence", confidence, "correct", correct)
    successes = correct.sum(-1, keepdim=True)
    rank = torch.arange(1, correct.shape[-1] + 1, device=correct.device)
    oracle = ((rank - successes).clamp_min(0).double() / rank).mean(-1)
    return (_mean_risk(confidence, correct) - oracle).to(confidence.dtype)


# --- probabilities: probs (..., N, K), target (..., N) -------------------------------------------


def accuracy(probs: Tensor, target: Tensor) -> Tensor:
    """Share of the samples whose most probable class is the target; ties go to the lower class.

    Shapes: probs (..., N, K); target (..., N), integer in [0, K) -> (...). Higher is better.

    >>> accuracy(torch.tensor([[0.7, 0.3], [0.4, 0.6]]), torch.tensor([0, 0]))
    tensor(0.5000)
    """
    probs, target = _labelled(probs, target)
    return (probs.argmax(-1) == target).double().mean(-1).to(probs.dtype)


def nll(probs: Tensor, target: Tensor) -> Tensor:
    """Negative log-likelihood of the targets, in nats.

        NLL = -(1/N) sum_n ln p_{n, y_n}

    A target of probability zero makes it infinite: nothing is clipped. Lower is better.

    Shapes: probs (..., N, K); target (..., N), integer in [0, K) -> (...).

    >>> nll(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), torch.tensor([0, 1]))
    tensor(0.3466)
    """
    probs, target = _labelled(probs, target)
    chosen = probs.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    return (0.0 - chosen.double().log().mean(-1)).to(probs.dtype)


def brier(probs: Tensor, target: Tensor) -> Tensor:
    """Brier score in its multi-class form, from 0 to 2.

        BS = (1/N) sum_n sum_k (p_{n,k} - [k = y_n])^2

    Shapes: probs (..., N, K); target (..., N), integer in [0, K) -> (...). Lower is better.

    >>> brier(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), torch.tensor([0, 1]))
    tensor(0.2500)
    """
    probs, target = _labelled(probs, target)
    truth = target.unsqueeze(-1) == torch.arange(probs.shape[-1], device=probs.device)
    squares = (probs - truth.to(probs.dtype)).square()
    return squares.sum(-1, dtype=torch.float64).mean(-1).to(probs.dtype)


def ece(probs: Tensor, target: Tensor, bins: int = 15, scheme: str = "width") -> Tensor:
    """Expected calibration error of the top class: how far confidence is from accuracy, by bins.

        ECE = sum_b (n_b / N) |accuracy_b - confidence_b|

    scheme "width": bins ((b-1)/B, b/B] of equal width. scheme "mass": the samples in order of
    confidence, cut in B groups whose sizes differ by one at most, the larger first; there, and only
    there, ties across a cut keep the order of the data. Lower is better.

    Shapes: probs (..., N, K); target (..., N), integer in [0, K) -> (...).

    >>> ece(torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([0, 0]), bins=10)
    tensor(0.3500)
    """
    if scheme not in _SCHEMES:
        raise DubitoError(f"scheme: got {scheme!r}, expected one of {sorted(_SCHEMES)}")
    if not isinstance(bins, int) or bins < 1:
        raise DubitoError(f"bins: got {bins!r}, expected an integer of at least 1")
    probs, target = _labelled(probs, target)
    confidence, label = probs.max(dim=-1)
    confidence, order = confidence.sort(dim=-1, stable=True)
    right = (label == target).gather(-1, order)
    # Gaps as fixed-point integers, scaled so that N of them fit: their sums are exact whatever the
    # order, where a parallel float sum on an accelerator changes from run to run.
    samples = confidence.shape[-1]
    scale = 2.0 ** (61 - samples.bit_length())
    gaps = ((right.double() - confidence.double()) * scale).round().to(torch.int64)
    cuts = _SCHEMES[scheme](confidence, bins)
    apart = pad(gaps.cumsum(-1), (1, 0)).gather(-1, cuts).diff(dim=-1).abs()
    return (apart.double().sum(-1) / (scale * samples)).to(probs.dtype)


# --- numbers: prediction (..., N), target (..., N) -----------------------------------------------


def rmse(prediction: Tensor, target: Tensor) -> Tensor:
    """Compute the root mean squared error; lower is better.

        RMSE = sqrt( (1/N) sum_n (prediction_n - target_n)^2 )

    Shapes: prediction (..., N), target (..., N), finite -> (...).

    >>> rmse(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
    tensor(1.4142)
    """
    prediction, target = _numbers(prediction=prediction, target=target)
    squares = (prediction.double() - target.double()).square()
    return squares.mean(-1).sqrt().to(prediction.dtype)


def mae(prediction: Tensor, target: Tensor) -> Tensor:
    """Compute the mean absolute error; lower is better.

        MAE = (1/N) sum_n |prediction_n - target_n|

    Shapes: prediction (..., N), target (..., N), finite -> (...).

    >>> mae(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
    tensor(1.)
    """
    prediction, target = _numbers(prediction=prediction, target=target)
    return (prediction.double() - target.double()).abs().mean(-1).to(prediction.dtype)


def coverage(lower: Tensor, upper: Tensor, target: Tensor) -> Tensor:
    """Compute the share of targets inside their closed intervals [lower, upper].

    Shapes: lower, upper and target (..., N); bounds may be infinite -> (...).

    >>> coverage(torch.zeros(2), torch.ones(2), torch.tensor([1.0, 1.5]))
    tensor(0.5000)
    """
    (target,) = _numbers(target=target)
    lower, upper = _sample("lower", lower), _sample("upper", upper)
    for name, bound in (("lower", lower), ("upper", upper)):
        _same_shape(name, bound.shape, "target", target.shape)
        _forbid(name, bound.isnan(), "NaN", "comparable numbers")
    inside = (lower <= target) & (target <= upper)
    return inside.double().mean(-1).to(target.dtype)


# --- two samples ---------------------------------------------------------------------------------


def energy_distance(x: Tensor, y: Tensor) -> Tensor:
    """Energy distance between two samples of a scalar, in the square-root form.

        D = sqrt( 2 E|X - Y| - E|X - X'| - E|Y - Y'| ) = sqrt( 2 integral (F - G)^2 )

    The right-hand form is the one computed, from one sort of both samples: it holds only the gaps
    between neighbours, so nothing cancels however far from zero the samples lie. It is symmetric,
    never negative, and exactly zero for equal samples. Agrees with `scipy.stats.energy_distance`.

    Shapes: x (..., N), y (..., M), finite -> (...).

    >>> energy_distance(torch.tensor([0.0, 0.0]), torch.tensor([2.0]))
    tensor(2.)
    """
    (x,), (y,) = _numbers(x=x), _numbers(y=y)
    _same_shape("leading axes of x", x.shape[:-1], "y", y.shape[:-1])
    n, m = x.shape[-1], y.shape[-1]
    values, order = torch.cat([x, y], -1).sort(dim=-1)
    # With i of the first r values from x, F - G = i/n - (r - i)/m = (i (n + m) - r n) / (n m): the
    # numerator is a whole number, exactly zero wherever the two samples draw level.
    rank = torch.arange(1, n + m, device=x.device)
    height = (order[..., :-1] < n).cumsum(-1).mul_(n + m).sub_(rank * n).double().div_(n * m)
    area = height.square_().mul_(values.double().diff(dim=-1)).sum(-1)
    return (2.0 * area).sqrt().to(values.dtype)


# --- shared parts --------------------------------------------------------------------------------


def _ranking(scores: Tensor, flags: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """From the highest score down: flags counted so far (..., N), ranks (N,), ends of ties."""
    samples = scores.shape[-1]
    # int32 halves the memory traffic; below 2^30 samples no sum of two counts can overflow it.
    count = torch.int32 if samples < 2**30 else torch.int64
    rank = torch.arange(1, samples + 1, device=scores.device)
    if scores.is_cpu and scores.dtype == torch.float32:
        ordered, flagged = _sorted_together(scores, flags)
    else:
        ordered, order = scores.sort(dim=-1, descending=True)
        flagged = flags.gather(-1, order)
    end = pad(ordered[..., 1:] != ordered[..., :-1], (0, 1), value=True)
    return flagged.cumsum(-1, dtype=count), rank, end


def _sorted_together(scores: Tensor, flags: Tensor) -> tuple[Tensor, Tensor]:
    """Keys that fall with the score, ascending, and the flags in that order, on the CPU.

    A float's bits order like an integer, so score and flag fit one int64: numpy sorts those with
    vector instructions, several times faster than torch sorts scores and indices.
    """
    bits = (scores + 0.0).view(torch.int32)  # -0 becomes 0
    rising = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    packed = (~rising).long().mul_(2).add_(flags)
    packed.numpy().sort(axis=-1)
    return packed >> 1, packed & 1


def _steps(counted: Tensor, end: Tensor) -> Tensor:
    """What a tie group adds to a running count, placed at the group's end; zero elsewhere."""
    # The count at the last end passed. Counts never fall, so this is the largest at any end so far.
    held = counted if bool(end.all()) else (counted * end).cummax(-1).values
    return held.diff(dim=-1, prepend=torch.zeros_like(held[..., :1]))


def _mean_risk(confidence: Tensor, correct: Tensor) -> Tensor:
    """AURC in float64; see `aurc` for the treatment of ties."""
    errors, rank, end = _ranking(confidence, ~correct)
    stop = torch.where(end, rank, rank[-1]).flip(-1).cummin(-1).values.flip(-1)
    start = pad((rank * end).cummax(-1).values[..., :-1], (1, 0))
    counted = pad(errors, (1, 0))
    before, after = counted.gather(-1, start), counted.gather(-1, stop)
    expected = before + ((rank - start) * (after - before)).double() / (stop - start)
    return (expected / rank).mean(-1)


def _width_cuts(confidence: Tensor, bins: int) -> Tensor:
    # The edges are rounded to the dtype of the confidence, so that 0.2 lies on the edge 3/15.
    edges = (torch.arange(1, bins, dtype=torch.float64) / bins).to(confidence)
    edges = edges.expand(*confidence.shape[:-1], bins - 1).contiguous()
    inner = torch.searchsorted(confidence.contiguous(), edges, right=True)
    return pad(pad(inner, (1, 0)), (0, 1), value=confidence.shape[-1])


def _mass_cuts(confidence: Tensor, bins: int) -> Tensor:
    size, larger = divmod(confidence.shape[-1], bins)
    index = torch.arange(bins + 1, device=confidence.device)
    return (index * size + index.clamp_max(larger)).expand(*confidence.shape[:-1], bins + 1)


# Each takes sorted confidences (..., N) and returns the B + 1 places to cut at (..., B + 1).
_SCHEMES: dict[str, Callable[[Tensor, int], Tensor]] = {"width": _width_cuts, "mass": _mass_cuts}


# --- checks: each names the argument, what was seen and what is expected -------------------------

_SUM_TOLERANCE = 1e-2  # above what rows rounded to bfloat16 are off by, also after a cast back


def _sample(name: str, value: Tensor) -> Tensor:
    """A floating tensor with a sample axis, detached, in its working precision."""
    if not _checks.tensor(value, name).is_floating_point():
        raise TypeError(f"{name}: got {value.dtype}, expected a floating point tensor")
    if value.dim() == 0 or 0 in value.shape[-1:]:
        raise DubitoError(f"{name}: got shape {tuple(value.shape)}, expected at least one sample")
    return value.detach().to(torch.float64 if value.dtype == torch.float64 else torch.float32)


def _numbers(**values: Tensor) -> list[Tensor]:
    """Check finite numbers (..., N) of one shape; promote them to one precision."""
    checked = {name: _sample(name, value) for name, value in values.items()}
    for name, value in checked.items():
        _forbid(name, ~value.isfinite(), "a value that is not finite", "finite values")
    (first, head), *others = checked.items()
    for name, value in others:
        _same_shape(first, head.shape, name, value.shape)
    wide = torch.float64 in [value.dtype for value in checked.values()]
    return [value.double() if wide else value for value in checked.values()]


def _forbid(name: str, bad: Tensor, seen: str, expected: str) -> None:
    if bool(bad.any()):
        first = tuple(bad.nonzero()[0].tolist())
        where = f" at index {first}" if first else ""
        raise DubitoError(f"{name}: got {seen}{where}, expected {expected}")


def _same_shape(name: str, shape: torch.Size, other: str, other_shape: torch.Size) -> None:
    if shape != other_shape:
        seen = f"shapes {tuple(shape)} and {tuple(other_shape)}"
        raise DubitoError(f"{name}, {other}: got {seen}, expected the same shape")


def _scored(name: str, scores: Tensor, flag_name: str, flags: Tensor) -> tuple[Tensor, Tensor]:
    scores = _sample(name, scores)
    dtype = _checks.tensor(flags, flag_name).dtype
    if dtype.is_floating_point or dtype.is_complex:
        raise TypeError(f"{flag_name}: got {dtype}, expected bool or integers 0 and 1")
    _same_shape(name, scores.shape, flag_name, flags.shape)
    if bool(scores.sum().isnan()):  # one quick pass; infinities of both signs get here as well
        _forbid(name, scores.isnan(), "NaN", "comparable numbers")
    if flags.dtype != torch.bool:
        _forbid(flag_name, (flags != 0) & (flags != 1), "a value other than 0 and 1", "0 or 1")
    return scores, flags.bool()


def _class_sizes(found: Tensor) -> tuple[Tensor, Tensor]:
    """Positives and negatives in each ranking, of which there must be one each at least."""
    positives = found[..., -1].long()  # their product does not fit in int32
    negatives = found.shape[-1] - positives
    for seen, size in (("no positives", positives), ("no negatives", negatives)):
        _forbid("positive", size == 0, seen, "at least one of each class")
    return positives, negatives


def _labelled(probs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities (..., N, K) and their targets (..., N)."""
    working = _sample("probs", probs)
    if probs.dim() < 2 or probs.shape[-2] == 0:
        raise DubitoError(f"probs: got shape {tuple(probs.shape)}, expected (..., N, K), N >= 1")
    shapes = f"probs of shape {tuple(probs.shape)} need {tuple(probs.shape[:-1])}"
    target = _checks.tensor(target, "target")
    labels = _checks.labels(target, probs.shape[:-1], probs.shape[-1], shapes)
    _forbid("probs", ~(working >= 0), "a negative value or NaN", "probabilities")
    off = (working.sum(-1) - 1).abs() > _SUM_TOLERANCE
    _forbid("probs", off, "a row that does not sum to 1", f"a sum within {_SUM_TOLERANCE} of 1")
    return working, labels
