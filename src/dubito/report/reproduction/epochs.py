"""What was watched over the epochs of trainings, as figures."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from dubito.report import figures
from dubito.report.figures import Trajectory
from dubito.report.reproduction.drawing import Drawing
from dubito.report.reproduction.names import SETS, method_label, ood_label
from dubito.report.reproduction.records import Record, Records, at
from dubito.report.reproduction.tables import OOD, methods

__all__ = ["trajectories"]

LOSSES = "validation_loss"
SHOWN, BESIDE = "/max_prob/aupr", "/alpha0/aupr"


def trajectories(records: Records, data: str) -> Iterator[Drawing]:
    """Accuracy and detection over the epochs, of recipes whose trainings were watched."""
    for variant in methods(records, data):
        seen = [
            record
            for record in records.of(f"{data}-{variant}")
            if at(record, ("training", "history", "watched"))
        ]
        if not seen:
            continue
        watched = at(seen[0], ("training", "history", "watched"))
        names = [name for name in watched if name == "accuracy" or name.endswith(SHOWN)]
        panels: dict[str, list[Trajectory]] = {}
        other: dict[str, list[Trajectory]] = {}
        ylabels = []
        if all(at(record, ("training", "history", LOSSES)) for record in seen):
            panels[figures.LOSS] = [_trajectory(record, (LOSSES,), 1) for record in seen]
            ylabels.append("")
        for name in names:
            ood = name.removesuffix(SHOWN)  # which may be a path
            title = "test accuracy" if name == "accuracy" else f"→ {ood_label(Path(ood).stem)}"
            if title in panels:  # files of one name
                title = f"→ {ood}"
            panels[title] = [_trajectory(record, ("watched", name), 100) for record in seen]
            path = "watched", ood + BESIDE
            both = all(at(record, ("training", "history", *path)) for record in seen)
            if both:
                other[title] = [_trajectory(record, path, 100) for record in seen]
            measure = "AUPR (%)" if both else "AUPR, Max.P (%)"
            ylabels.append("%" if name == "accuracy" else measure)
        label, many = f"{SETS[data].label}, {method_label(variant)}", "s" * (len(seen) > 1)
        yield Drawing(
            f"epochs-{data}-{variant}", OOD, f"{label}: what the epochs do",
            f"Test accuracy and detection at each check of {len(seen)} seed{many}; nothing in the "
            "training depended on them. Diamonds are the weights that the validation samples "
            "chose, circles those with the least validation loss.",
            f"For {label}, test accuracy and AUPR against each OOD set over the epochs, a line a "
            "seed, with the epoch whose weights were kept.",
            partial(figures.trajectories, panels, ylabels, other, ("by Max.P", "by α₀")),
        )  # fmt: skip


def _trajectory(record: Record, path: tuple[str, ...], factor: float) -> Trajectory:
    history = at(record, ("training", "history"))
    values = [factor * float(value) for value in at(history, path)]
    losses = [float(value) for value in at(history, (LOSSES,)) or ()]  # one may be "inf"
    # while the KL weight rises, losses are small for that alone in records made before 2026-12
    ramp = at(record, ("config", "method", "kl_ramp"))
    risen = ramp if isinstance(ramp, int) else 0
    settled = [place for place, epoch in enumerate(history["epoch"]) if epoch > risen]
    low = min(settled, key=losses.__getitem__) if losses and settled else None
    least = None if low is None else history["epoch"][low]
    return Trajectory(history["epoch"], values, at(record, ("training", "best_epoch")), least)
