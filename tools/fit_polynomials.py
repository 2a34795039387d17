"""Fit the polynomials of the special functions and print `polynomials.json`.

For x >= FIRST each remainder of `dubito.numerics.gamma` is x**-p times a smooth function of
y = 1/(x + 1/2), which is interpolated at the Chebyshev nodes of (0, 1/(FIRST + 1/2)] in 60 digits.
The shorter polynomials, for float32 and x = 1 + e >= 1, minimize the largest error by Lawson's
reweighting: relative to the function, or absolute where it is added to larger values. Needs mpmath
and numpy:

    python tools/fit_polynomials.py > src/dubito/numerics/polynomials.json
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

import mpmath as mp
import numpy as np

HALF = mp.mpf(1) / 2
Real = Callable[[mp.mpf], mp.mpf]

# --- remainders ---

#: dtype name -> (FIRST, degree): shifts cost time, degrees cost accuracy
DTYPES = {"float32": (1, 8), "float64": (8, 11)}
#: name -> (remainder, its order of decay p)
REMAINDERS: dict[str, tuple[Real, int]] = {
    "mu": (lambda x: mp.loggamma(x) - (x - HALF) * mp.log(x) + x - mp.log(2 * mp.pi) / 2, 1),
    "delta": (lambda x: mp.log(x) - 1 / (2 * x) - mp.psi(0, x), 2),
    "tau": (lambda x: mp.psi(1, x) - 1 / x - 1 / (2 * x**2), 3),
    "sigma": (lambda x: -mp.psi(2, x) - 1 / x**2 - 1 / x**3, 4),
}


def interpolate(remainder: Real, decay: int, first: int, degree: int) -> list[float]:
    """Return coefficients in ascending powers of y."""
    count, top = degree + 1, 1 / (first + HALF)
    nodes = [top / 2 * (1 + mp.cos((2 * k + 1) * mp.pi / (2 * count))) for k in range(count)]
    powers = mp.matrix([[y**j for j in range(count)] for y in nodes])
    values = mp.matrix([remainder(1 / y - HALF) * (1 / y - HALF) ** decay for y in nodes])
    return [float(c) for c in mp.lu_solve(powers, values)]


# --- shorter polynomials in z = 1/(x + 1/2) = 1/(e + 3/2) ---

#: evidence from which `far` is used in place of `near`; THRESHOLD of the kernels
FAR = 1.0


def _x(z: mp.mpf) -> mp.mpf:
    return 1 / z - HALF


def _excess(z: mp.mpf) -> mp.mpf:
    return 1 / mp.psi(1, _x(z)) - _x(z) + HALF


def _excess_slope(z: mp.mpf) -> mp.mpf:
    return (mp.psi(2, _x(z)) / mp.psi(1, _x(z)) ** 2 + 1) / z**2


def _bregman(e: mp.mpf) -> mp.mpf:
    """Return the part of a class in the divergence from the uniform Dirichlet."""
    return e * mp.psi(0, 1 + e) - mp.loggamma(1 + e)


def _near(z: mp.mpf) -> mp.mpf:
    e = _x(z) - 1
    return _bregman(e) / e**2


def _far(z: mp.mpf) -> mp.mpf:
    e = _x(z) - 1
    return _bregman(e) - e - mp.log(mp.psi(1, 1 + e)) / 2


def _gap_moment(z: mp.mpf) -> mp.mpf:
    return _x(z) * (mp.psi(0, _x(z) + 1) - mp.log(_x(z)))


def _tau(z: mp.mpf) -> mp.mpf:
    return REMAINDERS["tau"][0](_x(z)) / z**3


class Fit(NamedTuple):
    """Function, range, degree, and whether the error is relative."""

    function: Real
    end: float
    degree: int
    relative: bool = True
    start: float = 0.0


FITS: dict[str, Fit] = {
    # r = 1/psi_1(x) - x + 1/2, -r'/z^2, and the same for gradients of half precision
    "excess": Fit(_excess, 2 / 3, 6, relative=False),
    "excess_slope": Fit(_excess_slope, 2 / 3, 7),
    "excess_slope_half": Fit(_excess_slope, 2 / 3, 3, relative=False),
    # x (psi(x + 1) - ln x)
    "gap_moment": Fit(_gap_moment, 2 / 3, 7, relative=False),
    # (e psi(1 + e) - ln Gamma(1 + e))/e^2 up to FAR
    "near": Fit(_near, 2 / 3, 5, start=1 / (FAR + 1.5)),
    # e psi(1 + e) - ln Gamma(1 + e) - e - ln(psi_1(1 + e))/2 from FAR on
    "far": Fit(_far, 1 / (FAR + 1.5), 5, relative=False),
    # ln(1 + u)/u in u from 0 to 1
    "log1p": Fit(lambda u: mp.log1p(u) / u, 1.0, 7),
}


def minimax(fit: Fit, nodes: int = 400, rounds: int = 60) -> list[float]:
    """Return coefficients in ascending powers."""
    length = fit.end - fit.start
    turned = np.cos(np.pi * (np.arange(nodes) + 0.5) / nodes)
    t = fit.start + length * (0.5 + 0.5 * turned)
    values = np.array([float(fit.function(mp.mpf(float(s)))) for s in t])
    scale = abs(values) if fit.relative else np.ones_like(values)
    basis = np.polynomial.chebyshev.chebvander(turned, fit.degree)
    weight = np.ones(nodes)
    for _ in range(rounds):
        share = weight / scale
        solution = np.linalg.lstsq(basis * share[:, None], values * share, rcond=None)[0]
        error = abs(basis @ solution - values) / scale
        weight *= np.sqrt(error + 1e-3 * error.max())
        weight /= weight.max()
    series = np.polynomial.Chebyshev(solution, domain=[fit.start, fit.end])
    return [float(c) for c in series.convert(kind=np.polynomial.Polynomial).coef]


def stirling() -> list[float]:
    """Fit mu from the first power of z on by its second derivative, tau, to 3e-6."""
    coefficients = minimax(Fit(_tau, 2 / 3, 6))
    return [c / ((k + 1) * (k + 2)) for k, c in enumerate(coefficients)]


def main() -> None:
    """Print one polynomial per line."""
    mp.mp.dps = 60
    polynomials = {
        f"{name}_{dtype}": interpolate(*remainder, *DTYPES[dtype])
        for dtype in DTYPES
        for name, remainder in REMAINDERS.items()
    }
    mp.mp.dps = 40
    polynomials |= {name: minimax(fit) for name, fit in FITS.items()}
    polynomials["stirling"] = stirling()
    lines = (f"  {json.dumps(name)}: {json.dumps(c)}" for name, c in polynomials.items())
    print("{\n" + ",\n".join(lines) + "\n}")


if __name__ == "__main__":
    main()
