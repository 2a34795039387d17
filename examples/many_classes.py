"""10, 100 and 1,000 classes: the scale of the loss weights, and the cost of the loss.

Classes are noisy points around random centers in 32 dimensions. Networks are trained with weights
for ten classes, with scale="paper" and scale="per_class". Then the loss and its gradient are timed
against the textbook form. Run it with

    python examples/many_classes.py [--classes 10 100 1000] [--epochs 12] [--rows 512]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from dubito import Dirichlet, IEDLLoss, losses

DIMENSIONS, NOISE = 32, 0.2


def samples(centers: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Draw about `count` points, at least two per class: (N, D), (N,)."""
    label = torch.arange(len(centers)).repeat(max(2, count // len(centers)))
    return centers[label] + NOISE * torch.randn(len(label), DIMENSIONS), label


def accuracy(classes: int, scale: str, epochs: int) -> float:
    """Train, and return the accuracy on new points."""
    torch.manual_seed(0)
    centers = torch.randn(classes, DIMENSIONS)
    x, label = samples(centers, 2000)
    network = nn.Sequential(nn.Linear(DIMENSIONS, 256), nn.ReLU(), nn.Linear(256, classes))
    criterion = IEDLLoss(fisher_weight=0.05, kl_ramp=10, scale=scale)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    for epoch in range(epochs):
        criterion.set_epoch(epoch)
        for batch in torch.randperm(len(x)).split(100):
            optimizer.zero_grad()
            criterion(network(x[batch]), label[batch]).backward()
            optimizer.step()
    x, label = samples(centers, 2000)
    with torch.no_grad():
        dist = Dirichlet.from_logits(network(x))
    return (dist.probs.argmax(-1) == label).double().mean().item()


def sizes(classes: int) -> dict[str, float]:
    """Return the terms of a sample with alpha = 10 for every class."""
    dist, target = Dirichlet(torch.full((1, classes), 10.0)), torch.tensor([0])
    terms = (losses.fisher_bias, losses.fisher_penalty, losses.label_removed_kl)
    return {term.form: term(dist, target).item() for term in terms}


def textbook(logits: Tensor, target: Tensor) -> Tensor:
    """Compute the I-EDL loss as it is written in the paper."""
    alpha = nn.functional.softplus(logits) + 1
    y = nn.functional.one_hot(target, logits.shape[-1])
    alpha0, trigamma = alpha.sum(-1, keepdim=True), torch.polygamma(1, alpha)
    p = alpha / alpha0
    error = (((y - p).square() + p * (1 - p) / (alpha0 + 1)) * trigamma).sum(-1)
    ratio = torch.polygamma(1, alpha0[..., 0]) * (1 / trigamma).sum(-1)
    logdet = trigamma.log().sum(-1) + (1 - ratio).log()
    without_label = torch.distributions.Dirichlet(alpha * (1 - y) + y)
    uniform = torch.distributions.Dirichlet(torch.ones_like(alpha))
    kl = torch.distributions.kl_divergence(without_label, uniform)
    return (error - 0.005 * logdet + kl).mean()


def seconds(loss: Callable[[Tensor, Tensor], Tensor], rows: int, classes: int) -> float:
    """Return the best of five times for the loss of logits (rows, classes) and its gradient."""
    logits = torch.randn(rows, classes, requires_grad=True)
    target, times = torch.randint(classes, (rows,)), []
    for _ in range(6):
        start = time.perf_counter()
        loss(logits, target).backward()
        times.append(time.perf_counter() - start)
    return min(times[1:])


def main(argv: Sequence[str] | None = None) -> None:
    """Train, time, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--classes", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--rows", type=int, default=512)
    args = parser.parse_args(argv)
    print("classes  fisher_bias  fisher_penalty  label_removed_kl  of a sample with alpha = 10")
    for classes in args.classes:
        bias, penalty, kl = sizes(classes).values()
        print(f"{classes:7}{bias:13.4f}{penalty:16.1f}{kl:18.1f}")
    print("classes  accuracy: paper  per_class")
    for classes in args.classes:
        accuracies = (
            100 * accuracy(classes, scale, args.epochs) for scale in ("paper", "per_class")
        )
        print(f"{classes:7}" + "".join(f"{value:14.1f}%" for value in accuracies))
    print(f"classes  ms for {args.rows} rows: textbook, dubito")
    for classes in args.classes:
        times = (1000 * seconds(loss, args.rows, classes) for loss in (textbook, IEDLLoss()))
        print(f"{classes:7}" + "".join(f"{value:12.2f}" for value in times))


if __name__ == "__main__":
    main()
