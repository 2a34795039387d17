"""Losses and uncertainty on a CPU, without kernels, against their textbook forms.

Each loss is timed from logits and labels to the gradient of the logits, through the public API. The
contenders alternate, so that other work on the machine affects them alike, and the shortest time of
each counts; large shapes run on one thread and on all of torch's. A ratio below 1 means faster than
the textbook form, which loses its accuracy at large evidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks import Row, seconds
from benchmarks.losses import LOSSES, iedl_function
from benchmarks.textbook import Loss
from dubito import Dirichlet

#: (rows, classes, turns)
SHAPES = ((64, 10, 400), (512, 100, 20), (8192, 19, 10))
LARGE = ((8192, 19, 10), (512, 1000, 5), (65536, 19, 5))


def run() -> list[Row]:
    """One row per loss and shape, per number of threads, and one for the uncertainty."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = [_loss_row(name, *shape) for name in LOSSES for shape in SHAPES]
        rows.append(_uncertainty_row(64, 10, 2000))
        for count in sorted({1, threads}):
            torch.set_num_threads(count)
            rows += [_loss_row("iedl", *shape) for shape in LARGE]
        return rows
    finally:
        torch.set_num_threads(threads)


def _shortest(calls: Sequence[Callable[[], object]], turns: int) -> list[float]:
    times = [math.inf] * len(calls)
    for _ in range(turns):
        times = [min(time, seconds(call)) for time, call in zip(times, calls, strict=True)]
    return [1e6 * time for time in times]


def _loss_row(name: str, samples: int, classes: int, turns: int) -> Row:
    torch.manual_seed(0)
    logits = (3 * torch.randn(samples, classes)).requires_grad_()
    target = torch.randint(classes, (samples,))
    contenders: dict[str, Loss] = dict(zip(("textbook", "ours"), LOSSES[name], strict=True))
    contenders["cross_entropy"] = cross_entropy
    if name == "iedl":
        contenders["function"] = iedl_function

    def step(loss: Loss) -> Tensor:
        logits.grad = None
        loss(logits, target).backward()
        assert logits.grad is not None
        return logits.grad

    slopes = [step(contenders[key]) for key in ("textbook", "ours")]
    times = _shortest([lambda c=c: step(c) for c in contenders.values()], turns)  # type: ignore[misc]
    named = dict(zip(contenders, times, strict=True))
    return {
        "loss": name,
        "shape": f"{samples} x {classes}",
        "threads": torch.get_num_threads(),
        **{f"{key}_us": time for key, time in named.items()},
        "ours/textbook": named["ours"] / named["textbook"],
        "difference": ((slopes[1] - slopes[0]).abs().max() / slopes[0].abs().max()).item(),
    }


def _uncertainty_row(samples: int, classes: int, turns: int) -> Row:
    logits = 3 * torch.randn(samples, classes)

    def ours() -> tuple[Tensor, Tensor, Tensor]:
        dist = Dirichlet.from_logits(logits)
        return dist.total, dist.aleatoric, dist.epistemic

    times = _shortest([lambda: (logits.softmax(-1), logits.argmax(-1)), ours], turns)
    return {
        "loss": "uncertainty",
        "shape": f"{samples} x {classes}",
        "softmax_argmax_us": times[0],
        "ours_us": times[1],
        "ours/softmax_argmax": times[1] / times[0],
    }
