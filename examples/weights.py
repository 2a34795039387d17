"""The Fisher weight and the KL weight of I-EDL, swept on scikit-learn's digits.

All settings and seeds are trained together, on the same batches and from the same initial weights.
The networks then predict test digits and patches of photographs. Run it with

    python examples/weights.py [--seeds 3] [--epochs 30] [--out weights]

which prints a table of everything that was tried and writes fisher.png and kl.png.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from shared import Curve, patches, save, sweep, train_and_test_digits
from torch import Tensor, nn

from dubito import Dirichlet, IEDLLoss, metrics

FISHER = (0.0, 0.001, 0.01, 0.05, 0.1, 0.2, 0.5)
KL = (0.0, 0.01, 0.1, 1.0, 10.0)
RAMPS = (0, 1, 3, 10, 30)
BASE = (0.05, 1.0, 10)  # Fisher weight, KL weight, epochs over which the KL weight rises
Setting = tuple[float, float, int]
#: name -> label of the axis, values, and the settings of each curve
SWEEPS: dict[str, tuple[str, tuple[float, ...], dict[str, list[Setting]]]] = {
    "fisher": (
        "Fisher weight",
        FISHER,
        {
            "KL weight 1": [(w, 1.0, 10) for w in FISHER],
            "without KL": [(w, 0.0, 10) for w in FISHER],
        },
    ),
    "kl": (
        "KL weight",
        KL,
        {
            "Fisher weight 0.05": [(0.05, w, 10) for w in KL],
            "Fisher weight 0": [(0.0, w, 10) for w in KL],
        },
    ),
}
Networks = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Figures:
    """Figures of one setting, one per seed: (S,)."""

    accuracy: Tensor
    ece: Tensor
    inside: Tensor  # median alpha0 of digits
    outside: Tensor  # and of patches
    auroc: Tensor  # of alpha0, digits against patches


def criterion(setting: Setting) -> IEDLLoss:
    """Build the loss of a setting."""
    fisher, kl, ramp = setting
    return IEDLLoss(fisher, kl, kl_ramp=ramp)


def train(
    settings: Sequence[Setting], x: Tensor, y: Tensor, seeds: int, epochs: int, hidden: int = 128
) -> Networks:
    """Train a network per setting and seed, together: (N, D) -> (settings, seeds, N, K)."""
    generator = torch.Generator().manual_seed(0)
    sizes = ((x.shape[1], hidden), (hidden, int(y.max()) + 1))
    layers = [_layer(*size, seeds, len(settings), generator) for size in sizes]
    (w1, b1), (w2, b2) = layers
    losses = [criterion(setting) for setting in settings]

    def logits(x: Tensor) -> Tensor:
        features = torch.baddbmm(b1, x.expand(len(w1), *x.shape), w1).relu()
        outputs: Tensor = torch.baddbmm(b2, features, w2).unflatten(0, (len(settings), seeds))
        return outputs

    optimizer = torch.optim.Adam([w1, b1, w2, b2], lr=5e-3, weight_decay=1e-4)
    for epoch in range(epochs):
        for loss in losses:
            loss.set_epoch(epoch)
        for batch in torch.randperm(len(x), generator=generator).split(64):
            optimizer.zero_grad()
            outputs, target = logits(x[batch]), y[batch].expand(seeds, -1)
            # The loss is a mean over seeds: multiply, so that each seed gets its full gradient.
            parts = [loss(o, target) for loss, o in zip(losses, outputs, strict=True)]
            (seeds * torch.stack(parts).sum()).backward()
            optimizer.step()
    return logits


def _layer(
    entering: int, leaving: int, seeds: int, settings: int, generator: torch.Generator
) -> tuple[nn.Parameter, nn.Parameter]:
    """Draw weights and biases as `nn.Linear` does, the same for every setting."""
    bound = 1 / math.sqrt(entering)
    shapes = (seeds, entering, leaving), (seeds, 1, leaving)
    first, second = (
        nn.Parameter(
            torch.empty(shape).uniform_(-bound, bound, generator=generator).repeat(settings, 1, 1)
        )
        for shape in shapes
    )
    return first, second


@torch.no_grad()
def evaluate(networks: Networks, x: Tensor, y: Tensor, outside: Tensor) -> list[Figures]:
    """Return the figures of each setting."""
    inner, outer = (Dirichlet.from_logits(networks(part)) for part in (x, outside))
    target = y.expand(inner.batch_shape)
    positive = torch.arange(len(x) + len(outside)) < len(x)
    alpha0 = torch.cat([inner.alpha0, outer.alpha0], -1)
    columns = (
        metrics.accuracy(inner.probs, target),
        metrics.ece(inner.probs, target),
        inner.alpha0.median(-1).values,
        outer.alpha0.median(-1).values,
        metrics.auroc(alpha0, positive.expand(alpha0.shape)),
    )
    return [Figures(*row) for row in zip(*columns, strict=True)]


def draw(path: Path, name: str, results: Mapping[Setting, Figures]) -> None:
    """Draw accuracy, evidence and detection over a weight, with one deviation of the seeds."""
    xlabel, tried, curves = SWEEPS[name]

    def curve(settings: Sequence[Setting], values: Callable[[Figures], Tensor]) -> Curve:
        rows = [values(results[setting]) for setting in settings]
        return Curve(tried, [r.mean().item() for r in rows], [_deviation(r) for r in rows])

    panels: dict[str, Callable[[Figures], Tensor]] = {
        "Accuracy": lambda f: 100 * f.accuracy,
        "Evidence for digits": lambda f: f.inside,
        "Digits against patches": lambda f: 100 * f.auroc,
    }
    curves_of_panels = {
        title: {label: curve(settings, values) for label, settings in curves.items()}
        for title, values in panels.items()
    }
    ylabels = ("accuracy (%)", "median α₀", "AUROC of α₀ (%)")
    marked = BASE[0] if name == "fisher" else BASE[1]
    figure = sweep(curves_of_panels, xlabel, ylabels, (3.0, 3.3), marked)
    figure.axes[1].set_yscale("log")
    figure.axes[1].yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    save(figure, path)


def _deviation(values: Tensor) -> float:
    return values.std(correction=0).item()


def main(argv: Sequence[str] | None = None) -> None:
    """Train, print, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path("weights"))
    args = parser.parse_args(argv)
    training, test = train_and_test_digits()
    swept = [s for *_, curves in SWEEPS.values() for curve in curves.values() for s in curve]
    settings = list(dict.fromkeys([*swept, *((*BASE[:2], ramp) for ramp in RAMPS)]))
    networks = train(settings, training.x.flatten(1), training.y, args.seeds, args.epochs)
    ood = patches(len(test.x)).flatten(1)
    results = dict(zip(settings, evaluate(networks, test.x.flatten(1), test.y, ood), strict=True))
    print("Fisher     KL  ramp  accuracy   ECE  alpha0: digits  patches  AUROC")
    for setting, f in results.items():
        accuracy, ece, auroc = (100 * v.mean().item() for v in (f.accuracy, f.ece, f.auroc))
        inside, outside = f.inside.mean().item(), f.outside.mean().item()
        print(
            f"{setting[0]:6g} {setting[1]:6g} {setting[2]:5d} {accuracy:9.1f} {ece:5.1f} "
            f"{inside:15.1f} {outside:8.1f} {auroc:6.1f}"
        )
    for name in SWEEPS:
        draw(args.out / f"{name}.png", name, results)
    print(args.out)


if __name__ == "__main__":
    main()
