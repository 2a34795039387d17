"""The page of a finished run."""

from __future__ import annotations

import json
from pathlib import Path

from dubito.runs import _folder
from dubito.runs._train import Plan
from dubito.training.loop import METRICS

__all__ = ["write_report"]


def write_report(plan: Plan, folder: Path) -> Path:
    """Write report.html of a finished run of the plan, by its validation samples."""
    from dubito.bundle import read_limits
    from dubito.report import training

    run = _folder.load(folder, plan.device)
    config, summary = run.config, _folder.summary_of(folder) or {}
    lines = (folder / METRICS).read_text("utf-8").splitlines()
    history = [json.loads(line) for line in lines]
    facts = config.facts
    validation = plan.validation
    return training.write(
        folder,
        training.Trained(
            title=f"{config.method['name']} on {Path(config.data['source']).name}",
            classes=run.classes,
            inputs=validation.inputs.cpu(),
            labels=validation.labels.cpu(),
            said=run.predict(validation.inputs),
            limits=read_limits(folder),
            history=history,
            epoch=int(summary["epoch"]),
            facts=(
                f"{len(facts.classes)} classes",
                f"{facts.train:,} training and {facts.validation:,} validation samples",
                f"backbone {config.backbone['name']}",
                f"{summary['epochs']} epochs on {facts.device}",
                f"seed {config.training['seed']}",
                f"dubito {config.versions['dubito']}, torch {config.versions['torch']}",
            ),
        ),
    )
