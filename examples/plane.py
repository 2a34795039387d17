"""What evidence is not: a map of the plane around three classes, and evidence over sample size.

Three normal distributions are the classes, two of them overlap. The map shows the uncertainty
between them and far away from them. Then networks are trained on 10 to 10,000 samples per class, in
equally many steps: does uncertainty vanish where there are ever more samples? Run it with

    python examples/plane.py [--seeds 3] [--steps 1000] [--out plane]

which prints a table and writes map.png and samples.png.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from shared import MARKS, Curve, panels, plain, save, sweep
from torch import Tensor, nn

from dubito import Dirichlet, IEDLLoss

CENTERS = torch.tensor([[0.0, 2.0], [1.2, -1.0], [-1.2, -1.0]])
SPREAD = 0.7
SIZES = (10, 100, 1_000, 10_000)  # samples per class
#: points in the plane
PLACES = {
    "inside a class": (0.0, 2.0),
    "between two classes": (0.0, -1.0),
    "far above": (0.0, 12.0),
    "far aside": (10.0, 6.0),
}
MAPPED = {
    "expected_entropy": "Aleatoric",
    "mutual_information": "Epistemic",
    "vacuity": "Vacuity",
}


def samples(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw `count` points of each class: (3 count, 2), (3 count,)."""
    label = torch.arange(3).repeat(count)
    return CENTERS[label] + SPREAD * torch.randn(len(label), 2, generator=generator), label


def train(count: int, steps: int, seed: int) -> nn.Module:
    """Train a network on `count` samples per class."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    x, label = samples(count, generator)
    network = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    network.append(nn.Linear(64, 3))
    criterion = IEDLLoss(fisher_weight=0.05, kl_ramp=10, scale="paper")
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    for step in range(steps):
        criterion.set_epoch(20 * step // steps)
        batch = torch.randint(len(x), (64,), generator=generator)
        optimizer.zero_grad()
        criterion(network(x[batch]), label[batch]).backward()
        optimizer.step()
    return network


@torch.no_grad()
def predict(network: nn.Module, x: Tensor) -> Dirichlet:
    """Predict points (..., 2)."""
    return Dirichlet.from_logits(network(x))


def draw_map(path: Path, network: nn.Module, count: int) -> None:
    """Draw three scores over the plane, each on its own scale."""
    side = torch.linspace(-12, 12, 161)
    grid = torch.stack(torch.meshgrid(side, side, indexing="xy"), -1)
    dist = predict(network, grid)
    figure, axes = panels(len(MAPPED), (3.0, 2.7))
    x, label = samples(count, torch.Generator().manual_seed(0))
    for ax, (name, title) in zip(axes, MAPPED.items(), strict=True):
        values = dist.score(name).numpy()
        image = ax.pcolormesh(side.numpy(), side.numpy(), values, cmap="cividis")
        for k in range(3):
            first, second = x[label == k].T.numpy()
            ax.scatter(first, second, s=2.5, color="white", marker=MARKS[k], linewidth=0)
        figure.colorbar(image, ax=ax, shrink=0.75)
        ax.set_aspect("equal")
        plain(ax, title)
    save(figure, path)


def draw_samples(path: Path, results: dict[str, dict[str, Tensor]]) -> None:
    """Draw vacuity and epistemic uncertainty at each point over the samples per class."""
    titles = {"vacuity": "Vacuity", "mutual_information": "Epistemic"}
    curves = {
        title: {
            place: Curve(SIZES, values.mean(-1).tolist(), values.std(-1, correction=0).tolist())
            for place, values in results[name].items()
        }
        for name, title in titles.items()
    }
    figure = sweep(curves, "samples per class", ("vacuity", "nats"), (3.9, 3.4))
    for ax in figure.axes:
        ax.set_ylim(bottom=0)
        ax.tick_params(axis="x", rotation=0)
    save(figure, path)


def main(argv: Sequence[str] | None = None) -> None:
    """Train, print, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path("plane"))
    args = parser.parse_args(argv)
    networks = [[train(size, args.steps, seed) for seed in range(args.seeds)] for size in SIZES]
    spots = torch.tensor(list(PLACES.values()))
    dists = [[predict(network, spots) for network in row] for row in networks]
    results = {
        name: {
            place: torch.tensor([[dist.score(name)[i] for dist in row] for row in dists])
            for i, place in enumerate(PLACES)
        }
        for name in ("vacuity", "mutual_information")
    }
    for name, places in results.items():
        print(f"{name:22}" + "".join(f"{size:>9}" for size in SIZES) + "  samples per class")
        for place, values in places.items():
            print(f"  {place:20}" + "".join(f"{mean:9.3f}" for mean in values.mean(-1).tolist()))
    draw_map(args.out / "map.png", networks[1][0], SIZES[1])
    draw_samples(args.out / "samples.png", results)
    print(args.out)


if __name__ == "__main__":
    main()
