"""The spectral convolution against torch's own."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from dubito.backbones import spectral
from dubito.backbones.spectral import SpectralConv2d


def direct(layer: SpectralConv2d, x: Tensor) -> Tensor:
    return functional.conv2d(x, layer.weight, layer.bias, padding=layer.padding)


def called(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A list that grows with each spectral forward pass."""
    calls: list[bool] = []
    inner = spectral._basis

    def seen(*shape: int) -> object:
        calls.append(True)
        return inner(*shape)

    monkeypatch.setattr(spectral, "_basis", seen)
    return calls


@settings(deadline=None, max_examples=25)
@given(
    height=st.integers(1, 20),
    width=st.integers(1, 20),
    size=st.sampled_from([1, 3, 5, 7]),
    samples=st.integers(1, 3),
    last=st.booleans(),
)
def test_values_and_gradients(height: int, width: int, size: int, samples: int, last: bool) -> None:
    torch.manual_seed(height * 100 + width)
    layer = SpectralConv2d(3, 4, size)
    x = torch.randn(samples, 3, height, width)
    if last:
        x = x.to(memory_format=torch.channels_last)
    x.requires_grad_()
    ours, expected = layer(x), direct(layer, x)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=2e-5)
    slopes = torch.randn_like(expected)
    assert layer.bias is not None
    inputs = (x, layer.weight, layer.bias)
    got, wanted = (torch.autograd.grad(y, inputs, slopes) for y in (ours, expected))
    for one, other in zip(got, wanted, strict=True):
        largest = other.abs().max().item()
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5 * max(largest, 1))


def test_same_parameters_as_torch() -> None:
    torch.manual_seed(0)
    ours = SpectralConv2d(2, 3, 5)
    torch.manual_seed(0)
    theirs = nn.Conv2d(2, 3, 5, padding=2)
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value)


def test_second_derivatives() -> None:
    torch.manual_seed(0)
    layer, x = SpectralConv2d(2, 3, 3), torch.randn(2, 2, 5, 6, requires_grad=True)

    def curvature(y: Tensor) -> tuple[Tensor, ...]:
        inputs = (x, layer.weight)
        first = torch.autograd.grad(y.square().sum(), inputs, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), inputs)  # type: ignore[arg-type]

    for one, other in zip(curvature(layer(x)), curvature(direct(layer, x)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-2)


def test_a_frozen_input_needs_no_gradient() -> None:
    layer, x = SpectralConv2d(1, 2, 5), torch.rand(3, 1, 9, 9)
    layer(x).sum().backward()
    (expected,) = torch.autograd.grad(direct(layer, x).sum(), [layer.weight])
    assert layer.weight.grad is not None
    torch.testing.assert_close(layer.weight.grad, expected, rtol=1e-4, atol=1e-4)


def test_only_training_on_a_cpu_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = called(monkeypatch)
    layer, x = SpectralConv2d(1, 2, 5), torch.rand(2, 1, 14, 14)
    layer(x)
    assert calls
    calls.clear()
    with torch.no_grad():
        layer(x)
    layer(torch.rand(2, 1, 28, 28))  # 784 positions: direct sums are cheaper
    layer.double()(x.double())
    assert not calls


def test_mapped_and_traced() -> None:
    layer, x = SpectralConv2d(1, 2, 3), torch.rand(4, 1, 6, 6)
    mapped = torch.func.vmap(lambda one: layer(one[None])[0])(x)
    torch.testing.assert_close(mapped, layer(x), rtol=1e-5, atol=1e-5)
    exported = torch.export.export(layer, (x,)).module()
    torch.testing.assert_close(exported(x), layer(x), rtol=1e-5, atol=1e-5)


def test_even_filters_are_refused() -> None:
    with pytest.raises(ValueError, match="size must be odd"):
        SpectralConv2d(1, 1, 4)
