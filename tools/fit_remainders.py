"""Fit the polynomials of `dubito._coefficients` and print that module.

For x >= FIRST each remainder of `dubito.special` is x**-p times a smooth function of y = 1/(x +
1/2),
which is interpolated at the Chebyshev nodes of (0, 1/(FIRST + 1/2)] in 60 digits. Needs mpmath:

    python tools/fit_remainders.py > src/dubito/_coefficients.py
"""

from __future__ import annotations

from collections.abc import Callable

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
    print('"""Polynomials of the remainders in `special.py`; made by tools/fit_remainders.py."""\n')
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


if __name__ == "__main__":
    main()
