"""Closed forms against mpmath, differences and sampling; the torch backend of the losses."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from dubito.numerics import autograd, functions, torch_backend
from dubito.numerics.forms import FORMS
from dubito.numerics.functions import dissonance, evaluate, kl_divergence, uncertainty
from dubito.numerics.spec import PER_CLASS, LossSpec
from dubito.numerics.torch_backend import FAST_FORMS, is_fast, loss_and_sums, reference_loss
from tests.accuracy import LARGEST, MEDIAN, Errors, Quantity, compare, measure
from tests.accuracy_grid import CLASSES, SETTINGS, Case, Grid, cases, point
from tests.numerics.quantities import QUANTITIES, SCALES, kl_from_uniform, removed
from tests.reference import Concentration, Point, Truth, truth
from tests.reference_dirichlet import divergence

# The compiler's own libraries and torch's forward-mode rules warn about their future.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")

IEDL = ("fisher_bias", "fisher_variance", "fisher_penalty", "label_removed_kl")
WITH_TARGET = (
    "mse_bias",
    "fisher_bias",
    "label_removed_kl",
    "marginal_nll",
    "expected_cross_entropy",
    "reverse_kl",
    "forward_kl",
)


def passes(errors: Errors, largest: float = LARGEST, median: float = MEDIAN) -> None:
    figures = ", ".join(f"{key} {value:.1e}" for key, value in errors.figures().items())
    ok = errors.passes(largest, median)
    assert ok, f"{'' if errors.finite else 'NOT FINITE '}{figures}\n{errors.worst}"


# --- accuracy of float32: values and gradients within 1e-5 of mpmath, 1e-6 in the median ---

SAMPLE = {
    2: Grid(2),
    3: Grid(3),
    10: Grid(10),
    100: Grid(100, sizes=(0.0, 1e-4, 1e-2, 1.0, 1e3, 1e8, 1e30)),
    1000: Grid(1000, sizes=(0.0, 1e-4, 1.0, 1e5, 1e12, 1e30)),
    10000: Grid(10000, sizes=(0.0, 1e-2, 1e3, 1e20)),
}


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("name", QUANTITIES)
def test_accuracy(name: str, classes: int) -> None:
    if classes > QUANTITIES[name].most_classes:
        pytest.skip("needs K^2 numbers for each vector")
    passes(measure(QUANTITIES[name], cases(SAMPLE[classes])))


def below_one(classes: int, low: float, high: float, draws: int = 6) -> tuple[Case, ...]:
    """Vectors of entries from 10^low to 10^high."""
    seeds = [(97, classes, round(low + 50), round(high + 50), draw) for draw in range(draws)]
    values = (10 ** np.random.default_rng(seed).uniform(low, high, classes) for seed in seeds)
    name = f"1e{low:g} to 1e{high:g}"
    return tuple(Case(name, v.astype(np.float32), s) for v, s in zip(values, seeds, strict=True))


@pytest.mark.parametrize("span", [(-6, -4), (-6, 3), (-3, 20)])
@pytest.mark.parametrize("classes", [2, 10, 100])
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
            passes(measure(quantity, cases(grid)))
    if name != "dissonance":
        for classes in (2, 3, 10, 100):
            for span in ((-6, 3), (-6, 0), (-2, 1), (-6, -4), (-3, 20), (-6, 30)):
                passes(measure(quantity, below_one(classes, *span, draws=40)))


# --- accuracy of the fast path ---


def beta_target(x: Point, beta: float) -> Concentration:
    return Concentration(1 + (beta - 1) * x["target"], x.count)


def reverse_kl(beta: float) -> Callable[[Point], Truth]:
    def exact(x: Point) -> Truth:
        value, gradient, terms, _, _ = divergence(x, beta_target(x, beta))
        return truth(x, value, gradient, terms)

    return exact


def forward_kl(beta: float) -> Callable[[Point], Truth]:
    def exact(x: Point) -> Truth:
        value, _, _, gradient, terms = divergence(beta_target(x, beta), x)
        return truth(x, value, gradient, terms)

    return exact


BETA = 101.0


def fast(name: str) -> Quantity:
    """The form through `loss_and_sums` of alpha."""
    spec = LossSpec((name,), evidence=None, beta=BETA, reduction="none")

    def call(alpha: Tensor, target: Tensor | None = None) -> Tensor:
        if target is None:
            target = torch.zeros(alpha.shape[:-1], dtype=torch.long)
        return loss_and_sums(spec, alpha, target, torch.ones(1), None)[0]

    if name in ("reverse_kl", "forward_kl"):
        exact = {"reverse_kl": reverse_kl, "forward_kl": forward_kl}[name](BETA)
        return Quantity(name, call, exact, "label", "plain", "terms")
    if name == "kl_from_uniform":
        return Quantity(name, call, kl_from_uniform, "alpha", "plain", "terms")
    known = QUANTITIES[name]
    return Quantity(name, call, known.truth, known.takes, *SCALES[name])  # type: ignore[arg-type]


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("name", sorted(FAST_FORMS))
def test_accuracy_of_the_fast_path(
    name: str, classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_backend, "Quantities", None)  # the general path fails
    passes(measure(fast(name), cases(SAMPLE[classes])))


@pytest.mark.parametrize("evidence", ["softplus", "relu", "exp"])
@pytest.mark.parametrize("prior", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("soft", [False, True])
def test_fast_path_agrees_with_the_general_one(evidence: str, prior: float, soft: bool) -> None:
    """Joint families of several forms, from logits; each row relative to its largest slope."""
    forms = (*IEDL, "mse_bias", "marginal_nll") if prior >= 1 else ("mse_bias", "label_removed_kl")
    spec = LossSpec(forms, evidence=evidence, prior=prior, reduction="none", per_class=True)
    weights = torch.linspace(0.1, 1, len(forms))
    for classes, scale in ((2, 1.0), (10, 5.0), (100, 20.0)):
        logits = scale * torch.randn(200, classes)
        target = torch.randn(200, classes).softmax(-1) if soft else torch.randint(classes, (200,))
        assert is_fast(spec, logits, target)
        result = loss_and_gradient(loss_and_sums, spec, logits, target, weights)
        expected = loss_and_gradient(
            reference_loss, spec, logits.double(), target, weights.double()
        )
        torch.testing.assert_close(result[0].double(), expected[0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(result[2].double(), expected[2], rtol=1e-5, atol=1e-5)
        error = (result[1].double() - expected[1]).abs().amax(-1)
        assert (error <= 1e-5 * expected[1].abs().amax(-1) + 1e-30).all()


@pytest.mark.parametrize("form", sorted(form for form, prior in FAST_FORMS.items() if prior == 0))
@pytest.mark.parametrize("low", [-18.4, -2.0])
def test_fast_divergences_of_any_alpha(form: str, low: float) -> None:
    spec = LossSpec((form,), evidence="exp", prior=0.0, beta=BETA, reduction="none")
    for classes, high in ((2, 1.0), (10, 55.0), (100, 10.0)):
        logits = torch.empty(200, classes).uniform_(low, high)
        target = torch.randint(classes, (200,))
        assert is_fast(spec, logits, target)
        result = loss_and_gradient(loss_and_sums, spec, logits, target, torch.ones(1))
        expected = loss_and_gradient(reference_loss, spec, logits, target, torch.ones(1))
        for one, other in zip(result[:2], expected[:2], strict=True):
            error = (one - other).reshape(200, -1).abs().amax(-1)
            assert (error <= 1e-5 * other.reshape(200, -1).abs().amax(-1)).all()


@pytest.mark.parametrize("form", sorted(FAST_FORMS))
def test_fast_path_of_tensors_is_that_of_arrays(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors, which a GPU computes with, in place of NumPy's arrays."""
    logits, target = 3 * torch.randn(50, 7), torch.randint(7, (50,))
    arguments = LossSpec((form,), beta=BETA), logits, target, torch.ones(1)
    arrays = loss_and_gradient(loss_and_sums, *arguments)
    monkeypatch.setattr(torch_backend, "classes_first", lambda values: values.T.contiguous())
    for one, other in zip(loss_and_gradient(loss_and_sums, *arguments), arrays, strict=True):
        torch.testing.assert_close(one, other)


def loss_and_gradient(
    backend: Callable[..., tuple[Tensor, Tensor]],
    spec: LossSpec,
    values: Tensor,
    target: Tensor,
    weights: Tensor,
    class_weight: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    values = values.detach().requires_grad_()
    loss, sums = backend(spec, values, target, weights, class_weight)
    (gradient,) = torch.autograd.grad(loss.sum(), values)
    assert not sums.requires_grad
    return loss.detach(), gradient, sums


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


# --- derivatives ---


def inputs(lead: tuple[int, ...], classes: int = 3, low: float = -0.7) -> tuple[Tensor, Tensor]:
    """alpha from 10^low to 50 and a soft target, in float64."""
    exponents = torch.empty(*lead, classes, dtype=torch.float64).uniform_(low, 1.7)
    return (10**exponents).requires_grad_(), torch.randn_like(exponents).softmax(-1)


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


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_derivatives_of_losses(reduction: str) -> None:
    spec = LossSpec((*IEDL, "marginal_nll"), reduction=reduction, per_class=True)
    logits = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    target, class_weight = torch.tensor([0, 2, -100, 1]), torch.tensor([1.0, 2.0, 0.5])
    weights = torch.linspace(0.1, 1, 5)

    def loss(logits: Tensor) -> Tensor:
        return loss_and_sums(spec, logits, target, weights, class_weight)[0]

    assert gradcheck(loss, logits)
    assert gradgradcheck(loss, logits)


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


def test_fisher_logdet_is_that_of_the_fisher_information() -> None:
    alpha, _ = inputs((5,), 4)
    (penalty,) = evaluate(("fisher_penalty",), alpha)
    torch.testing.assert_close(-penalty, functions.fisher_information(alpha).logdet())


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


# --- the backend of the losses ---

WEIGHTS = torch.tensor([1.0, 1.0, 0.05, 0.5])


def test_sums_and_reductions() -> None:
    logits, target = torch.randn(3, 4, 5), torch.randint(5, (3, 4))
    spec = LossSpec(IEDL, per_class=True)
    mean, total, each = (
        loss_and_sums(spec._replace(reduction=r), logits, target, WEIGHTS, None)
        for r in ("mean", "sum", "none")
    )
    assert each[0].shape == (3, 4)
    torch.testing.assert_close(each[0].sum(), total[0])
    torch.testing.assert_close(total[0], (WEIGHTS * total[1]).sum())
    torch.testing.assert_close(mean[0], total[0] / 12)
    torch.testing.assert_close(mean[1], total[1])
    plain = loss_and_sums(spec._replace(per_class=False), logits, target, WEIGHTS, None)[1]
    torch.testing.assert_close(mean[1], plain * torch.tensor([1.0, 1.0, 2.0, 2.0]))


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


def test_soft_targets_are_weighted_by_their_classes() -> None:
    logits, y = torch.randn(4, 3), torch.randn(4, 3).softmax(-1)
    class_weight = torch.tensor([2.0, 1.0, 0.5])
    each = loss_and_sums(LossSpec(IEDL, reduction="none"), logits, y, WEIGHTS, None)[0]
    rows = y @ class_weight
    result = loss_and_sums(LossSpec(IEDL), logits, y, WEIGHTS, class_weight)[0]
    torch.testing.assert_close(result, (rows * each).sum() / rows.sum())


def test_one_hot_targets_are_labels() -> None:
    logits, target = 3 * torch.randn(20, 5), torch.randint(5, (20,))
    y = torch.nn.functional.one_hot(target, 5).float()
    pair = [
        loss_and_gradient(loss_and_sums, LossSpec(IEDL), logits, t, WEIGHTS) for t in (target, y)
    ]
    torch.testing.assert_close(*pair)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    logits, target = (3 * torch.randn(8, 5)).to(dtype), torch.randint(5, (8,))
    half = loss_and_gradient(loss_and_sums, LossSpec(IEDL), logits, target, WEIGHTS)
    single = loss_and_gradient(loss_and_sums, LossSpec(IEDL), logits.float(), target, WEIGHTS)
    assert half[0].dtype == torch.float32
    assert half[1].dtype == dtype
    torch.testing.assert_close(half[0], single[0])
    torch.testing.assert_close(half[1], single[1].to(dtype))


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_autocast_changes_nothing(reduction: str) -> None:
    logits, target = 3 * torch.randn(8, 5), torch.randint(5, (8,))
    spec = LossSpec(IEDL, reduction=reduction)
    plain = loss_and_gradient(loss_and_sums, spec, logits, target, WEIGHTS)
    with torch.autocast("cpu", torch.bfloat16):
        cast = loss_and_gradient(loss_and_sums, spec, logits, target, WEIGHTS)
    assert all(torch.equal(one, other) for one, other in zip(plain, cast, strict=True))


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
    ("spec", "dtype", "expected"),
    [
        (LossSpec(IEDL), torch.float32, True),
        (LossSpec(IEDL), torch.float64, False),
        (LossSpec(IEDL, prior=0.5), torch.float32, False),
        (LossSpec(("mse_bias", "label_removed_kl"), prior=0.1), torch.float32, True),
        (LossSpec(IEDL, evidence="exp", prior=0.0), torch.float32, False),
        (LossSpec(("mutual_information",)), torch.float32, False),
        (LossSpec(IEDL, evidence=None), torch.float32, False),
    ],
)
def test_which_path_runs(spec: LossSpec, dtype: torch.dtype, expected: bool) -> None:
    values = torch.tensor([[0.5, 2.0, 3.0]], dtype=dtype)
    labels = torch.zeros(1, dtype=torch.long)
    assert is_fast(spec, values, labels) == expected


def test_alpha_of_at_least_one_is_fast() -> None:
    values, labels = torch.tensor([[1.0, 2.0, 3.0]]), torch.zeros(1, dtype=torch.long)
    assert is_fast(LossSpec(IEDL, evidence=None), values, labels)


# --- uncertainty ---


@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_uncertainty_is_exact(classes: int) -> None:
    """The fast path, which has no gradient, within the bar of the form of each part."""
    names = ("entropy_of_mean", "expected_entropy", "mutual_information")
    grid = cases(SAMPLE[classes])
    alpha = torch.from_numpy(np.stack([case.alpha for case in grid]))
    for name, value in zip(names, uncertainty(alpha), strict=True):
        expected = [QUANTITIES[name].truth(point(case, "", {})).value for case in grid]
        error = (value.double() / torch.tensor(expected, dtype=torch.float64) - 1).abs()
        assert error.max() < LARGEST, name
        assert error.median() < MEDIAN, name


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
