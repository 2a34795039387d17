"""Train, evaluate, calibrate and abstain with the base dependencies alone.

Run by `tests/test_minimal.py` with all other packages blocked, and by `make minimal` in a fresh
environment.
"""

import torch
from torch import nn

from dubito import Dirichlet, IEDLLoss, iedl
from dubito.calibration import Calibration
from dubito.evaluation import evaluate
from dubito.methods import METHODS, Method
from dubito.policy import Policy
from dubito.tasks import Classification, Regression


def own_loop() -> None:
    """Train a network on two blobs with the loss in an ordinary loop."""
    torch.manual_seed(0)
    y = torch.arange(600) % 2
    x = torch.randn(600, 2) + 3 * y[:, None]
    network, criterion = nn.Linear(2, 2), IEDLLoss(kl_ramp=10)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.05)
    for epoch in range(20):
        criterion.set_epoch(epoch)
        for batch in torch.randperm(300).split(30):
            optimizer.zero_grad()
            criterion(network(x[batch]), y[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        dist = Dirichlet.from_logits(network(x[300:]))
        assert iedl(dist, y[300:]).isfinite()
    task, target = Classification.from_target(y), y[300:]
    result = evaluate(task, dist, target, calibration=Calibration.fit(dist, target))
    assert result["metrics"]["accuracy"] > 0.95, result
    errors = task.errors(task.point(dist), target)
    assert Policy.control_error(dist, errors, level=0.05).validation.coverage > 0.5


def every_method() -> None:
    """Compute the loss and the uncertainty of every method once."""
    for name in METHODS:
        method = METHODS.build(name)
        task = _task(method)
        network = method.network(_Backbone, task)
        outputs = network(torch.randn(8, 4))
        dist = method.distribution(outputs)
        classes = isinstance(task, Classification)
        target = torch.arange(8) % 3 if classes else torch.randn(8, 1)
        ood = dist if method.ood_terms else None
        total, _ = method.loss(dist, target, method.weight_tensor(0, 1), ood=ood)
        total.backward()
        assert dist.epistemic.isfinite().all(), name


def _task(method: Method) -> Classification | Regression:
    if "classification" in method.tasks:
        return Classification(classes=("a", "b", "c"), counts=(5, 5, 5))
    return Regression(names=("y",), mean=(0.0,), std=(1.0,))


class _Backbone(nn.Sequential):
    out_features = 6

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 6), nn.ReLU(), nn.Dropout(0.1))


if __name__ == "__main__":
    own_loop()
    every_method()
