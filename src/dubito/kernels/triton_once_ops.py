"""The loss of few classes as a torch operator that computes the gradient too, in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dubito.kernels import triton_math, triton_once, triton_rows
from dubito.kernels.triton_ops import like, outputs, second, stirling, which
from dubito.kernels.triton_plan import ALONE, FEW, laid_out, on, programs_on, row

_WEIGHERS = 256  # programs that add up the weights of rows
_WEIGHED = 4096  # rows that they take at once


def in_one_pass(logits: Tensor, target: Tensor, reduction: str) -> bool:
    """Whether `evidential_loss_once` is for this: few classes, and a gradient is wanted.

    Numbers of half precision could not hold the gradient before a loss scale is multiplied in.
    Compiled code would have to copy a gradient that is changed in place.
    """
    if torch.compiler.is_compiling() or reduction == "none" or target.is_floating_point():
        return False
    if not (torch.is_grad_enabled() and logits.requires_grad) or logits.dtype == torch.float16:
        return False
    return logits.shape[-1] <= FEW


@torch.library.custom_op(
    "dubito::evidential_loss_once",
    mutates_args=(),
    schema=(
        "(Tensor logits, Tensor target, Tensor? class_weight, Tensor? moving, float[] numbers,"
        " int[] places, int[] columns, float growth, str evidence, int ignore_index,"
        " str reduction) -> (Tensor, Tensor, Tensor, Tensor)"
    ),
)
def evidential_loss_once(
    logits: Tensor,
    target: Tensor,
    class_weight: Tensor | None,
    moving: Tensor | None,
    numbers: Sequence[float],
    places: Sequence[int],
    columns: Sequence[int],
    growth: float,
    evidence: str,
    ignore_index: int,
    reduction: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `evidential_loss`, of labels of few classes, reduced; and last the gradient."""
    value, sums, scale, _ = outputs(logits, columns, reduction)
    out = like(logits)
    held, where = laid_out(logits)
    classes = logits.shape[-1]
    count = logits.numel() // classes
    blocks = row(classes, count <= ALONE)
    programs = min(programs_on(logits.device, blocks.waves), -(-count // blocks.R))
    weighers = min(_WEIGHERS, -(-count // _WEIGHED))
    packed = where.flat and where.class_stride == 1 and where.row_stride == classes
    width = len(sums) + 1
    partial = sums if programs == 1 else sums.new_empty(programs, width)
    at, columns_at = tuple(places), tuple(columns)
    shared, aim = triton_rows.Numbers(*numbers), target.contiguous()
    moved = scale if moving is None else moving
    by_class, mean = moved if class_weight is None else class_weight, reduction == "mean"
    weighed = sums.new_empty(weighers) if mean and programs > 1 else scale
    with on(logits.device):
        if mean and programs > 1:
            triton_once.weigh[(weighers,)](
                aim, by_class, weighed, ignore_index, count, weighers,
                classes, class_weight is not None, _WEIGHED, num_warps=8,
            )  # fmt: skip
        triton_once.once[(programs,)](
            held, aim, by_class, moved, out, weighed, partial, sums, value, scale,
            shared, growth, stirling(classes), ignore_index, count, programs, weighers,
            *where[:4],
            at, columns_at, which(places), triton_math.EVIDENCE[evidence],
            class_weight is not None, mean, programs == 1, where.flat, packed,
            out.is_contiguous(), count >= blocks.R, width, _WEIGHERS, classes, *blocks[:4],
            num_warps=blocks.warps, num_stages=1,
        )  # fmt: skip
        if programs > 1:
            triton_rows.finish[(1,)](
                partial, moved, sums, value, scale, shared, programs,
                at, columns_at, mean, width, 4096, num_warps=8,
            )  # fmt: skip
    return value, sums, scale, out


@evidential_loss_once.register_fake
def _(
    logits: Any, target: Any, class_weight: Any, moving: Any, numbers: Any, places: Any,
    columns: Any, growth: Any, evidence: Any, ignore_index: Any, reduction: Any,
) -> Any:  # fmt: skip
    return *outputs(logits, columns, reduction)[:3], like(logits)


@torch.library.custom_op("dubito::evidential_rescale", mutates_args=("gradient",))
def evidential_rescale(gradient: Tensor, factor: Tensor) -> None:
    """Multiply a gradient in place, of any dense strides."""
    count = gradient.numel()
    with on(gradient.device):
        triton_once.rescale[(min(programs_on(gradient.device), -(-count // 2048)),)](
            gradient, factor, count, 2048, num_warps=4
        )


@evidential_rescale.register_fake
def _(gradient: Any, factor: Any) -> None:
    return None


# --- autograd ------------------------------------------------------------------------------------


def _save_once(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    logits, target, class_weight, moving, numbers, places, _, growth, *options = inputs
    ctx.save_for_backward(logits, target, class_weight, moving, output[2])
    ctx.given = numbers, places, growth, *options
    ctx.gradient = output[3]  # not saved: whoever takes it first may change it
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _backward_once(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    logits, target, class_weight, moving, scale = ctx.saved_tensors
    slopes, ctx.gradient = ctx.gradient, None
    if grad is None:
        return (None,) * 11
    if torch.is_grad_enabled():
        return second(logits, target, class_weight, moving, ctx.given, grad)
    if slopes is None:  # a graph that was kept, and this is not the first time
        slopes = torch.ops.dubito.evidential_gradient(
            grad.float(), scale, scale.new_empty(0), logits, target, class_weight, moving,
            *ctx.given[:-1],
        )  # fmt: skip
    else:
        torch.ops.dubito.evidential_rescale(slopes, grad.float())
    return slopes, *(None,) * 10


evidential_loss_once.register_autograd(_backward_once, setup_context=_save_once)
