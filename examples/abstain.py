"""Answer or abstain: what a promised error rate is worth, on the inputs it was made for and others.

A network learns from a third of scikit-learn's digits; another third decides when to answer, with
an error rate of at most 2 % promised; the last third, clean, noisy or shifted by a pixel, and
patches of photographs show what the promise is worth. Over many splits. Run it with

    python examples/abstain.py [--splits 20] [--epochs 40] [--out abstain]

which prints a table and writes abstain/risk.png and abstain/decisions.png.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from dubito import Dirichlet, IEDLLoss, backbones
from dubito.data import Arrays, Batches, embedded, join, split
from dubito.policy import REASONS, Policy
from dubito.report.figures import Curve, risk_coverage
from dubito.report.figures.style import COLOURS, FAINT, INK, drawn, panels, plain

ERROR, CONFIDENCE, FALSE_ALARMS = 0.02, 0.95, 0.05


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


def inputs(x: Tensor, seed: int) -> dict[str, Tensor]:
    """The test digits as they are and as they might arrive: {name: (N, 1, 8, 8)}."""
    return {
        "clean": x,
        "noise 0.1": embedded.noisy(x, 0.1, seed),
        "noise 0.3": embedded.noisy(x, 0.3, seed),
        "one pixel right": x.roll(1, -1),
        "photo patches": embedded.patches(len(x), seed),
    }


def experiment(splits: int, epochs: int) -> list[dict[str, tuple[Tensor, Tensor, Tensor]]]:
    """For each split and kind of input: codes of the decision, which are wrong, the confidence."""
    digits = embedded.digits()
    everything = join([digits.train, digits.validation, digits.test])
    outcomes = []
    for seed in range(splits):
        train, rest, _ = split(everything, 1 / 3, seed)
        held_out, test, _ = split(rest, 1 / 2, seed)
        network = learn(train, epochs, seed)
        with torch.no_grad():
            dist = Dirichlet.from_logits(network(held_out.floats()))
            policy = Policy.control_error(
                dist, dist.probs.argmax(-1) != held_out.labels, ERROR, CONFIDENCE,
                ood_score="vacuity", false_alarms=FALSE_ALARMS,
            )  # fmt: skip
            heard = {
                name: Dirichlet.from_logits(network(x))
                for name, x in inputs(test.floats(), seed).items()
            }
        # No class is right for a photograph: every answer is wrong.
        outcomes.append(
            {
                name: (
                    policy.decide(d).codes,
                    (d.probs.argmax(-1) != test.labels) | (name == "photo patches"),
                    d.max_prob,
                )
                for name, d in heard.items()
            }
        )
    return outcomes


def risk(wrong: Tensor, confidence: Tensor) -> Curve:
    """The error rate of the surest against their share."""
    errors = wrong[confidence.argsort(descending=True)].double().cumsum(0)
    count = torch.arange(1, len(errors) + 1)
    return Curve((count / len(errors)).tolist(), (errors / count).tolist())


def draw_risk(path: Path, outcomes: Sequence[Mapping[str, tuple[Tensor, Tensor, Tensor]]]) -> None:
    """Errors among the answered against the share answered, of all splits together."""
    names = [name for name in outcomes[0] if name != "photo patches"]
    curves = {
        name: risk(*(torch.cat([o[name][part] for o in outcomes]) for part in (1, 2)))
        for name in names
    }
    figure = risk_coverage({"": curves})
    (ax,) = figure.axes
    ax.axhline(100 * ERROR, color=INK, linewidth=1, linestyle=":")
    ax.text(2, 100 * ERROR * 1.06, f"promised: {100 * ERROR:g} %", fontsize=9, color=INK)
    path.write_bytes(drawn(figure)["png"])


def draw_decisions(path: Path, shares: Mapping[str, Tensor]) -> None:
    """What the policy does with each kind of input: (accepted right, wrong, ambiguous, ...)."""
    figure, (ax,) = panels(1, 1, (7.2, 2.9))
    words = ("accepted, right", "accepted, wrong", *REASONS[1:])
    colours = (COLOURS[0], COLOURS[1], "#c9c9c9", "#7f7f7f")
    hatches = ("", "", "", "////")
    left = torch.zeros(len(shares))
    for i, word in enumerate(words):
        part = torch.stack([100 * share[i] for share in shares.values()])
        ax.barh(
            list(shares)[::-1], part.flip(0), left=left.flip(0), color=colours[i],
            hatch=hatches[i], edgecolor="white", linewidth=0.5, label=word,
        )  # fmt: skip
        left = left + part
    ax.set(xlim=(0, 100), xlabel="share of inputs (%)")
    ax.grid(True, axis="x", color=FAINT, alpha=0.25, linewidth=0.6)
    plain(ax)
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    path.write_bytes(drawn(figure)["png"])


def main(words: Sequence[str] | None = None) -> None:
    """Train, print, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--out", type=Path, default=Path("abstain"))
    given = parser.parse_args(words)
    given.out.mkdir(parents=True, exist_ok=True)
    outcomes = experiment(given.splits, given.epochs)
    print(f"promised: at most {ERROR:.0%} wrong among the accepted; {given.splits} splits")
    print("inputs            accepted  ambiguous  unfamiliar   all wrong  of accepted  kept in")
    shares = {}
    for name in outcomes[0]:
        codes, wrong, _ = (torch.cat([o[name][part] for o in outcomes]) for part in range(3))
        accept = codes == 0
        parts = (accept & ~wrong, accept & wrong, codes == 1, codes == 2)
        shares[name] = torch.stack([part.float().mean() for part in parts])
        kept = sum(_rate(*o[name][:2]) <= ERROR for o in outcomes)
        cells = [accept.float().mean(), shares[name][2], shares[name][3], wrong.float().mean()]
        print(
            f"{name:16}"
            + "".join(f"{100 * cell.item():10.1f}%" for cell in cells)
            + f"{100 * _rate(codes, wrong):12.1f}%   {kept}/{len(outcomes)}"
        )
    draw_risk(given.out / "risk.png", outcomes)
    draw_decisions(given.out / "decisions.png", shares)
    print(given.out)


def _rate(codes: Tensor, wrong: Tensor) -> float:
    """The share that is wrong among the accepted, 0 where nothing is."""
    accepted = wrong[codes == 0]
    return accepted.double().mean().item() if len(accepted) else 0.0


if __name__ == "__main__":
    main()
