"""The Triton kernels on a GPU: graphs, compiled code, many classes. See also test_triton.py."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from dubito import IEDLLoss
from dubito.methods import METHODS
from tests.accuracy import measure
from tests.accuracy_grid import Grid, cases
from tests.kernels.samples import labels
from tests.kernels.test_triton import IEDL, by_operator, check, is_fused, logits_like, weighted
from tests.quantities import QUANTITIES

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    # the compiler's own libraries warn of their future
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
]


def by_plain_torch(
    criterion: IEDLLoss, logits: Tensor, target: Tensor, monkeypatch: pytest.MonkeyPatch
) -> tuple[Tensor, Tensor]:
    leaf = logits.detach().clone().requires_grad_()
    with monkeypatch.context() as here:
        here.setenv("DUBITO_KERNELS", "off")
        value = criterion(leaf, target)
        assert not is_fused(value)
        return value.detach(), torch.autograd.grad(value, leaf)[0]


def test_a_replayed_graph_follows_its_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    criterion = IEDLLoss(kl_weight=lambda epoch: epoch / 10).cuda()
    logits, target = logits_like(64, 10).requires_grad_(), labels(64, classes=10).cuda()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            criterion(logits, target).backward()
    torch.cuda.synchronize()
    logits.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value = criterion(logits, target)
        value.backward()
    seen = []
    for epoch in (0, 3, 9):
        criterion.set_epoch(epoch)
        graph.replay()
        exact, slopes = by_plain_torch(criterion, logits, target, monkeypatch)
        torch.testing.assert_close(value, exact, rtol=1e-5, atol=0)
        torch.testing.assert_close(logits.grad, slopes, rtol=1e-4, atol=1e-7)
        seen.append(value.item())
    assert len(set(seen)) == 3


def test_a_compiled_step(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    criterion = IEDLLoss().cuda()
    logits, target = logits_like(64, 10).requires_grad_(), labels(64, classes=10).cuda()
    step = torch.compile(criterion, fullgraph=True)
    value = step(logits, target)
    (gradient,) = torch.autograd.grad(value, logits)
    exact, slopes = by_plain_torch(criterion, logits, target, monkeypatch)
    torch.testing.assert_close(value, exact, rtol=1e-5, atol=0)
    torch.testing.assert_close(gradient, slopes, rtol=1e-4, atol=1e-7)


def test_the_training_loops_loss_compiles() -> None:
    torch._dynamo.reset()
    method = METHODS["iedl"]()
    logits, target = logits_like(64, 10).requires_grad_(), labels(64, classes=10).cuda()
    weights = torch.tensor([1.0, 1.0, 0.05, 0.5], device="cuda")
    compiled = torch.compile(method.loss_of, dynamic=False, fullgraph=True)
    loss, sums = compiled(logits, target, weights)
    eager, terms = method.loss_of(logits, target, weights)
    assert is_fused(eager)
    torch.testing.assert_close((loss, sums), (eager, terms))
    slopes = [torch.autograd.grad(each, logits)[0] for each in (loss, eager)]
    torch.testing.assert_close(*slopes)


def test_results_are_the_same_to_the_bit_in_every_run() -> None:
    logits, target = logits_like(100_000, 19).requires_grad_(), labels(100_000, classes=19).cuda()
    found = [IEDLLoss()(logits, target) for _ in range(5)]
    assert all(torch.equal(value, found[0]) for value in found)


def test_memory() -> None:
    logits, target = logits_like(200_000, 19).requires_grad_(), labels(200_000, classes=19).cuda()
    IEDLLoss()(logits, target).backward()
    logits.grad = None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    IEDLLoss()(logits, target).backward()
    extra = torch.cuda.max_memory_allocated() - before
    assert extra < 1.1 * logits.numel() * logits.element_size()


@pytest.mark.parametrize("classes", [100, 10_000])
@pytest.mark.parametrize("name", IEDL)
def test_many_classes_meet_the_bar(name: str, classes: int) -> None:
    quantity = replace(QUANTITIES[name], call=by_operator({name: 1.0}))
    check(measure(quantity, cases(Grid(classes))))


@pytest.mark.parametrize("classes", [2, 3, 10, 19, 1000])
def test_the_loss_meets_the_bar(classes: int) -> None:
    quantity = replace(
        QUANTITIES["fisher_bias"],
        name="iedl",
        call=by_operator(IEDL),
        truth=weighted(IEDL),
    )
    check(measure(quantity, cases(Grid(classes))))
