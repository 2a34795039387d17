"""Losses and inputs for the tests of the kernels."""

from typing import Any

import torch
from torch import Tensor

from dubito.kernels import fused_loss
from dubito.numerics.spec import LossSpec
from dubito.numerics.torch_backend import reference_loss

IEDL = ("fisher_bias", "fisher_variance", "fisher_penalty", "label_removed_kl")
_PRIOR_NETWORK: dict[str, Any] = {"evidence": "exp", "prior": 0.0}
#: every loss of the package, and other combinations that a user may build
LOSSES: dict[str, dict[str, Any]] = {
    "iedl": {"forms": IEDL},
    "iedl relu": {"forms": IEDL, "evidence": "relu"},
    "iedl exp": {"forms": IEDL, "evidence": "exp"},
    "iedl per class": {"forms": IEDL, "per_class": True},
    "iedl reverse_kl": {"forms": (*IEDL[:3], "reverse_kl"), "beta": 100.0},
    "iedl exp without prior": {"forms": IEDL, **_PRIOR_NETWORK},
    "iedl alpha": {"forms": IEDL, "evidence": None, "prior": 0.0},
    "edl mse": {"forms": ("mse_bias", "mse_variance", "label_removed_kl")},
    "edl nll": {"forms": ("marginal_nll", "label_removed_kl")},
    "edl cross entropy": {"forms": ("expected_cross_entropy", "label_removed_kl")},
    "r-edl": {"forms": ("mse_bias", "label_removed_kl"), "prior": 0.1},
    "uce": {"forms": ("expected_cross_entropy", "differential_entropy"), "evidence": "exp"},
    "prior network": {"forms": ("forward_kl",), "beta": 100.0, **_PRIOR_NETWORK},
    "prior network reverse": {"forms": ("reverse_kl",), "beta": 100.0, **_PRIOR_NETWORK},
    "prior network OOD": {"forms": ("kl_from_uniform",), **_PRIOR_NETWORK},
    "prior network reverse OOD": {"forms": ("kl_to_uniform",), **_PRIOR_NETWORK},
    "alpha, other forms": {
        "forms": ("mse_bias", "mse_variance", "marginal_nll", "expected_cross_entropy"),
        "evidence": None,
        "prior": 0.0,
    },
}
#: losses whose kernels take soft targets: alpha >= 1, and no target Dirichlet from the target
SOFT = ("iedl", "iedl per class", "edl mse", "edl nll", "edl cross entropy", "uce")


def spec_of(name: str, **options: Any) -> LossSpec:
    return LossSpec(**(LOSSES[name] | options))


def hard_values(spec: LossSpec, rows: int, classes: int, seed: int = 0) -> Tensor:
    """Values whose alpha spans 1e-6 to 1e9 where the evidence function reaches that."""
    rng = torch.Generator().manual_seed(seed)
    exponent = torch.rand(rows, classes, generator=rng)
    if spec.evidence == "exp":
        return -13 + 33 * exponent
    if spec.evidence is None:
        return 10 ** (-6 + 15 * exponent)
    values = 4 * torch.randn(rows, classes, generator=rng)
    if classes > 1:
        values[:: max(1, rows // 3), 0] = 1e6
    return values


def labels(*shape: int, classes: int, seed: int = 1) -> Tensor:
    return torch.randint(classes, shape, generator=torch.Generator().manual_seed(seed))


def soft_targets(*shape: int) -> Tensor:
    """Some classes have no share, as in a label spread over a few."""
    draws = torch.rand(*shape, generator=torch.Generator().manual_seed(2))
    draws = torch.where(draws < 0.3, 0, draws)
    draws[..., 0] += 1e-3
    return draws / draws.sum(-1, keepdim=True)


def weights_of(spec: LossSpec, device: str = "cpu") -> Tensor:
    return torch.linspace(1, 0.3, len(spec.forms), device=device)


def assert_agrees(
    spec: LossSpec,
    values: Tensor,
    target: Tensor,
    class_weight: Tensor | None = None,
    rtol: float = 1e-5,
) -> None:
    """The kernel against the torch forms in float64: loss, sums and gradient.

    The gradient's errors are relative to the row's largest slope.
    """
    weights = weights_of(spec, values.device.type)
    leaf = values.detach().requires_grad_()
    result = fused_loss(spec, leaf, target, weights, class_weight)
    assert result is not None
    exact = values.detach().double().requires_grad_()
    wide = target.double() if target.is_floating_point() else target
    by_class = None if class_weight is None else class_weight.double()
    expected = reference_loss(spec, exact, wide, weights.double(), by_class)
    torch.testing.assert_close(result[0].double(), expected[0], rtol=rtol, atol=1e-9)
    torch.testing.assert_close(result[1].double(), expected[1], rtol=rtol, atol=1e-9)
    factor = torch.linspace(0.5, 2, expected[0].numel(), device=values.device)
    factor = factor.reshape(expected[0].shape)
    (gradient,) = torch.autograd.grad((factor * result[0]).sum(), leaf)
    (slopes,) = torch.autograd.grad((factor * expected[0]).sum(), exact)
    assert gradient.dtype == values.dtype
    size = slopes.abs().amax(-1, keepdim=True).clamp(min=1e-30)
    precision = max(rtol, 4 * torch.finfo(values.dtype).eps)
    assert ((gradient.double() - slopes).abs() / size).max() < precision
