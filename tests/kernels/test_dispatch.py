"""Which losses the kernels compute, and which the torch forms."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from dubito import Dirichlet, iedl, kernels
from dubito.errors import DubitoError
from dubito.numerics.spec import LossSpec
from tests.kernels.samples import hard_values, labels, soft_targets, spec_of, weights_of


def call(
    spec: LossSpec, values: Tensor | None = None, target: Tensor | None = None, **options: Any
) -> tuple[Tensor, Tensor] | None:
    values = hard_values(spec, 8, 4) if values is None else values
    target = labels(8, classes=4) if target is None else target
    weights = options.get("weights", weights_of(spec))
    return kernels.fused_loss(spec, values, target, weights, options.get("class_weight"))


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpret the Triton kernels here."""
    pytest.importorskip("triton")
    from dubito.kernels import triton_math

    if triton_math.COMPILED.value:
        pytest.skip("the Triton kernels are not interpreted")
    monkeypatch.setattr(kernels, "_DEVICE", "cpu")


@pytest.mark.usefixtures("triton")
def test_off_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUBITO_KERNELS", "off")
    assert call(spec_of("iedl")) is None
    for mode in ("auto", ""):
        monkeypatch.setenv("DUBITO_KERNELS", mode)
        assert call(spec_of("iedl")) is not None
    monkeypatch.setenv("DUBITO_KERNELS", "of")
    with pytest.raises(DubitoError, match=r"unknown DUBITO_KERNELS 'of'; known: 'auto', 'off'"):
        call(spec_of("iedl"))


def _spec(**options: Any) -> LossSpec:
    return spec_of("iedl", **options)


class Wrapped(Tensor):
    """A tensor that may do anything."""


#: calls that the kernels do not support
UNSUPPORTED: dict[str, Callable[[], Any]] = {
    "float64": lambda: call(_spec(), hard_values(_spec(), 8, 4).double()),
    "one class": lambda: call(_spec(), torch.ones(8, 1, dtype=torch.float64)),
    "no rows": lambda: call(_spec(), torch.ones(0, 4), torch.zeros(0, dtype=torch.long)),
    "a prior above 1": lambda: call(_spec(prior=2.0)),
    "another shape": lambda: call(_spec(), target=labels(7, classes=4)),
    "a target that is differentiated": lambda: call(
        _spec(), target=soft_targets(8, 4).requires_grad_()
    ),
    "learned weights": lambda: call(_spec(), weights=torch.ones(4, requires_grad=True)),
    "weights of another length": lambda: call(_spec(), weights=torch.ones(3)),
    "learned class weights": lambda: call(_spec(), class_weight=torch.ones(4, requires_grad=True)),
    "a subclass of Tensor": lambda: call(_spec(), hard_values(_spec(), 8, 4).as_subclass(Wrapped)),
    "Boolean labels": lambda: call(_spec(), target=torch.ones(8, dtype=torch.bool)),
}


@pytest.mark.usefixtures("triton")
@pytest.mark.parametrize("case", UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_unsupported_calls(case: Callable[[], Any]) -> None:
    assert call(spec_of("iedl")) is not None  # a plan for the valid input exists
    assert case() is None


SOFT_UNSUPPORTED = [
    "r-edl",
    "iedl alpha",
    "prior network",
    "prior network reverse",
    "iedl reverse_kl",
]


@pytest.mark.usefixtures("triton")
@pytest.mark.parametrize("name", SOFT_UNSUPPORTED)
def test_unsupported_soft_targets(name: str) -> None:
    assert call(spec_of(name), target=soft_targets(8, 4)) is None


@pytest.mark.usefixtures("triton")
@pytest.mark.parametrize(
    "options",
    [
        {"forms": ("forward_kl", "kl_from_uniform")},
        {"forms": ("label_removed_kl", "kl_to_uniform"), "prior": 0.1},
    ],
)
def test_two_target_dirichlets_are_unsupported(options: dict[str, Any]) -> None:
    assert call(_spec(**options)) is None


def test_other_devices_are_unsupported() -> None:
    assert call(spec_of("iedl")) is None


@pytest.mark.usefixtures("triton")
def test_transforms_and_modes() -> None:
    from torch._subclasses import FakeTensorMode
    from torch.autograd.forward_ad import dual_level
    from torch.utils.flop_counter import FlopCounterMode

    spec = spec_of("iedl")
    arguments = hard_values(spec, 8, 4), labels(8, classes=4), weights_of(spec), None
    results: list[object] = []

    def record(x: Tensor) -> Tensor:
        results.append(kernels.fused_loss(spec, x, *arguments[1:]))
        return x.sum()

    torch.func.vmap(record)(arguments[0].expand(2, 8, 4))
    torch.func.grad(record)(arguments[0])
    for mode in (FlopCounterMode(display=False), dual_level(), FakeTensorMode()):
        with mode:
            results.append(kernels.fused_loss(spec, *arguments))
    assert results == [None] * 5


def test_unsupported_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.randn(8, 4)
    assert kernels.uncertainty(values, "softplus", 1.0) is None  # not on a GPU
    monkeypatch.setattr(kernels, "_DEVICE", "cpu")
    assert kernels.uncertainty(values, "softplus", 0.1) is None
    assert kernels.uncertainty(values.exp(), None, 1.0) is None
    assert kernels.uncertainty(values.requires_grad_(), "softplus", 1.0) is None


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, triton: None) -> Iterator[None]:
    """Look for Triton again."""
    monkeypatch.setattr(kernels, "_fits", True)
    kernels._triton.cache_clear()
    yield
    kernels._triton.cache_clear()


@pytest.mark.usefixtures("fresh")
def test_an_old_triton_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_TRITON", (99, 0))
    assert call(spec_of("iedl")) is None


def assert_falls_back(monkeypatch: pytest.MonkeyPatch, warning: str) -> None:
    """The loss is that of the torch forms, with one warning: a second one would be an error."""
    dist, target = Dirichlet.from_logits(torch.randn(8, 4)), labels(8, classes=4)
    with pytest.warns(RuntimeWarning, match=warning) as caught:
        losses = [iedl(dist, target)]
    assert len(caught) == 1
    losses.append(iedl(dist, target))
    monkeypatch.setenv("DUBITO_KERNELS", "off")
    assert losses == [iedl(dist, target)] * 2


@pytest.mark.usefixtures("fresh")
def test_a_triton_that_lacks_a_name_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("triton._utils.canonicalize_dtype")
    for name in ("triton_backend", "triton_scores"):
        monkeypatch.delitem(sys.modules, f"dubito.kernels.{name}", raising=False)
    assert_falls_back(monkeypatch, r"^Triton 3\..* fused kernels \(.*'canonicalize_dtype'")


@pytest.mark.usefixtures("fresh")
def test_a_triton_with_another_launcher_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from dubito.kernels import triton_backend

    def launch(*_: object) -> None:
        raise kernels.Incompatible(TypeError("function takes exactly 13 arguments (12 given)"))

    monkeypatch.setattr(triton_backend.Kernel, "__call__", launch)
    assert_falls_back(monkeypatch, r"^Triton 3\..* takes exactly 13 arguments")
