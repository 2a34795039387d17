"""Draw the figures of docs/theory.md and print its tables.

    python examples/theory.py [--out docs/assets]

Nothing is trained: every curve is a term of a loss, its gradient, or the minimum of a loss over the
evidence of a single input. The figures are the same in every run.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from matplotlib.colors import LinearSegmentedColormap, SymLogNorm
from matplotlib.figure import Figure
from torch import Tensor

from dubito import Dirichlet, losses
from dubito.losses import ClosedForm

BLUE, ORANGE, GREEN, GRAY = "#0072b2", "#d55e00", "#009e73", "#5a6470"
STYLE = {
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "svg.hashsalt": "dubito",
}
FISHER_WEIGHT = 0.05
#: evidence of three classes; the first class is the label
SAMPLES: Mapping[str, tuple[float, float, float]] = {
    "little": (0.2, 0.1, 0.0),
    "conflicting": (9.0, 9.0, 0.0),
    "much": (27.0, 0.0, 0.0),
    "much, wrong": (0.0, 27.0, 0.0),
}
MSE = {losses.mse_bias: 1.0, losses.mse_variance: 1.0}
FISHER_MSE = {losses.fisher_bias: 1.0, losses.fisher_variance: 1.0}
PENALTY = {losses.fisher_penalty: FISHER_WEIGHT}
KL = {losses.label_removed_kl: 1.0}
Weights = Mapping[ClosedForm, float]
EDL: Weights = {**MSE, **KL}
IEDL: Weights = {**FISHER_MSE, **PENALTY, **KL}
TERMS: Mapping[str, Weights] = {
    "squared error (EDL)": MSE,
    "weighted error (I-EDL)": FISHER_MSE,
    f"log-determinant × {FISHER_WEIGHT}": PENALTY,
    "KL × 1": KL,
}


def loss(evidence: Tensor, weights: Weights, label: int = 0) -> Tensor:
    """Compute a weighted sum of terms for one label.

    Args:
        evidence: Evidence of each class, (N, K).
        weights: Weight of each term.
        label: Class of all N samples.
    """
    dist, target = Dirichlet(evidence + 1), torch.full(evidence.shape[:1], label)
    parts = [weight * term(dist, target) for term, weight in weights.items()]
    return torch.stack(parts).sum(0)


def push(evidence: Tensor, weights: Weights) -> Tensor:
    """Return the negative gradient in the evidence: positive where a step raises it, (N, K)."""
    evidence = evidence.clone().requires_grad_()
    return -torch.autograd.grad(loss(evidence, weights).sum(), evidence)[0]


def minimize(shares: Tensor, weights: Weights) -> Tensor:
    """Find the evidence that minimizes the loss averaged over the labels of an input: (N, K).

    Args:
        shares: Share of each label among the observations of each input, (N, K).
        weights: Weight of each term.
    """
    roots = torch.ones_like(shares, requires_grad=True)  # evidence = roots², so never negative
    optimizer = torch.optim.LBFGS(
        [roots], max_iter=500, tolerance_grad=1e-10, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        evidence = roots.square()
        by_label = [loss(evidence, weights, label) for label in range(shares.shape[-1])]
        total = (shares * torch.stack(by_label, -1)).sum()
        total.backward()
        return total

    optimizer.step(closure)
    return roots.detach().square()


# --- figures ---


def densities() -> Figure:
    """Draw three Dirichlet distributions of two classes with the same mean."""
    figure, (ax,) = _figure(1, (4.6, 2.6))
    p = torch.linspace(0.001, 0.999, 300, dtype=torch.float64)
    for evidence, color in ((0, GRAY), (2, BLUE), (20, ORANGE)):
        dist = Dirichlet(torch.full((2,), evidence + 1.0, dtype=torch.float64))
        density = dist.to_torch().log_prob(torch.stack([p, 1 - p], -1)).exp()
        ax.plot(p, density, color=color, label=f"{evidence} and {evidence}")
    ax.set(xlabel="probability of the first class", ylabel="density", ylim=(0, None))
    ax.legend(title="evidence")
    return figure


def fisher() -> Figure:
    """Draw the weight of an error and the loss of a sample as the evidence of its label grows."""
    figure, (left, right) = _figure(2, (6.4, 2.9))
    e = torch.logspace(-1, 2, 200, dtype=torch.float64)
    left.plot(e, torch.special.polygamma(1, e + 1), color=ORANGE)
    left.set(xscale="log", title="weight of a class", xlabel="its evidence", ylabel="ψ₁(α)")
    left.set_ylim(0, None)
    evidence = torch.stack([e, torch.zeros_like(e), torch.zeros_like(e)], -1)
    error, penalty = loss(evidence, FISHER_MSE), loss(evidence, PENALTY)
    right.plot(e, error, color=ORANGE, label="weighted error")
    right.plot(e, penalty, color=GREEN, label=f"−{FISHER_WEIGHT} log|I|")
    right.plot(e, error + penalty, color=GRAY, label="sum")
    lowest = (error + penalty).argmin()
    right.plot(e[lowest], (error + penalty)[lowest], "o", color=GRAY)
    right.set(xscale="log", title="loss of a sample", xlabel="evidence of the label")
    right.legend()
    for ax in (left, right):
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    return figure


def terms() -> Figure:
    """Draw how each term changes the evidence of each class, for four samples."""
    figure = Figure(figsize=(6.4, 5.0), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True, sharey=True)
    colors = LinearSegmentedColormap.from_list("push", [ORANGE, "white", BLUE])
    scale = SymLogNorm(0.001, vmin=-3, vmax=3)
    for ax, (name, evidence) in zip(axes.flat, SAMPLES.items(), strict=True):
        rows = torch.stack([push(_row(evidence), weights)[0] for weights in TERMS.values()])
        ax.imshow(rows.numpy(), cmap=colors, norm=scale, aspect="auto", alpha=0.6)
        for (row, column), value in _cells(rows):
            ax.text(column, row, signed(value), ha="center", va="center")
        ax.set_title(f"{name}: {', '.join(f'{e:g}' for e in evidence)}")
        ax.set_xticks(range(3), ["label", "second", "third"])
        ax.set_yticks(range(len(TERMS)), list(TERMS))
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
    return figure


FIGURES = {
    "densities": densities,
    "fisher": fisher,
    "terms": terms,
}


def signed(value: float) -> str:
    """Format with two digits and a sign; 0 below 0.001.

    >>> signed(-0.04612), signed(2.3556), signed(0.0007)
    ('−0.046', '+2.4', '0')
    """
    if abs(value) < 1e-3:
        return "0"
    return f"{value:+.2g}".replace("-", "−")


def _figure(columns: int, size: tuple[float, float]) -> tuple[Figure, list[Any]]:
    figure = Figure(figsize=size, layout="constrained")
    return figure, list(figure.subplots(1, columns, squeeze=False)[0])


def _row(evidence: Sequence[float]) -> Tensor:
    return torch.tensor([evidence], dtype=torch.float64)


def _cells(rows: Tensor) -> Iterator[tuple[tuple[int, int], float]]:
    for row, values in enumerate(rows.tolist()):
        for column, value in enumerate(values):
            yield (row, column), value


# --- tables ---


def beliefs() -> list[str]:
    """Return the rows of the table of beliefs, in Markdown."""
    rows = []
    for name, evidence in SAMPLES.items():
        dist = Dirichlet(_row(evidence)[0] + 1)
        probs, belief = (_numbers(values) for values in (dist.probs, dist.belief))
        listed = ", ".join(f"{e:g}" for e in evidence)
        rows.append(f"| {name} | {listed} | {probs} | {belief} | {dist.vacuity:.2f} |")
    return rows


def uncertainties() -> list[str]:
    """Return the rows of the table of uncertainties, in Markdown."""
    rows = []
    for name, evidence in SAMPLES.items():
        dist = Dirichlet(_row(evidence)[0] + 1)
        values = (dist.total, dist.aleatoric, dist.epistemic)
        rows.append(f"| {name} | " + " | ".join(f"{value:.2f}" for value in values) + " |")
    return rows


def _numbers(values: Tensor) -> str:
    return ", ".join(f"{value:.2f}" for value in values.tolist())


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs/assets"), help="Folder for figures.")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        for name, draw in FIGURES.items():
            path = options.out / f"theory-{name}.svg"
            draw().savefig(path, metadata={"Date": None})
            print(os.fspath(path))
    for row in (*beliefs(), *uncertainties()):
        print(row)


if __name__ == "__main__":
    main()
