"""What evidence is not: a map of the plane around three clouds, and evidence against sample size.

Three Gaussian clouds are the classes, two of them overlap. The map shows what the network says of
places between them and far away from them. Then networks learn from ten up to ten thousand samples
a class, with equally many steps: does uncertainty vanish where ever more samples were seen? Run it
with

    python examples/plane.py [--seeds 3] [--steps 1000] [--out plane]

which prints a table and writes plane/map.png and plane/samples.png.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from dubito import Dirichlet, IEDLLoss
from dubito.report.figures import Curve, sweep
from dubito.report.figures.style import MARKS, drawn, panels, plain

CENTRES = torch.tensor([[0.0, 2.0], [1.2, -1.0], [-1.2, -1.0]])
SPREAD = 0.7
SIZES = (10, 100, 1_000, 10_000)  # samples a class
#: places in the plane, each with what is there
PLACES = {
    "amid a cloud": (0.0, 2.0),
    "between two": (0.0, -1.0),
    "far above": (0.0, 12.0),
    "far aside": (10.0, 6.0),
}
MAPPED = {
    "expected_entropy": "data",
    "mutual_information": "distributional",
    "vacuity": "vacuity",
}


def samples(count: int, drawn: torch.Generator) -> tuple[Tensor, Tensor]:
    """`count` points of each cloud: (3 count, 2), (3 count,)."""
    label = torch.arange(3).repeat(count)
    return CENTRES[label] + SPREAD * torch.randn(len(label), 2, generator=drawn), label


def learn(count: int, steps: int, seed: int) -> nn.Module:
    """A network after so many steps with batches of so many samples a class."""
    torch.manual_seed(seed)
    drawn = torch.Generator().manual_seed(seed)
    x, label = samples(count, drawn)
    network = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    network.append(nn.Linear(64, 3))
    criterion = IEDLLoss(fisher_weight=0.05, kl_ramp=10, scale="paper")
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    for step in range(steps):
        criterion.set_epoch(20 * step // steps)
        batch = torch.randint(len(x), (64,), generator=drawn)
        optimizer.zero_grad()
        criterion(network(x[batch]), label[batch]).backward()
        optimizer.step()
    return network


@torch.no_grad()
def ask(network: nn.Module, x: Tensor) -> Dirichlet:
    """What the network says of points (..., 2)."""
    return Dirichlet.from_logits(network(x))


def draw_map(path: Path, network: nn.Module, count: int) -> None:
    """Three measures over the plane, each from its least to its largest value there."""
    side = torch.linspace(-12, 12, 161)
    grid = torch.stack(torch.meshgrid(side, side, indexing="xy"), -1)
    said = ask(network, grid)
    figure, axes = panels(len(MAPPED), len(MAPPED), (3.0, 2.7))
    x, label = samples(count, torch.Generator().manual_seed(0))
    for ax, (name, title) in zip(axes, MAPPED.items(), strict=True):
        values = said.score(name).numpy()
        image = ax.pcolormesh(side.numpy(), side.numpy(), values, cmap="cividis")
        for k in range(3):
            first, second = x[label == k].T.numpy()
            ax.scatter(first, second, s=2.5, color="white", marker=MARKS[k], linewidth=0)
        figure.colorbar(image, ax=ax, shrink=0.75)
        ax.set_aspect("equal")
        plain(ax, title)
    path.write_bytes(drawn(figure)["png"])


def draw_samples(path: Path, found: dict[str, dict[str, Tensor]]) -> None:
    """Vacuity and the distributional part at each place against samples a class: (sizes, seeds)."""
    words = {"vacuity": "Vacuity", "mutual_information": "Distributional"}
    curves = {
        title: {
            place: Curve(SIZES, values.mean(-1).tolist(), values.std(-1, correction=0).tolist())
            for place, values in found[name].items()
        }
        for name, title in words.items()
    }
    figure = sweep(curves, "samples a class", ("vacuity", "mutual information (nats)"))
    for ax in figure.axes:
        ax.set_ylim(bottom=0)
        ax.tick_params(axis="x", rotation=0)
    path.write_bytes(drawn(figure)["png"])


def main(words: Sequence[str] | None = None) -> None:
    """Train, print, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path("plane"))
    given = parser.parse_args(words)
    given.out.mkdir(parents=True, exist_ok=True)
    networks = [[learn(size, given.steps, seed) for seed in range(given.seeds)] for size in SIZES]
    spots = torch.tensor(list(PLACES.values()))
    said = [[ask(network, spots) for network in row] for row in networks]
    found = {
        name: {
            place: torch.tensor([[s.score(name)[i] for s in row] for row in said])
            for i, place in enumerate(PLACES)
        }
        for name in ("vacuity", "mutual_information")
    }
    for name, places in found.items():
        print(f"{name:22}" + "".join(f"{size:>9}" for size in SIZES) + "  samples a class")
        for place, values in places.items():
            print(f"  {place:20}" + "".join(f"{mean:9.3f}" for mean in values.mean(-1).tolist()))
    draw_map(given.out / "map.png", networks[1][0], SIZES[1])
    draw_samples(given.out / "samples.png", found)
    print(given.out)


if __name__ == "__main__":
    main()
