"""Training: one loop for every method and task."""

from dubito.training.callbacks import JSONLines, Progress, TensorBoard
from dubito.training.config import TrainConfig
from dubito.training.run import History, NonFiniteLoss
from dubito.training.trainer import Trainer

__all__ = [
    "History",
    "JSONLines",
    "NonFiniteLoss",
    "Progress",
    "TensorBoard",
    "TrainConfig",
    "Trainer",
]
