"""The Triton kernels against the torch forms in float64, and under autograd.

They are interpreted where there is no GPU, which takes small inputs.
"""

import json
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from dubito import kernels
from dubito.kernels import triton_backend
from dubito.numerics.spec import LossSpec
from dubito.numerics.torch_backend import reference_loss
from tests.kernels.devices import DEVICE, ON_DEVICE
from tests.kernels.samples import (
    LOSSES,
    SOFT,
    assert_agrees,
    hard_values,
    labels,
    soft_targets,
    spec_of,
    weights_of,
)

pytestmark = ON_DEVICE
SPEC = spec_of("iedl")


def inputs(spec: LossSpec, rows: int, classes: int) -> tuple[Tensor, Tensor]:
    values = hard_values(spec, rows, classes).to(DEVICE)
    return values, labels(rows, classes=classes).to(DEVICE)


def run(
    spec: LossSpec, values: Tensor, target: Tensor, class_weight: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    result = kernels.fused_loss(spec, values, target, weights_of(spec, DEVICE), class_weight)
    assert result is not None
    return result


# --- values and gradients ------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 19])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_agree_with_float64(name: str, classes: int) -> None:
    spec = spec_of(name)
    assert_agrees(spec, *inputs(spec, 30, classes))


@pytest.mark.parametrize("name", SOFT)
def test_soft_targets_agree_with_float64(name: str) -> None:
    spec = spec_of(name)
    values, _ = inputs(spec, 30, 7)
    by_class = torch.linspace(0, 2, 7, device=DEVICE)
    for reduction in ("mean", "none"):
        reduced = spec._replace(reduction=reduction)
        assert_agrees(reduced, values, soft_targets(30, 7).to(DEVICE), by_class)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", ["iedl", "r-edl", "prior network"])
def test_reductions_class_weights_and_ignored_labels(name: str, reduction: str) -> None:
    """Over several programs, the last with rows that another one has, too."""
    spec = spec_of(name, reduction=reduction, ignore_index=3)
    values, target = inputs(spec, 600, 5)
    assert_agrees(spec, values, target, torch.linspace(0, 2, 5, device=DEVICE))


@pytest.mark.parametrize(("rows", "classes"), [(601, 5), (6, 1500)])
def test_weights_of_many_rows_are_added_up_first(
    rows: int, classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_backend, "_MANY_BLOCKS", 2)
    spec = spec_of("iedl", ignore_index=3)
    values, target = inputs(spec, rows, classes)
    target[2] = 3
    assert_agrees(spec, values, target, torch.linspace(0, 2, classes, device=DEVICE))


@pytest.mark.parametrize("name", ["iedl", "r-edl", "prior network"])
@pytest.mark.parametrize(("classes", "reduction"), [(40, "sum"), (1100, "mean"), (1500, "none")])
def test_many_classes(name: str, classes: int, reduction: str) -> None:
    spec = spec_of(name, reduction=reduction, ignore_index=3)
    values, target = inputs(spec, 6, classes)
    target[2] = 3
    assert_agrees(spec, values, target)


@pytest.mark.parametrize("seed", range(3))
def test_random_hard_inputs(seed: int) -> None:
    """Random losses, shapes, reductions and values over the whole range."""
    rng = torch.Generator().manual_seed(100 + seed)

    def pick(options: Any) -> Any:
        return options[int(torch.randint(len(options), (), generator=rng))]

    for _ in range(6):
        name, classes = pick(list(LOSSES)), pick([2, 3, 5, 8, 11, 17, 31, 33, 70])
        spec = spec_of(name, reduction=pick(["mean", "sum", "none"]))
        rows = pick([1, 3, 64, 70])
        values = hard_values(spec, rows, classes, seed=int(pick(range(1000)))).to(DEVICE)
        target = labels(rows, classes=classes, seed=int(pick(range(1000)))).to(DEVICE)
        target[torch.rand(rows, generator=rng).to(DEVICE) < 0.2] = -100
        by_class = torch.rand(classes, generator=rng).to(DEVICE) if pick([0, 1]) else None
        assert_agrees(spec, values, target, by_class)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["iedl", "r-edl"])
def test_half_precision(name: str, dtype: torch.dtype) -> None:
    spec = spec_of(name)
    values = 4 * torch.randn(70, 10, generator=torch.Generator().manual_seed(0))
    target = labels(70, classes=10).to(DEVICE)
    # the polynomial of psi_2 for half precision is good to 1e-4
    assert_agrees(spec, values.to(dtype).to(DEVICE), target, rtol=2e-4)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_types_of_labels(dtype: torch.dtype) -> None:
    values, target = inputs(SPEC, 8, 5)
    assert_agrees(SPEC, values, target.to(dtype))


def test_large_gradients_in_the_mean_of_half_precision() -> None:
    """The gradient of a mean underflows in float16, but not with the loss scale in it."""
    values, target = torch.zeros(600, 10, device=DEVICE), torch.zeros(600, dtype=torch.long)
    slopes = []
    for dtype, scale in ((torch.float16, 2.0**14), (torch.float32, 1.0)):
        leaf = values.to(dtype).requires_grad_()
        loss, _ = run(SPEC, leaf, target.to(DEVICE))
        (loss * scale).backward()  # type: ignore[no-untyped-call]
        assert leaf.grad is not None
        slopes.append(leaf.grad.double() / scale)
    torch.testing.assert_close(*slopes, rtol=2e-3, atol=1e-8)


# --- layouts -------------------------------------------------------------------------------------


def _dense(values: Tensor) -> Tensor:
    """As the output of a segmentation network: (N, K, H, W) with the classes moved last."""
    return values.reshape(2, 3, 5, -1).permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)


LAYOUTS = {
    "dense": _dense,
    "every second row": lambda x: x.repeat_interleave(2, 0)[::2],
    "some columns": lambda x: torch.cat([x, x], 1)[:, : x.shape[1]],
    "transposed": lambda x: x.T.contiguous().T,
    "three jumps": lambda x: torch.cat([x.reshape(5, 3, 2, -1)] * 2, 1)[:, :3].permute(2, 0, 1, 3),
    "unaligned": lambda x: torch.cat([x.reshape(-1)[:1], x.reshape(-1)])[1:].reshape(x.shape),
}


@pytest.mark.parametrize("classes", [5, 40])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str, classes: int) -> None:
    values = LAYOUTS[layout](inputs(SPEC, 30, classes)[0])
    target = labels(*values.shape[:-1], classes=classes).to(DEVICE)
    assert_agrees(SPEC, values, target)
    assert_agrees(SPEC, values, soft_targets(*values.shape).to(DEVICE))


def test_dense_gradient_has_the_strides_of_the_values() -> None:
    leaf = _dense(inputs(SPEC, 30, 5)[0]).detach().requires_grad_()
    loss, _ = run(SPEC, leaf, labels(*leaf.shape[:-1], classes=5).to(DEVICE))
    (gradient,) = torch.autograd.grad(loss, leaf)
    assert gradient.stride() == leaf.stride()


def test_targets_that_are_not_contiguous() -> None:
    values, _ = inputs(SPEC, 12, 5)
    target = labels(12, 2, classes=5).to(DEVICE)[:, 0]
    assert_agrees(SPEC, values, target)
    for classes in (5, 40):
        soft = soft_targets(12, classes).to(DEVICE).T.contiguous().T
        assert_agrees(SPEC, inputs(SPEC, 12, classes)[0], soft)


# --- rows that do not count ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["iedl", "prior network"])
def test_ignored_rows_do_not_count_even_if_nan(name: str) -> None:
    spec = spec_of(name)
    values, target = inputs(spec, 6, 5)
    values[2], target[2] = float("nan"), -100
    leaf = values.requires_grad_()
    loss, sums = run(spec, leaf, target)
    (gradient,) = torch.autograd.grad(loss, leaf)
    counted = torch.arange(6, device=DEVICE) != 2
    alone = run(spec, values.detach()[counted], target[counted])
    torch.testing.assert_close((loss.detach(), sums), alone)
    assert gradient[counted].isfinite().all()


def test_nothing_but_ignored_rows() -> None:
    values, _ = inputs(SPEC, 4, 5)
    assert_agrees(SPEC, values, torch.full((4,), -100, device=DEVICE))


def test_a_label_that_is_no_class_gives_nan() -> None:
    loss, _ = run(SPEC, inputs(SPEC, 4, 5)[0], torch.tensor([0, 1, 5, 2], device=DEVICE))
    assert loss.isnan()


# --- autograd ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_backward_twice_through_a_retained_graph(dtype: torch.dtype) -> None:
    values, target = inputs(SPEC, 8, 5)
    leaf = values.to(dtype).requires_grad_()
    loss, _ = run(SPEC, leaf, target)
    first = torch.autograd.grad(2 * loss, leaf, retain_graph=True)[0].clone()
    second = torch.autograd.grad(2 * loss, leaf, retain_graph=True)[0]
    third = torch.autograd.grad(6 * loss, leaf)[0]
    torch.testing.assert_close(second, first, rtol=0, atol=0)
    torch.testing.assert_close(
        third, 3 * first, rtol=1e-2 if dtype == torch.bfloat16 else 1e-6, atol=0
    )
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(loss, leaf)


def test_gradients_accumulate() -> None:
    values, target = inputs(SPEC, 8, 5)
    leaf = values.requires_grad_()
    (once,) = torch.autograd.grad(run(SPEC, leaf, target)[0], leaf)
    for _ in range(2):
        run(SPEC, leaf, target)[0].backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(leaf.grad, 2 * once)


def test_second_derivatives() -> None:
    values, target = inputs(SPEC, 4, 3)
    weights = weights_of(SPEC, DEVICE)
    leaf = values.clamp(-3, 3).requires_grad_()
    hessians = []
    for loss, _ in (run(SPEC, leaf, target), reference_loss(SPEC, leaf, target, weights, None)):
        (slopes,) = torch.autograd.grad(loss, leaf, create_graph=True)
        hessians.append(torch.autograd.grad(slopes.square().sum(), leaf)[0])
    torch.testing.assert_close(*hessians, rtol=1e-5, atol=1e-7)


def test_without_gradient_no_graph() -> None:
    values, target = inputs(SPEC, 8, 5)
    loss, sums = run(SPEC, values, target)
    with torch.no_grad():
        again, _ = run(SPEC, values.requires_grad_(), target)
    assert not loss.requires_grad
    assert not sums.requires_grad
    assert not again.requires_grad
    torch.testing.assert_close(loss, again, rtol=0, atol=0)


def test_weights_that_change_in_place() -> None:
    """A plan keeps no weights: as a replayed graph does not."""
    values, target = inputs(SPEC, 8, 5)
    weights = torch.ones(4, device=DEVICE)
    first = kernels.fused_loss(SPEC, values, target, weights, None)
    weights.mul_(2)
    second = kernels.fused_loss(SPEC, values, target, weights, None)
    assert first is not None
    assert second is not None
    torch.testing.assert_close(second[0], 2 * first[0])
    torch.testing.assert_close(second[1], first[1])


# --- torch.compile -------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_compiles_without_graph_breaks(reduction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # the compiler turns this off for the whole process, and other tests need it
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)
    spec = spec_of("iedl", reduction=reduction)
    values, target = inputs(spec, 6, 4)
    weights = weights_of(spec, DEVICE)
    torch._dynamo.reset()

    def step(x: Tensor) -> Tensor:
        result = kernels.fused_loss(spec, x, target, weights, None)
        assert result is not None
        return result[0].sum()

    leaf = values.requires_grad_()
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    (result,) = torch.autograd.grad(compiled(leaf), leaf)
    (expected,) = torch.autograd.grad(step(leaf), leaf)
    torch.testing.assert_close(result, expected)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_operator_matches_its_schema() -> None:
    values, target = inputs(SPEC, 6, 4)
    encoded = json.dumps(spec_of("iedl", reduction="none"))
    arguments = (values.requires_grad_(), target, weights_of(SPEC, DEVICE), None, encoded, True)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(triton_backend.operator, arguments, test_utils=tests)


# --- scores --------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [3, 19, 50, 1100])
def test_scores_agree_with_float64(classes: int) -> None:
    from dubito.numerics.functions import evaluate

    values = hard_values(spec_of("iedl"), 20, classes).to(DEVICE)
    result = kernels.uncertainty(values, "softplus", 1.0)
    assert result is not None
    alpha = torch.nn.functional.softplus(values.double()) + 1
    forms = ("differential_entropy", "mutual_information", "expected_entropy", "entropy_of_mean")
    expected = dict(zip(forms, evaluate(forms, alpha), strict=True)) | {
        "max_alpha": alpha.amax(-1),
        "alpha0": alpha.sum(-1),
    }
    assert set(result) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(result[name].double(), value, rtol=1e-5, atol=1e-12, msg=name)


def test_scores_of_dense_logits() -> None:
    values = hard_values(spec_of("iedl"), 30, 5).to(DEVICE)
    dense = kernels.uncertainty(_dense(values), "softplus", 1.0)
    flat = kernels.uncertainty(_dense(values).contiguous(), "softplus", 1.0)
    assert dense is not None
    assert flat is not None
    torch.testing.assert_close(dense, flat)
    assert dense["alpha0"].shape == (2, 3, 5)
