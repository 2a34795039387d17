"""A weight tuned at ten classes carries over: 100 and 1,000 classes train without touching it."""

from __future__ import annotations

import pytest
import torch

from dubito import EDLLoss, IEDLLoss, Prediction
from dubito.losses.modules import _EvidentialLoss
from dubito.schedules import Linear


def trained(criterion: _EvidentialLoss, classes: int) -> float:
    """A small network's accuracy on its training data: noisy samples around each of K centres."""
    torch.manual_seed(0)
    centres = torch.randn(classes, 32)
    labels = torch.arange(classes).repeat(max(2, 1000 // classes))
    x = centres[labels] + 0.2 * torch.randn(len(labels), 32)
    network = torch.nn.Sequential(
        torch.nn.Linear(32, 256), torch.nn.ReLU(), torch.nn.Linear(256, classes)
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    for epoch in range(12):
        criterion.set_epoch(epoch)
        for batch in torch.randperm(len(x)).split(100):
            optimizer.zero_grad()
            criterion(network(x[batch]), labels[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        said = Prediction.from_logits(network(x))
    return (said.label == labels).double().mean().item()


@pytest.mark.parametrize("classes", [10, 100, 1000])
@pytest.mark.parametrize("loss", [IEDLLoss, EDLLoss])
def test_the_scale_per_class_trains(classes: int, loss: type[_EvidentialLoss]) -> None:
    criterion = loss(kl_weight=Linear(10), scale="per_class")  # type: ignore[call-arg, arg-type]
    assert trained(criterion, classes) > 0.6


def test_the_papers_scale_does_not_at_a_thousand() -> None:
    """Why the other scale exists: the KL and the log-determinant outgrow the squared error."""
    assert trained(IEDLLoss(kl_weight=Linear(10), scale="paper"), 1000) < 0.5
