"""The Triton kernels on a GPU: graphs, streams, compiled code, memory. See also test_triton.py."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from dubito import kernels
from dubito.numerics.spec import LossSpec
from tests.kernels.samples import (
    LOSSES,
    assert_agrees,
    hard_values,
    labels,
    spec_of,
    weights_of,
)

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    # the compiler's own libraries warn of their future
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
]


def inputs(spec: LossSpec, rows: int, classes: int) -> tuple[Tensor, Tensor]:
    return hard_values(spec, rows, classes).cuda(), labels(rows, classes=classes).cuda()


def loss_of(spec: LossSpec, values: Tensor, target: Tensor, weights: Tensor) -> Tensor:
    result = kernels.fused_loss(spec, values, target, weights, None)
    assert result is not None
    return result[0]


@pytest.mark.parametrize("rows", [200, 200_000])
@pytest.mark.parametrize("classes", [10, 1500])
def test_batches_of_many_programs(rows: int, classes: int) -> None:
    if rows * classes > 10_000_000:
        rows //= 100
    spec = spec_of("iedl", ignore_index=3)
    assert_agrees(spec, *inputs(spec, rows, classes))


@pytest.mark.parametrize("name", LOSSES)
def test_ten_thousand_classes(name: str) -> None:
    """The label first and last in a block, in other blocks, in the incomplete one; ignored."""
    target = torch.tensor([0, 511, 512, 5_000, 9_727, 9_728, 9_999, 3], device="cuda")
    for reduction in ("mean", "none"):
        spec = spec_of(name, ignore_index=3, reduction=reduction)
        assert_agrees(spec, hard_values(spec, len(target), 10_000).cuda(), target)


@pytest.mark.parametrize("classes", [10, 1500])
def test_a_replayed_graph_follows_its_weights(classes: int) -> None:
    spec = spec_of("iedl")
    values, target = inputs(spec, 64, classes)
    weights = torch.ones(4, device="cuda")
    leaf = values.requires_grad_()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            loss_of(spec, leaf, target, weights).backward()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    leaf.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = loss_of(spec, leaf, target, weights)
        loss.backward()  # type: ignore[no-untyped-call]
    for factor in (1.0, 0.5, 3.0):
        weights.fill_(factor)
        graph.replay()
        again = values.detach().clone().requires_grad_()
        expected = loss_of(spec, again, target, weights)
        (slopes,) = torch.autograd.grad(expected, again)
        torch.testing.assert_close(loss.detach(), expected.detach(), rtol=1e-6, atol=0)
        torch.testing.assert_close(leaf.grad, slopes, rtol=1e-6, atol=0)


def test_runs_on_the_current_stream() -> None:
    spec = spec_of("iedl")
    values, target = inputs(spec, 64, 10)
    expected = loss_of(spec, values, target, weights_of(spec, "cuda"))
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(10_000_000)
        late = values.clone()
        result = loss_of(spec, late, target, weights_of(spec, "cuda"))
        torch.testing.assert_close(result, expected, rtol=0, atol=0)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_another_device() -> None:
    spec = spec_of("iedl")
    values, target = inputs(spec, 64, 10)
    here = loss_of(spec, values, target, weights_of(spec, "cuda"))
    weights = weights_of(spec, "cuda").to("cuda:1")
    there = loss_of(spec, values.to("cuda:1"), target.to("cuda:1"), weights)
    torch.testing.assert_close(there.cpu(), here.cpu())


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiles_with_inductor(reduction: str, dtype: torch.dtype) -> None:
    torch._dynamo.reset()
    spec = spec_of("iedl", reduction=reduction)
    values, target = inputs(spec, 64, 10)
    weights = weights_of(spec, "cuda")
    leaf = values.clamp(-9, 9).to(dtype).requires_grad_()

    def step(x: Tensor) -> Tensor:
        return loss_of(spec, x, target, weights).sum()

    (result,) = torch.autograd.grad(torch.compile(step, fullgraph=True)(leaf), leaf)
    (expected,) = torch.autograd.grad(step(leaf), leaf)
    rtol = 1e-6 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(result, expected, rtol=rtol, atol=1e-7 if rtol < 1e-3 else 1e-4)


def test_results_are_the_same_to_the_bit_in_every_run() -> None:
    spec = spec_of("iedl")
    values, target = inputs(spec, 100_000, 19)
    result = [loss_of(spec, values, target, weights_of(spec, "cuda")) for _ in range(5)]
    assert all(torch.equal(value, result[0]) for value in result)


def test_nothing_synchronizes() -> None:
    spec = spec_of("iedl")
    values, target = inputs(spec, 64, 10)
    weights, leaf = weights_of(spec, "cuda"), values.requires_grad_()
    loss_of(spec, leaf, target, weights).backward()  # type: ignore[no-untyped-call]
    torch.cuda.set_sync_debug_mode("error")
    try:
        loss_of(spec, leaf, target, weights).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            kernels.uncertainty(values, "softplus", 1.0)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("classes", [19, 2000])
def test_memory_is_one_gradient(classes: int) -> None:
    spec = spec_of("iedl")
    values, target = inputs(spec, 4_000_000 // classes, classes)
    weights, leaf = weights_of(spec, "cuda"), values.requires_grad_()
    loss_of(spec, leaf, target, weights).backward()  # type: ignore[no-untyped-call]
    leaf.grad = None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    loss_of(spec, leaf, target, weights).backward()  # type: ignore[no-untyped-call]
    extra = torch.cuda.max_memory_allocated() - before
    assert extra < 1.1 * leaf.numel() * leaf.element_size()
