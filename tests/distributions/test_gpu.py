"""Distributions and losses on a GPU give what they give on a CPU."""

import pytest
import torch

from dubito import Dirichlet, IEDLLoss, iedl, kernels
from dubito.methods import METHODS
from tests.distributions.examples import EXAMPLES, build, outputs_of
from tests.methods.digits import data_of, untrained

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    # torch.compile's own use of torch
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
]


def spy(monkeypatch, name):
    """Record the results of a function of `dubito.kernels`; None: no kernel applied."""
    function, results = getattr(kernels, name), []

    def call(*args):
        results.append(function(*args))
        return results[-1]

    monkeypatch.setattr(kernels, name, call)
    return results


@pytest.mark.parametrize("name", EXAMPLES)
def test_scores(name):
    outputs = outputs_of(name, 33)
    ours, theirs = build(name, outputs.cuda()), build(name, outputs)
    for score in theirs.scores:
        torch.testing.assert_close(ours.score(score).cpu(), theirs.score(score))


def test_scores_come_from_one_kernel(monkeypatch):
    dist = Dirichlet.from_logits(torch.randn(8, 4, device="cuda"))
    results = spy(monkeypatch, "uncertainty")
    dist.total, dist.aleatoric, dist.epistemic  # noqa: B018
    assert len(results) == 1
    assert results[0] is not None


@pytest.mark.parametrize("name", [name for name in METHODS if name != "mc_dropout"])
def test_losses_of_methods(name):
    method = METHODS.build(name)
    x, y = (part[:32] for part in data_of(method)[:2])
    with torch.no_grad():
        outputs = untrained(method).eval()(x)
    results = []
    for device in ("cpu", "cuda"):
        leaf = outputs.to(device).detach().requires_grad_()
        dist = method.distribution(leaf)
        ood = method.distribution(-leaf) if method.ood_terms else None
        weights = method.weight_tensor(1, 2).to(device)
        total, sums = method.loss(dist, y.to(device), weights, ood=ood)
        total.backward()
        results.append((total.detach().cpu(), sums.cpu(), leaf.grad.cpu()))
    for ours, theirs in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_function_and_module_run_the_kernel(monkeypatch):
    logits, target = torch.randn(64, 10, device="cuda"), torch.arange(64, device="cuda") % 10
    results = spy(monkeypatch, "fused_loss")
    IEDLLoss().cuda()(logits, target)
    iedl(Dirichlet.from_logits(logits), target)
    assert len(results) == 2
    assert None not in results


def test_function_and_module_compile():
    logits = torch.randn(64, 10, device="cuda")
    target = torch.randint(10, (64,), device="cuda")
    criterion = IEDLLoss().cuda()
    values = []
    for loss in (
        criterion,
        lambda x, y: iedl(Dirichlet.from_logits(x), y),
        torch.compile(criterion, fullgraph=True),
    ):
        leaf = logits.clone().requires_grad_()
        value = loss(leaf, target)
        value.backward()
        values.append((value.detach(), leaf.grad))
    for other in values[1:]:
        torch.testing.assert_close(other, values[0])
