"""Training: one loop for every method and task."""

from dubito.training.callbacks import Callback, JSONLines, Progress, TensorBoard
from dubito.training.config import TrainConfig
from dubito.training.run import History, NonFiniteLoss
from dubito.training.trainer import Trainer

__all__ = [
    "Callback",
    "History",
    "JSONLines",
    "NonFiniteLoss",
    "Progress",
    "TensorBoard",
    "TrainConfig",
    "Trainer",
]
