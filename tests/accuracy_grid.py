"""The alpha vectors on which accuracy is measured, and what the quantities take besides."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import numpy.typing as npt

from tests.reference import Point

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

CLASSES = (2, 10, 100, 1000, 10000)
SIZES = (0.0, 1e-4, 1e-2, 1.0, 10.0, 1e3, 1e5, 1e8, 1e12, 1e20, 1e30)  # S: the largest evidence

# --- the grid ------------------------------------------------------------------------------------


def _uniform(size: float, count: int, rng: np.random.Generator) -> Float64:
    return size * rng.random(count)


def _log_uniform(size: float, count: int, rng: np.random.Generator) -> Float64:
    decades = 4 + max(0.0, np.log10(size or 1.0))
    return np.asarray(size * 10 ** (-decades * rng.random(count)))


def _one_hot(size: float, count: int, rng: np.random.Generator) -> Float64:
    return np.concatenate([[size], np.zeros(count - 1)])


def _near_one_hot(size: float, count: int, rng: np.random.Generator) -> Float64:
    return np.concatenate([[size], min(size, 1.0) * 10 ** (-6 * rng.random(count - 1))])


SHAPES: dict[str, Callable[[float, int, np.random.Generator], Float64]] = {
    "uniform": _uniform,
    "log-uniform": _log_uniform,
    "one-hot": _one_hot,
    "near-one-hot": _near_one_hot,
}


@dataclass(frozen=True)
class Grid:
    """Which vectors to draw for one number of classes.

    No more than `distinct` different entries a vector: the others repeat them, so that the
    reference need not evaluate ten thousand polygammas.  Entries that a vector for few classes
    has come back in the one for many.
    """

    classes: int
    draws: int = 1
    distinct: int = 24
    sizes: tuple[float, ...] = SIZES
    shapes: tuple[str, ...] = tuple(SHAPES)


@dataclass(frozen=True, eq=False)
class Case:
    """An alpha vector (K,), two of its classes and a stream of random numbers of its own."""

    name: str
    alpha: Float32
    seed: tuple[int, ...]
    points: dict[str, Point] = field(default_factory=dict)

    @property
    def dominant(self) -> int:
        return int(self.alpha.argmax())

    @property
    def other(self) -> int:
        classes = len(self.alpha)
        return (self.dominant + max(1, classes // 2)) % classes


@cache
def cases(grid: Grid) -> tuple[Case, ...]:
    """Every shape at every size; at size zero all shapes are the same vector of ones."""
    result = []
    for shape in grid.shapes:
        for size in grid.sizes:
            for draw in range(grid.draws if size else 1):
                if size or shape == grid.shapes[0]:
                    result.append(_case(grid, shape, size, draw))
    return tuple(result)


def _case(grid: Grid, shape: str, size: float, draw: int) -> Case:
    seed = (list(SHAPES).index(shape), SIZES.index(size), draw)
    values = SHAPES[shape](size, min(grid.classes, grid.distinct), np.random.default_rng(seed))
    rng = np.random.default_rng((*seed, grid.classes))
    rest = rng.choice(values[1:], grid.classes - len(values))
    alpha = rng.permutation(np.concatenate([values, rest]) + 1).astype(np.float32)
    return Case(f"{shape} up to {size:g}", alpha, seed)


# --- what a quantity takes besides alpha ---------------------------------------------------------

Beside = dict[str, Float32]


def _mark(case: Case, index: int) -> Float32:
    mark = np.zeros_like(case.alpha)
    mark[index] = 1
    return mark


def _marks(case: Case, row: int, column: int) -> Beside:
    return {"row": _mark(case, row), "column": _mark(case, column)}


def _soft(case: Case) -> Float32:
    """Multiples of 1/64 that sum to one exactly."""
    rng = np.random.default_rng(case.seed)
    classes = len(case.alpha)
    return (rng.multinomial(64, np.full(classes, 1 / classes)) / 64).astype(np.float32)


def _rolled(case: Case) -> Float32:
    """Another vector of the same entries: each replaced by the next larger one."""
    distinct, inverse = np.unique(case.alpha, return_inverse=True)
    return np.roll(distinct, -1)[inverse]


def _nearby(case: Case) -> Float32:
    factor = 1 + 1e-3 * np.random.default_rng(case.seed).standard_normal(len(case.alpha))
    return np.maximum(min(1, case.alpha.min()), case.alpha * factor).astype(np.float32)


#: kind of quantity -> name of a setting -> (the inputs beside alpha, the most classes it is for)
SETTINGS: dict[str, dict[str, tuple[Callable[[Case], Beside], int]]] = {
    "alpha": {"": (lambda c: {}, 10000)},
    "target": {
        "target dominant": (lambda c: {"target": _mark(c, c.dominant)}, 10000),
        "target other": (lambda c: {"target": _mark(c, c.other)}, 10000),
        "target soft": (lambda c: {"target": _soft(c)}, 10),
    },
    "label": {
        "label dominant": (lambda c: {"target": _mark(c, c.dominant)}, 10000),
        "label other": (lambda c: {"target": _mark(c, c.other)}, 10000),
    },
    "beta": {
        "beta ones": (lambda c: {"beta": np.ones_like(c.alpha)}, 10000),
        "beta 101 at other": (lambda c: {"beta": 1 + 100 * _mark(c, c.other)}, 10000),
        "beta rolled": (lambda c: {"beta": _rolled(c)}, 10000),
        "beta nearby": (lambda c: {"beta": _nearby(c)}, 10),
    },
    "entry": {
        "at dominant": (lambda c: {"row": _mark(c, c.dominant)}, 10000),
        "at other": (lambda c: {"row": _mark(c, c.other)}, 10000),
    },
    "entries": {
        "at dominant, dominant": (lambda c: _marks(c, c.dominant, c.dominant), 100),
        "at dominant, other": (lambda c: _marks(c, c.dominant, c.other), 100),
        "at other, other": (lambda c: _marks(c, c.other, c.other), 100),
    },
}


def point(case: Case, setting: str, beside: Beside) -> Point:
    """The reference's view of the inputs, shared between the quantities that take them."""
    if setting not in case.points:
        case.points[setting] = Point(case.alpha, **beside)
    return case.points[setting]
