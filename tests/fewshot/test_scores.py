"""Figures of episodes against scikit-learn, episode by episode."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

from dubito._legacy import Prediction
from dubito.fewshot.scores import scores

LABELS = torch.tensor([0, 0, 1, 1, 2, 2])


def test_figures_are_those_of_scikit_learn() -> None:
    alpha = 1 + 9 * torch.rand(12, 10, 3)  # six queries, four OOD queries
    said = Prediction.from_alpha(alpha)
    found = scores(said, LABELS)
    correct = (alpha[:, :6].argmax(-1) == LABELS).numpy()
    inside = np.arange(10) < 6
    assert {name.split("/")[1] for name in found if "/" in name} == set(said.available)
    np.testing.assert_allclose(found["accuracy"], correct.mean(-1), rtol=1e-6)
    for measure in said.available:
        confidence = said.confidence(measure).numpy()
        for i in range(12):
            for metric, theirs in (("aupr", average_precision_score), ("auroc", roc_auc_score)):
                ood = found[f"ood/{measure}/{metric}"][i].item()
                np.testing.assert_allclose(ood, theirs(inside, confidence[i]), rtol=1e-5)
                if 0 < correct[i].sum() < 6:
                    own = found[f"confidence/{measure}/{metric}"][i].item()
                    wanted = theirs(correct[i], confidence[i, :6])
                    np.testing.assert_allclose(own, wanted, rtol=1e-5)


def test_episodes_without_errors_or_without_successes() -> None:
    right = 1 + 5 * torch.eye(3)[LABELS]
    probs = torch.stack([right, right.roll(1, -1)])
    found = scores(Prediction.from_alpha(torch.cat([probs, torch.ones(2, 2, 3)], 1)), LABELS)
    assert found["accuracy"].tolist() == [1, 0]
    aupr, auroc = found["confidence/max_prob/aupr"], found["confidence/max_prob/auroc"]
    assert aupr[0] == 1
    assert aupr[1].isnan()
    assert auroc.isnan().all()
    assert not found["ood/max_prob/auroc"].isnan().any()


def test_one_query_has_no_ranking() -> None:
    found = scores(Prediction.from_probs(torch.tensor([[[0.9, 0.1], [0.5, 0.5]]])), LABELS[:1])
    assert found["confidence/max_prob/aupr"].item() == 1
    assert found["confidence/max_prob/auroc"].isnan().all()
