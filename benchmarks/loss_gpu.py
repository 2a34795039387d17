"""The rows of `benchmarks.loss` on a GPU."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks import Row
from benchmarks.loss import FISHER, KL, Criterion, kernels, textbook
from dubito import IEDLLoss

#: (samples, classes, type)
SHAPES = (
    (64, 10, torch.float32),
    (4_096, 1_000, torch.float32),
    (4_194_304, 19, torch.float32),
    (4_194_304, 19, torch.bfloat16),
    (16_384, 10_000, torch.float32),
)
TURNS = 10
IN_A_GRAPH = 5  # steps
Step = Callable[[], object]


def run() -> list[Row]:
    """One row a shape, told as it comes."""
    rows = []
    for shape in SHAPES:
        rows.append(_row(*shape))
        print(rows[-1], flush=True)
    return rows


def _row(samples: int, classes: int, dtype: torch.dtype) -> Row:
    torch.manual_seed(0)
    logits = (3 * torch.randn(samples, classes, device="cuda")).to(dtype).requires_grad_()
    target = torch.randint(classes, (samples,), device="cuda")
    ours = IEDLLoss(FISHER, KL).cuda()
    contenders: dict[str, tuple[Criterion, str]] = {
        "textbook": (_textbook, "off"),
        "plain": (ours, "off"),
        "fused": (ours, "auto"),
    }
    row: Row = {"shape": f"{samples} x {classes}", "type": str(dtype).removeprefix("torch.")}
    times = {}
    for name, (criterion, mode) in contenders.items():
        with kernels(mode):
            step = _step(criterion, logits, target)
            step()
            row[f"{name}_memory"] = _memory(step, logits)
            # the textbook form stops the stream, and no graph can hold it
            times[name] = _seconds(step) if name == "textbook" else _captured(step)
    copy = torch.empty_like(logits)
    row |= {f"{name}_s": time for name, time in times.items()}
    row["copy_s"] = _captured(lambda: copy.copy_(logits.detach()))
    row["ratio"] = times["textbook"] / times["fused"]
    row["plain_ratio"] = times["textbook"] / times["plain"]
    return row


def _textbook(logits: Tensor, target: Tensor) -> Tensor:
    return textbook(logits.float(), target)


def _step(criterion: Criterion, logits: Tensor, target: Tensor) -> Step:
    def step() -> None:
        logits.grad = None
        criterion(logits, target).backward()

    return step


def _memory(step: Step, logits: Tensor) -> float:
    logits.grad = None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    extra = torch.cuda.max_memory_allocated() - before
    return extra / (logits.numel() * logits.element_size())


def _seconds(call: Step) -> float:
    """The median of some calls, by the clock of the device."""
    call()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(TURNS)]
    for start, stop in events:
        start.record()
        call()
        stop.record()
    torch.cuda.synchronize()
    times: list[float] = [start.elapsed_time(stop) for start, stop in events]
    return statistics.median(times) / 1000


def _captured(call: Step) -> float:
    """The same of a call that is replayed from a CUDA graph: without the host's part."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(IN_A_GRAPH):
            call()
    return _seconds(graph.replay) / IN_A_GRAPH
