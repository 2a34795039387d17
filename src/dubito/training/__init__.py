"""The one training loop: any method, any network, on a CPU, a GPU or several processes."""

from dubito.training.checkpoint import CheckpointError
from dubito.training.loop import Fit, NonFiniteLoss, Watch, fit, fit_many
from dubito.training.settings import OPTIMIZERS, Settings

__all__ = [
    "OPTIMIZERS",
    "CheckpointError",
    "Fit",
    "NonFiniteLoss",
    "Settings",
    "Watch",
    "fit",
    "fit_many",
]
