"""The step of a run as a CUDA graph on its own stream, so that runs side by side overlap."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dubito.errors import DubitoError
from dubito.training import _parallel
from dubito.training._batches import Reader
from dubito.training._run import Run, default_generator
from dubito.training.config import FUSED, TrainConfig

_WARM_UP = 3
Gather = Callable[[Reader, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def is_graphed(config: TrainConfig, train: Reader) -> bool:
    """Return whether steps are captured.

    Args:
        config: Configuration.
        train: Training samples.
    """
    able = (
        train.device.type == "cuda"
        and config.optimizer in FUSED
        and _parallel.world() == 1
        and train.in_memory
        and len(train) >= config.batch_size
    )
    if config.graph and not able:
        raise DubitoError(
            "graph=True needs a GPU, one process, data in memory, at least one full batch, and one "
            f"of the optimizers {', '.join(FUSED)}; here: {train.device.type}, "
            f"{_parallel.world()} process(es), {'in memory' if train.in_memory else 'streamed'}, "
            f"{len(train)} samples, {config.optimizer}"
        )
    return able if config.graph is None else config.graph


def capture(runs: Sequence[Run]) -> None:
    """Capture the steps of runs of one method; shared functions are compiled once."""
    first = runs[0]
    loss: Any = torch.compile(first.loss, dynamic=False)
    add_step: Any = torch.compile(first.add_step, dynamic=False)
    # Constants of a standardization would be copied from the host, which no graph can capture.
    standardized = first.model.preprocessing.mean is not None
    fused: Any = gather if standardized else torch.compile(gather, dynamic=False)
    if first.config.compile:
        forwards = compiled([run.model.network for run in runs])
        for run, forward in zip(runs, forwards, strict=True):
            run.forward = forward
    for run in runs:
        run.loss, run.add_step = loss, add_step
        run.graph = Graph(run, fused)


def gather(reader: Reader, order: Tensor, changes: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Return prepared inputs and targets of the samples at places of an order."""
    rows = order.index_select(0, places)
    x = reader.inputs.index_select(0, rows)
    return reader.prepare(x, changes.index_select(0, places)), reader.target.index_select(0, rows)


def compiled(
    networks: Sequence[nn.Module], backend: str = "inductor"
) -> list[Callable[[Tensor], Tensor]]:
    """Compile networks of one architecture once.

    Weights and buffers are arguments of the compiled function: each network by itself would be
    recompiled, and torch gives up after eight.
    """
    # Without weights: a network with its own would be compiled a second time for other weights.
    skeleton = copy.deepcopy(networks[0]).to("meta").train()

    def forward(tensors: dict[str, Tensor], x: Tensor) -> Tensor:
        outputs: Tensor = torch.func.functional_call(skeleton, tensors, (x,))
        return outputs

    fast = torch.compile(forward, dynamic=False, backend=backend)
    tensors = [dict([*n.named_parameters(), *n.named_buffers()]) for n in networks]
    return [functools.partial(fast, own) for own in tensors]


class Graph:
    """Captured step of a run.

    The step finds its samples through the number of samples that are done, a tensor on the device.
    Its random numbers come from the run's own generators, whatever runs beside it.

    Args:
        run: Run whose step is captured.
        gather: Function `gather`, possibly compiled.
    """

    def __init__(self, run: Run, gather: Gather) -> None:
        self.run, self.gather = run, gather
        self.stream = torch.cuda.Stream(run.device)
        self.dropout = default_generator(run.device).clone_state()
        before = _snapshot(run)
        run.begin_epoch()
        self._begin()
        with self._random_numbers(), torch.cuda.stream(self.stream):
            for _ in range(_WARM_UP):
                self._step(run.batch_size)
                run.samples.zero_()
        torch.cuda.synchronize(run.device)
        self.graph = torch.cuda.CUDAGraph()
        self.graph.register_generator_state(run.generator)
        run.optimizer.zero_grad()
        with self._random_numbers(), torch.cuda.graph(self.graph, stream=self.stream):
            self._step(run.batch_size)
        _restore(run, before)

    def steps(self) -> Iterator[None]:
        """Take the steps of an epoch, one per iteration; they run asynchronously."""
        self._begin()
        for count in self.run.counts:
            if count == self.run.batch_size:
                with torch.cuda.stream(self.stream):
                    self.graph.replay()
            else:
                with self._random_numbers(), torch.cuda.stream(self.stream):
                    self._step(count)
            yield
        torch.cuda.current_stream(self.run.device).wait_stream(self.stream)

    def _begin(self) -> None:
        self.dropout.manual_seed(self.run.process_seed)
        self.stream.wait_stream(torch.cuda.current_stream(self.run.device))

    def _step(self, count: int) -> None:
        run = self.run
        places = run.samples + torch.arange(count, device=run.device)
        x, target = self.gather(run.data.train, run.order, run.changes, places)
        run.step(x, target, count)

    @contextmanager
    def _random_numbers(self) -> Iterator[None]:
        """Let torch's default generator, which dropout uses, draw from the state of this run."""
        default = default_generator(self.run.device)
        before = default.graphsafe_get_state()
        default.graphsafe_set_state(self.dropout)
        try:
            yield
        finally:
            default.graphsafe_set_state(before)


Snapshot = tuple[dict[str, Tensor], dict[int, dict[str, Tensor]]]


def _snapshot(run: Run) -> Snapshot:
    weights = {name: value.clone() for name, value in run.model.network.state_dict().items()}
    return weights, copy.deepcopy(run.optimizer.state_dict()["state"])


@torch.no_grad()
def _restore(run: Run, snapshot: Snapshot) -> None:
    """Undo the steps of the warm-up in place: the graph refers to tensors by their addresses."""
    weights, state = snapshot
    for name, value in run.model.network.state_dict().items():
        value.copy_(weights[name])
    number = {parameter: index for index, parameter in enumerate(run.parameters)}
    for parameter, entry in run.optimizer.state.items():
        for name, value in entry.items():
            if isinstance(value, Tensor):
                earlier = state.get(number[parameter], {}).get(name)
                value.zero_() if earlier is None else value.copy_(earlier)
