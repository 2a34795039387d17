"""Radial flows: a loop over classes, the Jacobian by autograd, and the integral say the same."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import jacrev, vmap

from benchmarks.flows import LoopedFlows
from dubito.methods.posterior_network import RadialFlows


def wild(classes: int, dim: int, length: int = 6, scale: float = 2.0) -> RadialFlows:
    """Flows far from where they start."""
    flows = RadialFlows(classes, dim, length)
    for parameter in flows.parameters():
        torch.nn.init.normal_(parameter, std=scale)
    return flows


@pytest.mark.parametrize("classes", [1, 10, 37])
def test_all_classes_at_once_are_the_loop_over_classes(classes: int) -> None:
    flows = wild(classes, dim=6, scale=1.0)
    loop = LoopedFlows(flows)
    ours, theirs = (torch.randn(64, 6, generator=_generator()).requires_grad_() for _ in range(2))
    density, looped = flows(ours), loop(theirs)
    torch.testing.assert_close(density, looped, rtol=1e-5, atol=1e-5)
    weights = torch.rand(64, classes)
    (weights * density).sum().backward()
    (weights * looped).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-4)
    for name in ("center", "raw_radius", "raw_stretch"):
        gradients = [[getattr(layer, name).grad for layer in layers] for layers in loop.classes]
        expected = torch.stack([torch.stack(layers) for layers in gradients], 1)
        torch.testing.assert_close(getattr(flows, name).grad, expected, rtol=1e-4, atol=1e-3)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_log_det_is_that_of_the_jacobian() -> None:
    flows = wild(4, dim=3).double()
    x = torch.randn(20, 3, dtype=torch.float64) * 2
    _, log_det = flows.transform(x)
    jacobian = vmap(jacrev(lambda point: flows.transform(point)[0]))(x)  # (N, K, D, D)
    sign, expected = torch.linalg.slogdet(jacobian)
    assert (sign == 1).all()
    torch.testing.assert_close(log_det, expected)


def test_densities_integrate_to_one() -> None:
    flows = wild(5, dim=2, scale=1.0).double()
    edge = torch.linspace(-13, 13, 521, dtype=torch.float64)
    with torch.no_grad():
        density = flows(torch.cartesian_prod(edge, edge)).exp()
    assert density.amax() > 10 * density[len(density) // 2].amin()  # far from one bump at 0
    integral = density.sum(0) * (edge[1] - edge[0]) ** 2
    torch.testing.assert_close(integral, torch.ones(5).double(), rtol=0, atol=1e-3)


@given(radius=st.floats(-30, 30), stretch=st.floats(-30, 30), near=st.floats(1e-3, 1e3))
def test_every_parameter_gives_an_invertible_map(
    radius: float, stretch: float, near: float
) -> None:
    """Along a ray the distance from the center rises: two points never meet."""
    flows = RadialFlows(1, 2, length=1).double()
    with torch.no_grad():
        flows.raw_radius.fill_(radius)
        flows.raw_stretch.fill_(stretch)
        center = flows.center[0, 0]
        rays = torch.tensor([[near, 0.0], [near * 1.01, 0.0]], dtype=torch.float64)
        points, log_det = flows.transform(center + rays)
    first, second = (points[:, 0] - center)[:, 0].tolist()
    assert 0 < first < second
    assert log_det.isfinite().all()


def test_a_point_at_a_centre_has_finite_gradients() -> None:
    flows = RadialFlows(3, 2)
    x = flows.center[0].detach().clone().requires_grad_()
    flows(x).sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in flows.parameters())


def test_far_away_no_class_has_density() -> None:
    assert (wild(10, 6)(torch.full((1, 6), 300.0)) < -10_000).all()
