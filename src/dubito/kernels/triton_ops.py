"""The Triton kernels as torch operators: how they are launched, and their derivatives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dubito import _checks
from dubito._evidence import EVIDENCE
from dubito._forms import evaluate
from dubito._reduction import reduced
from dubito.kernels import (
    Weights,
    triton_backward,
    triton_loss,
    triton_math,
    triton_measures,
    triton_rows,
)
from dubito.kernels.triton_plan import FEW, laid_out, layout, on, plan, programs_on, targets


def which(places: Sequence[int], kept: bool = False) -> tuple[bool, ...]:
    """Fisher, MSE, penalty, divergence, and whether sums are kept."""
    used = [place > -2 for place in places]
    return used[0] or used[1], used[2] or used[3], used[4], used[5], kept


def stirling(classes: int) -> float:
    """Stirling's remainder of ln Gamma(K)."""
    return math.lgamma(classes) - (
        (classes - 0.5) * math.log(classes) - classes + 0.5 * math.log(2 * math.pi)
    )


# --- the loss ------------------------------------------------------------------------------------


@torch.library.custom_op(
    "dubito::evidential_loss",
    mutates_args=(),
    schema=(
        "(Tensor logits, Tensor target, Tensor? class_weight, Tensor? moving, float[] numbers,"
        " int[] places, int[] columns, float growth, str evidence, int ignore_index,"
        " str reduction) -> (Tensor, Tensor, Tensor, Tensor)"
    ),
)
def evidential_loss(
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
    """The loss, the sums of its terms, and what a row's gradient is to be multiplied by.

    The i-th of `dubito.kernels.Weights` has the weight numbers[i] moving[places[i]], without the
    second factor where places[i] is -1, and is left out where it is -2; columns[i] is the place of
    its sum. `growth` multiplies the terms that grow with the number of classes.
    """
    value, sums, scale, kept = outputs(logits, columns, reduction)
    held, where = laid_out(logits)
    blocks = plan(logits.shape[-1], where.class_stride)
    count = logits.numel() // blocks.K
    programs = min(programs_on(logits.device), -(-count // blocks.R))
    each = reduction == "none"
    width = len(sums) + 1
    partial = sums if programs == 1 else sums.new_empty(programs, width)
    total = scale.new_empty(()) if each else value
    at, columns_at = tuple(places), tuple(columns)
    shared = triton_rows.Numbers(*numbers)
    moved = scale if moving is None else moving
    soft = target.is_floating_point()
    aim, lies = targets(target, soft, blocks.KNOWN)
    with on(logits.device):
        triton_loss.forward[(programs,)](
            held, aim, moved if class_weight is None else class_weight, moved,
            value, kept, partial, sums, total, scale,
            shared, growth, stirling(blocks.K), ignore_index, count, programs,
            *where[:4], *lies[:4],
            at, columns_at, which(places, kept.numel() > 0),
            triton_math.EVIDENCE[evidence], soft, class_weight is not None, each,
            reduction == "mean", programs == 1, where.flat, blocks.KNOWN, width,
            blocks.K, blocks.C, blocks.BLOCKS, blocks.TAIL, blocks.R,
            num_warps=blocks.warps, num_stages=1,
        )  # fmt: skip
        if programs > 1:
            triton_rows.finish[(1,)](
                partial, moved, sums, total, scale, shared, programs,
                at, columns_at, reduction == "mean", width, 4096, num_warps=8,
            )  # fmt: skip
    return value, sums, scale, kept


def outputs(
    logits: Tensor, columns: Sequence[int], reduction: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Empty tensors for the loss, the sums of its terms, the rows' factor, and what is kept."""
    shape = logits.shape[:-1] if reduction == "none" else ()
    looped = plan(int(logits.shape[-1]), int(logits.stride(-1))).BLOCKS > 1
    kept = (7 * (logits.numel() // logits.shape[-1]) if looped else 0,)
    value, sums, scale, held = (
        torch.empty(given, dtype=torch.float32, device=logits.device)
        for given in (shape, (1 + max(columns),), (), kept)
    )
    return value, sums, scale, held


@evidential_loss.register_fake
def _(
    logits: Any, target: Any, class_weight: Any, moving: Any, numbers: Any, places: Any,
    columns: Any, growth: Any, evidence: Any, ignore_index: Any, reduction: Any,
) -> Any:  # fmt: skip
    return outputs(logits, columns, reduction)


# --- its gradient --------------------------------------------------------------------------------


@torch.library.custom_op(
    "dubito::evidential_gradient",
    mutates_args=(),
    schema=(
        "(Tensor grad, Tensor scale, Tensor kept, Tensor logits, Tensor target,"
        " Tensor? class_weight, Tensor? moving, float[] numbers, int[] places, float growth,"
        " str evidence, int ignore_index) -> Tensor"
    ),
)
def evidential_gradient(
    grad: Tensor,
    scale: Tensor,
    kept: Tensor,
    logits: Tensor,
    target: Tensor,
    class_weight: Tensor | None,
    moving: Tensor | None,
    numbers: Sequence[float],
    places: Sequence[int],
    growth: float,
    evidence: str,
    ignore_index: int,
) -> Tensor:
    """The gradient of the logits, of the loss's gradient: a scalar, or one a row."""
    out = like(logits)
    held, where = laid_out(logits)
    blocks = plan(logits.shape[-1], where.class_stride)
    count = logits.numel() // blocks.K
    moved = scale if moving is None else moving
    soft = target.is_floating_point()
    aim, lies = targets(target, soft, blocks.KNOWN)
    kernel: Any = triton_backward.backward_soft if soft else triton_backward.backward
    with on(logits.device):
        kernel[(-(-count // blocks.R),)](
            held, aim, moved if class_weight is None else class_weight, moved,
            grad.contiguous(), scale, *(() if soft else (kept,)), out,
            triton_rows.Numbers(*numbers), growth, *(() if soft else (ignore_index,)), count,
            *where[:4], *(lies[:4] if soft else ()),
            tuple(places), which(places, kept.numel() > 0), triton_math.EVIDENCE[evidence],
            class_weight is not None, grad.ndim > 0,
            where.flat, blocks.KNOWN, out.is_contiguous(),
            blocks.K, blocks.C, blocks.BLOCKS, blocks.TAIL, blocks.R,
            num_warps=blocks.warps, num_stages=1,
        )  # fmt: skip
    return out


def like(logits: Tensor) -> Tensor:
    """Empty, with the strides of the logits where these are dense, and else contiguous."""
    out = torch.empty_like(logits)
    if out.stride() == logits.stride() and layout(logits) is not None:
        return out
    return torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)


@evidential_gradient.register_fake
def _(grad: Any, scale: Any, kept: Any, logits: Any, target: Any, class_weight: Any, moving: Any,
      numbers: Any, places: Any, growth: Any, evidence: Any, ignore_index: Any) -> Any:  # fmt: skip
    return like(logits)


# --- autograd ------------------------------------------------------------------------------------


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    logits, target, class_weight, moving, numbers, places, _, growth, *options = inputs
    ctx.save_for_backward(logits, target, class_weight, moving, *output[2:])
    ctx.given = numbers, places, growth, *options
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    logits, target, class_weight, moving, scale, kept = ctx.saved_tensors
    if grad is None:
        return (None,) * 11
    if torch.is_grad_enabled():
        return second(logits, target, class_weight, moving, ctx.given, grad)
    slopes = torch.ops.dubito.evidential_gradient(
        grad.float(), scale, kept, logits, target, class_weight, moving, *ctx.given[:-1]
    )  # fmt: skip
    return slopes, *(None,) * 10


def second(
    logits: Tensor, target: Tensor, class_weight: Tensor | None, moving: Tensor | None,
    given: tuple[Any, ...], grad: Tensor,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Somebody wants the gradient's gradient, which plain torch has."""
    value = _plain(logits, target, class_weight, moving, *given)
    (slopes,) = torch.autograd.grad(value, logits, grad, create_graph=True)
    return slopes, *(None,) * 10


def _plain(
    logits: Tensor,
    target: Tensor,
    class_weight: Tensor | None,
    moving: Tensor | None,
    numbers: Sequence[float],
    places: Sequence[int],
    growth: float,
    evidence: str,
    ignore_index: int,
    reduction: str,
) -> Tensor:
    """The same by plain torch."""
    used = [i for i, place in enumerate(places) if place > -2]
    alpha = EVIDENCE[evidence](logits.float()) + 1
    y = _checks.distribution(target, alpha, ignore_index)
    values = evaluate(tuple(Weights._fields[i] for i in used), alpha, y)
    loss = torch.zeros_like(values[0])
    for i, value in zip(used, values, strict=True):
        weight = numbers[i] * (growth if i in (4, 5) else 1.0)
        if moving is not None and places[i] >= 0:
            loss = loss + weight * moving[places[i]] * value
        else:
            loss = loss + weight * value
    return reduced(loss, y, target, class_weight, ignore_index, reduction)


evidential_loss.register_autograd(_backward, setup_context=_save)


# --- the measures --------------------------------------------------------------------------------


@torch.library.custom_op(
    "dubito::evidential_measures", mutates_args=(), schema="(Tensor logits, str evidence) -> Tensor"
)
def evidential_measures(logits: Tensor, evidence: str) -> Tensor:
    """Measures of alpha = evidence + 1, in the order of `triton_measures.NAMES`: (M, ...)."""
    out = _measured(logits)
    held, where = laid_out(logits)
    blocks = plan(logits.shape[-1], where.class_stride)
    count = logits.numel() // blocks.K
    with on(logits.device):
        triton_measures.measures[(-(-count // blocks.R),)](
            held, out, stirling(blocks.K), math.lgamma(blocks.K), count, *where[:4],
            len(out) == len(triton_measures.NAMES), triton_math.EVIDENCE[evidence], where.flat,
            blocks.KNOWN, blocks.K, blocks.C, blocks.BLOCKS, blocks.TAIL, blocks.R,
            num_warps=blocks.warps, num_stages=1,
        )  # fmt: skip
    return out


def _measured(logits: Tensor) -> Tensor:
    few = int(logits.shape[-1]) <= FEW
    names = len(triton_measures.NAMES) - (not few)
    return torch.empty((names, *logits.shape[:-1]), dtype=torch.float32, device=logits.device)


@evidential_measures.register_fake
def _(logits: Any, evidence: Any) -> Any:
    return _measured(logits)
