"""MoDEX: the loss, from its formulas in NumPy."""

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, rel_entr, softmax

from dubito.methods import METHODS


@pytest.mark.parametrize("soft", [False, True])
def test_loss_equals_numpy(soft):
    outputs = np.random.default_rng(0).normal(size=(20, 3, 5))
    y = np.eye(5)[np.arange(20) % 5]
    y = 0.8 * y + 0.04 if soft else y
    expected = 0.0
    for (log_alpha, logits, log_tau), target in zip(outputs, y, strict=True):
        alpha, p, tau = np.exp(log_alpha), softmax(logits), np.exp(log_tau)
        rows = alpha + np.diag(tau)
        mean = p @ (rows / rows.sum(1, keepdims=True))
        divergence = rel_entr(0.9 * target + 0.02, np.exp(log_softmax(tau))).sum()
        expected += ((target - mean) ** 2).sum() + ((target - p) ** 2).sum() + 0.3 * divergence
    method = METHODS.build("modex", tau_weight=0.3)
    dist = method.distribution(torch.tensor(outputs).flatten(1))
    labels = torch.tensor(y) if soft else torch.arange(20) % 5
    loss, _ = method.loss(dist, labels, method.weight_tensor(0, 1).double())
    assert loss.item() == pytest.approx(expected, rel=1e-7)
