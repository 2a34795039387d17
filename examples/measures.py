"""Which measure finds what: errors, ambiguous inputs and strange ones, on scikit-learn's digits.

Networks learn from few digits, so that they err often enough to count. They are asked about the
other digits, about blends of two digits of different classes, and about patches of photographs.
How well does each measure tell these from digits that are classified rightly? Run it with

    python examples/measures.py [--seeds 10] [--epochs 60] [--out measures]

which prints a table and writes measures/triangles.png, the Dirichlets that a network can say, and
measures/found.png. Weights of the loss and all else are as in `dubito demo`.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dubito import Dirichlet, IEDLLoss, backbones, metrics
from dubito.data import Arrays, Batches, embedded, join, split
from dubito.report.figures.style import COLOURS, FAINT, INK, MARKS, drawn, panels, plain

MEASURES = Dirichlet(torch.ones(2)).scores
SHOWN = 300  # digits to learn from
#: what a network can say of three classes, and what it means
CASES = {
    "Sure": (20.0, 1.5, 1.5),
    "Ambiguous": (12.0, 12.0, 1.5),
    "Unfamiliar": (1.05, 1.05, 1.05),
    "Little evidence": (3.0, 1.2, 1.2),
}
#: name -> words, the inputs that should be the surer ones, and the others
KINDS = {
    "wrong": ("right and wrong answers", "right", "wrong"),
    "blends": ("right answers and blends of two digits", "right", "blends"),
    "patches": ("right answers and photo patches", "right", "patches"),
    "apart": ("blends and photo patches", "blends", "patches"),
}
Found = dict[str, dict[str, Tensor]]


def learn(data: Arrays, epochs: int, seed: int) -> torch.nn.Module:
    """A network that has learnt the data by I-EDL."""
    torch.manual_seed(seed)
    network = backbones.build("mlp", data.shape, len(data.classes), hidden=(256,))
    criterion = IEDLLoss(fisher_weight=0.05, kl_ramp=10)
    optimizer = torch.optim.Adam(network.parameters(), lr=5e-3, weight_decay=1e-4)
    batches = Batches(data, 64, torch.Generator().manual_seed(seed))
    for epoch in range(epochs):
        criterion.set_epoch(epoch)
        for x, label in batches:
            optimizer.zero_grad()
            criterion(network(x), label).backward()
            optimizer.step()
    return network


def blends(data: Arrays, count: int, seed: int) -> Tensor:
    """Means of two digits of different classes: (count, 1, 8, 8)."""
    drawn = torch.Generator().manual_seed(seed)
    pairs = torch.randint(len(data), (4 * count, 2), generator=drawn)
    differ = data.labels[pairs[:, 0]] != data.labels[pairs[:, 1]]
    return data.floats()[pairs[differ][:count]].mean(1)


@torch.no_grad()
def ask(network: torch.nn.Module, data: Arrays, seed: int) -> dict[str, dict[str, float]]:
    """AUROC of each measure for each kind: {kind: {measure: area}}."""
    dist = Dirichlet.from_logits(network(data.floats()))
    right = dist.probs.argmax(-1) == data.labels
    strange = {"blends": blends(data, 500, seed), "patches": embedded.patches(500, seed)}
    heard = {name: Dirichlet.from_logits(network(x)) for name, x in strange.items()}
    heard |= {"right": dist[right], "wrong": dist[~right]}
    return {
        kind: {name: _area(heard[surer], heard[other], name) for name in MEASURES}
        for kind, (_, surer, other) in KINDS.items()
    }


def _area(inside: Dirichlet, outside: Dirichlet, name: str) -> float:
    scores = torch.cat([inside.confidence(name), outside.confidence(name)])
    return metrics.auroc(scores, torch.arange(len(scores)) < len(inside)).item()


def experiment(seeds: int, epochs: int) -> tuple[Found, Tensor]:
    """The areas {kind: {measure: (S,)}} and the accuracies (S,); every seed draws its own split."""
    digits = embedded.digits()
    everything = join([digits.train, digits.validation, digits.test])
    areas, accuracies = [], []
    for seed in range(seeds):
        shown, rest, _ = split(everything, SHOWN / len(everything), seed, stratified=True)
        network = learn(shown, epochs, seed)
        areas.append(ask(network, rest, seed))
        with torch.no_grad():
            probs = Dirichlet.from_logits(network(rest.floats())).probs
        accuracies.append(metrics.accuracy(probs, rest.labels))
    found = {
        kind: {name: torch.tensor([a[kind][name] for a in areas]) for name in MEASURES}
        for kind in KINDS
    }
    return found, torch.stack(accuracies)


# --- pictures ------------------------------------------------------------------------------------


def draw_found(path: Path, found: Found) -> None:
    """A row a measure, a mark a kind, with one deviation over the seeds."""
    figure, (ax,) = panels(1, 1, (7.2, 4.6))
    for i, (kind, (words, *_)) in enumerate(KINDS.items()):
        rows = torch.stack([100 * found[kind][name] for name in MEASURES])
        places = [row + 0.18 * (1.5 - i) for row in range(len(rows) - 1, -1, -1)]
        ax.errorbar(
            rows.mean(-1), places, xerr=rows.std(-1, correction=0), color=COLOURS[i],
            marker=MARKS[i], linestyle="none", capsize=2, label=words, markersize=5,
        )  # fmt: skip
    ax.axvline(50, color=FAINT, linewidth=1, linestyle=":", zorder=0)
    names = [name.replace("_", " ") for name in MEASURES]
    ax.set_yticks(range(len(names) - 1, -1, -1), names)
    ax.grid(True, axis="x", color=FAINT, alpha=0.25, linewidth=0.6)
    ax.set_xlabel("told apart: AUROC (%)")
    plain(ax)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    path.write_bytes(drawn(figure)["png"])


def draw_triangles(path: Path, cases: Mapping[str, Sequence[float]]) -> None:
    """The density of each Dirichlet on the triangle of three classes, its measures below it."""
    figure, axes = panels(len(cases), len(cases), (1.9, 2.8))
    corners = np.array([[0.5, np.sqrt(0.75)], [0.0, 0.0], [1.0, 0.0]])
    probs = _lattice(90)
    places = probs @ corners
    for ax, (title, values) in zip(axes, cases.items(), strict=True):
        alpha = torch.tensor(values, dtype=torch.float64)
        logs = torch.distributions.Dirichlet(alpha).log_prob(torch.from_numpy(probs))
        density = (logs - logs.max()).exp().numpy()
        levels = np.linspace(0, 1.0001, 12)
        ax.tricontourf(places[:, 0], places[:, 1], density, levels, cmap="cividis")
        for first, second in pairwise([0, 1, 2, 0]):
            ax.plot(*corners[[first, second]].T, color=INK, linewidth=1)
        for label, (x, y) in zip("abc", corners, strict=True):
            ax.text(x, y + (0.03 if y else -0.1), label, ha="center", color=INK, fontsize=10)
        said = ", ".join(f"{value:g}" for value in values)
        ax.set_title(f"{title}\nα = ({said})", fontsize=10, color=INK, pad=12)
        ax.text(0.5, -0.2, _words(alpha), ha="center", va="top", fontsize=8.5, color=INK)
        ax.set(xlim=(-0.06, 1.06), ylim=(-0.82, 1.0))
        ax.set_aspect("equal")
        ax.set_axis_off()
    path.write_bytes(drawn(figure)["png"])


def _lattice(steps: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Points inside the triangle, none on its edges: (P, 3), each summing to one."""
    first, second = np.meshgrid(np.arange(steps), np.arange(steps), indexing="ij")
    inside = first + second < steps
    third = steps - 1 - first - second
    points = np.stack([first[inside], second[inside], third[inside]], -1) + 1 / 3
    lattice: np.ndarray[tuple[int, int], np.dtype[np.float64]] = points / steps
    return lattice


def _words(alpha: Tensor) -> str:
    dist = Dirichlet(alpha)
    return (
        f"data {dist.aleatoric.item():.2f}\n+ distributional {dist.epistemic.item():.2f}\n"
        f"= total {dist.total.item():.2f}\nvacuity {dist.vacuity.item():.2f}\n"
        f"dissonance {dist.dissonance.item():.2f}"
    )


def main(words: Sequence[str] | None = None) -> None:
    """Train, print, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path("measures"))
    given = parser.parse_args(words)
    given.out.mkdir(parents=True, exist_ok=True)
    found, accuracy = experiment(given.seeds, given.epochs)
    print(f"accuracy {100 * accuracy.mean():.1f} % after {SHOWN} digits; AUROC in %, mean of seeds")
    print(f"{'':22}" + "".join(f"{kind:>10}" for kind in KINDS))
    for name in MEASURES:
        areas = "".join(f"{100 * found[kind][name].mean():10.1f}" for kind in KINDS)
        print(f"{name:22}" + areas)
    draw_triangles(given.out / "triangles.png", CASES)
    draw_found(given.out / "found.png", found)
    print(given.out)


if __name__ == "__main__":
    main()
