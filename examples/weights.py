"""What the weights of I-EDL do: lambda and the KL weight, swept on scikit-learn's digits.

All settings and seeds train side by side, on the same batches and from the same starts. Then test
digits are classified, and told from patches of photographs, which training never shows. Run it with

    python examples/weights.py [--seeds 3] [--epochs 30] [--out weights]

which prints a table and writes weights/fisher.png and weights/kl.png. Nothing is chosen here by
what comes out: all that was tried is shown.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from dubito import Dirichlet, IEDLLoss, metrics
from dubito.data import embedded
from dubito.report.figures import Curve, sweep
from dubito.report.figures.style import drawn

FISHER = (0.0, 0.001, 0.01, 0.05, 0.1, 0.2, 0.5)
KL = (0.0, 0.01, 0.1, 1.0, 10.0)
RAMPS = (0, 1, 3, 10, 30)
DEFAULT = (0.05, 1.0, 10)  # lambda, the KL weight, and the epochs over which it rises
Setting = tuple[float, float, int]
#: name -> label of the axis, values, and the settings of each curve
SWEEPS: dict[str, tuple[str, tuple[float, ...], dict[str, list[Setting]]]] = {
    "fisher": (
        "λ",
        FISHER,
        {
            "KL weight 1": [(w, 1.0, 10) for w in FISHER],
            "without KL": [(w, 0.0, 10) for w in FISHER],
        },
    ),
    "kl": (
        "KL weight",
        KL,
        {"λ = 0.05": [(0.05, w, 10) for w in KL], "λ = 0": [(0.0, w, 10) for w in KL]},
    ),
}
Networks = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Figures:
    """What one setting came to, a value a seed: (S,)."""

    accuracy: Tensor
    ece: Tensor
    inside: Tensor  # median alpha0 of digits
    outside: Tensor  # and of patches
    told_apart: Tensor  # AUROC of alpha0


def criterion(setting: Setting) -> IEDLLoss:
    """The loss of a setting; without a ramp the KL weight is there from the first step."""
    fisher, kl, ramp = setting
    return IEDLLoss(fisher, kl, kl_ramp=ramp)


def train(
    settings: Sequence[Setting], x: Tensor, y: Tensor, seeds: int, epochs: int, hidden: int = 128
) -> Networks:
    """A network for each setting and seed, (N, D) -> (settings, seeds, N, K), trained together."""
    drawn = torch.Generator().manual_seed(0)
    sizes = ((x.shape[1], hidden), (hidden, int(y.max()) + 1))
    layers = [_layer(*size, seeds, len(settings), drawn) for size in sizes]
    (w1, b1), (w2, b2) = layers
    losses = [criterion(setting) for setting in settings]

    def logits(x: Tensor) -> Tensor:
        features = torch.baddbmm(b1, x.expand(len(w1), *x.shape), w1).relu()
        found: Tensor = torch.baddbmm(b2, features, w2).unflatten(0, (len(settings), seeds))
        return found

    optimizer = torch.optim.Adam([w1, b1, w2, b2], lr=5e-3, weight_decay=1e-4)
    for epoch in range(epochs):
        for loss in losses:
            loss.set_epoch(epoch)
        for batch in torch.randperm(len(x), generator=drawn).split(64):
            optimizer.zero_grad()
            found, target = logits(x[batch]), y[batch].expand(seeds, -1)
            # Of a mean over seeds each would see only its share.
            parts = [loss(f, target) for loss, f in zip(losses, found, strict=True)]
            (seeds * torch.stack(parts).sum()).backward()
            optimizer.step()
    return logits


def _layer(
    entering: int, leaving: int, seeds: int, settings: int, drawn: torch.Generator
) -> tuple[nn.Parameter, nn.Parameter]:
    """Weights and biases as torch's Linear draws them; every setting starts from the same."""
    bound = 1 / math.sqrt(entering)
    shapes = (seeds, entering, leaving), (seeds, 1, leaving)
    first, second = (
        nn.Parameter(
            torch.empty(shape).uniform_(-bound, bound, generator=drawn).repeat(settings, 1, 1)
        )
        for shape in shapes
    )
    return first, second


@torch.no_grad()
def judge(networks: Networks, x: Tensor, y: Tensor, outside: Tensor) -> list[Figures]:
    """The figures of each setting."""
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


def draw(path: Path, name: str, found: Mapping[Setting, Figures]) -> None:
    """Accuracy, evidence and detection against a weight; bars are one deviation of the seeds."""
    xlabel, tried, curves = SWEEPS[name]

    def curve(settings: Sequence[Setting], values: Callable[[Figures], Tensor]) -> Curve:
        rows = [values(found[setting]) for setting in settings]
        return Curve(tried, [r.mean().item() for r in rows], [_deviation(r) for r in rows])

    panels: dict[str, Callable[[Figures], Tensor]] = {
        "Accuracy": lambda f: 100 * f.accuracy,
        "Evidence for digits": lambda f: f.inside,
        "Digits told from patches": lambda f: 100 * f.told_apart,
    }
    given = {
        title: {label: curve(settings, values) for label, settings in curves.items()}
        for title, values in panels.items()
    }
    ylabels = ("right (%)", "median α₀", "AUROC of α₀ (%)")
    figure = sweep(given, xlabel, ylabels, DEFAULT[0] if name == "fisher" else DEFAULT[1])
    figure.set_size_inches(9, 3.3)  # as wide as a page, so that its text keeps its size
    figure.axes[1].set_yscale("log")
    figure.axes[1].yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    path.write_bytes(drawn(figure)["png"])


def _deviation(values: Tensor) -> float:
    return values.std(correction=0).item()


def main(words: Sequence[str] | None = None) -> None:
    """Train, print, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path("weights"))
    given = parser.parse_args(words)
    given.out.mkdir(parents=True, exist_ok=True)
    digits = embedded.digits()
    swept = [s for *_, curves in SWEEPS.values() for chosen in curves.values() for s in chosen]
    settings = list(dict.fromkeys([*swept, *((*DEFAULT[:2], ramp) for ramp in RAMPS)]))
    train_x, x = (part.floats().flatten(1) for part in (digits.train, digits.test))
    networks = train(settings, train_x, digits.train.labels, given.seeds, given.epochs)
    patches = embedded.patches(len(x)).flatten(1)
    found = dict(zip(settings, judge(networks, x, digits.test.labels, patches), strict=True))
    print("lambda     KL  ramp  accuracy   ECE  alpha0: digits  patches  AUROC")
    for setting, f in found.items():
        accuracy, ece, auroc = (100 * v.mean().item() for v in (f.accuracy, f.ece, f.told_apart))
        inside, outside = f.inside.mean().item(), f.outside.mean().item()
        print(
            f"{setting[0]:6g} {setting[1]:6g} {setting[2]:5d} {accuracy:9.1f} {ece:5.1f} "
            f"{inside:15.1f} {outside:8.1f} {auroc:6.1f}"
        )
    for name in SWEEPS:
        draw(given.out / f"{name}.png", name, found)
    print(given.out)


if __name__ == "__main__":
    main()
