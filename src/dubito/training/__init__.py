"""Training: one loop for every method and task."""

from dubito.training.batches import Samples
from dubito.training.callbacks import Callback, JSONLines, Progress, TensorBoard
from dubito.training.config import OPTIMIZERS, TrainConfig
from dubito.training.history import History
from dubito.training.run import NonFiniteLoss
from dubito.training.trainer import Trainer

__all__ = [
    "OPTIMIZERS", "Callback", "History", "JSONLines", "NonFiniteLoss", "Progress", "Samples",
    "TensorBoard", "TrainConfig", "Trainer",
]  # fmt: skip
