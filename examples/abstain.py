"""A guaranteed error rate, on inputs it covers and on shifted ones.

A third of scikit-learn's digits is for training; another third fits the policy, with an error rate
of at most 2%; the last third is for testing: as it is, noisy, and shifted by a pixel. Patches of
photographs are tested as well. Over many splits. Run it with

    python examples/abstain.py [--splits 20] [--epochs 40] [--out abstain]

which prints a table and writes risk.png and decisions.png.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from shared import (
    COLORS,
    INK,
    digits,
    divide,
    noisy,
    panels,
    patches,
    plain,
    save,
    style,
)
from shared import train as train_network
from torch import Tensor

from dubito import Dirichlet
from dubito.policy import Policy

ERROR_RATE, CONFIDENCE, FALSE_ALARMS = 0.02, 0.95, 0.05
PATCHES = "photo patches"
Outcome = tuple[Tensor, Tensor, Tensor]


def variants(x: Tensor, seed: int) -> dict[str, Tensor]:
    """Return the test digits and other inputs: {name: (N, 1, 8, 8)}."""
    return {
        "clean": x,
        "noise 0.1": noisy(x, 0.1, seed),
        "noise 0.3": noisy(x, 0.3, seed),
        "one pixel right": x.roll(1, -1),
        PATCHES: patches(len(x), seed),
    }


def experiment(splits: int, epochs: int) -> list[dict[str, Outcome]]:
    """Return decisions, errors and confidence, (N,) each, of each kind of input and split."""
    everything, outcomes = digits(), []
    for seed in range(splits):
        train, rest = divide(everything, 1 / 3, seed)
        validation, test = divide(rest, 1 / 2, seed)
        network = train_network(train, epochs, seed).requires_grad_(False)
        dist = Dirichlet.from_logits(network(validation.x))
        policy = Policy.control_error(
            dist, dist.probs.argmax(-1) != validation.y, ERROR_RATE, CONFIDENCE,
            ood_score="vacuity", false_alarms=FALSE_ALARMS,
        )  # fmt: skip
        split = {}
        for name, x in variants(test.x, seed).items():
            dist = Dirichlet.from_logits(network(x))
            # No class is correct for a photograph: every prediction is an error.
            errors = (dist.probs.argmax(-1) != test.y) | (name == PATCHES)
            split[name] = (policy.decide(dist), errors, dist.max_prob)
        outcomes.append(split)
    return outcomes


def draw_risk(path: Path, outcomes: Sequence[Mapping[str, Outcome]]) -> None:
    """Draw the error rate among the most confident predictions over their share, of all splits."""
    figure, (ax,) = panels(1, (5.2, 4.0))
    for place, name in enumerate(name for name in outcomes[0] if name != PATCHES):
        errors, confidence = (
            torch.cat([split[name][part] for split in outcomes]) for part in (1, 2)
        )
        wrong = errors[confidence.argsort(descending=True)].double().cumsum(0)
        count = torch.arange(1, len(wrong) + 1)
        rate = torch.where(wrong > 0, 100 * wrong / count, torch.nan)
        ax.plot(
            100 * count / len(count), rate, label=name, linewidth=1.6, markersize=4,
            markevery=0.12, **style(place),
        )  # fmt: skip
    ax.axhline(100 * ERROR_RATE, color=INK, linewidth=1, linestyle=":")
    ax.text(2, 100 * ERROR_RATE * 1.06, f"guaranteed: {100 * ERROR_RATE:g} %", fontsize=9)
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.set(xlim=(0, 100), xlabel="accepted (%)", ylabel="errors among accepted (%)")
    plain(ax, grid="both")
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    save(figure, path)


def draw_decisions(path: Path, shares: Mapping[str, Tensor]) -> None:
    """Draw the decisions for each kind of input: correct, wrong, ambiguous, unfamiliar."""
    figure, (ax,) = panels(1, (7.2, 2.9))
    names = ("accepted, correct", "accepted, wrong", "ambiguous", "unfamiliar")
    colors = (COLORS[0], COLORS[1], "#c9c9c9", "#7f7f7f")
    left = torch.zeros(len(shares))
    for place, name in enumerate(names):
        part = torch.stack([100 * share[place] for share in shares.values()])
        ax.barh(
            list(shares)[::-1], part.flip(0), left=left.flip(0), color=colors[place],
            hatch="////" if name == "unfamiliar" else "", edgecolor="white", linewidth=0.5,
            label=name,
        )  # fmt: skip
        left = left + part
    ax.set(xlim=(0, 100), xlabel="share of inputs (%)")
    plain(ax, grid="x")
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    save(figure, path)


def main(argv: Sequence[str] | None = None) -> None:
    """Train, print, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--out", type=Path, default=Path("abstain"))
    args = parser.parse_args(argv)
    outcomes = experiment(args.splits, args.epochs)
    print(f"guaranteed error rate {ERROR_RATE:.0%}; {args.splits} splits")
    print("inputs            accepted  ambiguous  unfamiliar      errors  of accepted  within")
    shares = {}
    for name in outcomes[0]:
        codes, errors, _ = (
            torch.cat([split[name][part] for split in outcomes]) for part in range(3)
        )
        accepted = codes == 0
        parts = (accepted & ~errors, accepted & errors, codes == 1, codes == 2)
        shares[name] = torch.stack([part.float().mean() for part in parts])
        within = sum(_rate(*split[name][:2]) <= ERROR_RATE for split in outcomes)
        cells = [accepted.float().mean(), *shares[name][2:], errors.float().mean()]
        print(
            f"{name:16}"
            + "".join(f"{100 * cell.item():10.1f}%" for cell in cells)
            + f"{100 * _rate(codes, errors):12.1f}%   {within}/{len(outcomes)}"
        )
    draw_risk(args.out / "risk.png", outcomes)
    draw_decisions(args.out / "decisions.png", shares)
    print(args.out)


def _rate(codes: Tensor, errors: Tensor) -> float:
    """Return the error rate among accepted predictions, 0 if there are none."""
    accepted = errors[codes == 0]
    return accepted.double().mean().item() if len(accepted) else 0.0


if __name__ == "__main__":
    main()
