"""Data-parallel training with torchrun."""

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

__all__: list[str] = []


def _joined() -> bool:
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    """Return the number of this process, from 0."""
    return dist.get_rank() if _joined() else 0


def world() -> int:
    """Return the number of processes."""
    return dist.get_world_size() if _joined() else 1


@contextmanager
def process_group() -> Iterator[torch.device | None]:
    """Join the process group of torchrun; yields the device of this process, or None without one.

    GPUs communicate through NCCL, CPUs through gloo.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or _joined():
        yield None
        return
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else None
    if device is not None:
        torch.cuda.set_device(device)
    # Functions of this module have the group of its import as a default: imported later, they would
    # keep the group and its threads alive, which aborts the process when Python ends.
    importlib.import_module("torch.distributed.nn")
    dist.init_process_group("nccl" if cuda else "gloo")
    try:
        yield device or torch.device("cpu")
    finally:
        dist.destroy_process_group()


def wrapped(network: nn.Module) -> nn.Module:
    """Return the network, with gradients averaged over the processes if there are several."""
    return network if world() == 1 else nn.parallel.DistributedDataParallel(network)


def share_buffers(network: nn.Module) -> None:
    """Copy the buffers of the first process to all: batch norm sees other samples in each."""
    if world() > 1:
        for buffer in network.buffers():
            dist.broadcast(buffer, 0)


def summed(values: Tensor) -> Tensor:
    """Sum a tensor over the processes."""
    if world() > 1:
        dist.all_reduce(values)
    return values


def gathered(rows: Tensor, count: int) -> Tensor:
    """Join the rows of all processes, of which each has every `world`-th of `count`."""
    joined = rows.new_zeros(count, *rows.shape[1:])
    joined[rank() :: world()] = rows
    return summed(joined)
