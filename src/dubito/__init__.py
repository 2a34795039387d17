"""dubito: evidential deep learning for PyTorch, classifiers that know when they don't know."""

from dubito import dirichlet, evaluation, evidence, losses, measures, metrics, schedules, special
from dubito.dirichlet import Dirichlet
from dubito.losses import EDLLoss, IEDLLoss
from dubito.prediction import Prediction

__version__ = "0.1.0"

__all__ = [
    "Dirichlet",
    "EDLLoss",
    "IEDLLoss",
    "Prediction",
    "dirichlet",
    "evaluation",
    "evidence",
    "losses",
    "measures",
    "metrics",
    "schedules",
    "special",
]
