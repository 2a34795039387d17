"""The step that a line search tries next, in both solvers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dubito.fewshot import _search

Point = tuple[float, float, float]


def by_torch(a: Point, b: Point, least: float, most: float) -> float:
    points = [tuple(torch.tensor(x, dtype=torch.float64) for x in point) for point in (a, b)]
    bounds = (torch.tensor(x, dtype=torch.float64) for x in (least, most))
    return _search._between(_search._cubic(*points), *bounds).item()  # type: ignore[arg-type]


def by_numba(a: Point, b: Point, least: float, most: float) -> float:
    pytest.importorskip("numba")
    from dubito.fewshot import _compiled_steps

    plain: Any = _compiled_steps._cubic
    # numpy's numbers divide by zero as compiled ones do
    with np.errstate(all="ignore"):
        return float(plain.py_func(*(np.float64(x) for x in (*a, *b, least, most))))


BOTH = pytest.mark.parametrize("cubic", [by_torch, by_numba])


def on(t: float) -> Point:
    """A cubic with its minimum at 2: value and slope."""
    return t, t**3 - 12 * t, 3 * t**2 - 12


@BOTH
@pytest.mark.parametrize("ends", [(0.0, 5.0), (5.0, 0.0), (1.0, 1.5)])
def test_the_minimum_of_a_cubic_is_found(
    cubic: Callable[..., float], ends: tuple[float, float]
) -> None:
    a, b = (on(t) for t in ends)
    assert cubic(a, b, 0.0, 10.0) == pytest.approx(2)
    assert cubic(a, b, 0.0, 1.7) == 1.7
    assert cubic(a, b, 3.0, 4.0) == 3.0


@BOTH
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((0.0, 1.0, 0.0), (1.0, 1.0, 0.0)),  # flat: no evidence is left, and no slope
        ((0.0, 1.0, -1.0), (1.0, math.nan, math.nan)),  # the trial went too far
    ],
)
def test_without_a_minimum_the_middle_is_tried(
    cubic: Callable[..., float], a: Point, b: Point
) -> None:
    assert cubic(a, b, 0.25, 0.75) == 0.5
