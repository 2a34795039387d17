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
    triton_loss,
    triton_math,
    triton_measures,
    triton_once,
    triton_rows,
)
from dubito.kernels.triton_plan import FEW, laid_out, layout, on, plan, programs_on, targets


def _which(places: Sequence[int], apart: bool, kept: bool) -> tuple[bool, ...]:
    """Fisher, MSE, penalty, divergence, whether a class is set apart, and whether sums are kept."""
    used = [place > -2 for place in places]
    fisher, mse = used[0] or used[1], used[2] or used[3]
    return fisher, mse, used[4], used[5], mse or (fisher and apart), kept


def _stirling(classes: int) -> float:
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
    value, sums, scale, kept = _outputs(logits, columns, reduction)
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
            shared, growth, _stirling(blocks.K), ignore_index, count, programs,
            *where[:4], *lies[:4],
            at, columns_at, _which(places, False, kept.numel() > 0),
            triton_math.EVIDENCE[evidence], soft, class_weight is not None, each,
            reduction == "mean", programs == 1, where.flat, blocks.KNOWN, width,
            blocks.K, blocks.C, blocks.BLOCKS, blocks.TAIL, blocks.R,
            num_warps=blocks.warps, num_stages=1,
        )  # fmt: skip
        if programs > 1:
            triton_rows.finish[(1,)](
                partial, moved, sums, total, scale, shared, programs,
                at, columns_at, reduction == "mean", width, 512, num_warps=4,
            )  # fmt: skip
    return value, sums, scale, kept


def _outputs(
    logits: Tensor, columns: Sequence[int], reduction: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
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
    return _outputs(logits, columns, reduction)


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
    out = _like(logits)
    held, where = laid_out(logits)
    blocks = plan(logits.shape[-1], where.class_stride)
    count = logits.numel() // blocks.K
    moved = scale if moving is None else moving
    soft = target.is_floating_point()
    aim, lies = targets(target, soft, blocks.KNOWN)
    kernel: Any = triton_loss.backward_soft if soft else triton_loss.backward
    with on(logits.device):
        kernel[(-(-count // blocks.R),)](
            held, aim, moved if class_weight is None else class_weight, moved,
            grad.contiguous(), scale, *(() if soft else (kept,)), out,
            triton_rows.Numbers(*numbers), growth, *(() if soft else (ignore_index,)), count,
            *where[:4], *(lies[:4] if soft else ()),
            tuple(places), _which(places, True, kept.numel() > 0), triton_math.EVIDENCE[evidence],
            class_weight is not None, grad.ndim > 0,
            where.flat, blocks.KNOWN, out.is_contiguous(),
            blocks.K, blocks.C, blocks.BLOCKS, blocks.TAIL, blocks.R,
            num_warps=blocks.warps, num_stages=1,
        )  # fmt: skip
    return out


def _like(logits: Tensor) -> Tensor:
    """Empty, with the strides of the logits where these are dense, and else contiguous."""
    out = torch.empty_like(logits)
    if out.stride() == logits.stride() and layout(logits) is not None:
        return out
    return torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)


@evidential_gradient.register_fake
def _(grad: Any, scale: Any, kept: Any, logits: Any, target: Any, class_weight: Any, moving: Any,
      numbers: Any, places: Any, growth: Any, evidence: Any, ignore_index: Any) -> Any:  # fmt: skip
    return _like(logits)


# --- both in one pass ----------------------------------------------------------------------------

_WEIGHERS = 256


def in_one_pass(logits: Tensor, target: Tensor, reduction: str) -> bool:
    """Whether `evidential_loss_once` is for this: rows in registers, and a gradient is wanted.

    Numbers of half precision could not hold the gradient before a loss scale is multiplied in.
    Compiled code would have to copy a gradient that is changed in place.
    """
    if torch.compiler.is_compiling() or reduction == "none" or target.is_floating_point():
        return False
    if not (torch.is_grad_enabled() and logits.requires_grad) or logits.dtype == torch.float16:
        return False
    held, where = laid_out(logits.detach())
    return plan(held.shape[-1], where.class_stride).BLOCKS == 1


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
    """As `evidential_loss`, of labels, reduced; and last the gradient of the logits."""
    value, sums, scale, _ = _outputs(logits, columns, reduction)
    out = _like(logits)
    held, where = laid_out(logits)
    blocks = plan(logits.shape[-1], where.class_stride)
    count = logits.numel() // blocks.K
    programs = min(programs_on(logits.device), -(-count // blocks.R))
    weighers = min(_WEIGHERS, -(-count // 1024))
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
                blocks.K, class_weight is not None, 1024, num_warps=4,
            )  # fmt: skip
        triton_once.once[(programs,)](
            held, aim, by_class, moved, out, weighed, partial, sums, value, scale,
            shared, growth, _stirling(blocks.K), ignore_index, count, programs, weighers,
            *where[:4],
            at, columns_at, _which(places, True, False), triton_math.EVIDENCE[evidence],
            class_weight is not None, mean, programs == 1, where.flat, blocks.KNOWN,
            out.is_contiguous(), width, _WEIGHERS, blocks.K, blocks.C, blocks.TAIL, blocks.R,
            num_warps=blocks.warps, num_stages=1,
        )  # fmt: skip
        if programs > 1:
            triton_rows.finish[(1,)](
                partial, moved, sums, value, scale, shared, programs,
                at, columns_at, mean, width, 512, num_warps=4,
            )  # fmt: skip
    return value, sums, scale, out


@evidential_loss_once.register_fake
def _(
    logits: Any, target: Any, class_weight: Any, moving: Any, numbers: Any, places: Any,
    columns: Any, growth: Any, evidence: Any, ignore_index: Any, reduction: Any,
) -> Any:  # fmt: skip
    return *_outputs(logits, columns, reduction)[:3], _like(logits)


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
        return _second(logits, target, class_weight, moving, ctx.given, grad)
    slopes = torch.ops.dubito.evidential_gradient(
        grad.float(), scale, kept, logits, target, class_weight, moving, *ctx.given[:-1]
    )  # fmt: skip
    return slopes, *(None,) * 10


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
        return _second(logits, target, class_weight, moving, ctx.given, grad)
    if slopes is None:  # a graph that was kept, and this is not the first time
        slopes = torch.ops.dubito.evidential_gradient(
            grad.float(), scale, scale.new_empty(0), logits, target, class_weight, moving,
            *ctx.given[:-1],
        )  # fmt: skip
    else:
        torch.ops.dubito.evidential_rescale(slopes, grad.float())
    return slopes, *(None,) * 10


def _second(
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
evidential_loss_once.register_autograd(_backward_once, setup_context=_save_once)


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
            held, out, _stirling(blocks.K), math.lgamma(blocks.K), count, *where[:4],
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
