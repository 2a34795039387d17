"""A number for each pixel, and how far it may be off: denoising of photographs.

A small convolutional network sees a gray photograph with noise and predicts the clean pixels with
I-DER. It learns on crops of one photograph of scikit-learn, some noisier than others, and is judged
on another one, whose noise grows from left to right; a square is noisier than any crop was. Run it
with

    python examples/denoise.py [--steps 1000] [--out denoise]

which prints how well the predicted deviation ranks the errors, and writes denoise.png.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from scipy.stats import spearmanr
from shared import INK, LUMA, panels, save
from sklearn.datasets import load_sample_images
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from dubito.methods import METHODS, MethodLoss

#: least and largest deviation of the noise, and that in the square
NOISE, SQUARE = (0.02, 0.25), 0.6
PLACE = (slice(70, 130), slice(30, 90))
#: part of the photograph in the figure
SHOWN = (slice(30, 190), slice(0, 320))
CROP, BATCH = 24, 8
METHOD = {"name": "ider"}


def photographs() -> list[Tensor]:
    """Return two gray photographs in [0, 1], (H, W)."""
    images = (torch.tensor(image / 255).float() for image in load_sample_images().images)
    return [avg_pool2d((image @ torch.tensor(LUMA))[None], 2)[0] for image in images]


class Pixels(nn.Sequential):
    """Convolutions that see 9x9 pixels: (N, 1, H, W) to outputs (N, H, W, M)."""

    def __init__(self, outputs: int, width: int = 24) -> None:
        layers: list[nn.Module] = []
        for before, size in ((1, 5), (width, 3), (width, 3)):
            layers += [nn.Conv2d(before, width, size, padding="same"), nn.ReLU()]
        super().__init__(*layers, nn.Conv2d(width, outputs, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs, those of a pixel last."""
        return super().forward(x).movedim(1, -1)


def train(photograph: Tensor, steps: int) -> tuple[nn.Module, Any]:
    """Train on crops of a photograph; return the network and its method."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    method = METHODS.build(METHOD)
    network, loss = Pixels(4), MethodLoss(method)
    optimizer = torch.optim.Adam(network.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-2, steps)
    crops = photograph.unfold(0, CROP, 8).unfold(1, CROP, 8).flatten(0, 1)
    for _ in range(steps):
        y = crops[torch.randint(len(crops), (BATCH,), generator=generator)]
        low, high = NOISE
        std = low + (high - low) * torch.rand(BATCH, 1, 1, generator=generator)
        x = y + std * torch.randn(y.shape, generator=generator)
        optimizer.zero_grad()
        # The network corrects its input, in units of the largest noise.
        loss(network(x[:, None]), ((y - x) / high)[..., None]).backward()
        optimizer.step()
        schedule.step()
    return network.eval(), method


@torch.no_grad()
def predict(network: nn.Module, method: Any, image: Tensor) -> Any:
    """Return the distribution of each clean pixel: batch shape (H, W)."""
    outputs = network(image[None, None])[0]
    return method.distribution(outputs).affine(torch.tensor([NOISE[1]]), image[..., None])


def main(argv: Sequence[str] | None = None) -> None:
    """Train, print, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path("denoise"))
    args = parser.parse_args(argv)
    seen, clean = photographs()
    network, method = train(seen, args.steps)
    generator = torch.Generator().manual_seed(1)
    noise = torch.linspace(*NOISE, clean.shape[1]).repeat(len(clean), 1)
    noise[PLACE] = SQUARE
    image = clean + noise * torch.randn(clean.shape, generator=generator)
    dist = predict(network, method, image)
    error, std = (dist.mean[..., 0] - clean).abs(), dist.total.sqrt()
    inside = (dist.predictive.cdf(clean[..., None])[..., 0] - 0.5).abs() < 0.45
    ordinary = torch.ones_like(inside)
    ordinary[PLACE] = False
    before, after = ((part - clean)[ordinary].std() for part in (image, dist.mean[..., 0]))
    print(f"error before {before:.3f}, after {after:.3f}")
    rank = spearmanr(std[ordinary].numpy(), error[ordinary].numpy()).statistic
    print(f"rank correlation of predicted deviation and error {rank:.2f}")
    shares = (100 * inside[part].double().mean() for part in (ordinary, PLACE))
    print("inside 90% intervals {:.1f}% of the pixels, {:.1f}% in the square".format(*shares))
    shown = {
        "Noisy": (image.clamp(0, 1), "gray", 1.0), "Prediction": (dist.mean[..., 0], "gray", 1.0),
        "Absolute error": (error, "magma", 0.3), "Predicted deviation": (std, "magma", 0.2),
    }  # fmt: skip
    figure, axes = panels(4, (2.2, 1.4))
    for ax, (title, (values, colors, top)) in zip(axes, shown.items(), strict=True):
        ax.imshow(values[SHOWN].numpy(), interpolation="nearest", cmap=colors, vmin=0, vmax=top)
        ax.set_title(title, fontsize=11, fontweight="bold", loc="left", color=INK)
        ax.set_axis_off()
    save(figure, args.out / "denoise.png")
    print(args.out)


if __name__ == "__main__":
    main()
