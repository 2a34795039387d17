"""Losses of the torch backend: reductions, weights, types and transforms."""

import gc
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from dubito.numerics.forms import FORMS
from dubito.numerics.quantities import Quantities
from dubito.numerics.spec import PER_CLASS, LossSpec
from dubito.numerics.torch_backend import loss_and_sums, reference_loss
from tests.numerics.helpers import BETA, IEDL, loss_and_gradient

# The compiler's own libraries and torch's forward-mode rules warn about their future.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")

WEIGHTS = torch.tensor([1.0, 1.0, 0.05, 0.5])


@pytest.mark.parametrize("backend", [loss_and_sums, reference_loss])
def test_rows_without_weight_do_not_count(backend: Callable[..., Any]) -> None:
    logits, target = torch.randn(6, 3), torch.tensor([0, 1, -100, 2, 1, 0])
    class_weight = torch.tensor([2.0, 0.0, 0.5])
    logits[2] = math.nan
    logits[1] = math.inf
    spec = LossSpec(IEDL)
    result = loss_and_gradient(backend, spec, logits, target, WEIGHTS, class_weight)
    counted = torch.tensor([0, 3, 5])
    each = loss_and_gradient(
        backend, spec._replace(reduction="none"), logits[counted], target[counted], WEIGHTS
    )
    rows = torch.tensor([2.0, 0.5, 2.0])
    torch.testing.assert_close(result[0], (rows * each[0]).sum() / 4.5)
    torch.testing.assert_close(result[1][counted], rows[:, None] * each[1] / 4.5)
    assert result[1][[1, 2, 4]].eq(0).all()
    nothing = loss_and_gradient(backend, spec, logits, torch.full((6,), -100), WEIGHTS)
    assert all(values.eq(0).all() for values in nothing)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_autocast_changes_nothing(reduction: str) -> None:
    logits, target = 3 * torch.randn(8, 5), torch.randint(5, (8,))
    spec = LossSpec(IEDL, reduction=reduction)
    plain = loss_and_gradient(loss_and_sums, spec, logits, target, WEIGHTS)
    with torch.autocast("cpu", torch.bfloat16):
        cast = loss_and_gradient(loss_and_sums, spec, logits, target, WEIGHTS)
    assert all(torch.equal(one, other) for one, other in zip(plain, cast, strict=True))


@pytest.mark.parametrize("prior", [1.0, 0.5])
@pytest.mark.parametrize("requires_grad", [True, False])
def test_no_array_waits_for_the_garbage_collector(prior: float, requires_grad: bool) -> None:
    logits, target = torch.randn(8, 5, requires_grad=requires_grad), torch.randint(5, (8,))
    gc.collect()
    gc.disable()
    try:
        loss_and_sums(LossSpec(IEDL, prior=prior), logits, target, WEIGHTS, None)
        assert not [found for found in gc.get_objects() if issubclass(type(found), Quantities)]
    finally:
        gc.enable()


def test_loss_without_gradient_is_the_same() -> None:
    logits, target = 3 * torch.randn(8, 5, requires_grad=True), torch.randint(5, (8,))
    for prior in (1.0, 0.5):
        spec = LossSpec(IEDL, prior=prior)
        loss, sums = loss_and_sums(spec, logits, target, WEIGHTS, None)
        with torch.no_grad():
            alone = loss_and_sums(spec, logits, target, WEIGHTS, None)
        assert torch.equal(alone[0], loss)
        assert torch.equal(alone[1], sums)


def test_strided_logits() -> None:
    images, target = torch.randn(2, 5, 3, 4), torch.randint(5, (2, 3, 4))
    strided = images.movedim(1, -1)
    pair = [
        loss_and_gradient(loss_and_sums, LossSpec(IEDL), logits, target, WEIGHTS)
        for logits in (strided, strided.contiguous())
    ]
    torch.testing.assert_close(*pair)


@pytest.mark.parametrize(
    ("evidence", "prior"),
    [
        ("softplus", 1.0),
        ("relu", 1.0),
        ("exp", 1.0),
        ("exp", 0.0),
        ("softplus", 0.1),
        ("relu", 2.0),
    ],
)
def test_hard_logits_are_finite(evidence: str, prior: float) -> None:
    forms = tuple(form for form in FORMS if form not in PER_CLASS) + IEDL[2:]
    spec = LossSpec(forms, evidence=evidence, prior=prior, beta=BETA)
    low = -13.0 if evidence == "exp" and prior == 0 else -100.0  # alpha >= 1e-6
    for used in (forms, *((form,) for form in FORMS)):
        logits = torch.cat([torch.empty(300, 5).uniform_(low, 60), torch.full((1, 5), low)])
        logits[:50] = torch.where(torch.rand(50, 5) < 0.5, low, logits[:50] * 1e28 / 60)
        logits = logits.clamp(min=low)
        target = torch.randint(5, (301,))
        weights = torch.ones(len(used))
        loss, gradient, sums = loss_and_gradient(
            loss_and_sums, spec._replace(forms=used), logits, target, weights
        )
        for values in (loss, gradient, sums):
            assert values.isfinite().all(), used


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_derivatives_of_losses(reduction: str) -> None:
    spec = LossSpec((*IEDL, "marginal_nll"), reduction=reduction, per_class=True)
    logits = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    target, class_weight = torch.tensor([0, 2, -100, 1]), torch.tensor([1.0, 2.0, 0.5])
    weights = torch.linspace(0.1, 1, 5)

    def loss(logits: Tensor) -> Tensor:
        return loss_and_sums(spec, logits, target, weights, class_weight)[0]

    assert gradcheck(loss, logits)
    assert gradgradcheck(loss, logits)


def test_transforms_of_losses() -> None:
    logits, target = torch.randn(5, 4, 3), torch.randint(3, (5, 4))
    weights = torch.tensor([1.0, 1.0, 0.05, 0.5])

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        return loss_and_sums(LossSpec(IEDL), logits, target, weights, None)[0]

    each = [loss(*pair) for pair in zip(logits, target, strict=True)]
    torch.testing.assert_close(torch.func.vmap(loss)(logits, target), torch.stack(each))
    slopes = torch.func.vmap(torch.func.grad(loss))(logits, target)
    leaf = logits[0].clone().requires_grad_()
    (slope,) = torch.autograd.grad(loss(leaf, target[0]), leaf)
    torch.testing.assert_close(slopes[0], slope)
    direction = torch.randn_like(slope)
    _, tangent = torch.func.jvp(lambda x: loss(x, target[0]), (logits[0],), (direction,))
    torch.testing.assert_close(tangent, (slope * direction).sum())
