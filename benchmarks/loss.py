"""The I-EDL loss from logits to their gradient: the kernel, plain torch, and the textbook form.

The textbook form is the paper's formula under autograd, as published code writes it. All three take
turns, so that what else the machine does meets them alike, and the shortest of each is kept.
`copy_s` is how long one copy of the logits takes: no loss can be faster than to read them and write
their gradient.

On a GPU the steps of plain torch and of the kernel are replayed from a CUDA graph, so that the
times are those of the device. `*_memory` is the peak of memory beyond what was there, over the
logits.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.functional import one_hot, softplus

from benchmarks import Row, seconds
from dubito import IEDLLoss

FISHER, KL = 0.05, 1.0
#: (samples, classes, turns): a batch of images, pixels, many classes
SHAPES = ((64, 10, 400), (65_536, 19, 7), (512, 1000, 15))

Criterion = Callable[[Tensor, Tensor], Tensor]


def textbook(logits: Tensor, target: Tensor) -> Tensor:
    """The mean loss of (N, K) logits and (N,) labels."""
    y = one_hot(target, logits.shape[-1]).to(logits.dtype)
    alpha = softplus(logits) + 1
    total = alpha.sum(-1, keepdim=True)
    p, psi1, psi1_total = alpha / total, torch.polygamma(1, alpha), torch.polygamma(1, total)
    bias = ((y - p) ** 2 * psi1).sum(-1)
    variance = (alpha * (total - alpha) * psi1 / (total * total * (total + 1))).sum(-1)
    logdet = psi1.log().sum(-1) + torch.log(1 - (psi1_total / psi1).sum(-1))
    kept = alpha * (1 - y) + y
    kept_total = kept.sum(-1, keepdim=True)
    slopes = (kept - 1) * (torch.digamma(kept) - torch.digamma(kept_total))
    divergence = torch.lgamma(kept_total).squeeze(-1) + (slopes - torch.lgamma(kept)).sum(-1)
    divergence = divergence - math.lgamma(logits.shape[-1])
    return (bias + variance - FISHER * logdet + KL * divergence).mean()


@contextmanager
def kernels(mode: str) -> Iterator[None]:
    """Have DUBITO_KERNELS be `mode` for a while."""
    before = os.environ.get("DUBITO_KERNELS")
    os.environ["DUBITO_KERNELS"] = mode
    try:
        yield
    finally:
        os.environ.pop("DUBITO_KERNELS")
        if before is not None:
            os.environ["DUBITO_KERNELS"] = before


def run() -> list[Row]:
    """One row a shape and a number of threads, or a type on a GPU: forward and backward pass."""
    if torch.cuda.is_available():
        from benchmarks import loss_gpu

        return loss_gpu.run()
    threads = torch.get_num_threads()
    try:
        return [_row(*shape, count) for count in sorted({1, threads}) for shape in SHAPES]
    finally:
        torch.set_num_threads(threads)


def _row(samples: int, classes: int, turns: int, threads: int) -> Row:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    logits = (3 * torch.randn(samples, classes)).requires_grad_()
    target = torch.randint(classes, (samples,))
    ours = IEDLLoss(FISHER, KL)
    contenders: dict[str, tuple[Criterion, str]] = {
        "textbook_s": (textbook, "off"),
        "plain_s": (ours, "off"),
        "fused_s": (ours, "auto"),
    }
    slopes = {name: _turn(*given, logits, target)[1] for name, given in contenders.items()}
    times = dict.fromkeys(contenders, math.inf)
    for _ in range(turns):
        for name, given in contenders.items():
            times[name] = min(times[name], _turn(*given, logits, target)[0])
    other = torch.empty_like(logits)
    return {
        "shape": f"{samples} x {classes}",
        "threads": threads,
        **times,
        "copy_s": seconds(lambda: other.copy_(logits.detach()), 10),
        "ratio": times["textbook_s"] / times["fused_s"],
        "plain_ratio": times["textbook_s"] / times["plain_s"],
        "max_difference": _difference(slopes["fused_s"], slopes["plain_s"]),
    }


def _turn(criterion: Criterion, mode: str, logits: Tensor, target: Tensor) -> tuple[float, Tensor]:
    """The time of a step, and the gradient."""
    logits.grad = None
    with kernels(mode):
        time = seconds(lambda: criterion(logits, target).backward())
    assert logits.grad is not None
    return time, logits.grad


def _difference(one: Tensor, other: Tensor) -> float:
    """The largest difference of two gradients, of a row's largest entry."""
    return ((one - other).abs() / other.abs().amax(-1, keepdim=True)).max().item()
