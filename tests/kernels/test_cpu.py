"""The CPU kernel against mpmath, against plain torch, and under what torch does with a loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("numba")

from dubito import IEDLLoss, losses
from dubito.kernels import Weights, function
from dubito.losses.functions import Loss
from tests.accuracy import Errors, Quantity, measure
from tests.accuracy_grid import Grid, cases
from tests.kernels.samples import alphas, is_fused, labels, soft
from tests.quantities import QUANTITIES
from tests.reference import Point, Truth

CLASSES = (2, 3, 10, 19, 1000)
IEDL = {
    "fisher_bias": 1.0,
    "fisher_variance": 1.0,
    "fisher_penalty": 0.05,
    "label_removed_kl": 1.0,
}
EDL = {
    name: {**dict.fromkeys(terms, 1.0), "label_removed_kl": 0.5}
    for name, terms in losses.EDL_LIKELIHOODS.items()
}
LOSSES = {"iedl": IEDL, **EDL}


def grid(classes: int) -> Grid:
    sizes = (0.0, 1e-4, 1.0, 1e5, 1e12, 1e30)
    return Grid(classes, sizes=sizes) if classes > 100 else Grid(classes)


@pytest.fixture
def only_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain torch is out of order: what comes through comes from the kernel."""

    def refuse(*arguments: object) -> Tensor:
        raise AssertionError("left to plain torch")

    monkeypatch.setattr(Loss, "_plain", refuse)


def both(
    monkeypatch: pytest.MonkeyPatch, call: Callable[[Tensor], Tensor], x: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Value, and gradient of a combination of the outputs: the kernel's, then plain torch's."""
    for mode in ("auto", "off"):
        monkeypatch.setenv("DUBITO_KERNELS", mode)
        leaf = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        value = call(leaf)
        factor = torch.linspace(0.5, 2, value.numel()).reshape(value.shape)
        (gradient,) = torch.autograd.grad((factor * value).sum(), leaf)
        yield value.detach(), gradient


def assert_same(pairs: Iterator[tuple[Tensor, Tensor]]) -> None:
    (value, gradient), (plain, plain_gradient) = pairs
    torch.testing.assert_close(value, plain, rtol=1e-5, atol=1e-6)
    size = plain_gradient.abs().amax(-1, keepdim=True)  # of a row
    error = (gradient - plain_gradient).abs() / size.clamp(min=1e-30)
    assert error.max() < 1e-5


# --- the precision bar ---------------------------------------------------------------------------


def check(errors: Errors, largest: float = 2e-7, median: float = 5e-8) -> None:
    """A hundredth of the bar: all that is left is the rounding of the results."""
    assert errors.passes(largest, median), f"{errors.figures()}\n{errors.worst}"


def by_kernel(weights: dict[str, float]) -> Callable[..., Tensor]:
    def call(alpha: Tensor, target: Tensor | None = None) -> Tensor:
        first = torch.zeros(alpha.shape[:-1], dtype=torch.long)  # for terms that look at no target
        loss = Loss(reduction="none")(dict(weights), alpha, first if target is None else target)
        assert is_fused(loss)
        return loss

    return call


@pytest.mark.usefixtures("only_kernels")
@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("name", Weights._fields)
def test_terms_meet_the_bar(name: str, classes: int) -> None:
    quantity = replace(QUANTITIES[name], call=by_kernel({name: 1.0}))
    check(measure(quantity, cases(grid(classes))))


def weighted(weights: dict[str, float]) -> Callable[[Point], Truth]:
    def truth(point: Point) -> Truth:
        parts = [(w, QUANTITIES[name].truth(point)) for name, w in weights.items()]
        fields = ("unrounded", "value", "value_scale", "gradient", "gradient_scale")
        return Truth(*(sum(w * getattr(part, field) for w, part in parts) for field in fields))

    return truth


@pytest.mark.usefixtures("only_kernels")
@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("name", LOSSES)
def test_losses_meet_the_bar(name: str, classes: int) -> None:
    weights = LOSSES[name]
    quantity = Quantity(
        name, by_kernel(weights), weighted(weights), "target", value="inputs", gradient="terms"
    )
    check(measure(quantity, cases(grid(classes))))


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("name", LOSSES)
def test_losses_agree_with_float64(name: str, classes: int) -> None:
    """Plain torch in float64, at 1e-6 of a row's largest slope."""
    alpha = alphas(40, classes).requires_grad_()
    exact = alpha.detach().double().requires_grad_()
    for target in (labels(40, classes=classes), soft(40, classes)):
        value = Loss(reduction="none")(dict(LOSSES[name]), alpha, target)
        wanted = Loss(reduction="none")(dict(LOSSES[name]), exact, target)
        assert is_fused(value)
        assert not is_fused(wanted)
        torch.testing.assert_close(value.double(), wanted, rtol=1e-6, atol=0)
        (gradient,) = torch.autograd.grad(value.sum(), alpha)
        (truth,) = torch.autograd.grad(wanted.sum(), exact)
        error = (gradient - truth).abs() / truth.abs().amax(-1, keepdim=True)
        assert error.max() < 1e-6


# --- the same as plain torch ---------------------------------------------------------------------

OPTIONS: dict[str, losses.LossOptions] = {
    "mean": {},
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none"},
    "per class": {"scale": "per_class"},
    "class weights": {"class_weight": torch.tensor([1.0, 0.0, 2.5, 0.5, 3.0])},
    "class weights, none": {
        "class_weight": torch.tensor([1.0, 0.0, 2.5, 0.5, 3.0]),
        "reduction": "none",
    },
    "ignored": {"ignore_index": 2},
    "ignored and class weights": {"ignore_index": 2, "class_weight": torch.arange(5.0)},
}


@pytest.mark.parametrize("soft_targets", [False, True], ids=["labels", "soft"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("likelihood", [None, *EDL])
def test_options(
    likelihood: str | None,
    options: losses.LossOptions,
    soft_targets: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = soft(7, 30, 5) if soft_targets else labels(7, 30, classes=5)

    def call(alpha: Tensor) -> Tensor:
        if likelihood is None:
            return losses.iedl(alpha, target, **options)
        return losses.edl(alpha, target, likelihood=likelihood, **options)

    assert is_fused(call(alphas(7, 30, 5).requires_grad_()))
    assert_same(both(monkeypatch, call, alphas(7, 30, 5)))


SHAPES: dict[str, tuple[Tensor, Tensor]] = {
    "one sample": (alphas(4), torch.tensor(2)),
    "axes": (alphas(2, 1, 3, 4), labels(2, 1, 3, classes=4)),
    "transposed": (alphas(4, 50).mT, labels(50, classes=4)),
    "every other": (alphas(80, 8)[::2, ::2], labels(80, classes=4)[::2]),
    "expanded": (alphas(1, 4).expand(6, 4), torch.tensor([1]).expand(6)),
    "soft, transposed": (alphas(50, 4), soft(50, 4).mT.contiguous().mT),
    "many blocks": (alphas(3001, 7), labels(3001, classes=7)),
    "long rows": (alphas(3, 4097), labels(3, classes=4097)),
}


@pytest.mark.parametrize(("alpha", "target"), SHAPES.values(), ids=SHAPES)
def test_shapes(alpha: Tensor, target: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    call = lambda x: losses.iedl(x, target, reduction="none")  # noqa: E731
    assert is_fused(call(alpha.detach().requires_grad_()))
    assert_same(both(monkeypatch, call, alpha))


def test_images(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = 5 * torch.randn(2, 6, 9, 7)
    target = labels(2, 9, 7, classes=6)
    target[0, 3:] = -100
    criterion = IEDLLoss(class_dim=1)
    (value, gradient), (plain, plain_gradient) = both(
        monkeypatch, lambda x: criterion(x, target), logits
    )
    torch.testing.assert_close(value, plain)
    torch.testing.assert_close(gradient, plain_gradient, rtol=1e-5, atol=1e-8)
    assert (gradient[0, :, 3:] == 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    logits, target = (5 * torch.randn(30, 6)).to(dtype), labels(30, classes=6)
    for given in (target, soft(30, 6).to(dtype)):
        (value, gradient), (plain, plain_gradient) = both(
            monkeypatch, lambda x, given=given: IEDLLoss()(x, given), logits
        )
        assert value.dtype == torch.float32
        assert gradient.dtype == dtype
        torch.testing.assert_close(value, plain)
        torch.testing.assert_close(gradient, plain_gradient)


def test_the_weight_of_the_kl_follows_its_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    target = labels(30, classes=6)
    for weight in (0.0, 0.25, 1.0):
        criterion = IEDLLoss(kl_weight=lambda epoch, weight=weight: weight)
        assert_same(both(monkeypatch, lambda x, c=criterion: c(x, target), torch.randn(30, 6)))


@pytest.mark.parametrize("size", [0.0, 30.0, 1e4, 1e38])
def test_extreme_evidence_is_finite(size: float) -> None:
    alpha = (1 + size * torch.tensor([[3.0, 0, 1], [0, 0, 0], [1, 1, 1]])).requires_grad_()
    for weights in LOSSES.values():
        for target in (torch.tensor([0, 1, 2]), torch.full((3, 3), 1 / 3)):
            value = Loss(reduction="none")(dict(weights), alpha, target)
            assert is_fused(value)
            (gradient,) = torch.autograd.grad(value.sum(), alpha)
            assert value.isfinite().all()
            assert gradient.isfinite().all()


def test_a_batch_that_is_ignored_whole_is_zero() -> None:
    alpha = alphas(5, 3).requires_grad_()
    value = losses.iedl(alpha, torch.full((5,), -100))
    (gradient,) = torch.autograd.grad(value, alpha)
    assert is_fused(value)
    assert value == 0
    assert (gradient == 0).all()


# --- autograd ------------------------------------------------------------------------------------


def test_without_a_gradient_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    alpha, target = alphas(6, 4), labels(6, classes=4)
    saved = []
    result = function._Result
    monkeypatch.setattr(function, "_Result", lambda *r: saved.append(r[1]) or result(*r))
    assert losses.iedl(alpha, target).grad_fn is None
    with torch.no_grad():
        value = losses.iedl(alpha.requires_grad_(), target)
    with torch.inference_mode():
        losses.iedl(alphas(6, 4), target)
    assert value.grad_fn is None
    assert [gradient.numel() for gradient in saved] == [0, 0, 0]


def test_a_graph_that_is_kept_gives_the_same_twice() -> None:
    alpha = alphas(6, 4).requires_grad_()
    value = losses.iedl(alpha, labels(6, classes=4))
    (first,) = torch.autograd.grad(3 * value, alpha, retain_graph=True)
    (second,) = torch.autograd.grad(3 * value, alpha)
    assert torch.equal(first, second)


def test_an_alpha_that_was_changed_is_noticed() -> None:
    alpha = alphas(6, 4).requires_grad_() * 1
    value = losses.iedl(alpha, labels(6, classes=4))
    with torch.no_grad():
        alpha.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


@pytest.mark.parametrize("soft_targets", [False, True], ids=["labels", "soft"])
def test_second_derivatives_are_those_of_plain_torch(
    soft_targets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = soft(6, 4) if soft_targets else labels(6, classes=4)
    weight = torch.tensor([1.0, 2.0, 0.5, 1.0])
    found = []
    for mode in ("auto", "off"):
        monkeypatch.setenv("DUBITO_KERNELS", mode)
        logits = torch.linspace(-3, 5, 24).reshape(6, 4).requires_grad_()
        value = IEDLLoss(class_weight=weight)(logits, target)
        (slopes,) = torch.autograd.grad(value, logits, create_graph=True)
        (second,) = torch.autograd.grad(slopes.square().sum(), logits)
        found.append((slopes.detach(), second))
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-7)
    assert found[0][1].abs().max() > 0


def test_the_logarithm() -> None:
    import numba

    from dubito.kernels import gamma

    @numba.njit
    def logs(x: Any, out: Any) -> None:
        for i in range(len(x)):
            out[i] = gamma.ln(x[i])

    x = np.concatenate([10 ** np.linspace(-300, 300, 4001), 1 + np.linspace(-0.5, 1, 4001)])
    out = np.empty_like(x)
    logs(x, out)
    np.testing.assert_allclose(out, np.log(x), rtol=3e-14, atol=1e-15)
