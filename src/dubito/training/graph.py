"""The step of a run as a CUDA graph, on a stream of its own: runs beside each other overlap."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from dubito.training.run import Run
from dubito.training.step import compiled

__all__ = ["Graph", "fuse"]

CAPTURABLE = ("adam", "adamw", "sgd")
_WARM_UP = 3


def fuse(runs: Sequence[Run]) -> None:
    """Compile once for all what the steps of runs of one method have in common."""
    fused = runs[0].functions.fused()
    for run in runs:
        run.functions = fused
    if runs[0].settings.compile:
        for run, forward in zip(runs, compiled([run.model for run in runs]), strict=True):
            run.forward = forward


class Graph:
    """A run's step. What it draws comes from generators of its own, whoever runs beside it."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.stream = torch.cuda.Stream(run.device)
        self.drawn = _default(run.device).clone_state()  # for what draws without being asked
        before = _snapshot(run)
        self.begin()
        with self._alone():
            for _ in range(_WARM_UP):
                run.step(run.whole_batch)
        torch.cuda.synchronize(run.device)
        self.graph = torch.cuda.CUDAGraph()
        self.graph.register_generator_state(run.generator)
        run.optimizer.zero_grad(set_to_none=True)
        with self._drawing(), torch.cuda.graph(self.graph, stream=self.stream):
            run.step(run.whole_batch)
        _put_back(run, before)

    def begin(self) -> None:
        """An epoch begins: dropout draws by its seed, and all that was prepared is waited for."""
        self.drawn.manual_seed(self.run.own_seed)
        self.stream.wait_stream(torch.cuda.current_stream(self.run.device))

    def replay(self) -> None:
        """One step."""
        with torch.cuda.stream(self.stream):
            self.graph.replay()

    def finish(self, left: int) -> None:
        """A step of the samples that are left, if any; what follows waits for all of them."""
        if left:
            with self._alone():
                self.run.step(left)
        torch.cuda.current_stream(self.run.device).wait_stream(self.stream)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with self._drawing(), torch.cuda.stream(self.stream):
            yield

    @contextmanager
    def _drawing(self) -> Iterator[None]:
        """Have torch's own generator draw from this run's state."""
        default = _default(self.run.device)
        before = default.graphsafe_get_state()
        default.graphsafe_set_state(self.drawn)
        try:
            yield
        finally:
            default.graphsafe_set_state(before)


def _default(device: torch.device) -> torch.Generator:
    index = device.index if device.index is not None else torch.cuda.current_device()
    generator: torch.Generator = torch.cuda.default_generators[index]
    return generator


def _snapshot(run: Run) -> tuple[dict[str, torch.Tensor], dict[int, dict[str, torch.Tensor]]]:
    weights = {name: value.clone() for name, value in run.model.state_dict().items()}
    return weights, copy.deepcopy(run.optimizer.state_dict()["state"])


def _put_back(
    run: Run, held: tuple[dict[str, torch.Tensor], dict[int, dict[str, torch.Tensor]]]
) -> None:
    """Undo the warm-up in place: the graph knows these tensors by their addresses."""
    weights, state = held
    parameters = [one for group in run.optimizer.param_groups for one in group["params"]]
    number = {one: index for index, one in enumerate(parameters)}
    with torch.no_grad():
        for name, value in run.model.state_dict().items():
            value.copy_(weights[name])
        for parameter, entry in run.optimizer.state.items():
            for name, value in entry.items():
                if isinstance(value, torch.Tensor):
                    earlier = state.get(number[parameter], {}).get(name)
                    value.zero_() if earlier is None else value.copy_(earlier)
