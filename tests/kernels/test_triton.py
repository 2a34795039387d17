"""The Triton kernels: interpreted where there is no GPU, which takes small inputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

import triton

from dubito import IEDLLoss, Prediction, kernels, losses
from dubito.evidence import EVIDENCE, alpha_from_logits
from dubito.kernels import Weights, triton_math, triton_measures, triton_once_ops, triton_ops
from dubito.losses.functions import Loss
from dubito.methods import METHODS
from tests.accuracy import Errors, Quantity, measure
from tests.accuracy_grid import SETTINGS, Grid, cases, point
from tests.kernels.samples import labels, soft
from tests.quantities import QUANTITIES
from tests.reference import Point, Truth

DEVICE = "cpu" if not triton_math.COMPILED.value else "cuda"
pytestmark = [
    # numpy says so where a lane that is not chosen overflows
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.skipif(
        DEVICE == "cuda" and not torch.cuda.is_available(), reason="neither a GPU nor interpreted"
    ),
    pytest.mark.skipif(
        DEVICE == "cpu" and not triton.__version__.startswith("3.6."),
        reason="the interpreter of later releases loses its own tensors between nested functions",
    ),
]

IEDL = {"fisher_bias": 1.0, "fisher_variance": 1.0, "fisher_penalty": 0.05, "label_removed_kl": 1.0}
EDL = {
    name: {**dict.fromkeys(terms, 1.0), "label_removed_kl": 0.5}
    for name, terms in losses.EDL_LIKELIHOODS.items()
}
LOSSES = {"iedl": IEDL, **EDL}


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of a GPU are chosen where this test's tensors are."""
    monkeypatch.setattr(kernels, "_DEVICE", DEVICE)


def on_device(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(tensor.to(DEVICE) for tensor in tensors)


def logits_like(*shape: int, seed: int = 0, scale: float = 4.0) -> Tensor:
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return (scale * drawn).to(DEVICE)


def fused(
    weights: dict[str, float],
    logits: Tensor,
    target: Tensor,
    operator: str = "evidential_loss",
    **options: object,
) -> tuple[Tensor, Tensor]:
    """The operator itself: the loss and the sums of the terms."""
    numbers = [weights.get(name, 0.0) for name in Weights._fields]
    places = [-1 if name in weights else -2 for name in Weights._fields]
    given: dict[str, object] = {
        "class_weight": None,
        "moving": None,
        "growth": 1.0,
        "evidence": "softplus",
        "ignore_index": -100,
        "reduction": "none",
    }
    value, sums, *_ = getattr(torch.ops.dubito, operator)(
        logits,
        target,
        numbers=numbers,
        places=places,
        columns=kernels._columns(tuple(weights)),
        **(given | options),
    )
    return value, sums


def is_fused(loss: Tensor) -> bool:
    seen = [loss.grad_fn]
    while seen:
        node = seen.pop()
        if node is not None:
            if "dubito_evidential_loss" in type(node).__name__:
                return True
            seen += [following for following, _ in node.next_functions]
    return False


# --- the precision bar ---------------------------------------------------------------------------


def by_operator(weights: dict[str, float]) -> Callable[..., Tensor]:
    def call(alpha: Tensor, target: Tensor | None = None) -> Tensor:
        # relu gives evidence as it is given; a little more than none, where it would have no slope
        logits = (alpha - 1 + 1e-38).to(DEVICE)
        first = torch.zeros(alpha.shape[:-1], dtype=torch.long) if target is None else target
        return fused(weights, logits, first.to(DEVICE), evidence="relu")[0].cpu()

    return call


def check(errors: Errors) -> None:
    assert errors.passes(), f"{errors.figures()}\n{errors.worst}"


SMALL = (0.0, 1e-4, 1.0, 1e8, 1e30)


@pytest.mark.parametrize("classes", [2, 19])
@pytest.mark.parametrize("name", Weights._fields)
def test_terms_meet_the_bar(name: str, classes: int) -> None:
    quantity = replace(QUANTITIES[name], call=by_operator({name: 1.0}))
    check(measure(quantity, cases(Grid(classes, sizes=SMALL))))


def weighted(weights: dict[str, float]) -> Callable[[Point], Truth]:
    def truth(at: Point) -> Truth:
        parts = [(w, QUANTITIES[name].truth(at)) for name, w in weights.items()]
        fields = ("unrounded", "value", "value_scale", "gradient", "gradient_scale")
        return Truth(*(sum(w * getattr(part, field) for w, part in parts) for field in fields))

    return truth


@pytest.mark.parametrize(
    ("name", "classes"), [("iedl", 10), ("mse", 10), ("iedl", 1000), ("mse", 1000)]
)
def test_losses_meet_the_bar(name: str, classes: int) -> None:
    weights = LOSSES[name]
    truth = weighted(weights)
    call = by_operator(weights)
    quantity = Quantity(name, call, truth, "target", value="inputs", gradient="terms")
    sizes = (1e-4, 10.0, 1e8) if classes == 1000 else SMALL
    check(measure(quantity, cases(Grid(classes, sizes=sizes))))


@pytest.mark.parametrize("classes", [2, 10, 40])
def test_measures_meet_the_bar(classes: int) -> None:
    grid = cases(Grid(classes, sizes=SMALL))
    alpha = torch.from_numpy(np.stack([case.alpha for case in grid]))
    seen = triton_ops.evidential_measures((alpha - 1).to(DEVICE), "relu").cpu()
    inputs = SETTINGS["alpha"][""][0]
    for name, values in zip(triton_measures.NAMES, seen, strict=False):
        if name in QUANTITIES:
            truths = [QUANTITIES[name].truth(point(case, "", inputs(case))) for case in grid]
            exact = np.array([float(truth.value) for truth in truths])
            near = abs(values.double().numpy() - exact) <= 1e-5 * abs(exact) + 1e-37
            assert near.all(), (name, alpha[~torch.from_numpy(near)])


# --- the same as plain torch ---------------------------------------------------------------------


def assert_same(
    logits: Tensor,
    target: Tensor,
    call: Callable[[Tensor, Tensor], Tensor],
    plain: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> None:
    """`call` by the kernel, and in float64 by plain torch; of the gradients a row's largest."""
    found = []
    for x in (logits.detach(), logits.detach().double()):
        leaf = x.requires_grad_()
        value = (plain or call if x.dtype == torch.float64 else call)(leaf, target)
        assert is_fused(value) == (x.dtype != torch.float64)
        factor = torch.linspace(0.5, 2, value.numel(), device=x.device).reshape(value.shape)
        (gradient,) = torch.autograd.grad((factor * value).sum(), leaf)
        found.append((value.detach().double(), gradient.double()))
    (value, gradient), (exact, slopes) = found
    torch.testing.assert_close(value, exact, rtol=3e-6, atol=0)
    error = (gradient - slopes).abs() / slopes.abs().amax(-1, keepdim=True).clamp(min=1e-30)
    assert error.max() < 1e-5


CLASS_WEIGHT = torch.tensor([1.0, 0.0, 2.5, 0.5, 3.0])
OPTIONS: dict[str, losses.LossOptions] = {
    "mean": {},
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none"},
    "per class": {"scale": "per_class"},
    "class weights": {"class_weight": CLASS_WEIGHT},
    "ignored and class weights, none": {
        "ignore_index": 2,
        "class_weight": CLASS_WEIGHT,
        "reduction": "none",
    },
    "ignored": {"ignore_index": 2},
}


@pytest.mark.parametrize("soft_targets", [False, True], ids=["labels", "soft"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_options(options: losses.LossOptions, soft_targets: bool) -> None:
    target = soft(3, 30, 5) if soft_targets else labels(3, 30, classes=5)
    criterion = IEDLLoss(**options).to(DEVICE)
    assert_same(logits_like(3, 30, 5), target.to(DEVICE), criterion)


@pytest.mark.parametrize("soft_targets", [False, True], ids=["labels", "soft"])
@pytest.mark.parametrize("likelihood", EDL)
def test_edl(likelihood: str, soft_targets: bool) -> None:
    target = soft(50, 7) if soft_targets else labels(50, classes=7)
    criterion = losses.EDLLoss(likelihood).to(DEVICE)
    assert_same(logits_like(50, 7), target.to(DEVICE), criterion)


@pytest.mark.parametrize("evidence", EVIDENCE)
def test_evidence(evidence: str) -> None:
    criterion = IEDLLoss(evidence=evidence).to(DEVICE)
    assert_same(logits_like(60, 10), labels(60, classes=10).to(DEVICE), criterion)


def one_large(*shape: int) -> Tensor:
    logits = logits_like(*shape)
    logits[..., 7] = 1e6
    return logits


SHAPES: dict[str, tuple[Tensor, Tensor]] = {
    "one sample": (logits_like(4), torch.tensor(2)),
    "axes": (logits_like(2, 1, 3, 4), labels(2, 1, 3, classes=4)),
    "transposed": (logits_like(4, 50).mT, labels(50, classes=4)),
    "every other": (logits_like(80, 8)[::2, ::2], labels(80, classes=4)[::2]),
    "expanded": (logits_like(1, 4).expand(6, 4), torch.tensor([1]).expand(6)),
    "images": (logits_like(2, 19, 5, 7).movedim(1, -1), labels(2, 5, 7, classes=19)),
    "two jumps": (logits_like(2, 3, 4, 2, 5)[:, ::2, :, 0], labels(2, 2, 4, classes=5)),
    "images, soft": (logits_like(2, 6, 5, 7).movedim(1, -1), soft(2, 6, 5, 7).movedim(1, -1)),
    "images of many classes": (
        logits_like(2, 37, 3, 5).movedim(1, -1),
        labels(2, 3, 5, classes=37),
    ),
    "soft, transposed": (logits_like(50, 4), soft(50, 4).mT.contiguous().mT),
    "many programs": (logits_like(701, 3), labels(701, classes=3)),
    "a thousand classes": (logits_like(3, 1000), labels(3, classes=1000)),
    "loops": (logits_like(3, 2100), labels(3, classes=2100)),
    "loops, soft": (logits_like(3, 2100), soft(3, 2100)),
    "loops, one class large": (one_large(3, 2100), torch.tensor([5, 7, 9])),
}


def _shares(target: Tensor) -> Tensor:
    return target / target.sum(-1, keepdim=True) if target.is_floating_point() else target


@pytest.mark.parametrize(("logits", "target"), SHAPES.values(), ids=SHAPES)
def test_shapes(logits: Tensor, target: Tensor) -> None:
    criterion = IEDLLoss(reduction="none")
    assert_same(logits, _shares(target).to(DEVICE), criterion)


def test_the_gradient_has_the_strides_of_the_logits() -> None:
    logits = logits_like(2, 6, 4, 5).requires_grad_()
    IEDLLoss(class_dim=1)(logits, labels(2, 4, 5, classes=6).to(DEVICE)).backward()
    assert logits.grad is not None
    assert logits.grad.is_contiguous()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    logits, target = logits_like(40, 6).to(dtype), labels(40, classes=6).to(DEVICE)
    for aim in (target, soft(40, 6).to(DEVICE, dtype)):
        half, single = logits.clone().requires_grad_(), logits.float().requires_grad_()
        value, exact = IEDLLoss()(half, aim), IEDLLoss()(single, aim)
        value.backward()
        exact.backward()
        assert is_fused(value)
        assert value.dtype == torch.float32
        torch.testing.assert_close(value, exact)
        assert half.grad is not None
        assert single.grad is not None
        assert half.grad.dtype == dtype
        torch.testing.assert_close(half.grad, single.grad.to(dtype))


@pytest.mark.parametrize("name", LOSSES)
def test_extreme_logits_are_finite(name: str) -> None:
    values = torch.tensor([-200.0, -30.0, 0.0, 30.0, 1e5, 1e30])
    logits = torch.cartesian_prod(values, values, values).to(DEVICE).requires_grad_()
    for target in (torch.arange(len(logits)) % 3, torch.full((len(logits), 3), 1 / 3)):
        value, _ = fused(LOSSES[name], logits, target.to(DEVICE))
        (gradient,) = torch.autograd.grad(value.sum(), logits)
        assert value.isfinite().all()
        assert gradient.isfinite().all()


def test_what_is_not_a_number_is_not_hidden() -> None:
    for evidence in EVIDENCE:
        logits = torch.tensor([[0.0, math.nan, 1.0], [0.0, 1.0, 2.0]], device=DEVICE)
        value, _ = fused(IEDL, logits, torch.tensor([0, 1], device=DEVICE), evidence=evidence)
        assert value.isnan().tolist() == [True, False]


def test_a_label_that_is_no_class_shows() -> None:
    target = torch.tensor([0, 3, -1, -100], device=DEVICE)
    value, _ = fused(IEDL, logits_like(4, 3), target)
    assert value.isnan().tolist() == [False, True, True, False]
    assert value[3] == 0


def test_a_batch_that_is_ignored_whole_is_zero() -> None:
    logits = logits_like(5, 3).requires_grad_()
    value = IEDLLoss()(logits, torch.full((5,), -100, device=DEVICE))
    (gradient,) = torch.autograd.grad(value, logits)
    assert is_fused(value)
    assert value == 0
    assert (gradient == 0).all()


def test_moving_weights_and_sums() -> None:
    method = METHODS["iedl"](scale="per_class")
    logits, target = logits_like(30, 6).requires_grad_(), labels(30, classes=6).to(DEVICE)
    exact = logits.detach().double().requires_grad_()
    weights = torch.tensor([1.0, 1.0, 0.05, 0.3], device=DEVICE)
    for kl in (0.0, 0.7):
        weights[3] = kl
        loss, sums = method.loss_of(logits, target, weights)
        wanted, terms = method.loss_of(exact, target, weights.double())
        assert is_fused(loss)
        torch.testing.assert_close(loss.double(), wanted, rtol=1e-6, atol=0)
        torch.testing.assert_close(sums.double(), terms, rtol=1e-6, atol=0)
        slopes = torch.autograd.grad(loss, logits)[0].double()
        torch.testing.assert_close(
            slopes, torch.autograd.grad(wanted, exact)[0], rtol=1e-5, atol=1e-7
        )


# --- what torch does with an operator ------------------------------------------------------------


def test_second_derivatives_are_those_of_plain_torch() -> None:
    weight, target = torch.tensor([1.0, 2.0, 0.5, 1.0]), labels(6, classes=4).to(DEVICE)
    criterion, found = IEDLLoss(class_weight=weight).to(DEVICE), []
    for dtype in (torch.float32, torch.float64):
        logits = torch.linspace(-3, 5, 24, dtype=dtype, device=DEVICE).reshape(6, 4)
        value = criterion(logits.requires_grad_(), target)
        (slopes,) = torch.autograd.grad(value, logits, create_graph=True)
        (second,) = torch.autograd.grad(slopes.square().sum(), logits)
        found.append((slopes.detach().double(), second.double()))
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-7)
    assert found[0][1].abs().max() > 0


def test_a_graph_that_is_kept_gives_the_same_twice() -> None:
    logits = logits_like(6, 4).requires_grad_()
    value = IEDLLoss()(logits, labels(6, classes=4).to(DEVICE))
    (first,) = torch.autograd.grad(3 * value, logits, retain_graph=True)
    held = first.clone()
    (second,) = torch.autograd.grad(3 * value, logits, retain_graph=True)
    assert torch.equal(first, held)
    torch.testing.assert_close(first, second, rtol=1e-6, atol=1e-7)
    (third,) = torch.autograd.grad(value, logits)
    torch.testing.assert_close(3 * third, first, rtol=1e-6, atol=1e-7)


# Every loss at every shape, and with both reductions in one program and in several: a reduction is
# a factor of each row, which does not know how the classes are cut up. Interpreted, 800 rows are
# two tiles for each of two programs, and the last of them overlaps.
ONE_PASS = [
    ((800, 5), "iedl", "mean"),
    ((800, 5), "mse", "sum"),
    ((300, 19), "iedl", "mean"),
    ((300, 19), "mse", "sum"),
    ((4, 2), "iedl", "mean"),
    ((4, 2), "iedl", "sum"),
    ((4, 2), "mse", "mean"),
    ((4, 2), "mse", "sum"),
    ((7, 15), "iedl", "sum"),
    ((7, 15), "mse", "mean"),
    ((270, 15), "iedl", "sum"),
    ((270, 15), "mse", "mean"),
]


@pytest.mark.parametrize(("shape", "loss", "reduction"), ONE_PASS)
def test_one_pass_is_as_good_as_two(shape: tuple[int, int], loss: str, reduction: str) -> None:
    """Over several programs, with labels left out, weights of classes, and a class that has all."""
    weights = LOSSES[loss]
    logits, target = logits_like(*shape), labels(shape[0], classes=shape[1]).to(DEVICE)
    logits[0, 1], logits[-1, 0] = 1e6, 1e30
    target[::3] = -100
    class_weight = torch.linspace(0.5, 2, shape[1]).to(DEVICE)
    found, slopes = [], []
    for operator in ("evidential_loss", "evidential_loss_once"):
        leaf = logits.clone().requires_grad_()
        value, sums = fused(
            weights, leaf, target, operator=operator, reduction=reduction, class_weight=class_weight
        )
        found.append((value.detach(), sums))
        slopes.append(torch.autograd.grad(0.7 * value, leaf)[0])
    torch.testing.assert_close(*found, rtol=2e-6, atol=0)
    least = torch.finfo(torch.float32).tiny
    error = (slopes[0] - slopes[1]).abs() / slopes[0].abs().amax(-1, keepdim=True).clamp(min=least)
    assert error.max() < 2e-6


def test_one_pass_takes_rows_as_they_lie() -> None:
    logits, target = logits_like(2, 5, 11, 13), labels(2, 11, 13, classes=5).to(DEVICE)
    found = []
    for held in (logits.movedim(1, -1), logits.movedim(1, -1).contiguous()):
        leaf = held.detach().requires_grad_()
        value, _ = fused(IEDL, leaf, target, operator="evidential_loss_once", reduction="mean")
        (slopes,) = torch.autograd.grad(value, leaf)
        assert slopes.stride() == leaf.stride()
        found.append((value.detach(), slopes.contiguous()))
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-9)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_operators_are_what_they_say() -> None:
    numbers, places, columns = (
        [1.0] * 8,
        [-1, -1, -2, -2, -1, 0, -2, -2],
        [0, 1, -1, -1, 2, 3, -1, -1],
    )
    moving = torch.tensor([0.5], device=DEVICE)
    logits, target = logits_like(2, 3, 4).requires_grad_(), labels(2, 3, classes=4).to(DEVICE)
    rest = (None, moving, numbers, places, columns, 1.0, "softplus", -100)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    given = (logits, target, *rest, "none")
    torch.library.opcheck(triton_ops.evidential_loss, given, test_utils=tests)
    torch.library.opcheck(
        triton_once_ops.evidential_loss_once, (*given[:-1], "sum"), test_utils=tests
    )
    rescaled = (logits.detach().clone(), moving[0])
    torch.library.opcheck(triton_once_ops.evidential_rescale, rescaled, test_utils=tests)
    measured = (logits.detach(), "softplus")
    torch.library.opcheck(triton_ops.evidential_measures, measured, test_utils=tests)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)
    logits, target = logits_like(6, 4).requires_grad_(), labels(6, classes=4).to(DEVICE)
    torch._dynamo.reset()
    criterion = IEDLLoss().to(DEVICE)
    step = torch.compile(criterion, backend="aot_eager", fullgraph=True)
    (compiled,) = torch.autograd.grad(step(logits, target), logits)
    (eager,) = torch.autograd.grad(criterion(logits, target), logits)
    torch.testing.assert_close(compiled, eager)


# --- the choice ----------------------------------------------------------------------------------


def test_off_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, target = logits_like(6, 4).requires_grad_(), labels(6, classes=4).to(DEVICE)
    assert is_fused(IEDLLoss()(logits, target))
    monkeypatch.setenv("DUBITO_KERNELS", "off")
    assert not is_fused(IEDLLoss()(logits, target))


def test_an_old_triton_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_TRITON", (99, 0))
    kernels._gpu.cache_clear()
    try:
        logits, target = logits_like(6, 4).requires_grad_(), labels(6, classes=4).to(DEVICE)
        assert not is_fused(IEDLLoss()(logits, target))
    finally:
        kernels._gpu.cache_clear()


LEFT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "float64": lambda x, t: IEDLLoss()(x.double(), t),
    "alpha": lambda x, t: losses.iedl(alpha_from_logits(x), t),
    "a learnt weight": lambda x, t: Loss()(
        {"mse_bias": torch.ones((), device=x.device, requires_grad=True)}, x, t, "softplus"
    ),
    "a weight a sample": lambda x, t: Loss(reduction="none")(
        {"mse_bias": torch.ones(8, device=x.device)}, x, t, "softplus"
    ),
}


@pytest.mark.parametrize("call", LEFT.values(), ids=LEFT)
def test_left_to_plain_torch(call: Callable[[Tensor, Tensor], Tensor]) -> None:
    value = call(logits_like(8, 4).requires_grad_(), labels(8, classes=4).to(DEVICE))
    assert not is_fused(value)
    assert value.isfinite().all()


def test_errors_are_those_of_plain_torch() -> None:
    with pytest.raises(ValueError, match="the batch is empty"):
        IEDLLoss()(torch.ones(0, 3, device=DEVICE), torch.zeros(0, dtype=torch.long, device=DEVICE))
    with pytest.raises(ValueError, match="target has shape"):
        IEDLLoss()(logits_like(4, 3), labels(5, classes=3).to(DEVICE))


def test_functional_transforms() -> None:
    logits, target = logits_like(6, 4), labels(6, classes=4).to(DEVICE)
    each = torch.func.vmap(torch.func.grad(IEDLLoss(reduction="sum")))(logits, target)
    leaf = logits.clone().requires_grad_()
    (together,) = torch.autograd.grad(IEDLLoss(reduction="sum")(leaf, target), leaf)
    torch.testing.assert_close(each, together, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("classes", [3, 50])
def test_a_prediction_takes_its_measures_from_the_kernel(classes: int) -> None:
    logits = logits_like(20, classes)
    said, exact = Prediction.from_logits(logits), Prediction.from_logits(logits.double())
    for name in said.available:
        torch.testing.assert_close(
            said.measure(name).double(), exact.measure(name), rtol=1e-5, atol=1e-7
        )
