"""Exact values and gradients of Dirichlet quantities, in mpmath, with the scale of each.

The quantities are in reference_dirichlet.py and reference_losses.py; this module has their parts.

Everything is the textbook formula evaluated with so many digits that its cancellation does not
matter, so nothing here shares a rewriting with the library.  A float32 alpha counts as exact.

All quantities are symmetric in the classes, so a vector is stored as its distinct entries and how
often each occurs; ten thousand classes drawn from fifty values cost fifty polygammas.

**Scales.**  An error is divided by a scale, so that a value that is small because two larger ones
cancel is not held to more than its inputs can say.  There are two for a value

* ``|f|``, the plain one, and
* ``|f| + sum_i |alpha_i df/dalpha_i|``: by how much f moves when every input moves by one unit in
  its last place, in such units.  For quantities that cross zero;

and two for a component of a gradient

* ``|g_j|``, the plain one, and
* the sum of the magnitudes of the signed terms that make up g_j, in a form in which every term
  is itself free of cancellation (``1 - p_j`` is the sum of the other classes over alpha0,
  ``psi(alpha0) - psi(alpha_j)`` is one term, not two).  Each quantity's docstring has its terms.

Which quantity is held to which scale is decided in quantities.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt

# A context of our own: nobody else's change of the global precision reaches it.
MP = mpmath.MPContext()
MP.dps = 120  # alpha0 ln(alpha0) ~ 1e36 against results down to 1e-60, and 20 to spare

Real = Any  # mpmath.mpf, which carries no types
Vector = Any  # numpy's array of Real, one entry a distinct class
Floats = npt.NDArray[np.floating[Any]]


@cache
def polygammas(x: Real) -> tuple[Real, Real, Real, Real]:
    """lnGamma(x), psi(x), psi1(x), psi2(x)."""
    return MP.loggamma(x), MP.psi(0, x), MP.psi(1, x), MP.psi(2, x)


def exact(values: Floats) -> Vector:
    """The floats as mpmath numbers, without rounding."""
    return np.array([MP.mpf(float(v)) for v in np.ravel(values)], dtype=object)


def log(x: Vector) -> Vector:
    return np.array([MP.log(v) for v in x], dtype=object)


class Concentration:
    """A Dirichlet parameter by distinct entries, with its polygammas evaluated on demand."""

    def __init__(self, alpha: Vector, count: Vector) -> None:
        self.alpha, self.count = alpha, count
        self.alpha0: Real = self.total(alpha)
        self.classes = int(count.sum())

    def total(self, x: Vector) -> Real:
        """Sum over all classes of a per-class quantity."""
        return MP.fsum(self.count * x)

    def over_others(self, x: Vector) -> Vector:
        """For each class the sum over all the other classes."""
        return self.total(x) - x

    @cached_property
    def others(self) -> Vector:
        return self.alpha0 - self.alpha

    @cached_property
    def probs(self) -> Vector:
        return self.alpha / self.alpha0

    @cached_property
    def _table(self) -> list[Vector]:
        columns = zip(*(polygammas(a) for a in self.alpha), strict=True)
        return [np.array(column, dtype=object) for column in columns]

    @cached_property
    def _table0(self) -> tuple[Real, Real, Real, Real]:
        return polygammas(self.alpha0)

    lgamma = property(lambda self: self._table[0])
    psi0 = property(lambda self: self._table[1])
    psi1 = property(lambda self: self._table[2])
    psi2 = property(lambda self: self._table[3])
    lgamma_of_sum = property(lambda self: self._table0[0])
    psi0_of_sum = property(lambda self: self._table0[1])
    psi1_of_sum = property(lambda self: self._table0[2])
    psi2_of_sum = property(lambda self: self._table0[3])


class Point(Concentration):
    """An alpha vector (K,) with other per-class inputs beside it: a target, a beta, a mark."""

    def __init__(self, alpha: Floats, **beside: Floats) -> None:
        columns = np.stack([np.asarray(c, dtype=np.float64) for c in (alpha, *beside.values())], -1)
        distinct, inverse, count = np.unique(
            columns, axis=0, return_inverse=True, return_counts=True
        )
        self.inverse = inverse.reshape(-1)
        super().__init__(exact(distinct[:, 0]), np.array([int(c) for c in count], dtype=object))
        self.beside = {name: exact(distinct[:, i + 1]) for i, name in enumerate(beside)}

    def __getitem__(self, name: str) -> Vector:
        return self.beside[name]

    def value_at(self, mark: str, x: Vector) -> Real:
        """The entry of x at the one class that carries the mark."""
        return self.total(self[mark] * x)


@dataclass(frozen=True)
class Truth:
    """A value, its gradient (K,) in alpha, and the scale of each."""

    value: float
    value_scale: float
    gradient: npt.NDArray[np.float64]
    gradient_scale: npt.NDArray[np.float64]


def truth(x: Point, value: Real, gradient: Vector, terms: Vector | None = None) -> Truth:
    """Rounded to float64 and expanded to all classes; without terms the scale is |g_j|."""
    terms = abs(gradient) if terms is None else terms
    moved = x.total(abs(x.alpha * gradient))
    scale = float(abs(value) + moved)
    slopes, sizes = (v.astype(np.float64)[x.inverse] for v in (gradient, abs(terms)))
    return Truth(float(value), scale, slopes, sizes)
