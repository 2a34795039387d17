"""torch.compile: one graph, the same numbers."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from dubito import EDLLoss, IEDLLoss, Prediction, losses
from dubito.schedules import Linear

# The compiler's own libraries warn of their future; that is not ours to mend.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


def graphs(function, *inputs) -> int:  # type: ignore[no-untyped-def]
    """How many graphs it takes: more than one means a break."""
    torch._dynamo.reset()
    counter = CompileCounter()
    torch.compile(function, backend=counter, fullgraph=True)(*inputs)
    return int(counter.frame_count)


@pytest.mark.parametrize(
    "criterion", [IEDLLoss(kl_weight=Linear(10)), EDLLoss(), EDLLoss("marginal")]
)
def test_a_training_step_is_one_graph(criterion: torch.nn.Module) -> None:
    network = torch.nn.Linear(8, 4)
    x, target = torch.randn(16, 8), torch.randint(4, (16,))
    assert graphs(lambda: criterion(network(x), target)) == 1


def test_a_new_kl_weight_needs_no_new_graph() -> None:
    criterion = IEDLLoss(kl_weight=Linear(10))
    logits, target = torch.randn(16, 4), torch.randint(4, (16,))
    torch._dynamo.reset()
    counter = CompileCounter()
    step = torch.compile(criterion, backend=counter, fullgraph=True)
    values = []
    for epoch in (0, 3, 7):
        criterion.set_epoch(epoch)
        values.append(step(logits, target).item())
        assert values[-1] == pytest.approx(criterion(logits, target).item(), rel=1e-5)
    assert counter.frame_count == 1
    assert len(set(values)) == 3


@pytest.mark.parametrize("name", ["iedl", "edl"])
def test_a_weight_that_is_a_new_number_each_time_stays_in_the_graph(name: str) -> None:
    alpha, target = 1 + torch.rand(16, 4), torch.randint(4, (16,))
    torch._dynamo.reset()
    counter = CompileCounter()
    loss = getattr(losses, name)
    step = torch.compile(
        lambda weight: loss(alpha, target, kl_weight=weight), backend=counter, fullgraph=True
    )
    for weight in (0.1, 0.2, 0.3, 0.4):
        assert step(weight).item() == pytest.approx(loss(alpha, target, kl_weight=weight).item())
    assert counter.frame_count == 2  # the second is for all numbers


def test_compiled_gradients_are_the_eager_ones() -> None:
    criterion, target = IEDLLoss(), torch.randint(4, (16,))
    logits = (5 * torch.randn(16, 4)).requires_grad_()
    (eager,) = torch.autograd.grad(criterion(logits, target), logits)
    torch._dynamo.reset()
    compiled = torch.compile(criterion, backend="aot_eager", fullgraph=True)
    (ours,) = torch.autograd.grad(compiled(logits, target), logits)
    torch.testing.assert_close(ours, eager)


def test_a_prediction_is_one_graph() -> None:
    def measures(logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
        said = Prediction.from_logits(logits)
        return said.probs, said.vacuity, said.mutual_information, said.differential_entropy

    assert graphs(measures, torch.randn(16, 4)) == 1


def test_a_term_without_a_target_is_one_graph() -> None:
    alpha = (1 + 5 * torch.rand(4, 3)).requires_grad_()
    (eager,) = torch.autograd.grad(losses.mse_variance(alpha).sum(), alpha)
    torch._dynamo.reset()
    compiled = torch.compile(losses.mse_variance, backend="aot_eager", fullgraph=True)
    (ours,) = torch.autograd.grad(compiled(alpha).sum(), alpha)
    torch.testing.assert_close(ours, eager)
