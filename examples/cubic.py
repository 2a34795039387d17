"""The picture people know: a noisy cubic with a gap, and what each method says there.

Networks see y = x^3 with noise of deviation 3 for x in [-4, -2] and [2, 4], and predict [-6, 6].
Run it with

    python examples/cubic.py [--steps 800] [--out cubic]

which prints the deviation that each method adds for what it does not know, and writes cubic.png.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from shared import COLORS, FAINT, INK, plain, save
from torch import Tensor

from dubito.backbones import BACKBONES
from dubito.methods import METHODS, Method, MethodLoss

NOISE, LIMIT, SAMPLES = 3.0, 6.0, 200
#: where the samples are
SEEN = ((-4.0, -2.0), (2.0, 4.0))
#: title -> method
SHOWN: dict[str, dict[str, Any]] = {
    "Gaussian": {"name": "gaussian"},
    "DER": {"name": "der", "beta": 0.0},
    "SDER": {"name": "sder"},
    "I-DER": {"name": "ider"},
    "MC Dropout": {"name": "mc_dropout", "member": "gaussian", "dropout": 0.1, "samples": 50},
    "Ensemble": {"name": "ensemble", "member": "gaussian", "size": 5},
}
#: question -> inputs that it is about
PLACES = {"on the data": SEEN, "in the gap": ((-1.0, 1.0),), "outside": ((-6.0, -5.0), (5.0, 6.0))}


def samples(seed: int) -> tuple[Tensor, Tensor]:
    """Draw inputs and targets: (N, 1) each."""
    rng = np.random.default_rng(seed)
    x = np.concatenate([rng.uniform(*part, SAMPLES // len(SEEN)) for part in SEEN])
    y = x**3 + NOISE * rng.normal(size=len(x))
    return torch.tensor(x[:, None]).float(), torch.tensor(y[:, None]).float()


def predict(method: Method, x: Tensor, y: Tensor, grid: Tensor, steps: int) -> Any:
    """Train a network in standardized units, and return the distribution on a grid."""
    torch.manual_seed(0)
    backbone = BACKBONES.build("mlp", hidden=(64, 64), dropout=getattr(method, "dropout", None))
    network = method.network(lambda: backbone.build((1,)), SimpleNamespace(size=1))
    loss = MethodLoss(method)
    mean, std = y.mean(0), y.std(0)
    optimizer = torch.optim.Adam(network.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(network(x / LIMIT), (y - mean) / std).backward()
        optimizer.step()
        schedule.step()
    network.eval()
    with torch.no_grad():
        dist: Any = method.distribution(network(grid / LIMIT))
    return dist.affine(std, mean)


def unknown(dist: Any, grid: Tensor, parts: Sequence[tuple[float, float]]) -> float:
    """Return the epistemic deviation, as the root of its mean square over parts of the grid."""
    x = grid[:, 0]
    inside = torch.stack([(low <= x) & (x <= high) for low, high in parts]).any(0)
    return float(dist.epistemic[inside].mean().sqrt())


def draw(dists: dict[str, Any], grid: Tensor, x: Tensor, y: Tensor) -> Figure:
    """Draw a panel for each method: bands of two deviations, without and with what is unknown."""
    figure = Figure(figsize=(9.6, 5.6), layout="constrained")
    axes = figure.subplots(2, 3, sharex=True, sharey=True).flat
    line = grid[:, 0].numpy()
    for ax, (title, dist) in zip(axes, dists.items(), strict=True):
        mean = dist.mean[:, 0].numpy()
        for low, high in SEEN:
            ax.axvspan(low, high, color=FAINT, alpha=0.10, linewidth=0)
        widths = {"noise": dist.aleatoric, "noise and doubt": dist.total}
        for label, alpha in (("noise and doubt", 0.22), ("noise", 0.38)):
            half = 2 * widths[label].sqrt().numpy()
            ax.fill_between(
                line,
                mean - half,
                mean + half,
                color=COLORS[0],
                alpha=alpha,
                linewidth=0,
                label=label,
            )
        ax.plot(line, line**3, "--", color=INK, linewidth=1.1, label="truth")
        ax.plot(line, mean, color=COLORS[0], linewidth=1.6, label="prediction")
        ax.plot(x, y, ".", color=COLORS[1], markersize=2.5, alpha=0.7, label="samples")
        doubts = (f"{unknown(dist, grid, parts):.1f} {place}" for place, parts in PLACES.items())
        text = "epistemic deviation\n" + "\n".join(doubts)
        ax.text(0.97, 0.05, text, transform=ax.transAxes, ha="right", fontsize=8.5, color=INK)
        ax.set(xlim=(-LIMIT, LIMIT), ylim=(-160, 160), yticks=(-100, 0, 100))
        plain(ax, title)
    handles, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    return figure


def main(argv: Sequence[str] | None = None) -> None:
    """Train, print, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--out", type=Path, default=Path("cubic"))
    args = parser.parse_args(argv)
    x, y = samples(seed=0)
    grid = torch.linspace(-LIMIT, LIMIT, 241)[:, None]
    dists = {
        title: predict(METHODS.build(options), x, y, grid, args.steps)
        for title, options in SHOWN.items()
    }
    print("epistemic deviation" + "".join(f"{place:>13}" for place in PLACES))
    for title, dist in dists.items():
        values = [unknown(dist, grid, parts) for parts in PLACES.values()]
        print(f"{title:19}" + "".join(f"{value:13.2f}" for value in values))
    save(draw(dists, grid, x, y), args.out / "cubic.png")
    print(args.out)


if __name__ == "__main__":
    main()
