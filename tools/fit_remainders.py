"""Fit the polynomials of `dubito._coefficients` and print that module.

For x >= FIRST each remainder of `dubito._special` is x**-p times a smooth function of
y = 1/(x + 1/2), which is interpolated at the Chebyshev nodes of (0, 1/(FIRST + 1/2)] in 60 digits.
The shorter polynomials for float32 and x >= 1 have the least largest error. Needs mpmath and numpy:

    python tools/fit_remainders.py > src/dubito/_coefficients.py
"""

from __future__ import annotations

from collections.abc import Callable

import fit_kernels
import mpmath as mp

HALF = mp.mpf(1) / 2
#: dtype name -> (FIRST, degree): shifts cost time, degrees cost accuracy; these meet the dtype's.
FITS = {"float32": (1, 8), "float64": (8, 11)}
#: name -> (the remainder, its order of decay p)
REMAINDERS: dict[str, tuple[Callable[[mp.mpf], mp.mpf], int]] = {
    "mu": (
        lambda x: mp.loggamma(x) - (x - HALF) * mp.log(x) + x - mp.log(2 * mp.pi) / 2,
        1,
    ),
    "delta": (lambda x: mp.log(x) - 1 / (2 * x) - mp.psi(0, x), 2),
    "tau": (lambda x: mp.psi(1, x) - 1 / x - 1 / (2 * x**2), 3),
    "sigma": (lambda x: -mp.psi(2, x) - 1 / x**2 - 1 / x**3, 4),
}


def _tau(z: mp.mpf) -> mp.mpf:
    """tau(x)/z^3."""
    return REMAINDERS["tau"][0](1 / z - HALF) / z**3


#: name -> (what it is, its fit)
SHORT = {
    "EXCESS": ("1/psi_1(x) - x + 1/2", fit_kernels.FITS["EXCESS"][1]),
    "EXCESS_SLOPE": ("-(d/dx EXCESS)/z^2", fit_kernels.FITS["EXCESS_SLOPE"][1]),
    "GAP_MOMENT": ("x (psi(x + 1) - ln x)", fit_kernels.FITS["GAP"][1]),
}


def fit_mu() -> list[float]:
    """Coefficients of mu from the first power on, by its second derivative tau."""
    coefficients = fit_kernels.fit(fit_kernels.Fit(_tau, 2 / 3, 6))
    return [c / ((k + 1) * (k + 2)) for k, c in enumerate(coefficients)]


def fit(remainder: Callable[[mp.mpf], mp.mpf], decay: int, first: int, degree: int) -> list[mp.mpf]:
    """Coefficients in ascending powers of y."""
    count, top = degree + 1, 1 / (first + HALF)
    nodes = [top / 2 * (1 + mp.cos((2 * k + 1) * mp.pi / (2 * count))) for k in range(count)]
    powers = mp.matrix([[y**j for j in range(count)] for y in nodes])
    values = mp.matrix([remainder(1 / y - HALF) * (1 / y - HALF) ** decay for y in nodes])
    return list(mp.lu_solve(powers, values))


def main() -> None:
    """Print the module."""
    mp.mp.dps = 60
    print('"""Polynomials of `_special.py`; made by tools/fit_remainders.py."""\n')
    print("from __future__ import annotations\n")
    print("#: dtype name -> x from which the polynomials hold")
    firsts = ", ".join(f'"{name}": {first}' for name, (first, _) in FITS.items())
    print(f"FIRST: dict[str, int] = {{{firsts}}}\n")
    print("#: dtype name -> remainder -> coefficients in ascending powers of 1/(x + 1/2)")
    print("COEFFICIENTS: dict[str, dict[str, tuple[float, ...]]] = {")
    for name, (first, degree) in FITS.items():
        print(f'    "{name}": {{')
        for remainder, (function, decay) in REMAINDERS.items():
            print(f'        "{remainder}": (')
            for c in fit(function, decay, first, degree):
                print(f"            {float(c)!r},")
            print("        ),")
        print("    },")
    print("}")
    print("\n# --- float32, x >= 1: coefficients in ascending powers of z = 1/(x + 1/2) ---")
    for name, (text, given) in SHORT.items():
        print_short(name, text, fit_kernels.fit(given))
    text = "mu(x) from the first power on; its second derivative is within 3e-6 of tau"
    print_short("MU", text, fit_mu())


def print_short(name: str, text: str, coefficients: list[float]) -> None:
    """Print one polynomial."""
    print(f"\n#: {text}\n{name}: tuple[float, ...] = (")
    for c in coefficients:
        print(f"    {c!r},")
    print(")")


if __name__ == "__main__":
    main()
