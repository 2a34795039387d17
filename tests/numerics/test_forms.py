"""Closed forms against mpmath, differences and sampling."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from dubito.numerics import autograd, functions
from dubito.numerics.forms import FORMS
from dubito.numerics.functions import dissonance, evaluate, kl_divergence, uncertainty
from dubito.numerics.spec import LossSpec
from dubito.numerics.torch_backend import loss_and_sums
from tests.accuracy import compare, measure
from tests.accuracy_grid import CLASSES, SETTINGS, Case, Grid, cases, point
from tests.numerics.helpers import BETA, IEDL, SAMPLE, below_one, inputs, loss_and_gradient, passes
from tests.numerics.quantities import QUANTITIES, removed

# The compiler's own libraries and torch's forward-mode rules warn about their future.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


# --- accuracy of float32: values and gradients within 1e-5 of mpmath, 1e-6 in the median ---


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("name", QUANTITIES)
def test_accuracy(name: str, classes: int) -> None:
    if classes > QUANTITIES[name].most_classes:
        pytest.skip("needs K^2 numbers for each vector")
    passes(measure(QUANTITIES[name], cases(SAMPLE[classes])))


@pytest.mark.parametrize(
    ("classes", "span"),
    [*((k, span) for k in (2, 10) for span in ((-6, -4), (-6, 3), (-3, 20))), (100, (-6, 3))],
)
@pytest.mark.parametrize("name", [name for name in QUANTITIES if name != "dissonance"])
def test_accuracy_of_alpha_below_one(name: str, classes: int, span: tuple[float, float]) -> None:
    passes(measure(QUANTITIES[name], below_one(classes, *span)))


@pytest.mark.parametrize("name", [name for name in QUANTITIES if name != "log_mean"])
def test_accuracy_without_float64(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In exported files, on devices without float64, and for losses under torch.compile."""
    monkeypatch.setattr(autograd, "is_exporting", lambda: True)
    passes(measure(QUANTITIES[name], cases(SAMPLE[10])))


@pytest.mark.parametrize("base", [0.1, 0.5, 2.5])
def test_accuracy_of_label_removed_kl_with_a_prior(base: float) -> None:
    """alpha - prior is as exact as alpha in float32."""
    for classes in (2, 10):
        grid = tuple(
            Case(case.name, np.float32(base) + (case.alpha - 1), case.seed)
            for case in cases(Grid(classes, sizes=(1.0, 1e3, 1e8, 1e30)))
        )
        passes(measure(removed(float(np.float32(base))), grid))


def test_prior_zero_removes_labels_to_the_uniform_distribution() -> None:
    alpha, y = inputs((5,), low=-3)
    zero, one = (evaluate(("label_removed_kl",), alpha, y, prior=p)[0] for p in (0.0, 1.0))
    assert torch.equal(zero, one)


@pytest.mark.accuracy_full
@pytest.mark.parametrize("name", QUANTITIES)
def test_accuracy_on_the_dense_grid(name: str) -> None:
    quantity = QUANTITIES[name]
    grids = [
        Grid(2, draws=8),
        Grid(3, draws=8),
        Grid(10, draws=4),
        Grid(100, draws=2, distinct=100),
        Grid(1000, distinct=1000),
        Grid(10000, distinct=200),
    ]
    for grid in grids:
        if grid.classes <= quantity.most_classes:
            distinct = min(grid.distinct, 50) if name == "dissonance" else grid.distinct
            passes(measure(quantity, cases(replace(grid, distinct=distinct))))
    if name != "dissonance":
        for classes in (2, 3, 10, 100):
            for span in ((-6, 3), (-6, 0), (-2, 1), (-6, -4), (-3, 20), (-6, 30)):
                passes(measure(quantity, below_one(classes, *span, draws=40)))


# --- accuracy of float64 ---


@pytest.mark.parametrize("name", [n for n in QUANTITIES if n != "dissonance"])
def test_accuracy_of_float64(name: str) -> None:
    quantity = QUANTITIES[name]
    for grid in (
        cases(Grid(3, sizes=(0.0, 1e-2, 1.0, 1e3, 1e8))),
        cases(Grid(100, sizes=(1.0, 1e5))),
        below_one(10, -6, 3),
    ):
        for setting, (beside, most) in SETTINGS[quantity.takes].items():
            if len(grid[0].alpha) > most:
                continue
            extra = [{k: v.astype(np.float64) for k, v in beside(case).items()} for case in grid]
            alpha = torch.from_numpy(np.stack([c.alpha for c in grid])).double().requires_grad_()
            value = quantity.evaluate(alpha, extra)  # type: ignore[arg-type]
            (gradient,) = torch.autograd.grad(value.sum(), alpha)
            truths = [quantity.truth(point(c, setting, beside(c))) for c in grid]
            errors = compare(quantity, grid, setting, value.detach(), gradient, truths)
            passes(errors, 5e-12 if name == "mutual_information" else 1e-12, 1e-12)


# --- no NaN, no infinity ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ten_thousand_hard_alphas_are_finite(dtype: torch.dtype) -> None:
    forms = tuple(FORMS)
    generator = torch.Generator().manual_seed(0)
    for classes, rows in ((2, 6000), (7, 3000), (50, 1000)):
        exponents = torch.empty(rows, classes).uniform_(-6, 30, generator=generator)
        spread = torch.rand(rows, 1, generator=generator)
        alpha = (10 ** (exponents * spread)).clamp(1e-6, 1e30).to(dtype).requires_grad_()
        labels = torch.randint(classes, (rows,), generator=generator)
        y = torch.nn.functional.one_hot(labels, classes).to(dtype)
        values = torch.stack(evaluate(forms, alpha, y, prior=0.0, beta=BETA))
        assert values.isfinite().all()
        (gradient,) = torch.autograd.grad(values.sum(), alpha)
        assert gradient.isfinite().all()


# --- derivatives ---


@pytest.mark.parametrize("form", FORMS)
def test_derivatives(form: str) -> None:
    alpha, y = inputs((1, 2))

    def function(alpha: Tensor) -> tuple[Tensor, ...]:
        return evaluate((form,), alpha, y, prior=0.3, beta=4.0)

    assert gradcheck(function, alpha, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(function, alpha, check_fwd_over_rev=True)


def test_derivatives_of_two_dirichlets() -> None:
    alpha, _ = inputs((2,))
    beta, near = inputs((2,))[0], (alpha * 1.01).detach().requires_grad_()
    assert gradcheck(kl_divergence, (alpha, near), check_forward_ad=True)
    assert gradcheck(kl_divergence, (alpha, beta), check_forward_ad=True)
    assert gradgradcheck(kl_divergence, (alpha[:1], beta[:1]), check_fwd_over_rev=True)


@pytest.mark.parametrize("name", ["mean", "log_mean", "variance", "fisher_information"])
def test_derivatives_of_moments(name: str) -> None:
    alpha, _ = inputs((3,))
    assert gradcheck(getattr(functions, name), alpha, check_forward_ad=True)
    assert gradgradcheck(getattr(functions, name), alpha)


def test_derivatives_of_dissonance() -> None:
    assert gradcheck(dissonance, inputs((3,), 4)[0], check_forward_ad=True)


# --- sampling ---


def test_forms_are_expectations() -> None:
    """Entropies, divergences and cross entropies as means over a million samples."""
    alpha, beta = torch.tensor([0.7, 2.0, 5.0]).double(), torch.tensor([2.0, 1.0, 0.5]).double()
    y = torch.tensor([0.0, 1.0, 0.0]).double()
    dist, other = torch.distributions.Dirichlet(alpha), torch.distributions.Dirichlet(beta)
    samples = dist.sample((1_000_000,))
    logs = samples.log()
    means = {
        "expected_entropy": -torch.special.xlogy(samples, samples).sum(-1),
        "expected_cross_entropy": -(y * logs).sum(-1),
        "differential_entropy": -dist.log_prob(samples),
        "kl_to_uniform": dist.log_prob(samples) - math.lgamma(3),
        "mse_variance": (samples - alpha / alpha.sum()).square().sum(-1),
    }
    values = evaluate(tuple(means), alpha, y)
    for (form, draws), value in zip(means.items(), values, strict=True):
        error = (draws.mean() - value).abs()
        assert error < 5 * draws.std() / 1000, form
    ratios = dist.log_prob(samples) - other.log_prob(samples)
    assert (ratios.mean() - kl_divergence(alpha, beta)).abs() < 5 * ratios.std() / 1000


# --- transforms ---


def test_compiled_forms_are_the_eager_ones() -> None:
    alpha, y = (x.detach().float() for x in inputs((4,)))
    alpha.requires_grad_()

    def everything(alpha: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return (
            *evaluate(("fisher_bias", "mutual_information"), alpha, y),
            kl_divergence(alpha, y + 1),
        )

    torch._dynamo.reset()
    compiled = torch.compile(everything, backend="aot_eager", fullgraph=True)
    outputs = [function(alpha, y) for function in (compiled, everything)]
    torch.testing.assert_close(*outputs)
    mixed = [sum((i + 1) * value.sum() for i, value in enumerate(o)) for o in outputs]
    torch.testing.assert_close(*(torch.autograd.grad(m, alpha) for m in mixed))  # type: ignore[arg-type]


def test_exported_forms_stay_in_float32() -> None:
    class Scores(torch.nn.Module):
        def forward(self, alpha: Tensor) -> tuple[Tensor, ...]:
            return (*uncertainty(alpha), *evaluate(("differential_entropy",), alpha))

    alpha = 1 + 10 * torch.rand(4, 3)
    batch = torch.export.Dim("batch")
    program = torch.export.export(Scores(), (alpha,), dynamic_shapes=({0: batch},))
    torch.testing.assert_close(tuple(program.module()(alpha)), Scores()(alpha))
    dtypes = {getattr(node.meta.get("val"), "dtype", None) for node in program.graph.nodes}
    assert torch.float64 not in dtypes


# --- rows and chunks ---


@pytest.mark.parametrize("lead", [(7,), (2, 3), (3, 1, 4)])
@pytest.mark.parametrize("chunk", [1, 10, 33])
def test_chunks_give_the_whole(
    lead: tuple[int, ...], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    alpha, y = inputs(lead, 5, low=0.0)
    spec = LossSpec(IEDL, reduction="none")

    def outputs() -> list[Tensor]:
        values = evaluate(tuple(FORMS), alpha, y)
        mixed = sum(((i + 1) * value).square().sum() for i, value in enumerate(values))
        (slopes,) = torch.autograd.grad(mixed, alpha, create_graph=True)  # type: ignore[arg-type]
        (second,) = torch.autograd.grad(slopes.square().sum(), alpha)
        loss = loss_and_gradient(loss_and_sums, spec, alpha.float(), y.float(), torch.ones(4))
        return [*values, slopes, second, *loss]

    whole = outputs()
    monkeypatch.setattr(autograd, "CHUNK_CPU", chunk)
    for one, other in zip(outputs(), whole, strict=True):
        torch.testing.assert_close(one, other)


def test_a_single_row_and_an_empty_batch() -> None:
    alpha, y = inputs(())
    assert evaluate(("mse_bias",), alpha, y)[0].shape == ()
    assert evaluate(("mse_bias",), torch.ones(0, 5), torch.ones(0, 5))[0].shape == (0,)
    spec = LossSpec(IEDL)
    empty = torch.ones(0, 5), torch.ones(0, dtype=torch.long)
    loss, gradient, sums = loss_and_gradient(loss_and_sums, spec, *empty, torch.ones(4))
    assert loss == 0
    assert gradient.shape == (0, 5)
    assert sums.tolist() == [0] * 4
    row = loss_and_gradient(loss_and_sums, spec, torch.ones(5), torch.tensor(2), torch.ones(4))
    assert row[0].shape == ()
    assert row[1].shape == (5,)


# --- uncertainty ---


def test_uncertainty_has_gradients() -> None:
    alpha, _ = inputs((4,), low=0.0)
    result = torch.autograd.grad(sum(uncertainty(alpha)), alpha, torch.ones(4).double())  # type: ignore[arg-type]
    names = ("entropy_of_mean", "expected_entropy", "mutual_information")
    expected = torch.autograd.grad(sum(evaluate(names, alpha)), alpha, torch.ones(4).double())  # type: ignore[arg-type]
    torch.testing.assert_close(result, expected)
    total, aleatoric, epistemic = uncertainty(alpha.detach().float())
    torch.testing.assert_close(total, aleatoric + epistemic)


def test_alpha_without_evidence_has_no_divergence_from_the_rounded_prior() -> None:
    alpha = torch.full((3, 4), 0.1)  # 0.1 is not a float32 number
    (kl,) = evaluate(("label_removed_kl",), alpha, torch.eye(4)[:3], prior=0.1)
    assert (kl == 0).all()
