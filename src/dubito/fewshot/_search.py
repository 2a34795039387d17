"""The strong Wolfe search of many problems, one trial of each at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from dubito.fewshot._state import ARMIJO, BRACKET, CURVATURE, ZOOM, Solver, State, column

Point = tuple[Tensor, Tensor, Tensor, Tensor]
"""A step, its value, slope and gradient."""


def searched(z: State, f: Tensor, g: Tensor, s: Tensor, rules: Solver) -> Tensor:
    """Take in a trial; whether a search is over, with the step and its gradient in `low`."""
    bracketing, zooming = z.phase == BRACKET, z.phase == ZOOM
    above = ~(f <= z.f + ARMIJO * z.t * z.s)  # also where f is NaN: a step too far
    good = s.abs() <= -CURVATURE * z.s
    over = bracketing & (z.search >= z.limit)
    looking = bracketing & ~over
    past = above | ((z.search > 1) & (f >= z.low_f))
    found = looking & ~past & good
    closed = looking & ~found & (past | (s >= 0))
    further = looking & ~found & ~closed
    wider = _beyond(z, f, s)
    # out of trials without a bracket: the better of where the search began and where it is
    back = over & ~(f < z.f)
    store(z, "low", back, (torch.zeros_like(f), z.f, z.s, z.g))
    new = (z.t, f, s, g)
    worse = zooming & (above | ~(f < z.low_f))
    better = zooming & ~worse
    done = better & good
    flips = better & ~good & (s * (z.high_t - z.low_t) >= 0)
    low = (z.low_t, z.low_f, z.low_s, z.low_g)
    # the old low end becomes the high one: where the slope turns, or the new point is the lower
    lower = closed & (z.low_f > f)
    store(z, "high", lower | flips, low)
    store(z, "high", (closed & ~lower) | worse, new)
    store(z, "low", further | found | lower | better | (over & ~back), new)
    _swap(z, worse & (z.low_f > z.high_f))
    z.phase = z.phase.masked_fill(closed, ZOOM)
    z.stuck = z.stuck & ~closed
    z.t = torch.where(further, wider, z.t)
    still_open = closed | (zooming & ~done)
    small = (z.high_t - z.low_t).abs() * z.longest < rules.tolerance_change
    finished = still_open & ((z.search >= z.limit) | small)
    inside = still_open & ~finished
    _narrow(z, inside)
    z.search = z.search + (further | inside).int()
    return over | found | done | finished


def store(z: State, end: str, mask: Tensor, point: Point) -> None:
    for name, value in zip("tfs", point[:3], strict=True):
        name = f"{end}_{name}"
        setattr(z, name, torch.where(mask, value, getattr(z, name)))
    name = f"{end}_g"
    setattr(z, name, torch.where(column(mask), point[3], getattr(z, name)))


def _swap(z: State, mask: Tensor) -> None:
    low, high = (tuple(getattr(z, f"{end}_{name}") for name in "tfsg") for end in ("low", "high"))
    store(z, "low", mask, high)
    store(z, "high", mask, low)


def _cubic(a: tuple[Tensor, Tensor, Tensor], b: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """The minimiser of the cubic through two points (t, f, slope); NaN where there is none."""
    swap = a[0] > b[0]
    t1, f1, s1 = (torch.where(swap, q, p) for p, q in zip(a, b, strict=True))
    t2, f2, s2 = (torch.where(swap, p, q) for p, q in zip(a, b, strict=True))
    d1 = s1 + s2 - 3 * (f1 - f2) / (t1 - t2)
    d2 = (d1.square() - s1 * s2).sqrt()
    return t2 - (t2 - t1) * ((s2 + d2 - d1) / (s2 - s1 + 2 * d2))


def _between(t: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Within bounds, and in their middle where the cubic has no minimiser."""
    return torch.where(t.isnan(), 0.5 * (low + high), torch.minimum(torch.maximum(t, low), high))


def _beyond(z: State, f: Tensor, s: Tensor) -> Tensor:
    """A longer step, from the last two trials."""
    guess = _cubic((z.low_t, z.low_f, z.low_s), (z.t, f, s))
    return _between(guess, z.t + 0.01 * (z.t - z.low_t), 10 * z.t)


def _narrow(z: State, mask: Tensor) -> None:
    """A step within the bracket, kept away from an end that two guesses came close to."""
    least, most = torch.minimum(z.low_t, z.high_t), torch.maximum(z.low_t, z.high_t)
    guess = _cubic((z.low_t, z.low_f, z.low_s), (z.high_t, z.high_f, z.high_s))
    t = _between(guess, least, most)
    margin = 0.1 * (most - least)
    close = torch.minimum(most - t, t - least) < margin
    push = close & (z.stuck | (t >= most) | (t <= least))
    inner = torch.where((t - most).abs() < (t - least).abs(), most - margin, least + margin)
    z.t = torch.where(mask, torch.where(push, inner, t), z.t)
    z.stuck = torch.where(mask, close & ~push, z.stuck)
