"""Configurations of the Triton kernels: blocks of classes, layouts of tensors, constants."""

import math
from collections import namedtuple
from functools import cache
from typing import Any, NamedTuple

import torch

from dubito.kernels import triton_math
from dubito.kernels.triton_rows import Config, Constants
from dubito.numerics.spec import LOSS_FORMS, LossSpec, PerForm, form_factors

__all__: list[str] = []

#: classes up to which a row stays in one thread
FEW = 32
#: classes up to which one block may contain a row; longer ones are divided into blocks of half that
ONE_BLOCK = 1024
#: rows of few classes up to which one program computes them all: there are no partial sums
ALONE = 64
# the interpreter needs the same time for one row as for many
_LEAST_ROWS = 1 if triton_math.COMPILED.value else 256
#: parts of the computation, and the forms that need them
_GROUPS = {
    "mse": ("mse_bias", "mse_variance"),
    "fisher": ("fisher_bias", "fisher_variance"),
    "penalty": ("fisher_penalty",),
    "removed": ("label_removed_kl",),
    "uniform": ("kl_to_uniform", "differential_entropy"),
    "reverse": ("reverse_kl",),
    "bregman": ("label_removed_kl", "kl_to_uniform", "differential_entropy", "reverse_kl"),
    "forward": ("kl_from_uniform", "forward_kl"),
    "marginal": ("marginal_nll",),
    "expected": ("expected_cross_entropy",),
    # the sums over the classes need alpha0
    "total_first": ("mse_bias", "mse_variance", "kl_from_uniform", "forward_kl"),
}
Groups: Any = namedtuple("Groups", _GROUPS)  # type: ignore[misc]


class Blocks(NamedTuple):
    """The blocks of classes and the rows of a program."""

    C: int
    BLOCKS: int
    TAIL: int
    LAST: int
    R: int  # rows at once
    across: bool  # the class stride is 1, and the lanes run along the classes
    warps: int


@cache
def blocks(classes: int, class_stride: int, alone: bool) -> Blocks:
    """The blocks for a number of classes; `alone` if one program computes all rows.

    Few of them stay in one thread, in up to three blocks; many are spread over the threads of a
    warp, and more than that over several warps and blocks.

    >>> blocks(19, 1, False)[:4], blocks(1000, 1, False)[:4], blocks(10_000, 1, False)[:4]
    ((16, 1, 2, 1), (1024, 1, 0, 0), (512, 19, 512, 0))
    """
    if classes <= FEW:
        block = 1 << (classes.bit_length() - 1)
        rest = classes - block
        tail = 1 << (rest.bit_length() - 1) if rest else 0
        last = 1 << (rest - tail - 1).bit_length() if rest > tail else 0
        if tail + last == block:  # one block of twice the length is as long
            block, tail, last = 2 * block, 0, 0
        rows = ALONE if alone else 32
        return Blocks(block, 1, tail, last, max(_LEAST_ROWS, rows), False, rows // 32)
    across = class_stride == 1
    piece = ONE_BLOCK // 2 if classes > ONE_BLOCK else ONE_BLOCK
    most = piece if across else 16
    block = min(most, 1 << (classes.bit_length() - 1))
    rest = classes % block
    tail = 1 << (rest - 1).bit_length() if rest else 0
    if tail == block < most:
        block, tail = 2 * block, 0
    least = 1 if across and classes > ONE_BLOCK else _LEAST_ROWS
    rows = max(least, piece // block if across else 64)
    count = -(-(classes - tail) // block)
    return Blocks(block, count, tail, 0, rows, across, 1 if block == ONE_BLOCK else 2)


class Layout(NamedTuple):
    """Where the rows of a tensor begin: `inner` of them evenly spaced, then a jump unless flat."""

    inner: int
    class_stride: int
    row_stride: int
    outer_stride: int
    flat: bool
    packed: bool  # rows are contiguous, one after the other
    copied: bool  # the layout of a contiguous copy


def layout(shape: torch.Size, strides: tuple[int, ...], unit: bool = False) -> Layout:
    """The layout of (..., K), or that of a contiguous copy.

    A copy is needed where rows have more than one jump or classes need more than 32 bits, and with
    `unit` where the class stride is not 1.
    """
    axes: list[tuple[int, int]] = []
    for size, stride in zip(shape[:-1], strides[:-1], strict=True):
        if axes and axes[-1][1] == stride * size:
            axes[-1] = (axes[-1][0] * size, stride)
        elif size > 1:
            axes.append((size, stride))
    if len(axes) > 2 or strides[-1] * shape[-1] >= 1 << 31 or (unit and strides[-1] != 1):
        return Layout(shape[:-1].numel(), 1, shape[-1], 0, True, True, True)
    (outer, jump), (inner, step) = [(1, 0), (1, 0), *axes][-2:]
    packed = outer == 1 and strides[-1] == 1 and step == shape[-1]
    return Layout(inner, strides[-1], step, jump, outer == 1, packed, False)


def below_one(spec: LossSpec) -> bool:
    """Return whether a loss needs the kernel for any alpha: below 1, or for one of its forms."""
    forward = "forward_kl" in spec.forms or "kl_from_uniform" in spec.forms
    return spec.evidence is None or spec.prior != 1 or forward


def is_supported(spec: LossSpec, soft: bool) -> bool:
    """Return whether the kernels compute a loss: one target Dirichlet, and a prior up to 1."""
    forms = set(spec.forms)
    if spec.prior > 1 or {"forward_kl", "kl_from_uniform"} <= forms:
        return False
    target_kl = {"differential_entropy", "kl_to_uniform", "reverse_kl", "forward_kl"}
    if "label_removed_kl" in forms and spec.prior not in (0, 1) and forms & target_kl:
        return False
    return not (soft and (below_one(spec) or "reverse_kl" in forms))


def _mu(x: float) -> float:
    """Stirling's remainder of ln Gamma."""
    return math.lgamma(x) - ((x - 0.5) * math.log(x) - x + 0.5 * math.log(2 * math.pi))


def _digamma(x: float) -> float:
    return float(torch.digamma(torch.tensor(x, dtype=torch.float64)))


def _constants(spec: LossSpec, classes: int) -> Constants:
    """The numbers of a loss."""
    base = spec.prior if "label_removed_kl" in spec.forms and spec.prior > 0 else 1.0
    forward_beta = spec.beta if "forward_kl" in spec.forms else 1.0
    beta_total = classes - 1 + spec.beta
    psi0 = _digamma(classes - 1 + forward_beta)
    return Constants(
        base=base,
        mu_base=_mu(base),
        mu_total=_mu(classes * base),
        mu_beta=_mu(spec.beta),
        mu_beta_total=_mu(beta_total),
        log_beta=math.log(beta_total / spec.beta),
        log_gamma=math.lgamma(classes),
        forward_beta=forward_beta,
        forward_step=psi0 - _digamma(1.0),
        forward_label_step=psi0 - _digamma(forward_beta),
    )


def configure(spec: LossSpec, classes: int, cut: Blocks, where: Layout, **options: Any) -> Config:
    """The configuration of a kernel."""
    forms = spec.forms
    return Config(
        classes,
        *cut[:-1],
        flat=where.flat,
        packed=where.packed,
        spec=spec,
        below_one=below_one(spec),
        groups=Groups(*(not set(forms).isdisjoint(need) for need in _GROUPS.values())),
        constants=_constants(spec, classes),
        forms=tuple(LOSS_FORMS.index(name) for name in forms),
        columns=PerForm(*(forms.index(name) if name in forms else -1 for name in LOSS_FORMS)),
        growth=form_factors(spec, classes),
        **options,
    )
