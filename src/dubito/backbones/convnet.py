"""The network of Deng et al. (ICML 2023, https://arxiv.org/abs/2303.02045) for MNIST."""

from functools import cache

import torch
from torch import Tensor, nn

from dubito.backbones.base import BACKBONES, Backbone, Shape, chain, image_shape
from dubito.backbones.mlp import dense
from dubito.numerics.tracing import is_eager

__all__: list[str] = []

FEATURES = 64
#: smaller batches do not repay the transform of the filters
SMALLEST_BATCH = 16
#: spectra of filters for larger maps take too much memory
LARGEST_SIDE = 32


@BACKBONES.register("convnet")
class ConvNet(Backbone):
    """Three 5x5 convolutions of 64 channels with ReLU and 2x2 max-pooling, then dense 64-64-64.

    Dropout, if there is a rate, follows each dense layer.

    >>> ConvNet().build((1, 28, 28)).dense[0]
    Linear(in_features=576, out_features=64, bias=True)
    """

    def build(self, shape: Shape, *, pretrained: bool = False) -> nn.Module:
        """Build the network for images from 8x8."""
        channels, height, width = image_shape(shape, 8, "convnet")
        convolutions = nn.Sequential()
        first = nn.Conv2d(channels, 64, 5, padding=2)
        for convolution in (first, FourierConv2d(64, 64, 5), FourierConv2d(64, 64, 5)):
            # Pool first: the same values and gradients, and a quarter of the ReLU's work.
            convolutions.extend([convolution, nn.MaxPool2d(2), nn.ReLU()])
        pooled = 64 * (height // 8) * (width // 8)  # three poolings by two
        last = dense((pooled, 64, 64, FEATURES), self.dropout)
        return chain(FEATURES, convolutions=convolutions, flatten=nn.Flatten(), dense=last)


class FourierConv2d(nn.Conv2d):
    """`nn.Conv2d` with stride 1 and padding "same", trained by Fourier transforms on a CPU.

    Between many channels, a product of spectra takes less arithmetic than sums over 5x5 windows.
    The Fourier transform of a small map is a product with a small matrix along each axis, so matrix
    products are all there is, and autograd differentiates them.

    Parameters are those of `nn.Conv2d`, and results up to rounding. Evaluation, other devices,
    other types, autocast, torch.compile and torch.func use `nn.Conv2d` itself.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        kernel_size: Odd side of the filters.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__(in_channels, out_channels, kernel_size, padding=kernel_size // 2)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve maps (N, C, H, W)."""
        transforms = (
            self.training
            and torch.is_grad_enabled()
            and is_eager(x)
            and x.is_cpu
            and x.dtype == torch.float32
            and not torch.is_autocast_enabled("cpu")
            and len(x) >= SMALLEST_BATCH
            and max(x.shape[2:]) <= LARGEST_SIDE
        )
        if not transforms:
            return super().forward(x)
        samples, channels, height, width = x.shape
        rows, columns, *parts = _transforms(height, width, self.kernel_size[0])
        maps = rows @ x.permute(0, 2, 3, 1).reshape(samples, height, -1)
        maps = columns @ maps.view(-1, 2 * width, channels)
        spectrum = maps.view(samples, -1, 2 * channels).transpose(0, 1)
        weight = self.weight.permute(2, 3, 1, 0).flatten(2).flatten(0, 1)
        filters = [(part @ weight).view(-1, 2 * channels, self.out_channels) for part in parts]
        products = [torch.bmm(spectrum, part).transpose(0, 1) for part in filters]
        maps = columns.T @ torch.stack(products, 2).view(-1, len(columns), self.out_channels)
        maps = rows.T @ maps.view(samples, len(rows), -1)
        maps = maps.view(samples, height, width, self.out_channels).permute(0, 3, 1, 2)
        return maps + self.bias[:, None, None]  # type: ignore[index]


@cache
def _transforms(height: int, width: int, size: int) -> list[Tensor]:
    """Return real matrices that transform rows, columns and filters.

    Filters have two, for the real and for the imaginary part of their product with a spectrum. The
    scale of the inverse transform is in them, so that their transposes invert the first two.
    """
    # What wraps around these periods falls outside the map.
    tall, wide = height + size // 2, width + size // 2
    vertical = torch.fft.rfft(torch.eye(tall, dtype=torch.float64), dim=0)
    horizontal = torch.fft.fft(torch.eye(wide, dtype=torch.float64), dim=0)
    # A frequency also stands for its conjugate, if that is another one.
    count = torch.where(2 * torch.arange(len(vertical)) % tall == 0, 1, 2)
    scaled = count[:, None] / (tall * wide) * vertical
    offsets = torch.arange(size) - size // 2
    filters = torch.kron(scaled[:, offsets], horizontal[:, offsets])
    columns = horizontal[:, :width]
    matrices = vertical[:, :height], torch.hstack([columns, 1j * columns]), filters, 1j * filters
    pairs = (torch.view_as_real(matrix).mT.flatten(0, 1) for matrix in matrices)
    return [pair.to("cpu", torch.float32) for pair in pairs]
