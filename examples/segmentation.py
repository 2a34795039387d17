"""Segmentation with I-EDL: the digit of each pixel, and the uncertainty of each pixel.

Scenes are made of scikit-learn's digits. Each test scene also has a patch of a photograph; training
scenes have none. Run it with

    python examples/segmentation.py [--scenes 500] [--epochs 16] [--seed 0] [--out segmentation.png]

Settings were chosen on validation digits with patches of one photograph; results are of test digits
with patches of another. The line about bright pixels was added after a first look at the test
results, to find out what the dark ones do; nothing else was changed then.
"""

from __future__ import annotations

import argparse
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from shared import Samples, patches, train_and_test_digits
from torch import Tensor, nn
from torch.nn.functional import interpolate, max_pool2d, pad

from dubito import Dirichlet, IEDLLoss, metrics

CELL, CELLS, DIGITS = 16, 3, 6  # a scene is 3 x 3 cells of 16 x 16 pixels, six of them digits
INK = 0.3  # a pixel brighter than this belongs to its digit
BACKGROUND = 10
CLASSES = 11
# exp reaches low vacuity in few steps
EVIDENCE = "exp"
# of the ten digits, distinguishable with color blindness (Paul Tol, muted), and of background
COLORS = "#332288 #88CCEE #117733 #DDCC77 #CC6677 #AA4499 #44AA99 #999933 #882255 #6699CC #F2F2F2"


class Scenes(NamedTuple):
    """Pixels (N, 1, H, W), their classes (N, H, W), and which belong to a photograph (N, H, W)."""

    x: Tensor
    y: Tensor
    photo: Tensor


def scenes(digits: Samples, count: int, seed: int, photographs: Tensor | None = None) -> Scenes:
    """Draw scenes of six digits, and of one of the photographs (N, 1, h, w) in a free cell."""
    generator = torch.Generator().manual_seed(seed)
    index = torch.randint(len(digits.x), (count, CELLS**2), generator=generator)
    place = torch.rand(count, CELLS**2, generator=generator).argsort(1)
    large = pad(_resized(digits.x, CELL - 2), (1, 1, 1, 1))  # two pixels between neighbors
    x = large[index].where(_spread(place < DIGITS), 0)
    y = torch.where(x > INK, _spread(digits.y[index]), BACKGROUND)
    photo = _spread(place == DIGITS) & torch.full_like(y, photographs is not None).bool()
    if photographs is not None:
        x[place == DIGITS] = _resized(photographs, CELL)
    return Scenes(_joined(x).unsqueeze(1), _joined(y), _joined(photo))


def _resized(images: Tensor, side: int) -> Tensor:
    return interpolate(images, size=(side, side), mode="bilinear")[:, 0]


def _spread(cells: Tensor) -> Tensor:
    """Broadcast over the pixels of a cell: (N, cells) -> (N, cells, 1, 1)."""
    return cells[..., None, None]


def _joined(cells: Tensor) -> Tensor:
    """Join cells (N, 9, 16, 16) to scenes (N, 48, 48)."""
    grid: Tensor = cells.unflatten(1, (CELLS, CELLS))
    return grid.transpose(2, 3).flatten(3, 4).flatten(1, 2)


class UNet(nn.Module):
    """Three steps down, three up, with shortcuts: (N, 1, H, W) -> (N, K, H, W)."""

    def __init__(self, classes: int, width: int = 8) -> None:
        super().__init__()
        w1, w2, w3, w4 = (width * 2**k for k in range(4))
        self.down = nn.ModuleList([_block(1, w1), _block(w1, w2, w2), _block(w2, w3, w3)])
        self.bottom = _block(w3, w4, w4)
        self.up = nn.ModuleList([_block(w4 + w3, w3), _block(w3 + w2, w2), _block(w2 + w1, w2)])
        self.head = nn.Conv2d(w2, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of each pixel."""
        skips = []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = max_pool2d(x, 2)
        x = self.bottom(x)
        for block, shortcut in zip(self.up, reversed(skips), strict=True):
            x = block(torch.cat([interpolate(x, scale_factor=2.0), shortcut], 1))
        logits: Tensor = self.head(x)
        return logits


def _block(*channels: int) -> nn.Module:
    layers: list[nn.Module] = []
    for entering, leaving in pairwise(channels):
        layers.append(nn.Conv2d(entering, leaving, 3, padding=1, bias=False))
        layers += [nn.BatchNorm2d(leaving), nn.ReLU()]
    return nn.Sequential(*layers)


def train(model: nn.Module, x: Tensor, y: Tensor, epochs: int, batch: int = 8) -> None:
    """Train with a plain loop; only the loss is evidential."""
    weight = torch.ones(CLASSES)
    weight[BACKGROUND] = 0.3  # most pixels are background, and it is easy
    criterion = IEDLLoss(
        fisher_weight=1e-4,
        kl_ramp=8,
        evidence=EVIDENCE,
        weight=weight,
        scale="paper",
        class_dim=1,
    )
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
    steps = epochs * -(-len(x) // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps)
    for epoch in range(epochs):
        criterion.set_epoch(epoch)
        total, start = 0.0, time.perf_counter()
        for part in torch.randperm(len(x)).split(batch):
            optimizer.zero_grad()
            loss = criterion(model(x[part]), y[part])
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(part) / len(x)
        seconds = time.perf_counter() - start
        print(f"epoch {epoch + 1}/{epochs}  loss {total:.4f}  {seconds:.1f} s", flush=True)


def predict(model: nn.Module, x: Tensor) -> Dirichlet:
    """Predict each pixel: batch shape (N, H, W)."""
    model.eval()
    with torch.no_grad():
        return Dirichlet.from_logits(model(x), EVIDENCE, class_dim=1)


def report(test: Scenes, dist: Dirichlet) -> None:
    """Print accuracy, and how well vacuity detects photographs."""
    known = {"digits": (test.y != BACKGROUND) & ~test.photo, "all but photographs": ~test.photo}
    for name, where in known.items():
        accuracy = (dist.probs.argmax(-1) == test.y)[where].double().mean()
        print(f"{name}: accuracy {100 * accuracy:.1f} %, {_mean(dist.vacuity[where])}")
    # Dark pixels of a photograph look like background.
    bright = test.photo & (test.x[:, 0] > INK)
    share = bright.sum() / test.photo.sum()
    for name, where in {"all": test.photo, f"the bright {share:.0%}": bright}.items():
        print(f"photographs, {name}: {_mean(dist.vacuity[where])}", end=", AUROC")
        for against, reference in known.items():
            pixels = torch.cat([-dist.vacuity[reference], -dist.vacuity[where]])
            familiar = torch.arange(len(pixels)) < reference.sum()
            print(f" {metrics.auroc(pixels, familiar):.3f} against {against}", end="")
        print()


def _mean(vacuity: Tensor) -> str:
    return f"mean vacuity {vacuity.mean():.2f}"


def draw(path: Path, test: Scenes, dist: Dirichlet) -> None:
    """Draw pixels, true and predicted classes, and vacuity of each scene."""
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch, Rectangle

    classes = ListedColormap(COLORS.split())
    styles: dict[str, dict[str, Any]] = {
        "scene": {"cmap": "gray", "vmin": 0, "vmax": 1},
        "true class": {"cmap": classes, "vmin": -0.5, "vmax": CLASSES - 0.5},
        "predicted class": {"cmap": classes, "vmin": -0.5, "vmax": CLASSES - 0.5},
        "vacuity": {"cmap": "viridis", "vmin": 0, "vmax": 1},
    }
    figure = Figure(figsize=(9.4, 2.15 * len(test.x) + 0.7), layout="constrained")
    axes = figure.subplots(len(test.x), len(styles), squeeze=False)
    truth = test.y.where(~test.photo, BACKGROUND)
    for i, row in enumerate(axes):
        images = (test.x[i, 0], truth[i], dist.probs[i].argmax(-1), dist.vacuity[i])
        top, left = test.photo[i].nonzero()[0].tolist()
        for ax, image, (title, style) in zip(row, images, styles.items(), strict=True):
            picture = ax.imshow(image.numpy(), interpolation="nearest", **style)
            ax.set_axis_off()
            ax.set_title(title if i == 0 else "", fontsize=11)
            hatch = "////" if title == "true class" else None  # none of the classes
            corner = (left - 0.5, top - 0.5)
            ax.add_patch(Rectangle(corner, CELL, CELL, fill=False, ec="#D55E00", lw=2, hatch=hatch))
    figure.colorbar(picture, ax=axes[:, -1], shrink=0.7)
    names = [*map(str, range(BACKGROUND)), "background"]
    keys = [Patch(fc=classes(k), ec="#888888", label=name) for k, name in enumerate(names)]
    figure.legend(handles=keys, loc="outside lower center", ncols=CLASSES, frameon=False,
                  fontsize=9, handlelength=1, columnspacing=1)  # fmt: skip
    figure.suptitle("Framed: a patch of a photograph, which is none of the classes", fontsize=11)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Train, print, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scenes", type=int, default=500, help="training scenes")
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0, help="of weights and training scenes")
    parser.add_argument("--out", type=Path, default=Path("segmentation.png"))
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    train_digits, test_digits = train_and_test_digits()
    model = UNet(CLASSES)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # faster on CPUs
    x, y, _ = scenes(train_digits, args.scenes, seed=args.seed)
    train(model, x, y, args.epochs)
    count = 100
    photographs = patches(2 * count)[count:]  # of the second photograph alone
    test = scenes(test_digits, count, seed=10_000, photographs=photographs)
    dist = predict(model, test.x)
    report(test, dist)
    draw(args.out, Scenes(*(part[:3] for part in test)), dist[:3])
    print(args.out)


if __name__ == "__main__":
    main()
