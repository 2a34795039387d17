"""Runs side by side on a CPU: one step for the networks of many folds or seeds.

A step of a small network takes as long as calling its operations, which all networks share here.
For an epoch their weights and the states of their optimizers are stacked; each network has the
batches, and up to rounding the weights, of a run on its own.
"""

import math
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils import _pytree

from dubito.backbones.tabular import PiecewiseLinear
from dubito.methods.base import Network
from dubito.targets import Target
from dubito.training import parallel
from dubito.training.config import FUSED
from dubito.training.graph import GraphedRun
from dubito.training.optimizer import build_optimizer
from dubito.training.run import Run, add_step

__all__: list[str] = []

#: stateless, deterministic modules that accept a leading axis, and linear ones, which are stacked
MODULES = (Network, nn.Sequential, nn.Flatten, nn.Identity, nn.Linear, nn.ReLU, PiecewiseLinear)


class Linears(nn.Module):
    """Linear layers side by side, (S, N, D) -> (S, N, M).

    Args:
        layers: Layers of one shape.
    """

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.stack([layer.weight.detach() for layer in layers]))
        self.bias = nn.Parameter(torch.stack([layer.bias.detach() for layer in layers]))

    def forward(self, x: Tensor) -> Tensor:
        """Multiply."""
        return torch.baddbmm(self.bias.unsqueeze(1), x, self.weight.mT)


def grouped(runs: Sequence[Run]) -> list[list[Run]]:
    """Return the runs whose steps can be taken together: side by side, or as CUDA graphs.

    Args:
        runs: Runs of one method and task.
    """
    groups: dict[Hashable, list[Run]] = {}
    for place, run in enumerate(runs):
        alike = len(run.counts) if isinstance(run, GraphedRun) else _alike(run) or -place - 1
        groups.setdefault(alike, []).append(run)
    return list(groups.values())


def _alike(run: Run) -> Hashable:
    """Return what runs of a group have in common; None if a run must be on its own."""
    config, modules = run.config, [*run.model.network.modules()]
    named = [*run.model.network.named_parameters()]
    is_plain = (
        # Interrupted runs may resume in different epochs: alone they end with the same bits.
        run.folder is None
        and run.device.type == "cpu" and parallel.world() == 1
        and config.optimizer in FUSED and config.precision != "bfloat16"
        and (config.max_grad_norm, config.augment, config.ema_decay) == (None, None, None)
        and not (config.label_smoothing or config.mixup)
        and not (run.model.method.ood_terms or run.model.method.teachers)
        and isinstance(run.train.inputs, Tensor) and run.train.inputs.ndim == 2
        and all(type(module) in MODULES for module in modules)
        and len(named) == 2 * sum(type(module) is nn.Linear for module in modules)
        and all(parameter.requires_grad for _, parameter in named)
    )  # fmt: skip
    shapes = tuple((name, parameter.shape) for name, parameter in named)
    return (len(run.counts), run.epoch, config.num_epochs, shapes) if is_plain else None


def steps(runs: Sequence[Run]) -> Iterator[None]:
    """Take the steps of an epoch, one of all runs per iteration.

    Args:
        runs: Runs of a group of `grouped`.
    """
    first, network = runs[0], _side_by_side([run.model.network for run in runs])
    optimizer = _joined_optimizer(runs, network)
    samples = [_samples(run) for run in runs]
    inputs, targets = (_pytree.tree_map(_padded, *parts) for parts in zip(*samples, strict=True))
    seen: list[Tensor] = []
    start = 0
    for step, sizes in enumerate(zip(*(run.counts for run in runs), strict=True)):
        for group, rates in zip(optimizer.param_groups, first.rates, strict=True):
            group["lr"] = rates[step]
        size = max(sizes)
        rows = slice(start, start + size)
        outputs = network(inputs[:, rows])
        total = _loss(first, outputs, _pytree.tree_map(lambda t, r=rows: t[:, r], targets), sizes)
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        seen.append(outputs.detach())
        is_finite = math.isfinite(total.detach())
        for place, (run, count) in enumerate(zip(runs, sizes, strict=True)):
            target = samples[place][1][start : start + count]
            run.latest = seen[-1][place, :count], target
            if not is_finite:
                _record(run, step, *run.latest)
                run.check_finite(step, step + 1)
        start += size
        yield
    _unstacked(runs, optimizer)
    for run, outputs, (x, target) in zip(runs, torch.cat(seen, 1), samples, strict=True):
        run.table.zero_()
        _record(run, 0, outputs[: len(x)], target)


def _samples(run: Run) -> tuple[Tensor, Tensor | Target]:
    """Return inputs and targets of an epoch in the order of the steps."""
    (batch,) = run.train.read([run.order[: sum(run.counts)]])
    return batch


def _padded(*parts: Tensor) -> Tensor:
    """Stack tensors (N, ...), of which some have one row less: (S, N, ...)."""
    return pad_sequence([*parts], batch_first=True)


def _loss(run: Run, outputs: Tensor, targets: Tensor | Target, sizes: Sequence[int]) -> Tensor:
    """Return the sum of the networks' losses, each the mean over its own batch.

    Args:
        run: One of the runs.
        outputs: Outputs, (S, N, M).
        targets: Targets, (S, N, ...).
        sizes: Numbers of samples; what follows is padding.
    """
    rows, flat = outputs.flatten(0, 1), _pytree.tree_map(lambda t: t.flatten(0, 1), targets)
    if len(set(sizes)) == 1:
        return run.loss(rows, flat, run.weights)[0] / sizes[0]
    counts = torch.tensor(sizes)
    is_real = (torch.arange(outputs.shape[1]) < counts.unsqueeze(-1)).flatten()
    rows, flat = rows[is_real], flat[is_real]
    share = counts.repeat_interleave(counts).reshape(-1, *[1] * (rows.ndim - 1))
    rows.register_hook(lambda gradient: gradient / share)
    return run.loss(rows, flat, run.weights)[0]


@torch.no_grad()
def _record(run: Run, step: int, outputs: Tensor, target: Tensor | Target) -> None:
    """Write the loss of outputs into the row of a step."""
    total, sums = run.loss(outputs, target, run.weights)
    add_step(run.table, run.step_number.fill_(step), total, outputs, sums)


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _side_by_side(layers: Sequence[Any]) -> nn.Module:
    """Return a module of inputs (S, N, D) with the weights of S modules."""
    first = layers[0]
    if isinstance(first, nn.Linear):
        return Linears(layers)
    names = [name for name, _ in first.named_children()]
    parts = {name: _side_by_side([layer.get_submodule(name) for layer in layers]) for name in names}
    if isinstance(first, Network):
        return Network(**parts)
    if isinstance(first, nn.Sequential):
        return nn.Sequential(OrderedDict(parts))
    return nn.Identity() if isinstance(first, nn.Flatten) else first


@torch.no_grad()
def _joined_optimizer(runs: Sequence[Run], network: nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer of a joined network with the states of all runs."""
    optimizer = build_optimizer(runs[0].config, network, runs[0].device)
    for parameter, *own in zip(
        _parameters(optimizer), *(run.parameters for run in runs), strict=True
    ):
        states = [run.optimizer.state[each] for run, each in zip(runs, own, strict=True)]
        optimizer.state[parameter] = {
            key: value.clone() if key == "step" else torch.stack([s[key] for s in states])
            for key, value in states[0].items()
        }
    return optimizer


@torch.no_grad()
def _unstacked(runs: Sequence[Run], optimizer: torch.optim.Optimizer) -> None:
    """Give each run its weights and the state of its optimizer."""
    for place, run in enumerate(runs):
        for own, parameter in zip(run.parameters, _parameters(optimizer), strict=True):
            own.copy_(parameter[place])
            run.optimizer.state[own] = {
                key: (value if key == "step" else value[place]).clone()
                for key, value in optimizer.state[parameter].items()
            }
