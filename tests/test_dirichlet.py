"""The distribution as torch users know it, its shapes and its dtypes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dubito import Dirichlet, dirichlet

SCALARS = (
    "entropy_of_mean", "expected_entropy", "mutual_information", "differential_entropy",
    "kl_to_uniform", "fisher_logdet", "vacuity", "dissonance",
)  # fmt: skip
VECTORS = ("mean", "variance", "belief")
MATRICES = ("covariance", "fisher_information")
ALPHA = 1 + 10 * torch.rand(2, 3, 5, generator=torch.Generator().manual_seed(0))


def test_users_of_torchs_distribution_can_swap_ours_in() -> None:
    theirs = torch.distributions.Dirichlet(ALPHA.double())
    ours = Dirichlet(ALPHA.double())
    torch.testing.assert_close(ours.mean, theirs.mean)
    torch.testing.assert_close(ours.variance, theirs.variance)
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    torch.testing.assert_close(ours.mode, theirs.mode)
    p = theirs.sample()
    torch.testing.assert_close(ours.log_prob(p), theirs.log_prob(p))
    assert ours.batch_shape == (2, 3)
    assert ours.event_shape == (5,)
    assert ours.rsample((7,)).shape == (7, 2, 3, 5)
    wide = ours.expand((4, 2, 3))
    assert isinstance(wide, Dirichlet)
    assert wide.mutual_information().shape == (4, 2, 3)
    other = 1 + torch.rand(2, 3, 5, dtype=torch.float64)
    torch.testing.assert_close(
        torch.distributions.kl_divergence(ours, Dirichlet(other)),
        torch.distributions.kl_divergence(theirs, torch.distributions.Dirichlet(other)),
    )
    torch.testing.assert_close(
        torch.distributions.kl_divergence(ours, torch.distributions.Dirichlet(other)),
        ours.kl_divergence(torch.distributions.Dirichlet(other)),
    )


@pytest.mark.parametrize("name", SCALARS + VECTORS + MATRICES)
def test_methods_are_the_functions(name: str) -> None:
    ours = getattr(Dirichlet(ALPHA), name)
    expected = getattr(dirichlet, name)(ALPHA)
    assert torch.equal(ours if name in ("mean", "variance") else ours(), expected)
    ends: tuple[int, ...] = () if name in SCALARS else (5,) if name in VECTORS else (5, 5)
    assert expected.shape == (2, 3, *ends)


@pytest.mark.parametrize("name", SCALARS + VECTORS + MATRICES)
def test_leading_axes_and_memory_layout_do_not_matter(name: str) -> None:
    function = getattr(dirichlet, name)
    expected = function(ALPHA)
    flat = function(ALPHA.reshape(6, 5)).reshape(expected.shape)
    torch.testing.assert_close(flat, expected)
    strided = ALPHA.transpose(0, 1).contiguous().transpose(0, 1)
    torch.testing.assert_close(function(strided), expected)
    torch.testing.assert_close(function(ALPHA[0, 0]), expected[0, 0])
    assert function(ALPHA[:0]).shape == (0, *expected.shape[1:])


@pytest.mark.parametrize("name", SCALARS + VECTORS + MATRICES)
def test_dtypes(name: str) -> None:
    function = getattr(dirichlet, name)
    expected = function(ALPHA.double())
    assert expected.dtype == torch.float64
    half = ALPHA.bfloat16()
    assert function(half).dtype == torch.float32
    torch.testing.assert_close(function(half), function(half.float()))
    torch.testing.assert_close(function(ALPHA).double(), expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("name", SCALARS)
def test_functions_work_under_torch_func(name: str) -> None:
    function = getattr(dirichlet, name)
    alpha = ALPHA.double().reshape(6, 5)
    torch.testing.assert_close(torch.vmap(function)(alpha), function(alpha))
    jacobian = torch.func.jacrev(function)(alpha[0])
    leaf = alpha[0].clone().requires_grad_()
    function(leaf).backward()
    torch.testing.assert_close(jacobian, leaf.grad)


@given(
    st.lists(st.floats(1, 1e6), min_size=2, max_size=6),
    st.sampled_from(SCALARS),
)
def test_the_order_of_classes_does_not_matter(values: list[float], name: str) -> None:
    function = getattr(dirichlet, name)
    alpha = torch.tensor(values, dtype=torch.float64)
    torch.testing.assert_close(function(alpha.flip(-1)), function(alpha), rtol=1e-9, atol=1e-12)


@given(st.lists(st.floats(1, 2.0**99, width=32), min_size=2, max_size=8))
def test_relations_between_the_quantities(values: list[float]) -> None:
    alpha = torch.tensor(values)
    total = dirichlet.entropy_of_mean(alpha)
    parts = dirichlet.expected_entropy(alpha) + dirichlet.mutual_information(alpha)
    torch.testing.assert_close(total, parts, rtol=1e-5, atol=1e-37)
    masses = dirichlet.belief(alpha).sum() + dirichlet.vacuity(alpha)
    torch.testing.assert_close(masses, torch.tensor(1.0), rtol=1e-6, atol=1e-6)
    assert dirichlet.kl_to_uniform(alpha) >= 0
    assert dirichlet.mutual_information(alpha) >= 0
    assert 0 <= dirichlet.dissonance(alpha) <= 1 + 1e-6


def test_the_fisher_information_has_its_determinant() -> None:
    alpha = ALPHA.double()
    matrix = dirichlet.fisher_information(alpha)
    torch.testing.assert_close(torch.logdet(matrix), dirichlet.fisher_logdet(alpha))


def test_dissonance_in_blocks_is_dissonance(monkeypatch: pytest.MonkeyPatch) -> None:
    from dubito import _dissonance

    alpha = ALPHA.double().requires_grad_()
    whole = dirichlet.dissonance(alpha)
    (gradient,) = torch.autograd.grad(whole.sum(), alpha)
    monkeypatch.setattr(_dissonance, "BLOCK", 2 * alpha.numel())
    parts = dirichlet.dissonance(alpha)
    torch.testing.assert_close(parts, whole)
    torch.testing.assert_close(torch.autograd.grad(parts.sum(), alpha)[0], gradient)


def test_a_probability_below_all_numbers_has_an_entropy() -> None:
    alpha = torch.tensor([1e26, 2.7e-35, 1.3e11])
    for measure in (dirichlet.entropy_of_mean, dirichlet.expected_entropy):
        leaf = alpha.clone().requires_grad_()
        value = measure(leaf)
        exact = measure(alpha.double())
        torch.testing.assert_close(value.double(), exact, rtol=1e-5, atol=0, check_dtype=False)
        value.backward()
        assert leaf.grad is not None
        assert leaf.grad.isfinite().all()
