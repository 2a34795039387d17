"""Models: a network with everything that its predictions need."""

from dubito.model.model import Model
from dubito.model.prediction import Prediction

__all__ = ["Model", "Prediction"]
