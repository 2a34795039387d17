"""dubito: evidential deep learning for PyTorch, classifiers that know when they don't know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dubito import dirichlet, evaluation, evidence, losses, measures, metrics, schedules, special
from dubito.dirichlet import Dirichlet
from dubito.losses import EDLLoss, IEDLLoss
from dubito.prediction import Prediction

if TYPE_CHECKING:
    from dubito.estimator import EvidentialClassifier

__version__ = "0.1.0"

__all__ = [
    "Dirichlet",
    "EDLLoss",
    "EvidentialClassifier",
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


def __getattr__(name: str) -> Any:
    """`EvidentialClassifier`, whose module imports scikit-learn, when it is first asked for."""
    if name == "EvidentialClassifier":
        from dubito.estimator import EvidentialClassifier

        globals()[name] = EvidentialClassifier
        return EvidentialClassifier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
