"""Data, training loop and figure style that the examples share.

Digits and photographs come with scikit-learn; nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.datasets import load_digits, load_sample_images
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from dubito import IEDLLoss, data

SIDE, BLOCK = 8, 4  # pixels of an image, and of a photograph in each of them
LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601
#: distinguishable with color blindness (Okabe and Ito, 2008)
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
INK, FAINT = "#222222", "#8a8a8a"
LINES, MARKS = ("-", "--", "-.", ":"), ("o", "s", "^", "D")


# --- data ---


class Samples(NamedTuple):
    """Images (N, 1, 8, 8) in [0, 1] and labels (N,)."""

    x: Tensor
    y: Tensor


def digits() -> Samples:
    """Load all 1797 digits."""
    data = load_digits()
    return Samples(torch.from_numpy(data.images).float()[:, None] / 16, torch.tensor(data.target))


def divide(
    samples: Samples, fraction: float, seed: int, *, stratify: bool = False
) -> tuple[Samples, Samples]:
    """Divide samples at random; see `dubito.data.split`."""
    source = data.open((samples.x.numpy(), samples.y.numpy()))
    parts = data.split(source, fraction, seed, stratify=stratify)
    first, second = (Samples(part.load(), torch.as_tensor(part.target)) for part in parts)
    return first, second


def train_and_test_digits() -> tuple[Samples, Samples]:
    """Return 1258 digits for training and 359 for testing; 180 are left for validation."""
    train, rest = divide(digits(), 0.7, seed=0, stratify=True)
    _, test = divide(rest, 1 / 3, seed=0, stratify=True)
    return train, test


def patches(count: int, seed: int = 0) -> Tensor:
    """Return gray patches of two photographs, as many of each: (count, 1, 8, 8) in [0, 1].

    Blocks of 4x4 pixels are averaged: the digits were averaged from scans in the same way.
    """
    generator = torch.Generator().manual_seed(seed)
    photographs, parts = load_sample_images().images, []
    for place, image in enumerate(photographs):
        gray = torch.tensor(image, dtype=torch.float64) / 255 @ torch.tensor(LUMA).double()
        small = avg_pool2d(gray.float()[None], BLOCK)[0]
        windows = small.unfold(0, SIDE, 1).unfold(1, SIDE, 1).flatten(0, 1)
        share = (count + len(photographs) - 1 - place) // len(photographs)
        parts.append(windows[torch.randperm(len(windows), generator=generator)[:share]])
    return torch.cat(parts)[:, None]


def noisy(x: Tensor, std: float, seed: int) -> Tensor:
    """Add normal noise to images, and clip."""
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))
    return (x + std * noise).clamp(0, 1)


# --- training ---


def train(samples: Samples, epochs: int, seed: int) -> nn.Module:
    """Train a small network with I-EDL."""
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    criterion = IEDLLoss(fisher_weight=0.05, kl_ramp=10)
    optimizer = torch.optim.Adam(network.parameters(), lr=5e-3, weight_decay=1e-4)
    generator = torch.Generator().manual_seed(seed)
    for epoch in range(epochs):
        criterion.set_epoch(epoch)
        for batch in torch.randperm(len(samples.x), generator=generator).split(64):
            optimizer.zero_grad()
            criterion(network(samples.x[batch]), samples.y[batch]).backward()
            optimizer.step()
    return network


# --- figures ---


class Curve(NamedTuple):
    """Points of a line, with the standard deviation of each."""

    x: Sequence[float]
    y: Sequence[float]
    std: Sequence[float]


def panels(count: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """Create panels side by side, each of a size in inches."""
    figure = Figure(figsize=(size[0] * count, size[1]), layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False).flat)


def plain(ax: Axes, title: str = "", *, grid: str = "") -> None:
    """Draw light axes with a title, and a grid along "x", "y" or "both"."""
    ax.set_title(title, fontsize=11, fontweight="bold", loc="left", color=INK)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(FAINT)
    ax.tick_params(labelsize=9, color=FAINT)
    if grid:
        ax.grid(True, axis=grid, color=FAINT, alpha=0.25, linewidth=0.6)
        ax.set_axisbelow(True)


def style(place: int) -> dict[str, Any]:
    """Return color, line and marker of a curve."""
    return {"color": COLORS[place], "linestyle": LINES[place], "marker": MARKS[place]}


def sweep(
    figures: Mapping[str, Mapping[str, Curve]],
    xlabel: str,
    ylabels: Sequence[str],
    size: tuple[float, float],
    marked: float | None = None,
) -> Figure:
    """Draw curves over tried values at equal distances, with one deviation; mark a value."""
    figure, axes = panels(len(figures), size)
    for (title, curves), ax, ylabel in zip(figures.items(), axes, ylabels, strict=True):
        for place, (name, curve) in enumerate(curves.items()):
            x = [i + 0.06 * (place - (len(curves) - 1) / 2) for i in range(len(curve.x))]
            ax.errorbar(
                x, curve.y, yerr=curve.std, label=name, capsize=2, linewidth=1.4,
                markersize=4.5, elinewidth=0.9, **style(place),
            )  # fmt: skip
            ax.set_xticks(range(len(curve.x)), [f"{value:g}" for value in curve.x])
            if marked in curve.x:
                ax.axvline(curve.x.index(marked), color=FAINT, linewidth=1, linestyle=":", zorder=0)
        ax.set(xlabel=xlabel, ylabel=ylabel)
        plain(ax, title, grid="y")
        ax.tick_params(axis="x", labelsize=8)
    handles, names = axes[-1].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a figure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
