"""Fit the polynomials of `dubito.kernels._triton_fits` and print that module.

Each is of least largest error (by Lawson's reweighting) over evidence e >= 0: relative to the
function, or absolute where it is added to what is larger. Needs mpmath and numpy:

    python tools/fit_kernels.py > src/dubito/kernels/_triton_fits.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import mpmath as mp
import numpy as np

HALF = mp.mpf(1) / 2
#: evidence from which `far` is used and not `near`
FAR = 1.0
Real = Callable[[mp.mpf], mp.mpf]


def _x(z: mp.mpf) -> mp.mpf:
    return 1 / z - HALF


def _excess(z: mp.mpf) -> mp.mpf:
    return 1 / mp.psi(1, _x(z)) - _x(z) + HALF


def _excess_slope(z: mp.mpf) -> mp.mpf:
    return (mp.psi(2, _x(z)) / mp.psi(1, _x(z)) ** 2 + 1) / z**2


def _bregman(e: mp.mpf) -> mp.mpf:
    """What one class adds to the divergence from the uniform Dirichlet."""
    return e * mp.psi(0, 1 + e) - mp.loggamma(1 + e)


def _near(z: mp.mpf) -> mp.mpf:
    e = _x(z) - 1
    return _bregman(e) / e**2


def _far(z: mp.mpf) -> mp.mpf:
    e = _x(z) - 1
    return _bregman(e) - e - mp.log(mp.psi(1, 1 + e)) / 2


def _gap(z: mp.mpf) -> mp.mpf:
    """x (psi(x + 1) - ln x)."""
    return _x(z) * (mp.psi(0, _x(z) + 1) - mp.log(_x(z)))


class Fit(NamedTuple):
    """A function, its range, the degree, and whether its error is relative."""

    function: Real
    end: float
    degree: int
    relative: bool = True
    start: float = 0.0


FITS: dict[str, tuple[str, Fit]] = {
    "EXCESS": ("r in z = 1/(e + 3/2)", Fit(_excess, 2 / 3, 6, relative=False)),
    "EXCESS_SLOPE": ("-r' / z^2", Fit(_excess_slope, 2 / 3, 7)),
    "EXCESS_SLOPE_HALF": (
        "EXCESS_SLOPE of dubito._coefficients, for gradients of half precision",
        Fit(_excess_slope, 2 / 3, 3, relative=False),
    ),
    "NEAR": (
        "(e psi(1 + e) - ln Gamma(1 + e)) / e^2 in z, up to THRESHOLD",
        Fit(_near, 2 / 3, 5, start=1 / (FAR + 1.5)),
    ),
    "FAR": (
        "e psi(1 + e) - ln Gamma(1 + e) - e - ln(psi_1(1 + e))/2 in z, from THRESHOLD on",
        Fit(_far, 1 / (FAR + 1.5), 5, relative=False),
    ),
    "GAP": ("x (psi(x + 1) - ln x) in z", Fit(_gap, 2 / 3, 7, relative=False)),
    "LOG1P": ("ln(1 + u)/u, u in [0, 1]", Fit(lambda u: mp.log1p(u) / u, 1.0, 7)),
}
#: fits that are part of `dubito._coefficients`; see tools/fit_remainders.py
SHARED = ("EXCESS", "EXCESS_SLOPE", "GAP")


def fit(given: Fit, nodes: int = 400, rounds: int = 60) -> list[float]:
    """Coefficients in ascending powers."""
    length = given.end - given.start
    turned = np.cos(np.pi * (np.arange(nodes) + 0.5) / nodes)
    t = given.start + length * (0.5 + 0.5 * turned)
    values = np.array([float(given.function(mp.mpf(float(s)))) for s in t])
    scale = abs(values) if given.relative else np.ones_like(values)
    basis = np.polynomial.chebyshev.chebvander(turned, given.degree)
    weight = np.ones(nodes)
    for _ in range(rounds):
        share = weight / scale
        found = np.linalg.lstsq(basis * share[:, None], values * share, rcond=None)[0]
        error = abs(basis @ found - values) / scale
        weight *= np.sqrt(error + 1e-3 * error.max())
        weight /= weight.max()
    series = np.polynomial.Chebyshev(found, domain=[given.start, given.end])
    return [float(c) for c in series.convert(kind=np.polynomial.Polynomial).coef]


def main() -> None:
    """Print the module."""
    mp.mp.dps = 40
    print('"""Polynomials of the Triton kernels; made by tools/fit_kernels.py."""\n')
    print("from __future__ import annotations\n")
    print(f"#: evidence from which FAR is used and not NEAR\nTHRESHOLD = {FAR!r}")
    for name, (text, given) in FITS.items():
        if name in SHARED:
            continue
        print(f"\n#: {text}\n{name} = (")
        for c in fit(given):
            print(f"    {c!r},")
        print(")")


if __name__ == "__main__":
    main()
