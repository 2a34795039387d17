"""A convolution whose training step on a CPU is a product of spectra.

Filters of 5x5 on small maps cost a CPU most of a training step. The Fourier transform of such a map
is one product with a fixed matrix, and between the transforms there is one product of channels a
frequency: a third of the arithmetic of the sums over positions, all of it in matrix products.
The parameters, their names and the results are those of `nn.Conv2d`, within float32's rounding.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.grad import conv2d_input, conv2d_weight

from dubito import _eager

__all__ = ["SpectralConv2d"]

#: positions of a map from which on the transforms cost more than they save
LARGEST = 400


class SpectralConv2d(nn.Conv2d):
    """`nn.Conv2d` with padding "same", stride 1 and a bias, faster to train on a CPU.

    >>> torch.manual_seed(0)
    <torch._C.Generator object at ...>
    >>> layer, x = SpectralConv2d(3, 4, 5), torch.rand(2, 3, 14, 14)
    >>> direct = nn.functional.conv2d(x, layer.weight, layer.bias, padding=2)
    >>> torch.allclose(layer(x), direct, atol=1e-5)
    True
    """

    def __init__(self, entering: int, leaving: int, size: int) -> None:
        if size % 2 == 0:
            raise ValueError(f"size must be odd, so that a filter has a centre, not {size!r}")
        super().__init__(entering, leaving, size, padding=size // 2)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, C', H, W)."""
        if not self._trains_on_cpu(x):
            return super().forward(x)
        result: Tensor = _Convolution.apply(x, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return result

    def _trains_on_cpu(self, x: Tensor) -> bool:
        return (
            torch.is_grad_enabled()
            and x.is_cpu
            and x.dtype == self.weight.dtype == torch.float32
            and x.ndim == 4
            and x.shape[-2] * x.shape[-1] <= LARGEST
            and not torch.is_autocast_enabled("cpu")
            and _eager.is_eager(x)
        )


class _Basis(NamedTuple):
    """Real matrices of the transforms; of 2F rows or columns the first F are the real parts."""

    image: Tensor
    """(2F, HW): map -> spectrum"""
    image_back: Tensor
    """(HW, 2F)"""
    filters: Tensor
    """(2F, kk): filter, its centre at 0 -> spectrum"""
    filters_back: Tensor
    """(kk, 2F)"""


@cache
def _basis(height: int, width: int, size: int) -> _Basis:
    """Periods of (H + k // 2, W + k // 2): what wraps around ends outside of the map.

    Of a real map's frequencies those of one half plane suffice; the others are their conjugates.
    """
    periods = height + size // 2, width + size // 2
    every = torch.cartesian_prod(*(torch.arange(period) for period in periods))
    mirrored = torch.stack([-every[:, i] % period for i, period in enumerate(periods)], 1)
    first, second = ((pair * torch.tensor([periods[1], 1])).sum(1) for pair in (every, mirrored))
    half = first <= second
    share = torch.where(first == second, 1.0, 2.0)[half].double() / math.prod(periods)

    def transforms(rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        places = torch.cartesian_prod(rows, columns).double() / torch.tensor(periods).double()
        angle = 2 * math.pi * every[half].double() @ places.T
        spectrum = torch.cat([angle.cos(), -angle.sin()])
        return spectrum.float(), (spectrum * share.repeat(2)[:, None]).T.contiguous().float()

    offsets = torch.arange(size) - size // 2
    images = transforms(torch.arange(height), torch.arange(width))
    return _Basis(*images, *transforms(offsets, offsets))


def _product(
    a: Tensor, b: Tensor, *, conjugate_a: bool = False, conjugate_b: bool = False
) -> Tensor:
    """The complex product a b a frequency: (2F, M, C), (2F, C, K) -> (2F, M, K)."""
    (ar, ai), (br, bi) = a.chunk(2), b.chunk(2)
    product = a.new_empty(len(a), a.shape[1], b.shape[2])
    real, imaginary = product.chunk(2)
    sign_a, sign_b = (-1 if conjugate else 1 for conjugate in (conjugate_a, conjugate_b))
    torch.bmm(ar, br, out=real)
    real.baddbmm_(ai, bi, alpha=-sign_a * sign_b)
    torch.bmm(ai, br, out=imaginary)
    imaginary.baddbmm_(ar, bi, beta=sign_a, alpha=sign_b)
    return product


def _positions(maps: Tensor) -> Tensor:
    """(N, C, H, W) -> (N, HW, C), a view where the channels are last in memory."""
    return maps.permute(0, 2, 3, 1).flatten(1, 2)


class _Convolution(torch.autograd.Function):
    """Correlation with the filters: spectrum of the map times the conjugate of the filters'."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        samples, _, height, width = x.shape
        basis = _basis(height, width, weight.shape[-1])
        image = torch.bmm(basis.image.expand(samples, -1, -1), _positions(x))  # (N, 2F, C)
        filters = (basis.filters @ weight.flatten(2).flatten(0, 1).T).unflatten(1, weight.shape[:2])
        spectrum = _product(image.transpose(0, 1), filters.mT, conjugate_b=True)  # (2F, N, C')
        back = basis.image_back.expand(samples, -1, -1)
        y = torch.baddbmm(bias, back, spectrum.transpose(0, 1))  # (N, HW, C')
        ctx.save_for_backward(x, weight, image, filters)
        maps: Tensor = y.unflatten(1, (height, width))
        return maps.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        x, weight, image, filters = ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody differentiates again, which torch's own can
            return _differentiable(x, weight, grad)
        samples, _, height, width = x.shape
        basis, slopes = _basis(height, width, weight.shape[-1]), _positions(grad)
        spectrum = torch.bmm(basis.image.expand(samples, -1, -1), slopes).transpose(0, 1)
        by_filters = _product(spectrum.mT, image.transpose(0, 1), conjugate_a=True)  # (2F, C', C)
        by_weight = (basis.filters_back @ by_filters.flatten(1)).T.reshape(weight.shape)
        by_x = None
        if ctx.needs_input_grad[0]:
            back = basis.image_back.expand(samples, -1, -1)
            by_x = torch.bmm(back, _product(spectrum, filters).transpose(0, 1))
            by_x = by_x.unflatten(1, (height, width)).permute(0, 3, 1, 2)
        return by_x, by_weight, slopes.sum((0, 1))


def _differentiable(x: Tensor, weight: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    padding = weight.shape[-1] // 2
    by_x = conv2d_input(list(x.shape), weight, grad, padding=padding)
    by_weight = conv2d_weight(x, list(weight.shape), grad, padding=padding)
    return by_x, by_weight, grad.sum((0, 2, 3))
