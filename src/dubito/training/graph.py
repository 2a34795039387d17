"""Runs whose step is a CUDA graph."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dubito.errors import DubitoError
from dubito.targets import Target
from dubito.training import parallel
from dubito.training.batches import Reader
from dubito.training.config import FUSED, TrainConfig
from dubito.training.run import Run

__all__: list[str] = []

_WARM_UP = 3


def is_graphed(config: TrainConfig, train: Reader) -> bool:
    """Return whether steps are captured.

    Args:
        config: Configuration.
        train: Training samples.
    """
    needed = {
        "a GPU": train.device.type == "cuda",
        "one process": parallel.world() == 1,
        "data in memory": train.in_memory,
        "at least one full batch": len(train) >= config.batch_size,
        f"one of the optimizers {', '.join(FUSED)}": config.optimizer in FUSED,
    }
    missing = [name for name, present in needed.items() if not present]
    if config.graph and missing:
        raise DubitoError(f"graph=True needs {'; '.join(missing)}")
    return config.graph is not False and not missing


def capture(runs: Sequence[GraphedRun]) -> None:
    """Capture the steps of runs of one method; shared functions are compiled once."""
    first = runs[0]
    loss: Any = torch.compile(first.loss, dynamic=False)
    add_step: Any = torch.compile(first.add_step, dynamic=False)
    # Constants of a standardization would be copied from the host, which no graph can capture.
    standardized = first.model.preprocessing.mean is not None
    is_plain = isinstance(first.train.target, Tensor)
    fused: Any = gather if standardized or not is_plain else torch.compile(gather, dynamic=False)
    if first.config.compile:
        forwards = compiled([run.model.network for run in runs])
        for run, forward in zip(runs, forwards, strict=True):
            run.forward = forward
    for run in runs:
        run.loss, run.add_step, run.gather = loss, add_step, fused
        run.capture()


def gather(
    reader: Reader, order: Tensor, changes: Tensor, places: Tensor
) -> tuple[Tensor, Tensor | Target]:
    """Return prepared inputs and targets of the samples at places of an order."""
    rows = order.index_select(0, places)
    assert isinstance(reader.inputs, Tensor)
    x = reader.inputs.index_select(0, rows)
    return reader.prepare(x, changes.index_select(0, places)), reader.target.index_select(0, rows)


def compiled(
    networks: Sequence[nn.Module], backend: str = "inductor"
) -> list[Callable[[Tensor], Tensor]]:
    """Compile networks of one architecture once.

    Weights and buffers are arguments of the compiled function: each network by itself would be
    recompiled, and torch gives up after eight. Layers stay in the mode of the first network.
    """
    # Without weights: a network with its own would be compiled a second time for other weights.
    skeleton = copy.deepcopy(networks[0]).to("meta")

    def forward(tensors: dict[str, Tensor], x: Tensor) -> Any:
        return torch.func.functional_call(skeleton, tensors, (x,))

    fast = torch.compile(forward, dynamic=False, backend=backend)
    tensors = [dict([*n.named_parameters(), *n.named_buffers()]) for n in networks]
    return [functools.partial(fast, own) for own in tensors]


class GraphedRun(Run):
    """A run whose step is a CUDA graph, on its own stream: runs side by side overlap.

    The step finds its samples through its number, a tensor on the device. Its random numbers come
    from the run's own generators, whatever runs beside it.
    """

    #: function `gather`, possibly compiled
    gather: Callable[..., tuple[Tensor, Tensor | Target]]

    def capture(self) -> None:
        """Capture a step of a full batch; the state of the run stays."""
        self.stream = torch.cuda.Stream(self.device)
        self.default: torch.Generator = torch.cuda.default_generators[self.device.index]
        self.dropout = self.default.clone_state()
        before = {name: value.clone() for name, value in self.tensors().items()}
        self.begin_epoch()
        self._begin_steps()
        with self._random_numbers(), torch.cuda.stream(self.stream):
            for _ in range(_WARM_UP):
                self._gathered_step(self.batch_size)
                self.step_number.zero_()
        torch.cuda.synchronize(self.device)
        self.graph = torch.cuda.CUDAGraph()
        self.graph.register_generator_state(self.generator)
        self.optimizer.zero_grad()
        with self._random_numbers(), torch.cuda.graph(self.graph, stream=self.stream):
            self._gathered_step(self.batch_size)
        # In place: the graph refers to tensors by their addresses. New optimizer states start at 0.
        for name, value in self.tensors().items():
            value.copy_(before[name]) if name in before else value.zero_()

    def steps(self) -> Iterator[None]:
        """Take the steps of the epoch, one per iteration; they run asynchronously."""
        self._begin_steps()
        for count in self.counts:
            if count == self.batch_size:
                with torch.cuda.stream(self.stream):
                    self.graph.replay()
            else:
                with self._random_numbers(), torch.cuda.stream(self.stream):
                    self._gathered_step(count)
            yield
        torch.cuda.current_stream(self.device).wait_stream(self.stream)

    def _begin_steps(self) -> None:
        self.dropout.manual_seed(self.process_seed)
        self.stream.wait_stream(torch.cuda.current_stream(self.device))

    def _gathered_step(self, count: int) -> None:
        places = torch.arange(count, device=self.device)
        places.add_(self.step_number, alpha=self.batch_size)
        x, target = self.gather(self.train, self.order, self.changes, places)
        self.step(x, target, count)

    @contextmanager
    def _random_numbers(self) -> Iterator[None]:
        """Let torch's default generator, which dropout uses, draw from the state of this run."""
        before = self.default.graphsafe_get_state()
        self.default.graphsafe_set_state(self.dropout)
        try:
            yield
        finally:
            self.default.graphsafe_set_state(before)
