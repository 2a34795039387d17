"""Validation of a network in training."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dubito.training import _parallel
from dubito.training._run import NonFiniteLoss, Run, loss_function, seed_generators

#: training samples that determine the batch norm statistics of averaged weights
BATCH_NORM_SAMPLES = 10_000


@torch.no_grad()
def validate(run: Run) -> dict[str, float]:
    """Compute the metrics of the task and the loss, from one pass over the validation samples.

    Args:
        run: Run at the end of an epoch.
    """
    network, reader = run.evaluated, run.data.validation
    method, task = run.model.method, run.model.task
    if run.average is not None:
        seed_generators(run.device, run.process_seed)  # of dropout, whatever ran before
        with run.autocast():
            _update_batch_norm(network, _batch_norm_inputs(run))
    _parallel.share_buffers(network)
    network.eval()
    outputs = _outputs(run)
    low, high = (value.item() for value in outputs.aminmax())
    if not (math.isfinite(low) and math.isfinite(high)):
        raise NonFiniteLoss(
            f"outputs for validation samples span [{low:g}, {high:g}] after epoch "
            f"{run.epoch + 1}: lower lr={run.config.lr:g}"
        )
    dist = task.to_user_units(method.distribution(outputs[: len(reader)]))
    metrics = task.metrics(dist.predictive, reader.encoded.to(run.device))
    # With the final loss weights: a KL weight that rises makes epochs incomparable.
    weights = run.config.loss_weights(method, run.config.epochs - 1).to(run.device)
    loss = loss_function(method, run.data.class_weight)
    total, _ = loss(outputs, reader.target.to(run.device), weights)
    metrics["loss"] = total.item() / len(reader)
    for name, value in metrics.items():
        if math.isnan(value):
            raise NonFiniteLoss(f"validation {name} is NaN after epoch {run.epoch + 1}")
    return metrics


def _outputs(run: Run) -> Tensor:
    """Return the outputs of all validation samples, then those of OOD inputs if there are any."""
    reader, data = run.data.validation, run.data
    rows = torch.arange(
        _parallel.rank(), len(reader), _parallel.world(), device=reader.index_device
    )
    generator = torch.Generator(run.device).manual_seed(run.config.seed)
    inside, outside = [], []
    for x, target in reader.read(reader.chunks(rows)):
        with run.autocast():
            outputs = run.evaluated(data.with_ood(x, generator))
        inside.append(outputs[: len(target)])
        outside.append(outputs[len(target) :])
    parts = [inside, outside] if data.has_ood else [inside]
    return torch.cat([_parallel.gathered(torch.cat(part), len(reader)) for part in parts])


def _batch_norm_inputs(run: Run) -> Iterator[Tensor]:
    """Yield the first inputs of the epoch, as the network was trained with them."""
    train = run.data.train
    generator = torch.Generator(run.device).manual_seed(run.config.seed)
    rows = train.chunks(run.order[:BATCH_NORM_SAMPLES])
    changes = run.changes[:BATCH_NORM_SAMPLES].tensor_split(len(rows))
    for x, _ in train.read(rows, changes, run.process_seed):
        yield run.data.with_ood(x, generator)


@torch.no_grad()
def _update_batch_norm(network: nn.Module, batches: Iterable[Tensor]) -> None:
    """Recompute the statistics of batch norm for averaged weights.

    Unlike `torch.optim.swa_utils.update_bn`, layers that the network keeps in evaluation mode keep
    their statistics. Batches count alike and should have one size.
    """
    network.train()
    norms = [m for m in network.modules() if isinstance(m, _BatchNorm) and m.training]
    momenta = [norm.momentum for norm in norms]
    try:
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # the mean over all batches
        for x in batches if norms else ():
            network(x)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        network.eval()
