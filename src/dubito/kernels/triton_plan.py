"""How the Triton kernels cut up their input: classes into blocks, rows into programs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from dubito.kernels import triton_math

#: classes up to which a row stays in one thread
FEW = 32
#: classes up to which one block may hold a row; longer ones go in blocks of half that, row by row
ONE_BLOCK = 1024
# the interpreter takes as long for one row as for many
_LEAST_ROWS = 1 if triton_math.COMPILED.value else 256


class Plan(NamedTuple):
    """How the classes are cut into blocks, and how many rows a program takes at once."""

    K: int
    C: int
    BLOCKS: int
    TAIL: int
    R: int
    KNOWN: bool
    """the class stride is 1, and the lanes lie along the classes"""
    warps: int


@cache
def plan(classes: int, class_stride: int) -> Plan:
    """For a number of classes.

    Few of them stay in one thread, as two blocks where one would be longer; many are spread over
    the threads of a warp, and more than that over several warps and blocks.

    >>> plan(19, 1)[:4], plan(1000, 1)[:4], plan(10_000, 1)[:4]
    ((19, 16, 1, 4), (1000, 1024, 1, 0), (10000, 512, 19, 512))
    """
    known = classes > FEW and class_stride == 1
    piece = ONE_BLOCK // 2 if classes > ONE_BLOCK else ONE_BLOCK
    most = piece if known else FEW if classes <= FEW else 16
    block = min(most, 1 << (classes.bit_length() - 1))
    rest = classes % block
    tail = 1 << (rest - 1).bit_length() if rest else 0
    if tail == block < most:  # one block of twice the length is as long
        block, tail = 2 * block, 0
    rows = max(_LEAST_ROWS, piece // block if known else 64)
    return Plan(classes, block, -(-(classes - tail) // block), tail, rows, known, 2)


class Row(NamedTuple):
    """How a row of few classes is cut up to stay in one thread, and what a program takes."""

    C: int
    TAIL: int
    LAST: int
    R: int
    warps: int
    waves: int
    """programs for each multiprocessor"""


#: rows up to which one program takes them all, so that nothing is left to add up
ALONE = 64


@cache
def row(classes: int, alone: bool = False) -> Row:
    """For few classes; `alone` where one program takes all rows.

    >>> row(19)[:3], row(10)[:3], row(15)[:3]
    ((16, 2, 1), (8, 2, 0), (16, 0, 0))
    """
    block = 1 << (classes.bit_length() - 1)
    rest = classes - block
    tail = 1 << (rest.bit_length() - 1) if rest else 0
    last = 1 << (rest - tail - 1).bit_length() if rest > tail else 0
    if tail + last == block:  # one block of twice the length is as long
        block, tail, last = 2 * block, 0, 0
    rows = ALONE if alone else 32
    return Row(block, tail, last, max(_LEAST_ROWS, rows), rows // 32, 16)


class Layout(NamedTuple):
    """Where rows of a tensor lie: `inner` of them evenly spaced, then a jump unless flat."""

    inner: int
    class_stride: int
    row_stride: int
    outer_stride: int
    flat: bool


def layout(tensor: Tensor) -> Layout | None:
    """The layout of (..., K), or None where one jump does not do, or 32 bits for the classes."""
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


def targets(target: Tensor, soft: bool, known: bool) -> tuple[Tensor, Layout]:
    """Labels one after the other, or soft targets where they lie."""
    if not soft:
        return target.contiguous(), Layout(1, 0, 0, 0, True)
    if known and target.stride(-1) != 1:
        target = target.contiguous()
    return laid_out(target)


def laid_out(tensor: Tensor) -> tuple[Tensor, Layout]:
    """A tensor with a layout, copied where it has none, and that layout."""
    found = layout(tensor)
    if found is None:
        tensor = tensor.contiguous()
        found = layout(tensor)
        assert found is not None
    return tensor, found


@cache
def programs_on(device: torch.device, each: int = 16) -> int:
    """Programs that add up rows one after the other, `each` on a multiprocessor."""
    if device.type != "cuda":
        return 2
    return each * torch.cuda.get_device_properties(device).multi_processor_count


def on(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the current device."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)
