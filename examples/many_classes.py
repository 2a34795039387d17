"""Ten, a hundred, a thousand classes: what the scale of the weights does, and what the loss costs.

Classes are noisy points around random centres in 32 dimensions. A network learns them with the
weights that were made for ten classes, on the paper's scale and on the scale "per_class". Then the
loss and its gradient are timed, by plain torch and by the fused kernel. Run it with

    python examples/many_classes.py [--classes 10 100 1000] [--epochs 12] [--rows 512]
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from dubito import Dirichlet, IEDLLoss, losses

DIMENSIONS, NOISE = 32, 0.2


def samples(centres: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """About `count` points, at least two a class: (N, D), (N,)."""
    label = torch.arange(len(centres)).repeat(max(2, count // len(centres)))
    return centres[label] + NOISE * torch.randn(len(label), DIMENSIONS), label


def accuracy(classes: int, scale: str, epochs: int) -> float:
    """Of new points, after learning with the paper's weights on this scale."""
    torch.manual_seed(0)
    centres = torch.randn(classes, DIMENSIONS)
    x, label = samples(centres, 2000)
    network = nn.Sequential(nn.Linear(DIMENSIONS, 256), nn.ReLU(), nn.Linear(256, classes))
    criterion = IEDLLoss(fisher_weight=0.05, kl_ramp=10, scale=scale)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    for epoch in range(epochs):
        criterion.set_epoch(epoch)
        for batch in torch.randperm(len(x)).split(100):
            optimizer.zero_grad()
            criterion(network(x[batch]), label[batch]).backward()
            optimizer.step()
    x, label = samples(centres, 2000)
    with torch.no_grad():
        dist = Dirichlet.from_logits(network(x))
    return (dist.probs.argmax(-1) == label).double().mean().item()


def sizes(classes: int) -> dict[str, float]:
    """The terms of a sample with alpha = 10 for every class."""
    dist, target = Dirichlet(torch.full((1, classes), 10.0)), torch.tensor([0])
    terms = (losses.fisher_bias, losses.fisher_penalty, losses.label_removed_kl)
    return {term.form: term(dist, target).item() for term in terms}


def seconds(rows: int, classes: int, mode: str) -> float:
    """The best of three: the loss of logits (rows, classes) and their gradient."""
    before = os.environ.get("DUBITO_KERNELS")
    os.environ["DUBITO_KERNELS"] = mode
    criterion, best = IEDLLoss(), float("inf")
    logits = torch.randn(rows, classes, requires_grad=True)
    label = torch.randint(classes, (rows,))
    for turn in range(4):  # the first turn may compile
        start = time.perf_counter()
        criterion(logits, label).backward()
        best = min(best, time.perf_counter() - start) if turn else best
    del os.environ["DUBITO_KERNELS"]
    if before is not None:
        os.environ["DUBITO_KERNELS"] = before
    return best


def main(words: Sequence[str] | None = None) -> None:
    """Train, time, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--classes", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--rows", type=int, default=512)
    given = parser.parse_args(words)
    print("classes  fisher_bias  fisher_penalty  label_removed_kl  of a sample with alpha = 10")
    for classes in given.classes:
        bias, penalty, kl = sizes(classes).values()
        print(f"{classes:7}{bias:13.4f}{penalty:16.1f}{kl:18.1f}")
    print("classes  accuracy: paper  per_class")
    for classes in given.classes:
        areas = (100 * accuracy(classes, scale, given.epochs) for scale in ("paper", "per_class"))
        print(f"{classes:7}" + "".join(f"{a:14.1f}%" for a in areas))
    modes = ("off", "auto") if find_spec("numba") else ("off",)
    print(f"classes  ms for {given.rows} rows: " + ", ".join(modes))
    for classes in given.classes:
        times = (1000 * seconds(given.rows, classes, mode) for mode in modes)
        print(f"{classes:7}" + "".join(f"{t:12.2f}" for t in times))


if __name__ == "__main__":
    main()
