"""The rules of L-BFGS in numba: from an evaluation to where the next one is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

from dubito.fewshot import _numba_gamma as gamma
from dubito.fewshot._state import ARMIJO, BRACKET, CURVATURE, DONE, LEAST, START, ZOOM

F = TypeVar("F", bound=Callable[..., Any])

# rows of the vectors: where it is, whereto, the gradient, the one before, a trial and its gradient,
# and the gradients at the two ends of the bracket
X, D, G, OLD, POINT, NEW, LOW, HIGH, ROWS = range(9)
# numbers: trial step, value and slope where the search began, the same at the ends of the bracket
T, VALUE, SLOPE, LOW_T, LOW_F, LOW_S, HIGH_T, HIGH_F, HIGH_S, LAST_T, LONGEST, SCALE = range(12)
NUMBERS = 12
PHASE, ROUND, ITERATION, TOTAL, EVALS, SEARCH, LIMIT, STUCK, STORED, COUNTS = range(10)


def part(function: F) -> F:
    """A part of the compiled function; sums may be taken in any order."""
    return cast(F, gamma.reordered(function))


class State(NamedTuple):
    """Where an episode is."""

    v: Any  # (ROWS, K R)
    q: Any  # (NUMBERS,)
    c: Any  # (COUNTS,)
    steps: Any  # (M, K R), a ring
    changes: Any  # (M, K R), of the gradient
    inverses: Any  # (M,), 1/s.y
    shares: Any  # (M,)


class Rules(NamedTuple):
    """The protocol, as numbers."""

    rounds: Any
    iterations: Any
    evaluations: Any
    tolerance_grad: Any
    tolerance_change: Any
    first: Any  # the first step


@part
def _dot(a: Any, i: Any, b: Any, j: Any) -> Any:
    total = 0.0
    for k in range(a.shape[1]):
        total += a[i, k] * b[j, k]
    return total


@part
def _largest(a: Any, i: Any) -> Any:
    most = 0.0
    for k in range(a.shape[1]):
        most = max(most, abs(a[i, k]))
    return most


@part
def _copy(v: Any, i: Any, j: Any) -> None:
    for k in range(v.shape[1]):
        v[i, k] = v[j, k]


# --- the strong Wolfe search ---------------------------------------------------------------------


@part
def _cubic(t1: Any, f1: Any, s1: Any, t2: Any, f2: Any, s2: Any, least: Any, most: Any) -> Any:
    """The minimiser of the cubic through two points, within bounds."""
    if t1 > t2:
        t1, f1, s1, t2, f2, s2 = t2, f2, s2, t1, f1, s1
    d1 = s1 + s2 - 3 * (f1 - f2) / (t1 - t2)
    square = d1 * d1 - s1 * s2
    if not square >= 0:
        return 0.5 * (least + most)
    d2 = math.sqrt(square)
    guess = t2 - (t2 - t1) * ((s2 + d2 - d1) / (s2 - s1 + 2 * d2))
    return min(max(guess, least), most) if guess == guess else 0.5 * (least + most)


@part
def _store(z: Any, end: Any, row: Any, t: Any, f: Any, s: Any, source: Any) -> None:
    """Make a point an end of the bracket."""
    z.q[end], z.q[end + 1], z.q[end + 2] = t, f, s
    _copy(z.v, row, source)


@part
def _swap(z: Any) -> None:
    for k in range(3):
        z.q[LOW_T + k], z.q[HIGH_T + k] = z.q[HIGH_T + k], z.q[LOW_T + k]
    for k in range(z.v.shape[1]):
        z.v[LOW, k], z.v[HIGH, k] = z.v[HIGH, k], z.v[LOW, k]


@part
def _bracketed(z: Any, f: Any, s: Any) -> Any:
    """Take in a trial before there is a bracket; whether the search is over."""
    q, c, t = z.q, z.c, z.q[T]
    if c[SEARCH] >= c[LIMIT]:  # the better of where it began and where it is
        if f < q[VALUE]:
            _store(z, LOW_T, LOW, t, f, s, NEW)
        else:
            _store(z, LOW_T, LOW, 0.0, q[VALUE], q[SLOPE], G)
        return True
    enough = f <= q[VALUE] + ARMIJO * t * q[SLOPE]  # not where f is NaN: a step too far
    past = not enough or (c[SEARCH] > 1 and f >= q[LOW_F])
    found = not past and abs(s) <= -CURVATURE * q[SLOPE]
    if found:
        _store(z, LOW_T, LOW, t, f, s, NEW)
        return True
    if past or s >= 0:
        _store(z, HIGH_T, HIGH, t, f, s, NEW)
        if q[LOW_F] > f:
            _swap(z)
        c[PHASE], c[STUCK] = ZOOM, 0
        return False
    least = t + 0.01 * (t - q[LOW_T])
    q[T] = _cubic(q[LOW_T], q[LOW_F], q[LOW_S], t, f, s, least, 10 * t)
    _store(z, LOW_T, LOW, t, f, s, NEW)
    c[SEARCH] += 1
    return False


@part
def _zoomed(z: Any, f: Any, s: Any) -> Any:
    """Take in a trial within the bracket; whether the search is over."""
    q, t = z.q, z.q[T]
    if not (f <= q[VALUE] + ARMIJO * t * q[SLOPE] and f < q[LOW_F]):
        _store(z, HIGH_T, HIGH, t, f, s, NEW)
        if q[LOW_F] > f:
            _swap(z)
        return False
    done = abs(s) <= -CURVATURE * q[SLOPE]
    if not done and s * (q[HIGH_T] - q[LOW_T]) >= 0:
        _store(z, HIGH_T, HIGH, q[LOW_T], q[LOW_F], q[LOW_S], LOW)
    _store(z, LOW_T, LOW, t, f, s, NEW)
    return done


@part
def _narrowed(z: Any, tolerance: Any) -> Any:
    """The next step within the bracket; whether there is none."""
    q, c = z.q, z.c
    if c[SEARCH] >= c[LIMIT] or abs(q[HIGH_T] - q[LOW_T]) * q[LONGEST] < tolerance:
        return True
    least, most = min(q[LOW_T], q[HIGH_T]), max(q[LOW_T], q[HIGH_T])
    t = _cubic(q[LOW_T], q[LOW_F], q[LOW_S], q[HIGH_T], q[HIGH_F], q[HIGH_S], least, most)
    margin = 0.1 * (most - least)
    close = min(most - t, t - least) < margin
    push = close and (c[STUCK] == 1 or t >= most or t <= least)
    if push:
        t = most - margin if abs(t - most) < abs(t - least) else least + margin
    q[T], c[STUCK] = t, int(close and not push)
    c[SEARCH] += 1
    return False


@part
def _searched(z: Any, f: Any, s: Any, rules: Any) -> Any:
    """Take in a trial; whether the search is over, with the step and its gradient in `low`."""
    bracketing = z.c[PHASE] == BRACKET
    over = _bracketed(z, f, s) if bracketing else _zoomed(z, f, s)
    if over or z.c[PHASE] == BRACKET:
        return over
    return _narrowed(z, rules.tolerance_change)


# --- the direction -------------------------------------------------------------------------------


@part
def _remember(z: Any) -> None:
    """Store the last step, unless it says nothing of the curvature."""
    slot, t = z.c[STORED] % z.steps.shape[0], z.q[LAST_T]
    along, square = 0.0, 0.0
    for k in range(z.v.shape[1]):
        change = z.v[G, k] - z.v[OLD, k]
        along += t * z.v[D, k] * change
        square += change * change
    if not along > LEAST:
        return
    for k in range(z.v.shape[1]):
        z.steps[slot, k] = t * z.v[D, k]
        z.changes[slot, k] = z.v[G, k] - z.v[OLD, k]
    z.inverses[slot] = 1 / along
    z.q[SCALE] = along / square
    z.c[STORED] += 1


@part
def _direct(z: Any) -> None:
    """D = minus the gradient times the approximate inverse Hessian, by the two loops."""
    v, size, count = z.v, z.steps.shape[0], z.c[STORED]
    held = min(size, count)
    for k in range(v.shape[1]):
        v[D, k] = -v[G, k]
    for back in range(1, held + 1):
        slot = (count - back) % size
        share = _dot(z.steps, slot, v, D) * z.inverses[slot]
        z.shares[slot] = share
        for k in range(v.shape[1]):
            v[D, k] -= share * z.changes[slot, k]
    for k in range(v.shape[1]):
        v[D, k] *= z.q[SCALE]
    for back in range(held, 0, -1):
        slot = (count - back) % size
        share = z.shares[slot] - _dot(z.changes, slot, v, D) * z.inverses[slot]
        for k in range(v.shape[1]):
            v[D, k] += share * z.steps[slot, k]


@part
def _turned(z: Any, rules: Any) -> Any:
    """A new direction; whether the round ends because it leads nowhere."""
    v, q, c = z.v, z.q, z.c
    c[ITERATION] += 1
    c[TOTAL] += 1
    if c[TOTAL] > 1:
        _remember(z)
    _direct(z)
    _copy(v, OLD, G)
    q[T] = rules.first if c[TOTAL] == 1 else 1.0
    q[SLOPE], q[LONGEST] = _dot(v, G, v, D), _largest(v, D)
    if q[SLOPE] > -rules.tolerance_change:
        q[LAST_T] = q[T]
        return True
    _store(z, LOW_T, LOW, 0.0, q[VALUE], q[SLOPE], G)
    c[SEARCH], c[LIMIT], c[PHASE] = 0, rules.evaluations - c[EVALS], BRACKET
    return False


@part
def _moved(z: Any, rules: Any) -> Any:
    """Go where the search ended; whether the round ends with it."""
    v, q, c = z.v, z.q, z.c
    t = q[LOW_T]
    for k in range(v.shape[1]):
        v[X, k] += t * v[D, k]
    change = abs(q[LOW_F] - q[VALUE])
    q[VALUE], q[LAST_T] = q[LOW_F], t
    _copy(v, G, LOW)
    return (
        c[ITERATION] >= rules.iterations
        or c[EVALS] >= rules.evaluations
        or _dot(v, G, v, G) <= rules.tolerance_grad**2
        or q[LONGEST] * abs(t) <= rules.tolerance_change
        or change < rules.tolerance_change
    )


@part
def decide(z: Any, f: Any, rules: Any) -> None:
    """Where to go after an evaluation."""
    v, q, c = z.v, z.q, z.c
    c[EVALS] += 1
    if c[PHASE] == START:
        _copy(v, G, NEW)
        q[VALUE], c[EVALS], c[ITERATION] = f, 1, 0
        ended = _dot(v, G, v, G) <= rules.tolerance_grad**2
    else:
        if not _searched(z, f, _dot(v, NEW, v, D), rules):
            return
        ended = _moved(z, rules)
    if ended or _turned(z, rules):
        c[ROUND] += 1
        c[PHASE] = START if c[ROUND] < rules.rounds else DONE
        q[T] = 0.0
