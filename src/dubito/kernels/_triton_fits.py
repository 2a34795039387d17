"""Polynomials of the Triton kernels; made by tools/fit_kernels.py."""

from __future__ import annotations

#: evidence from which FAR is used and not NEAR
THRESHOLD = 1.0

#: EXCESS_SLOPE of dubito._coefficients, for gradients of half precision
EXCESS_SLOPE_HALF = (
    0.08355364938526505,
    0.154455659763491,
    0.28866517685898785,
    -0.2150793726037756,
)

#: (e psi(1 + e) - ln Gamma(1 + e)) / e^2 in z, up to THRESHOLD
NEAR = (
    -0.0003107080512778637,
    0.9625380525783817,
    -0.056518264673371815,
    0.9075326711488828,
    -0.5941711116064088,
    0.41517648895109033,
)

#: e psi(1 + e) - ln Gamma(1 + e) - e - ln(psi_1(1 + e))/2 in z, from THRESHOLD on
FAR = (
    -0.4189386136003383,
    0.08334726506237974,
    0.10377616426632374,
    0.11925775646307443,
    0.08932663678781377,
    0.11368284669471368,
)

#: ln(1 + u)/u, u in [0, 1]
LOG1P = (
    0.9999998056528057,
    -0.4999740525823991,
    0.33275477585651964,
    -0.24495449772517897,
    0.1774520431352951,
    -0.10768117021739577,
    0.044089238062230404,
    -0.008539096310046002,
)
