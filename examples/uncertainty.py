"""Which score finds errors, ambiguous inputs and OOD inputs, on the digits of scikit-learn.

Networks are trained on 300 digits, so that they make enough errors to count. They then predict the
other digits, blends of two digits of different classes, and patches of photographs. Run it with

    python examples/uncertainty.py [--seeds 10] [--epochs 60] [--out uncertainty]

which prints the AUROC of every score and writes triangles.png (four Dirichlets) and scores.png.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from shared import COLORS, FAINT, INK, MARKS, Samples, digits, divide, panels, patches, plain, save
from shared import train as train_network
from torch import Tensor, nn

from dubito import Dirichlet, metrics

SCORES = Dirichlet(torch.ones(2)).scores
TRAINING = 300  # digits to train on
#: four predictions for three classes
CASES = {
    "Confident": (20.0, 1.5, 1.5),
    "Ambiguous": (12.0, 12.0, 1.5),
    "Unfamiliar": (1.05, 1.05, 1.05),
    "Little evidence": (3.0, 1.2, 1.2),
}
#: question -> description, inputs that should get more confidence, and the rest
QUESTIONS = {
    "errors": ("correct and wrong predictions", "correct", "wrong"),
    "blends": ("correct predictions and blends of two digits", "correct", "blends"),
    "patches": ("correct predictions and photo patches", "correct", "patches"),
    "which": ("blends and photo patches", "blends", "patches"),
}
Areas = dict[str, dict[str, Tensor]]


def blends(samples: Samples, count: int, seed: int) -> Tensor:
    """Average two digits of different classes: (count, 1, 8, 8)."""
    generator = torch.Generator().manual_seed(seed)
    pairs = torch.randint(len(samples.x), (4 * count, 2), generator=generator)
    differ = samples.y[pairs[:, 0]] != samples.y[pairs[:, 1]]
    return samples.x[pairs[differ][:count]].mean(1)


@torch.no_grad()
def areas(network: nn.Module, samples: Samples, seed: int) -> dict[str, dict[str, float]]:
    """Return the AUROC of each score for each question: {question: {score: area}}."""
    dist = Dirichlet.from_logits(network(samples.x))
    correct = dist.probs.argmax(-1) == samples.y
    inputs = {"blends": blends(samples, 500, seed), "patches": patches(500, seed)}
    dists = {name: Dirichlet.from_logits(network(x)) for name, x in inputs.items()}
    dists |= {"correct": dist[correct], "wrong": dist[~correct]}
    return {
        question: {name: auroc(dists[high], dists[low], name) for name in SCORES}
        for question, (_, high, low) in QUESTIONS.items()
    }


def auroc(high: Dirichlet, low: Dirichlet, name: str) -> float:
    """Return how well a score separates two sets."""
    confidence = torch.cat([high.confidence(name), low.confidence(name)])
    return metrics.auroc(confidence, torch.arange(len(confidence)) < len(high)).item()


def experiment(seeds: int, epochs: int) -> tuple[Areas, Tensor]:
    """Return areas {question: {score: (S,)}} and accuracies (S,); each seed has its own split."""
    everything, results, accuracies = digits(), [], []
    for seed in range(seeds):
        shown, rest = divide(everything, TRAINING / len(everything.x), seed, stratify=True)
        network = train_network(shown, epochs, seed)
        results.append(areas(network, rest, seed))
        with torch.no_grad():
            probs = Dirichlet.from_logits(network(rest.x)).probs
        accuracies.append(metrics.accuracy(probs, rest.y))
    joined = {
        question: {
            name: torch.tensor([split[question][name] for split in results]) for name in SCORES
        }
        for question in QUESTIONS
    }
    return joined, torch.stack(accuracies)


def draw_scores(path: Path, results: Areas) -> None:
    """Draw a row per score and a mark per question, with one deviation over the seeds."""
    figure, (ax,) = panels(1, (7.2, 4.6))
    for place, (question, (description, *_)) in enumerate(QUESTIONS.items()):
        rows = torch.stack([100 * results[question][name] for name in SCORES])
        y = [row + 0.18 * (1.5 - place) for row in range(len(rows) - 1, -1, -1)]
        ax.errorbar(
            rows.mean(-1), y, xerr=rows.std(-1, correction=0), color=COLORS[place],
            marker=MARKS[place], linestyle="none", capsize=2, label=description, markersize=5,
        )  # fmt: skip
    ax.axvline(50, color=FAINT, linewidth=1, linestyle=":", zorder=0)
    ax.set_yticks(range(len(SCORES) - 1, -1, -1), [name.replace("_", " ") for name in SCORES])
    ax.set_xlabel("AUROC (%)")
    plain(ax, grid="x")
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    save(figure, path)


def draw_triangles(path: Path, cases: Mapping[str, Sequence[float]]) -> None:
    """Draw the density of each Dirichlet on the triangle of three classes, with its scores."""
    figure, axes = panels(len(cases), (1.9, 2.8))
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
        listed = ", ".join(f"{value:g}" for value in values)
        ax.set_title(f"{title}\nα = ({listed})", fontsize=10, color=INK, pad=12)
        ax.text(0.5, -0.2, _caption(alpha), ha="center", va="top", fontsize=8.5, color=INK)
        ax.set(xlim=(-0.06, 1.06), ylim=(-0.82, 1.0))
        ax.set_aspect("equal")
        ax.set_axis_off()
    save(figure, path)


def _lattice(steps: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Return points inside the triangle, none on its edges: (P, 3), each summing to 1."""
    first, second = np.meshgrid(np.arange(steps), np.arange(steps), indexing="ij")
    inside = first + second < steps
    third = steps - 1 - first - second
    points = np.stack([first[inside], second[inside], third[inside]], -1) + 1 / 3
    lattice: np.ndarray[tuple[int, int], np.dtype[np.float64]] = points / steps
    return lattice


def _caption(alpha: Tensor) -> str:
    dist = Dirichlet(alpha)
    return (
        f"aleatoric {dist.aleatoric.item():.2f}\n+ epistemic {dist.epistemic.item():.2f}\n"
        f"= total {dist.total.item():.2f}\nvacuity {dist.vacuity.item():.2f}\n"
        f"dissonance {dist.dissonance.item():.2f}"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Train, print, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path("uncertainty"))
    args = parser.parse_args(argv)
    results, accuracy = experiment(args.seeds, args.epochs)
    print(f"accuracy {100 * accuracy.mean():.1f} % with {TRAINING} training digits; AUROC in %")
    print(f"{'':22}" + "".join(f"{question:>10}" for question in QUESTIONS))
    for name in SCORES:
        row = "".join(f"{100 * results[question][name].mean():10.1f}" for question in QUESTIONS)
        print(f"{name:22}" + row)
    draw_triangles(args.out / "triangles.png", CASES)
    draw_scores(args.out / "scores.png", results)
    print(args.out)


if __name__ == "__main__":
    main()
