"""What the estimator trains: a network, its method and the standardisation of its inputs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from dubito import bundle
from dubito._legacy import Method, Prediction
from dubito.bundle import Factory
from dubito.data import Arrays
from dubito.methods.posterior_network import DensityHead
from dubito.training import Settings, fit

__all__ = ["Array", "Learner", "untrained"]

Array: TypeAlias = "np.ndarray[Any, Any]"
AT_ONCE = 4096  # samples that are predicted together


@dataclass
class Learner:
    """A network, what it is trained with, and the standardisation of its inputs."""

    method: Method
    network: nn.Module
    scaler: StandardScaler
    shape: tuple[int, ...]
    seen: Array  # samples of each class so far: (K,)
    seed: int
    epochs: int = 0

    def learn(
        self,
        X: Array,
        codes: Array,
        class_weight: Tensor | None,
        settings: Settings,
        device: torch.device,
        verbose: bool,
    ) -> list[dict[str, Any]]:
        """Train, in float32; the history of the epochs."""
        self.scaler.partial_fit(_rows(X))
        self._count(codes)
        inputs = torch.from_numpy(self._standardised(X)).float()
        names = tuple(str(code) for code in range(int(codes.max()) + 1))
        data = Arrays(inputs, torch.from_numpy(codes), names, "X")
        adjusted = replace(self.method, class_weight=class_weight, before=self.epochs)
        self.network.float()
        try:
            with _progress(settings.epochs, verbose) as tell:
                done = fit(
                    adjusted, self.network, data, data, settings, device=device, callback=tell
                )
        finally:
            # Predictions are in float64: one sample alone and among others then come out alike.
            self.network.double()
        self.epochs += done.epochs
        return done.history

    @torch.no_grad()
    def said(self, X: Array) -> Prediction:
        """What the network says of samples X (N, *shape), on the CPU."""
        inputs = torch.from_numpy(self._standardised(X)).double()
        place = next(self.network.parameters()).device
        parts = []
        for part in inputs.split(AT_ONCE):
            parts.append(self.method.outputs_for(self.network, part.to(place)).cpu())
        return self.method.prediction(torch.cat(parts))

    @property
    def class_counts(self) -> tuple[int, ...]:
        """The samples of each class, at least 1: one may be missing, in a fold or a first batch."""
        return tuple(self.seen.clip(1).tolist())

    def _count(self, codes: Array) -> None:
        """Add the samples to those seen, and to the budgets of a Posterior Network."""
        self.seen = self.seen + np.bincount(codes, minlength=len(self.seen))
        logs = torch.tensor(self.class_counts, dtype=torch.get_default_dtype()).log()
        for module in self.network.modules():  # the members of an ensemble too
            if isinstance(module, DensityHead):
                module.log_counts.copy_(logs)

    def _standardised(self, X: Array) -> Array:
        rows = self.scaler.transform(_rows(X))
        last = np.moveaxis(X, 1, -1).shape
        values: Array = np.ascontiguousarray(np.moveaxis(rows.reshape(last), -1, 1))
        return values

    def __getstate__(self) -> dict[str, Any]:
        """On the CPU, so that a pickle opens where there is no GPU."""
        place = next(self.network.parameters()).device
        network = self.network if place.type == "cpu" else copy.deepcopy(self.network).cpu()
        return {**self.__dict__, "network": network}


def untrained(
    method: Method,
    backbone: Mapping[str, Any] | Factory,
    shape: tuple[int, ...],
    classes: int,
    seed: int,
) -> Learner:
    """A new network for samples of `shape`, from its seed; torch's random state is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        # what Posterior Networks count is set as they learn
        network = bundle.build(method, backbone, shape, classes, [1] * classes)
    return Learner(method, network, StandardScaler(), shape, np.zeros(classes, int), seed)


def _rows(X: Array) -> Array:
    """Samples (N, C, *) as rows of C values: a channel is standardised as a whole."""
    rows: Array = np.moveaxis(X, 1, -1).reshape(-1, X.shape[1])
    return rows


@contextmanager
def _progress(epochs: int, shown: bool) -> Iterator[Callable[[dict[str, Any]], None] | None]:
    """A bar that is told of each epoch, or None."""
    if not shown:
        yield None
        return
    from rich.progress import Progress

    with Progress() as bar:
        task = bar.add_task("training", total=epochs)
        yield lambda entry: bar.update(
            task, advance=1, description=f"training, loss {entry['loss']:.4g}"
        )
