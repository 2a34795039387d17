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

from dubito.methods.base import Network
from dubito.targets import Target
from dubito.training import parallel
from dubito.training.config import FUSED
from dubito.training.graph import GraphedRun
from dubito.training.optimizer import build_optimizer
from dubito.training.run import Run, add_step

__all__: list[str] = []

#: stateless, deterministic modules that accept a leading axis, and linear ones, which are stacked
MODULES = (Network, nn.Sequential, nn.Flatten, nn.Identity, nn.Linear, nn.ReLU)


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
    seen: list[list[tuple[Tensor, Tensor | Target]]] = [[] for _ in runs]
    batches = zip(*(run.batches() for run in runs), strict=True)
    for step, parts in enumerate(batches):
        for group, rates in zip(optimizer.param_groups, first.rates, strict=True):
            group["lr"] = rates[step]
        inputs, targets = zip(*parts, strict=True)
        sizes = torch.tensor([len(x) for x in inputs])
        optimizer.zero_grad()
        outputs = network(pad_sequence([*inputs], batch_first=True))
        rows = outputs.flatten(0, 1)
        if len(sizes.unique()) > 1:  # without the padding
            rows = rows[(torch.arange(outputs.shape[1]) < sizes.unsqueeze(-1)).flatten()]
        # The loss of each network is the mean over its own batch.
        count = sizes.repeat_interleave(sizes).reshape(-1, *[1] * (rows.ndim - 1))
        rows.register_hook(lambda gradient, count=count: gradient / count)
        total, _ = first.loss(rows, _joined(targets), first.weights)
        total.backward()
        optimizer.step()
        is_finite, own = math.isfinite(total.detach()), rows.detach().split(sizes.tolist())
        for run, run_seen, *latest in zip(runs, seen, own, targets, strict=True):
            run.latest = latest[0], latest[1]
            run_seen.append(run.latest)
            if not is_finite:
                _record(run, step, [run.latest])
                run.check_finite(step, step + 1)
        yield
    _unstacked(runs, optimizer)
    for run, run_seen in zip(runs, seen, strict=True):
        run.table.zero_()
        _record(run, 0, run_seen)


def _joined(targets: Sequence[Tensor | Target]) -> Any:
    return _pytree.tree_map(lambda *parts: torch.cat(parts), *targets)


@torch.no_grad()
def _record(run: Run, step: int, seen: Sequence[tuple[Tensor, Tensor | Target]]) -> None:
    """Write the loss of outputs into the row of a step."""
    outputs = torch.cat([own for own, _ in seen])
    total, sums = run.loss(outputs, _joined([target for _, target in seen]), run.weights)
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
