"""The front of trials: which ones no other surpasses, and its figure."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dubito.fewshot.tuning import Trial

__all__ = ["drawn", "front"]


def front(trials: Sequence[Trial]) -> list[int]:
    """The trials that no other one equals in both figures and exceeds in one."""

    def better(a: Trial, b: Trial) -> bool:
        gains = (a.accuracy.mean - b.accuracy.mean, a.ood_aupr.mean - b.ood_aupr.mean)
        return min(gains) >= 0 and max(gains) > 0

    return [i for i, one in enumerate(trials) if not any(better(other, one) for other in trials)]


def drawn(trials: Sequence[Trial], joined: Sequence[int], choice: int) -> bytes:
    """Accuracy against OOD AUPR of all trials, the front joined and the choice marked: PNG."""
    from matplotlib.figure import Figure as Canvas

    from dubito.report.figures.style import COLOURS, FAINT, INK

    canvas = Canvas(figsize=(6.4, 4.8), layout="constrained")
    ax = canvas.subplots()
    across = [100 * trial.accuracy.mean for trial in trials]
    up = [100 * trial.ood_aupr.mean for trial in trials]
    order = sorted(joined, key=lambda i: across[i])
    ax.errorbar(
        across, up, [100 * t.ood_aupr.interval for t in trials],
        [100 * t.accuracy.interval for t in trials],
        fmt="none", ecolor=FAINT, elinewidth=0.5, alpha=0.6,
    )  # fmt: skip
    ax.plot(across, up, "o", color=COLOURS[0], markersize=5)
    ax.plot([across[i] for i in order], [up[i] for i in order], color=COLOURS[0], linewidth=1)
    ax.plot(across[choice], up[choice], "o", color=COLOURS[1], markersize=9)
    for i in {*order, choice}:
        place = (across[i], up[i])
        ax.annotate(_named(trials[i]), place, (5, 5), textcoords="offset points", color=INK)
    ax.set_xlabel("accuracy on validation classes, %")
    ax.set_ylabel("OOD AUPR (α₀), %")
    buffer = io.BytesIO()
    canvas.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()


def _named(trial: Trial) -> str:
    """A candidate in a few signs."""
    given = trial.hyperparameters
    words = [f"λ = {given['fisher_weight']:.3g}"] if "fisher_weight" in given else []
    if given["kl_weight"] != 1:
        words.append(f"KL {given['kl_weight']:g}")
    if trial.scaling != "none":
        words.append(trial.scaling)
    return ", ".join(words) or "KL 1"
