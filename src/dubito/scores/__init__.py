"""Post-hoc scores: functions of features and outputs, fitted after training.

A distribution has scores of its own. `Model.add_scores` adds these, and evaluation, policy and
export then treat all alike. A new score is one class in one file, like `energy`.
"""

from dubito.scores.base import SCORES, Score

__all__ = ["SCORES", "Score"]

SCORES.declare(__name__, "energy", "fdbd", "knn", "mahalanobis", "nnguide", "rmds", "scale", "vim")
