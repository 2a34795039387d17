"""Losses and uncertainty on a GPU, through the public API, forward and backward.

    PYTHONPATH=src python -m benchmarks.loss_gpu

`*_us` are microseconds of a step in an eager loop, host included; `*_graph_us` those of a step
replayed from a CUDA graph, so of the device alone; `*_memory` is the peak of memory beyond the
logits, over the size of the logits. `benchmarks.checkouts_gpu` compares two checkouts in turns.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from unittest import mock

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks import Row
from benchmarks.checkouts_gpu import capture
from benchmarks.losses import LOSSES, iedl_function
from benchmarks.textbook import Loss
from dubito import Dirichlet

#: (samples, classes, type)
SHAPES = (
    (64, 10, torch.float32),
    (4_096, 1_000, torch.float32),
    (4_194_304, 19, torch.float32),
    (4_194_304, 19, torch.bfloat16),
    (16_384, 10_000, torch.float32),
)
Step = Callable[[], object]


def run() -> list[Row]:
    """Print each row as soon as it is measured, and return all."""
    rows = []
    for row in _rows():
        print(json.dumps(row), flush=True)
        rows.append(row)
    return rows


def _rows() -> Iterator[Row]:
    for samples, classes, dtype in SHAPES:
        yield _iedl_row(samples, classes, dtype)
    for samples, classes in ((64, 10), (8_192, 19)):
        for name in LOSSES:
            yield _loss_row(name, samples, classes)
    yield _uncertainty_row(64, 10)


def _inputs(samples: int, classes: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    logits = (3 * torch.randn(samples, classes, device="cuda")).to(dtype).requires_grad_()
    return logits, torch.randint(classes, (samples,), device="cuda")


def _iedl_row(samples: int, classes: int, dtype: torch.dtype) -> Row:
    logits, target = _inputs(samples, classes, dtype)
    textbook, module = LOSSES["iedl"]
    module.cuda()  # type: ignore[attr-defined]
    compiled = torch.compile(lambda x, y: textbook(x.float(), y))
    contenders: dict[str, Loss] = {
        "cross_entropy": cross_entropy,
        "module": module,
        "function": iedl_function,
        "textbook": lambda x, y: textbook(x.float(), y),
        "compiled_textbook": compiled,
    }
    row: Row = {"shape": f"{samples} x {classes}", "type": str(dtype).removeprefix("torch.")}
    for name, loss in contenders.items():
        step = _step(lambda loss=loss: loss(logits, target), logits)  # type: ignore[misc]
        row[f"{name}_us"] = _eager(step, samples * classes)
        row[f"{name}_memory"] = _memory(step, logits)
        if "textbook" not in name:  # it synchronizes, so that no graph can contain it
            row[f"{name}_graph_us"] = _captured(step)
    return row


def _loss_row(name: str, samples: int, classes: int) -> Row:
    """A loss with the kernels and without."""
    logits, target = _inputs(samples, classes, torch.float32)
    loss = LOSSES[name][1]
    if isinstance(loss, torch.nn.Module):
        loss.cuda()
    step = _step(lambda: loss(logits, target), logits)
    row: Row = {"loss": name, "shape": f"{samples} x {classes}"}
    row["kernel_us"], row["kernel_graph_us"] = _eager(step, samples), _captured(step)
    with mock.patch.dict(os.environ, DUBITO_KERNELS="off"):
        row["torch_us"] = _eager(step, samples, turns=3, count=20)
    row["torch/kernel"] = row["torch_us"] / row["kernel_us"]  # type: ignore[operator]
    return row


def _uncertainty_row(samples: int, classes: int) -> Row:
    logits = _inputs(samples, classes, torch.float32)[0].detach()

    def ours() -> object:
        dist = Dirichlet.from_logits(logits)
        return dist.total, dist.aleatoric, dist.epistemic

    usual = _eager(lambda: (logits.softmax(-1), logits.argmax(-1)), samples)
    return {
        "uncertainty": f"{samples} x {classes}",
        "softmax_argmax_us": usual,
        "ours_us": _eager(ours, samples),
    }


def _step(call: Callable[[], Tensor], leaf: Tensor) -> Step:
    def step() -> None:
        leaf.grad = None
        call().backward()

    return step


def _eager(step: Step, entries: int, turns: int = 7, count: int = 200) -> float:
    """The median of some loops: wall-clock microseconds per step."""
    count = count if entries < 1 << 20 else 10
    for _ in range(5):
        step()
    times = []
    for _ in range(turns):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / count)
    return round(1e6 * statistics.median(times), 1)


def _memory(step: Step, leaf: Tensor) -> float:
    leaf.grad = None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    extra: int = torch.cuda.max_memory_allocated() - before
    return round(extra / (leaf.numel() * leaf.element_size()), 2)


def _captured(step: Step, steps: int = 5) -> float:
    """The median of some replays of a graph of steps: microseconds of the device per step."""
    graph = capture(step, steps)
    times = []
    for _ in range(9):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop))
    return round(1e3 * float(statistics.median(times[2:])) / steps, 2)


if __name__ == "__main__":
    run()
