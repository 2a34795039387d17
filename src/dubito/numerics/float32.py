"""`Quantities` in few and large operations: accurate to float32, and without derivatives.

Arrays are (K, N), classes first, so that operations run along whole rows. On a CPU they are NumPy
arrays, whose operations on small arrays take half the time of torch's; elsewhere they are tensors.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from dubito.numerics.gamma import (
    Array,
    GammaAboveOne,
    namespace,
    short_horner,
    stirling_coefficients,
)
from dubito.numerics.quantities import Quantities
from dubito.numerics.tracing import is_eager, lazy

__all__: list[str] = []

#: classes up to which sums are accurate in float32, added up by NumPy and by BLAS
FEW, MANY = 64, 1024


def classes_first(values: Tensor) -> Array:
    """Return values (..., K) as the array (K, N) that `FastQuantities` takes."""
    rows = values.detach().reshape(-1, values.shape[-1]).T.contiguous()
    return rows.numpy() if rows.is_cpu else rows


def above(values: Tensor, bound: float) -> bool:
    """Return whether values are plain float32 on a CPU, and all at least a bound."""
    if not (values.is_cpu and values.dtype == torch.float32 and is_eager(values)):
        return False
    return values.numel() > 0 and values.min().item() >= bound


class FastQuantities(Quantities):
    """`Quantities` of arrays (K, N).

    The gamma family at alpha requires alpha >= 1, `probs` alpha >= 0.01. Divergences allow any
    alpha > 0 if the prior is below 1.

    Args:
        alpha: Concentrations > 0.
        y: Target.
        share_removed: Evaluate the gamma family once for alpha with and without its label, which
            requires a one-hot target: they differ only where the divergence has no term.
        prior: As for `Quantities`.
        beta: As for `Quantities`.
        evidence: As for `Quantities`.
    """

    def __init__(
        self,
        alpha: Array,
        y: Array = None,
        *,
        share_removed: bool = False,
        prior: float = 1.0,
        beta: float = 1.0,
        evidence: Array = None,
    ) -> None:
        super().__init__(alpha, y, prior=prior, beta=beta, evidence=evidence)
        self.xp, self.num_classes = namespace(alpha), len(alpha)
        self.step, self._share_removed = 1.0 if self.prior < 1 else 0.0, share_removed

    def sum(self, values: Array) -> Array:
        """Sum over the classes: (K, N) -> (1, N)."""
        if self.xp is torch:
            return values.sum(0, keepdim=True)
        # BLAS rounds less than NumPy, which adds up rows one after the other, and is faster. But
        # predictions must not depend on their batch: those have no target.
        if self.y is not None and self.num_classes <= MANY:
            return self._ones @ values
        exact = np.float64 if self.num_classes > FEW else values.dtype
        return values.sum(axis=0, keepdims=True, dtype=exact).astype(values.dtype)

    @lazy
    def _ones(self) -> Array:
        return np.ones((1, self.num_classes), self.alpha.dtype)

    @lazy
    def _family(self) -> GammaAboveOne:
        points = [self.alpha, self.alpha0]
        if self._share_removed:
            points.insert(1, self.label_removed.alpha0)
        return GammaAboveOne(self.xp.concatenate(points))

    @lazy
    def each(self) -> _Rows:  # type: ignore[override]
        """Gamma family at alpha."""
        return _Rows(self._family, slice(0, self.num_classes))

    @lazy
    def total(self) -> _Rows:  # type: ignore[override]
        """Gamma family at alpha0."""
        return _Rows(self._family, slice(-1, None))

    # Arithmetic with a mask of numbers is several times faster than an index or a mask of bool.

    @lazy
    def _top(self) -> tuple[Array, Array]:
        """Largest alpha, (1, N), and a mask (K, N) of the other classes."""
        largest = self.xp.amax(self.alpha, 0)[None]
        return largest, self.xp.sign(largest - self.alpha)

    @lazy
    def is_top(self) -> Array:
        """Marks the top class, or several that are equal."""
        return 1 - self._top[1]

    def at_top(self, values: Array) -> Array:
        """As in `Quantities` for a dominant class."""
        return self.sum(values * self.is_top)

    def with_top(self, values: Array, top: Array) -> Array:
        """As in `Quantities`; also for several classes that are equal."""
        return values * self._top[1] + top * self.is_top

    @lazy
    def rest(self) -> Array:
        """As in `Quantities`."""
        largest, lower = self._top
        return self.sum(self.alpha * lower) + largest * (self.sum(self.is_top) - 1)

    @lazy
    def surprise(self) -> Array:
        """-ln p; p >= 1e-34 does not underflow."""
        top = self.xp.log1p(self.rest / self._top[0])
        return self.with_top(-self.xp.log(self.probs), top)

    @lazy
    def trigamma_differences(self) -> Array:
        """As in `Quantities`: the inverses of both trigammas differ by more than 1/2."""
        inverse = self.complement * self.alpha0
        inverse += self.total.inverse_trigamma_excess - self.each.inverse_trigamma_excess
        return inverse * self.total.trigamma * self.each.trigamma  # their product may underflow

    @lazy
    def bracket(self) -> Array:
        """As in `Quantities`."""
        excess = self.sum(self.each.inverse_trigamma_excess)
        return (self.total.inverse_trigamma_excess - excess) + (self.num_classes - 1) / 2

    # --- divergences ---

    def _excess(self, base: float) -> Array:
        """As in `Quantities`, in float64 if alpha may be far below the base."""
        if self._evidence is not None and self.prior == base:
            return self._evidence
        return self.xp.asarray(self.alpha, dtype=self.xp.float64) - base

    @lazy
    def from_one(self) -> FastKL:  # type: ignore[override]
        """As in `Quantities`."""
        return FastKL(self, self._excess(1.0), 1.0)

    @lazy
    def label_removed(self) -> FastKL:  # type: ignore[override]
        """As in `Quantities`."""
        excess = self._excess(self.base) * self.non_target
        return FastKL(self, excess, self.base, shared=self._share_removed)

    @lazy
    def to_target(self) -> FastKL:  # type: ignore[override]
        """As in `Quantities`, for one-hot y."""
        return FastKL(self, self._excess(1.0), 1.0, self.beta)

    @lazy
    def from_target(self) -> FastForwardKL:  # type: ignore[override]
        """As in `Quantities`, for one-hot y."""
        return FastForwardKL(self, self._excess(1.0), 1.0, self.beta)

    @lazy
    def from_uniform(self) -> FastForwardKL:  # type: ignore[override]
        """As in `Quantities`."""
        return FastForwardKL(self, self._excess(1.0), 1.0)


class _Rows:
    """Members of a gamma family at some rows of its argument."""

    def __init__(self, family: GammaAboveOne, rows: slice) -> None:
        self._family, self._rows = family, rows

    def __getattr__(self, name: str) -> Array:
        member = getattr(self._family, name)[self._rows]
        self.__dict__[name] = member
        return member


@lru_cache(maxsize=64)
class _Bases:
    """Columns (R, 1) for the rows of a divergence, and weights (R,) of sums over them.

    Each row has a base in the other Dirichlet: first the classes, then the label if it has another
    base, and last the total, which is subtracted. `upper` is the base plus the step.
    """

    def __init__(
        self,
        classes: int,
        base: float,
        beta: float | None,
        step: float,
        dtype: torch.dtype,
        device: torch.device | None,
    ) -> None:
        label = [] if beta is None else [beta]
        total = base * (classes - len(label)) + sum(label)
        exact = np.array([*[base] * classes, *label, total])
        upper, sign = exact + step, np.append(np.ones(len(exact) - 1), -1.0)
        polynomial = np.transpose([stirling_coefficients(b) for b in upper.tolist()])

        def columns(values: Array, dtype: torch.dtype = torch.float64) -> Array:
            with torch.inference_mode(False):  # cached for calls in other modes
                made = torch.tensor(values, dtype=dtype, device=device).unsqueeze(-1)
            return made if device else made.numpy()

        self.base, self.upper = columns(exact), columns(upper)
        self.sign, self.log_weight = (columns(w)[:, 0] for w in (sign, (0.5 - upper) * sign))
        self.half_less_upper = columns(0.5 - upper, dtype)
        self.polynomial = list(columns(polynomial, dtype))
        self.delta = columns(GammaAboveOne(upper).delta)


class _FastDivergence:
    """Divergence between Dir(alpha) and a constant Dirichlet, from e = alpha - base in float64.

    Rows of arrays are those of `_Bases`. The gamma family is evaluated at alpha plus the step.

    Args:
        quantities: Those of alpha.
        excess: alpha - base, (K, N); 0 for classes that do not count.
        base: Concentration of the other Dirichlet, except for the label.
        beta: Concentration of the label, if it is another one; y is one-hot then.
        shared: Whether the family of `quantities` contains these rows.

    Attributes:
        wide: Whether the gamma family is evaluated in float64.
    """

    wide = False

    def __init__(
        self,
        quantities: FastQuantities,
        excess: Array,
        base: float,
        beta: float | None = None,
        shared: bool = False,
    ) -> None:
        self.xp, self.quantities, self.beta, self.shared = quantities.xp, quantities, beta, shared
        exact = self.xp.asarray(excess, dtype=self.xp.float64)
        rows = [exact, exact.sum(axis=0, keepdims=True)]
        if beta is not None:
            label = (exact * quantities.y).sum(axis=0, keepdims=True) - (beta - base)
            rows = [exact * quantities.non_target, label, rows[1] - (beta - base)]
        self.excess = self.xp.concatenate(rows)
        self.dtype = self.excess.dtype if self.wide else quantities.alpha.dtype
        kind = torch.float32 if self.dtype.itemsize == 4 else torch.float64
        device = excess.device if self.xp is torch else None
        self.c = _Bases(len(excess), base, beta, quantities.step, kind, device)

    @lazy
    def alpha(self) -> Array:
        """Concentrations in float64, (R, N)."""
        return self.excess + self.c.base

    @lazy
    def gamma(self) -> _Rows | GammaAboveOne:
        """Gamma family at alpha plus the step."""
        if self.shared:
            return _Rows(self.quantities._family, slice(0, len(self.excess)))
        return GammaAboveOne(self.xp.asarray(self.excess + self.c.upper, dtype=self.dtype))

    @lazy
    def single_excess(self) -> Array:
        """The excess in the type of the gamma family."""
        return self.xp.asarray(self.excess, dtype=self.dtype)

    @lazy
    def smooth(self) -> Array:
        """mu(upper) - mu(x) - e delta(x) at x = upper + e, of second order in e."""
        z = self.gamma.variable
        shares = self.single_excess * z
        value = shares * shares * short_horner(self.c.polynomial, z)
        return self.xp.asarray(value, dtype=self.xp.float64)

    def _less_total(self, slopes: Array) -> Array:
        """Subtract the slope of the total from those of the classes: (K, N)."""
        each = slopes[:-1]
        if self.beta is not None:
            each = slopes[:-2] * self.quantities.non_target + slopes[-2:-1] * self.quantities.y
        return each - slopes[-1:]


class FastKL(_FastDivergence):
    r"""`KL` for a constant second argument, without derivatives.

    With b the base and e = alpha - b, the Bregman divergence of ln Gamma is e - f_b(e),

    .. math:: f_b(e) = (b - \tfrac12)\ln(1 + e/b) + \frac{e}{2 (b + e)} - \mu(b) + \mu(b + e)
              + e\,\delta(b + e)

    for a class and for the total alike, and e cancels between them. The remaining terms of first
    order in e cancel too, so they are computed in float64; those of mu and delta are of second
    order. With a step, f_b(e) = f_{b + 1}(e) - ln(1 + e/b) + e/(b + e).

    Below e = 1e-10 the value, then less than 1e-20, is exact only to 1e-16 e; the slope still is.
    """

    @lazy
    def alpha0(self) -> Array:
        """(1, N)."""
        return self.xp.asarray(self.excess[-1:] + self.c.base[-1:], dtype=self.dtype)

    @lazy
    def value(self) -> Array:
        """As in `KL`: (1, N)."""
        c, e, log1p = self.c, self.excess, self.xp.log1p
        main = c.log_weight @ log1p(e / c.upper) - 0.5 * (c.sign @ (e / (e + c.upper)))
        if self.quantities.step:
            main += c.sign @ (log1p(e / c.base) - e / self.alpha)
        return (main + c.sign @ self.smooth)[None]

    @lazy
    def slope(self) -> Array:
        """As in `KL`: (K, N)."""
        c, e = self.c, self.single_excess
        near = self.xp.asarray(self.excess[-1:] < c.base[-1], dtype=self.dtype)
        # share = e psi_1(b + e), less 1 where it tends to 1
        share = e * near + (c.half_less_upper - self.gamma.inverse_trigamma_excess) * (1 - near)
        share *= self.gamma.trigamma
        if self.quantities.step:
            share = share + self.excess / self.alpha / self.alpha
        return self._less_total(share)


class FastForwardKL(_FastDivergence):
    r"""`KL` for a constant first argument, without derivatives, in float64.

    With the notation of `FastKL`, the Bregman divergence of ln Gamma is g_b(e) - e,

    .. math:: g_b(e) = (b + e - \tfrac12)\ln(1 + e/b) + \frac{e}{2b} + \mu(b + e) - \mu(b)
              + e\,\delta(b)

    With a step, g_b(e) = g_{b + 1}(e) - ln(1 + e/b) + e/b.
    """

    wide = True

    @lazy
    def _logs(self) -> Array:
        return self.xp.log1p(self.excess / self.c.upper)

    @lazy
    def _delta_step(self) -> Array:
        """delta(upper) - delta(x)."""
        return self.c.delta - self.gamma.delta

    @lazy
    def value(self) -> Array:
        """As in `KL`: (1, N)."""
        c, e = self.c, self.excess
        each = (e - (0.5 - c.upper)) * self._logs + e * (0.5 / c.upper + self._delta_step)
        if self.quantities.step:
            each += e / c.base - self.xp.log1p(e / c.base)
        return (c.sign @ (each - self.smooth))[None]

    @lazy
    def slope_second(self) -> Array:
        """As in `KL`: (K, N)."""
        c, e = self.c, self.excess
        # psi(b + e) - psi(b)
        step = self._logs + e / (e + c.upper) * (0.5 / c.upper) + self._delta_step
        if self.quantities.step:
            step += e / self.alpha / c.base
        return self._less_total(step)
