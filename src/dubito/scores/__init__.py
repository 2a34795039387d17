"""Post-hoc scores: functions of features and outputs, fitted after training.

A distribution has scores of its own. `Model.add_scores` adds these, and evaluation, policy and
export then treat all alike. A new score is one class in one file, like `Energy`.
"""

from dubito.scores import fdbd as fdbd
from dubito.scores import knn as knn
from dubito.scores import mahalanobis as mahalanobis
from dubito.scores import nnguide as nnguide
from dubito.scores import rmds as rmds
from dubito.scores import scale as scale
from dubito.scores import vim as vim
from dubito.scores.base import SCORES, Score
from dubito.scores.energy import Energy

__all__ = ["SCORES", "Energy", "Score"]
