"""Data parallel training: what a process knows of the others."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

__all__ = ["gathered_sum", "process_group", "rank", "share_buffers", "world", "wrapped"]


def _joined() -> bool:
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    """This process's number, from 0."""
    return dist.get_rank() if _joined() else 0


def world() -> int:
    """The number of processes."""
    return dist.get_world_size() if _joined() else 1


@contextmanager
def process_group() -> Iterator[torch.device | None]:
    """Join the group that torchrun started, if one did; gives this process's device."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or _joined():
        yield None
        return
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else None
    if device is not None:
        torch.cuda.set_device(device)
    # Its functions have the group of their import as a default and would keep it, and its threads,
    # alive for good; what one of these lets go of while Python ends aborts the process.
    importlib.import_module("torch.distributed.nn")
    dist.init_process_group("nccl" if cuda else "gloo")
    try:
        yield device or torch.device("cpu")
    finally:
        dist.destroy_process_group()


def wrapped(model: nn.Module) -> nn.Module:
    """The model, its gradients averaged over the processes where there are several."""
    if world() == 1:
        return model
    device = next(model.parameters()).device
    ids = [device.index] if device.type == "cuda" else None
    return nn.parallel.DistributedDataParallel(model, device_ids=ids)


def share_buffers(model: nn.Module) -> None:
    """Give all processes the first one's buffers: batch norm's are of each one's own samples."""
    if world() > 1:
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)


def gathered_sum(values: Tensor) -> Tensor:
    """The sum of `values` over all processes."""
    if world() > 1:
        dist.all_reduce(values)
    return values
