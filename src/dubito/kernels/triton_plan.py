"""How the Triton kernels cut up their input: classes into blocks, rows into programs."""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from dubito.kernels import triton_math
from dubito.kernels.spec import FORMS, LossSpec
from dubito.kernels.triton_rows import Constants, Groups, Terms

#: classes up to which a row stays in one thread
FEW = 32
#: classes up to which one block may contain a row; longer ones go in blocks of half that
ONE_BLOCK = 1024
#: rows of few classes up to which one program takes them all, so that nothing is left to add up
ALONE = 64
# the interpreter takes as long for one row as for many
_LEAST_ROWS = 1 if triton_math.COMPILED.value else 256
_TARGET_KL = ("differential_entropy", "kl_to_uniform", "reverse_kl", "forward_kl")


class Blocks(NamedTuple):
    """How the classes are cut into blocks, and what a program takes."""

    C: int
    BLOCKS: int
    TAIL: int
    LAST: int
    R: int  # rows at once
    across: bool  # the class stride is 1, and the lanes lie along the classes
    warps: int


@cache
def blocks(classes: int, class_stride: int, alone: bool) -> Blocks:
    """For a number of classes; `alone` if one program takes all rows.

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
    rows = max(_LEAST_ROWS, piece // block if across else 64)
    count = -(-(classes - tail) // block)
    return Blocks(block, count, tail, 0, rows, across, 1 if block == ONE_BLOCK else 2)


class Layout(NamedTuple):
    """Where the rows of a tensor lie: `inner` of them evenly spaced, then a jump unless flat."""

    inner: int
    class_stride: int
    row_stride: int
    outer_stride: int
    flat: bool


def layout(tensor: Tensor) -> Layout | None:
    """The layout of (..., K), or None where one jump or 32 bits for the classes do not suffice."""
    if tensor.stride(-1) * tensor.shape[-1] >= 1 << 31:
        return None
    axes: list[tuple[int, int]] = []
    for size, stride in zip(tensor.shape[:-1], tensor.stride()[:-1], strict=True):
        if size == 1:
            continue
        if axes and axes[-1][1] == stride * size:
            axes[-1] = (axes[-1][0] * size, stride)
        else:
            axes.append((size, stride))
    if len(axes) > 2:
        return None
    (outer, jump), (inner, step) = [(1, 0), (1, 0), *axes][-2:]
    return Layout(inner, tensor.stride(-1), step, jump, outer == 1)


def groups(spec: LossSpec) -> Groups:
    """The parts of the frame that a loss needs."""
    forms = set(spec.forms)
    mse = bool(forms & {"mse_bias", "mse_variance"})
    forward = bool(forms & {"forward_kl", "kl_from_uniform"})
    removed, reverse = "label_removed_kl" in forms, "reverse_kl" in forms
    uniform = bool(forms & {"kl_to_uniform", "differential_entropy"})
    return Groups(
        mse=mse,
        fisher=bool(forms & {"fisher_bias", "fisher_variance"}),
        penalty="fisher_penalty" in forms,
        removed=removed,
        uniform=uniform,
        reverse=reverse,
        bregman=removed or uniform or reverse,
        forward=forward,
        marginal="marginal_nll" in forms,
        expected="expected_cross_entropy" in forms,
        total_first=mse or forward,
    )


def below_one(spec: LossSpec) -> bool:
    """Whether a loss needs the kernel for any alpha: it may be below 1, or a form needs it."""
    forward = "forward_kl" in spec.forms or "kl_from_uniform" in spec.forms
    return spec.evidence is None or spec.prior != 1 or forward


def is_supported(spec: LossSpec, soft: bool) -> bool:
    """Whether the kernels compute this loss: one target Dirichlet at a time, prior at most 1."""
    forms = set(spec.forms)
    if spec.prior > 1 or {"forward_kl", "kl_from_uniform"} <= forms:
        return False
    if "label_removed_kl" in forms and spec.prior not in (0, 1) and forms & set(_TARGET_KL):
        return False
    return not (soft and (below_one(spec) or "reverse_kl" in forms))


def columns(spec: LossSpec) -> Terms:
    """Each form's place in the weights, or -1."""
    return Terms(*(spec.forms.index(name) if name in spec.forms else -1 for name in FORMS))


def _mu(x: float) -> float:
    """Stirling's remainder of ln Gamma."""
    return math.lgamma(x) - ((x - 0.5) * math.log(x) - x + 0.5 * math.log(2 * math.pi))


def _digamma(x: float) -> float:
    return float(torch.digamma(torch.tensor(x, dtype=torch.float64)))


def constants(spec: LossSpec, classes: int) -> Constants:
    """The numbers of a loss."""
    base = spec.prior if "label_removed_kl" in spec.forms and spec.prior > 0 else 1.0
    forward_beta = spec.beta if "forward_kl" in spec.forms else 1.0
    beta_total, forward_total = classes - 1 + spec.beta, classes - 1 + forward_beta
    psi0 = _digamma(forward_total)
    return Constants(
        prior=spec.prior,
        base=base,
        beta=spec.beta,
        base_total=classes * base,
        beta_total=beta_total,
        log_beta=math.log(beta_total / spec.beta),
        growth=10 / classes if spec.per_class else 1.0,
        mu_base=_mu(base),
        mu_total=_mu(classes * base),
        mu_beta=_mu(spec.beta),
        mu_beta_total=_mu(beta_total),
        log_gamma=math.lgamma(classes),
        forward_beta=forward_beta,
        forward_total=forward_total,
        forward_step=psi0 - _digamma(1.0),
        forward_label_step=psi0 - _digamma(forward_beta),
    )


@cache
def programs_on(device: torch.device) -> int:
    """Programs that take rows one after the other, 16 on a multiprocessor."""
    if device.type != "cuda":
        return 2
    return 16 * torch.cuda.get_device_properties(device).multi_processor_count
