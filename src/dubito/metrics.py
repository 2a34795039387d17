"""Metrics: ranking, calibration, selective prediction, regression.

All functions take batches: they reduce the sample axis and keep leading axes (...). Counts are
integers and averages float64, so that ten million samples lose nothing. The result is float64 for
float64 input and float32 otherwise. Half precision is computed in float32. Ties count as ties:
unless stated otherwise, the order of the samples does not matter. Metrics have no gradient.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from dubito import _checks
from dubito.errors import DubitoError

__all__ = [
    "accuracy", "aupr", "aurc", "auroc", "brier", "coverage",
    "ece", "fpr95", "mae", "rmse",
]  # fmt: skip

# --- ranking: scores (..., N), the higher the more positive --------------------------------------


def aupr(scores: Tensor, positive: Tensor) -> Tensor:
    """Compute the average precision, the area under the precision-recall steps; higher is better.

        AP = sum_t (R_t - R_{t-1}) P_t        over the distinct thresholds t, from the highest down

    Tied scores share one threshold, as in scikit-learn's `average_precision_score`. Infinite
    scores are ranked like any other.

    Args:
        scores: Scores (..., N); higher means more positive.
        positive: Which samples are positive, (..., N): bool, or 0 and 1.

    >>> aupr(torch.tensor([0.9, 0.8, 0.7, 0.6]), torch.tensor([True, False, True, False]))
    tensor(0.8333)
    """
    scores, positive = _scored("scores", scores, "positive", positive)
    hits, rank, end = _ranking(scores, positive)
    positives, _ = _class_sizes(hits)
    # In place and no wider than the scores: a fresh block of memory costs more than its arithmetic.
    # Only the sum needs float64; a precision rounded to float32 is off by 6e-8 of itself.
    gained = hits.to(scores.dtype).div_(rank).mul_(_steps(hits, end))
    return (gained.sum(-1, dtype=torch.float64) / positives).to(scores.dtype)


def auroc(scores: Tensor, positive: Tensor) -> Tensor:
    """Compute the area under the ROC curve; higher is better.

        AUROC = P(s+ > s-) + P(s+ = s-) / 2

    Pairs are counted in integers, so that only the final division rounds.

    Args:
        scores: Scores (..., N); higher means more positive.
        positive: Which samples are positive, (..., N): bool, or 0 and 1.

    >>> auroc(torch.tensor([0.9, 0.8, 0.7, 0.6]), torch.tensor([True, False, True, False]))
    tensor(0.7500)
    """
    scores, positive = _scored("scores", scores, "positive", positive)
    hits, rank, end = _ranking(scores, positive)
    positives, negatives = _class_sizes(hits)
    gained = _steps(hits, end)
    # Trapezoids of width (false positives gained) between the old and the new true positives.
    twice = (_steps(rank - hits, end) * (2 * hits - gained)).sum(-1)
    return (twice.double() / (2 * positives * negatives)).to(scores.dtype)


def fpr95(scores: Tensor, positive: Tensor) -> Tensor:
    """Compute the false positive rate at a true positive rate of 95 %; lower is better.

        min { FPR_t : TPR_t >= 0.95 }        over the distinct thresholds t

    Nothing is interpolated: tied scores share one threshold.

    Args:
        scores: Scores (..., N); higher means more positive.
        positive: Which samples are positive, (..., N): bool, or 0 and 1.

    >>> fpr95(torch.tensor([0.9, 0.8, 0.7, 0.6]), torch.tensor([True, False, True, False]))
    tensor(0.5000)
    """
    scores, positive = _scored("scores", scores, "positive", positive)
    hits, rank, end = _ranking(scores, positive)
    positives, negatives = _class_sizes(hits)
    reached = end & (hits.double().div_(positives.unsqueeze(-1)) >= 0.95)
    false = torch.where(reached, rank - hits, rank[-1]).amin(-1)
    return (false.double() / negatives).to(scores.dtype)


# --- selective prediction: confidence (..., N), the higher the surer -----------------------------


def aurc(confidence: Tensor, correct: Tensor) -> Tensor:
    """Compute the area under the risk-coverage curve; lower is better.

        AURC = (1/N) sum_{k=1..N} E_k / k        E_k: errors among the k most confident

    Within ties the order is random and E_k its expectation: after a samples with E_a errors, k - a
    of the next m tied ones, e of them wrong, add (k - a) e / m on average.

    Args:
        confidence: Confidence of each prediction, (..., N).
        correct: Which predictions are correct, (..., N): bool, or 0 and 1.

    >>> aurc(torch.tensor([0.9, 0.8, 0.7, 0.6]), torch.tensor([True, False, True, True]))
    tensor(0.2708)
    """
    risk = risks(confidence, correct).mean(-1)
    return risk.to(torch.promote_types(confidence.dtype, torch.float32))


def risks(confidence: Tensor, correct: Tensor) -> Tensor:
    """Compute the points of the risk-coverage curve, E_k / k for k = 1, ..., N: (..., N) float64.

    Args:
        confidence: Confidence of each prediction, (..., N).
        correct: Which predictions are correct, (..., N): bool, or 0 and 1.
    """
    confidence, correct = _scored("confidence", confidence, "correct", correct)
    errors, rank, end = _ranking(confidence, ~correct)
    stop = torch.where(end, rank, rank[-1]).flip(-1).cummin(-1).values.flip(-1)
    start = pad((rank * end).cummax(-1).values[..., :-1], (1, 0))
    counted = pad(errors, (1, 0))
    before, after = counted.gather(-1, start), counted.gather(-1, stop)
    expected = before + ((rank - start) * (after - before)).double() / (stop - start)
    return expected / rank


# --- probabilities: probs (..., N, K), target (..., N) -------------------------------------------


def accuracy(probs: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    """Compute the share of samples whose most probable class is the target.

    Ties go to the lower class.

    Args:
        probs: Class probabilities, (..., N, K).
        target: Class indices, (..., N).
        weight: Weight of each sample, (..., N); None: all count alike.

    >>> accuracy(torch.tensor([[0.7, 0.3], [0.4, 0.6]]), torch.tensor([0, 0]))
    tensor(0.5000)
    """
    probs, target = _labeled(probs, target)
    return mean(probs.argmax(-1) == target, weight).to(probs.dtype)


def brier(probs: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    """Compute the Brier score of all classes, from 0 to 2; lower is better.

        BS = (1/N) sum_n sum_k (p_{n,k} - [k = y_n])^2

    Args:
        probs: Class probabilities, (..., N, K).
        target: Class indices, (..., N).
        weight: Weight of each sample, (..., N); None: all count alike.

    >>> brier(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), torch.tensor([0, 1]))
    tensor(0.2500)
    """
    probs, target = _labeled(probs, target)
    truth = target.unsqueeze(-1) == torch.arange(probs.shape[-1], device=probs.device)
    squares = (probs - truth.to(probs.dtype)).square()
    return mean(squares.sum(-1, dtype=torch.float64), weight).to(probs.dtype)


def ece(probs: Tensor, target: Tensor, bins: int = 15, weight: Tensor | None = None) -> Tensor:
    """Compute the expected calibration error of the most probable class; lower is better.

        ECE = sum_b (n_b / N) |accuracy_b - confidence_b|        bins ((b-1)/B, b/B]

    Args:
        probs: Class probabilities, (..., N, K).
        target: Class indices, (..., N).
        bins: Number of bins B.
        weight: Weight of each sample, (..., N); None: all count alike.

    >>> ece(torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([0, 0]), bins=10)
    tensor(0.3500)
    """
    if not isinstance(bins, int) or bins < 1:
        raise DubitoError(f"bins: got {bins!r}, expected an integer of at least 1")
    probs, target = _labeled(probs, target)
    if weight is not None:
        _check_weight(weight, target.shape)
    confidence, correct, _ = confidence_bins(probs, target, bins, weight)
    total = target.shape[-1] if weight is None else weight.double().sum(-1)
    return ((correct - confidence).abs().sum(-1) / total).to(probs.dtype)


def confidence_bins(
    probs: Tensor, target: Tensor, bins: int, weight: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Sum the confidences, correct predictions and samples in each bin of the ECE.

    Args:
        probs: Class probabilities, (..., N, K), float32 or float64.
        target: Class indices, (..., N).
        bins: Number of bins B.
        weight: Weight of each sample in the sums, (..., N).

    Returns:
        Sum of confidences and number of correct predictions in float64, and number of samples:
        (..., B) each.
    """
    confidence, label = probs.max(dim=-1)
    confidence, order = confidence.sort(dim=-1)
    correct = (label == target).gather(-1, order)
    samples = confidence.shape[-1]
    # The edges are rounded to the dtype of the confidence, so that 0.2 lies on the edge 3/15.
    edges = (torch.arange(1, bins, dtype=torch.float64) / bins).to(confidence)
    edges = edges.expand(*confidence.shape[:-1], bins - 1).contiguous()
    inner = torch.searchsorted(confidence.contiguous(), edges, right=True)
    cuts = pad(pad(inner, (1, 0)), (0, 1), value=samples)
    # Confidences as fixed-point integers, scaled so that N of them fit: their sums are exact
    # whatever the order, where a parallel float sum on an accelerator changes from run to run.
    scale = torch.tensor(2.0 ** (61 - samples.bit_length()), dtype=torch.float64)
    shares: float | Tensor = 1.0
    if weight is not None:
        scale = scale / weight.amax(-1, keepdim=True).double()
        shares = weight.double().gather(-1, order)
    sums, hits = (
        pad((part * shares * scale).round().long().cumsum(-1), (1, 0)).gather(-1, cuts).diff(dim=-1)
        for part in (confidence.double(), correct.double())
    )
    return sums / scale, hits / scale, cuts.diff(dim=-1)


# --- numbers: prediction (..., N), target (..., N) -----------------------------------------------


def rmse(prediction: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    """Compute the root mean squared error; lower is better.

        RMSE = sqrt( (1/N) sum_n (prediction_n - target_n)^2 )

    Args:
        prediction: Predicted numbers, (..., N).
        target: Targets, (..., N).
        weight: Weight of each sample, (..., N); None: all count alike.

    >>> rmse(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
    tensor(1.4142)
    """
    prediction, target = _numbers(prediction=prediction, target=target)
    squares = (prediction.double() - target.double()).square()
    return mean(squares, weight).sqrt().to(prediction.dtype)


def mae(prediction: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    """Compute the mean absolute error; lower is better.

        MAE = (1/N) sum_n |prediction_n - target_n|

    Args:
        prediction: Predicted numbers, (..., N).
        target: Targets, (..., N).
        weight: Weight of each sample, (..., N); None: all count alike.

    >>> mae(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
    tensor(1.)
    """
    prediction, target = _numbers(prediction=prediction, target=target)
    return mean((prediction.double() - target.double()).abs(), weight).to(prediction.dtype)


def coverage(lower: Tensor, upper: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    """Compute the share of targets inside their closed intervals [lower, upper].

    Args:
        lower: Lower ends, (..., N); may be infinite.
        upper: Upper ends, (..., N); may be infinite.
        target: Targets, (..., N).
        weight: Weight of each sample, (..., N); None: all count alike.

    >>> coverage(torch.zeros(2), torch.ones(2), torch.tensor([1.0, 1.5]))
    tensor(0.5000)
    """
    (target,) = _numbers(target=target)
    lower, upper = _sample("lower", lower), _sample("upper", upper)
    for name, bound in (("lower", lower), ("upper", upper)):
        _same_shape(name, bound.shape, "target", target.shape)
        _forbid(name, bound.isnan(), "NaN", "comparable numbers")
    inside = (lower <= target) & (target <= upper)
    return mean(inside, weight).to(target.dtype)


# --- shared parts --------------------------------------------------------------------------------


def mean(values: Tensor, weight: Tensor | None = None) -> Tensor:
    """Average the last axis in float64; values of weight 0 may be anything.

    Args:
        values: Values, (..., N).
        weight: Weights >= 0, not all 0, (..., N); None: all count alike.
    """
    values = values.double()
    if weight is None:
        return values.mean(-1)
    _check_weight(weight, values.shape)
    return torch.where(weight == 0, 0, values * weight).sum(-1) / weight.double().sum(-1)


def _check_weight(weight: Tensor, shape: torch.Size) -> None:
    _same_shape("weight", weight.shape, "samples", shape)
    _forbid("weight", ~((weight >= 0) & weight.isfinite()), "a negative value or NaN", "weights")
    _forbid("weight", weight.sum(-1) == 0, "no positive value", "a sample that counts")


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


# --- checks: each names the argument, the problem and the expectation -------------------------

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
    (first, head), *rest = checked.items()
    for name, value in rest:
        _same_shape(first, head.shape, name, value.shape)
    wide = torch.float64 in [value.dtype for value in checked.values()]
    return [value.double() if wide else value for value in checked.values()]


def _forbid(name: str, bad: Tensor, problem: str, expected: str) -> None:
    if bool(bad.any()):
        first = tuple(bad.nonzero()[0].tolist())
        where = f" at index {first}" if first else ""
        raise DubitoError(f"{name}: got {problem}{where}, expected {expected}")


def _same_shape(name: str, shape: torch.Size, other: str, other_shape: torch.Size) -> None:
    if shape != other_shape:
        shapes = f"shapes {tuple(shape)} and {tuple(other_shape)}"
        raise DubitoError(f"{name}, {other}: got {shapes}, expected the same shape")


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


def _class_sizes(hits: Tensor) -> tuple[Tensor, Tensor]:
    """Positives and negatives in each ranking, of which there must be one each at least."""
    positives = hits[..., -1].long()  # their product does not fit in int32
    negatives = hits.shape[-1] - positives
    for problem, size in (("no positives", positives), ("no negatives", negatives)):
        _forbid("positive", size == 0, problem, "at least one of each class")
    return positives, negatives


def _labeled(probs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
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
