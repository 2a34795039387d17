"""The step as a CUDA graph: several runs side by side, each on a stream of its own."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch

from dubito.training.run import Run
from dubito.training.step import compiled

__all__ = ["Graph"]

CAPTURABLE = ("adam", "adamw", "sgd")
_WARM_UP = 3


class Graph:
    """One replay is one step of every run; what a run draws comes from its registered generator."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs
        self.samples = runs[0].whole_batch
        fused = runs[0].functions.fused()  # once for all: their methods are equal
        for run in runs:
            run.functions = fused
        if runs[0].settings.compile and runs[0].forward is runs[0].network:
            for run, forward in zip(runs, compiled([run.model for run in runs]), strict=True):
                run.forward = forward
        before = [_snapshot(run) for run in runs]
        self.streams = [torch.cuda.Stream() for _ in runs]
        for _ in range(_WARM_UP):
            self._steps()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        for run in runs:
            self.graph.register_generator_state(run.generator)
            run.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(self.graph):
            self._steps()
        for run, held in zip(runs, before, strict=True):
            _put_back(run, held)

    def _steps(self) -> None:
        main = torch.cuda.current_stream()
        for run, stream in zip(self.runs, self.streams, strict=True):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                run.step(self.samples)
        for stream in self.streams:
            main.wait_stream(stream)

    def replay(self) -> None:
        """One step of every run."""
        self.graph.replay()


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
