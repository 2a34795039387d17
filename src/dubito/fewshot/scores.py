"""What an episode is judged by: accuracy, confidence and OOD detection, of all episodes at once.

Correct and in-distribution queries are the positives. An episode without a wrong query has an AUPR
of 1 by its definition and no AUROC; one without a right query has neither. What an episode does not
have is NaN: it is left out of the mean, and counted.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dubito import metrics
from dubito._legacy import Prediction

__all__ = ["METRICS", "scores"]

Metric = Callable[[Tensor, Tensor], Tensor]
#: name -> metric of scores and a mask of positives, and its value where all are positive
METRICS: dict[str, tuple[Metric, float]] = {
    "aupr": (metrics.aupr, 1.0),
    "auroc": (metrics.auroc, float("nan")),
}


def scores(said: Prediction, labels: Tensor) -> dict[str, Tensor]:
    """Figures of E episodes by name, (E,) each: "accuracy", "confidence/max_prob/aupr", ...

    Shapes: the prediction is of (E, N + M) samples, N queries with labels (N,) and M OOD queries.

    >>> alpha = torch.tensor([[[9.0, 1.0], [1.0, 5.0], [3.0, 1.0], [1.0, 2.0]]])
    >>> found = scores(Prediction.from_alpha(alpha), torch.tensor([0, 0]))
    >>> found["accuracy"], found["confidence/max_prob/aupr"], found["ood/alpha0/auroc"]
    (tensor([0.5000]), tensor([1.]), tensor([1.]))
    """
    count, total = len(labels), said.label.shape[-1]
    correct = said.label[..., :count] == labels.to(said.label.device)
    inside = (torch.arange(total, device=correct.device) < count).expand(len(correct), -1)
    found = {"accuracy": correct.double().mean(-1).float()}
    for measure in said.available:
        confidence = said.confidence(measure)
        for metric in METRICS:
            found[f"confidence/{measure}/{metric}"] = _ranked(
                metric, confidence[..., :count], correct
            )
            if total > count:
                found[f"ood/{measure}/{metric}"] = METRICS[metric][0](confidence, inside)
    return found


def _ranked(metric: str, confidence: Tensor, correct: Tensor) -> Tensor:
    """A metric of each row (E, N) -> (E,), also where a row has positives or negatives alone."""
    function, perfect = METRICS[metric]
    if correct.shape[-1] < 2:
        value = torch.where(correct.all(-1), perfect, float("nan"))
        return value.to(confidence.dtype)
    every, none = correct.all(-1), ~correct.any(-1)
    # the metrics refuse such rows: they get one of each, and below what their definition says
    stand_in = torch.arange(correct.shape[-1], device=correct.device) == 0
    value = function(confidence, torch.where((every | none).unsqueeze(-1), stand_in, correct))
    return torch.where(every, perfect, torch.where(none, float("nan"), value))
