"""History of a training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["History"]

Record = dict[str, Any]


@dataclass
class History:
    """What happened in each epoch.

    Attributes:
        records: One dict per epoch: epoch (from 1), loss, terms, lr, seconds (of the steps),
            samples_per_second, and after a validation its metrics under "validation".
        best_epoch: Epoch with the best weights; 0 before the first validation.
        seconds: Time of all epochs, validations included.
    """

    records: list[Record] = field(default_factory=list, repr=False)
    best_epoch: int = 0
    seconds: float = 0.0

    @property
    def best(self) -> Record:
        """Record of the best epoch."""
        return self.records[self.best_epoch - 1]

    @property
    def validations_since_best(self) -> int:
        """Number of validations without improvement."""
        return sum("validation" in record for record in self.records[self.best_epoch :])

    def improves(self, value: float, metric: str, mode: str) -> bool:
        """Return whether a value of a metric is better than the best; the first of equals stays.

        Args:
            value: Value of this epoch.
            metric: Name of a validation metric.
            mode: "min" if lower is better, else "max".
        """
        if not self.best_epoch:
            return True
        best: float = self.best["validation"][metric]
        return value < best if mode == "min" else value > best
