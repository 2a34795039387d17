"""Training: one loop for every method and task."""

from dubito.training.callbacks import JSONLines, Progress, TensorBoard
from dubito.training.config import TrainConfig
from dubito.training.trainer import Trainer

__all__ = ["JSONLines", "Progress", "TensorBoard", "TrainConfig", "Trainer"]
