"""The I-EDL loss of two or more checkouts on a GPU, in turns within one run.

    python -m benchmarks.checkouts_gpu OLD NEW [--turns N] [--json FILE]

Each checkout runs in its own process, with its `src` on the path and everything else alike;
all of them have the same batch, and take turns at being timed. A row is a shape: of each checkout
the median and the range over the turns, in microseconds of a forward and backward step, replayed
from a CUDA graph or in an eager loop.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, object]
#: (samples, classes, type)
SHAPES = (
    (64, 10, "float32"),
    (4_096, 1_000, "float32"),
    (4_194_304, 19, "float32"),
    (4_194_304, 19, "bfloat16"),
    (16_384, 10_000, "float32"),
)
_WARM, _TIMED = 0.05, 0.15  # seconds of a turn before and while it is timed


class Checkout:
    """A process that times one checkout on request."""

    def __init__(self, root: Path, environment: Mapping[str, str] | None = None) -> None:
        path = os.pathsep.join([str(root / "src"), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve"],
            env={**os.environ, "PYTHONPATH": path, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **request: object) -> None:
        """Send a request; `answer` waits for it to be done."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a checkout's process ended; its error is above")
        result: dict[str, float] = json.loads(line)
        return result

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def compare(
    checkouts: Mapping[str, Checkout], turns: int, shapes: Sequence[tuple[int, int, str]] = SHAPES
) -> Iterator[Row]:
    """Rows of shapes; a turn times each checkout once, every other turn in reverse order."""
    for samples, classes, dtype in shapes:
        for checkout in checkouts.values():  # at once: most of this is compiling
            checkout.ask(samples=samples, classes=classes, dtype=dtype)
        for checkout in checkouts.values():
            checkout.answer()
        times: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
        for turn in range(turns):
            for name in list(checkouts)[:: 1 if turn % 2 == 0 else -1]:
                checkouts[name].ask()
                times[name].append(checkouts[name].answer())
        row: Row = {"shape": f"{samples} x {classes}", "type": dtype}
        for name, samples in times.items():
            for kind in ("graph", "eager"):
                values = sorted(each[kind] for each in samples)
                row[f"{name}_{kind}_us"] = round(statistics.median(values), 2)
                row[f"{name}_{kind}_range"] = f"{values[0]:.1f} to {values[-1]:.1f}"
        yield row


# --- in the process of a checkout ----------------------------------------------------------------


def _serve() -> None:
    """Answer requests line by line: prepare a shape, or time the one that is prepared."""
    answers, sys.stdout = sys.stdout, sys.stderr
    turn: Callable[[], dict[str, float]] | None = None
    for line in sys.stdin:
        request = json.loads(line)
        if request:
            turn = None  # frees the memory of the last shape
            turn = _prepared(**request)
            result = {}
        else:
            assert turn is not None
            result = turn()
        print(json.dumps(result), file=answers, flush=True)


def _prepared(samples: int, classes: int, dtype: str) -> Callable[[], dict[str, float]]:
    import torch

    from dubito import IEDLLoss

    torch.manual_seed(0)
    logits = (3 * torch.randn(samples, classes, device="cuda")).to(getattr(torch, dtype))
    logits.requires_grad_()
    target = torch.randint(classes, (samples,), device="cuda")
    loss = IEDLLoss(0.05, scale="paper").cuda()
    steps = 5 if samples * classes > 1 << 20 else 50

    def step() -> None:
        logits.grad = None
        loss(logits, target).backward()

    graph = capture(step, steps)

    def eager() -> None:
        for _ in range(steps):
            step()

    def turn() -> dict[str, float]:
        return {"graph": _median(graph.replay) / steps, "eager": _median(eager) / steps}

    return turn


def capture(step: Callable[[], object], steps: int) -> Any:
    """Capture some steps in a CUDA graph, after a warm-up on a separate stream."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(steps):
            step()
    return graph


def _median(call: Callable[[], object]) -> float:
    """Microseconds of a call and of the device's work in it; the clocks are warm when it counts."""
    import torch

    times = []
    begin = time.perf_counter()
    while (now := time.perf_counter()) < begin + _WARM + _TIMED or len(times) < 5:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        stop.record()
        torch.cuda.synchronize()
        if now > begin + _WARM:
            times.append(start.elapsed_time(stop))
    return 1e3 * float(statistics.median(times))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkouts_gpu")
    parser.add_argument("roots", nargs="*", type=Path, help="checkouts, or copies of them")
    parser.add_argument("--turns", type=int, default=6, metavar="N", help="of each checkout")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there as well")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        _serve()
        return
    checkouts = {root.resolve().name: Checkout(root.resolve()) for root in options.roots}
    rows = []
    for row in compare(checkouts, options.turns):
        print(json.dumps(row), flush=True)
        rows.append(row)
    for checkout in checkouts.values():
        checkout.close()
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
