"""Results of many episodes, computed in parts that are saved.

| file | content |
| --- | --- |
| config.json | all inputs of the values; a folder takes the results of one configuration |
| parts/000000.safetensors | metrics of each episode of a part, 10,000 episodes |
| result.json | means with their 95 % confidence intervals |

A part is a fixed range of episode numbers. So an interrupted run continues where it stopped, a run
with more episodes reuses the parts that exist, and parts may be computed on several machines.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from dubito import _checks
from dubito._files import atomic_write, json_text, make_folder
from dubito.errors import DubitoError
from dubito.fewshot._engine import Engine, Values
from dubito.types import Json

#: episodes of a part
PART = 10_000


def summarize(parts: Sequence[Values]) -> dict[str, Json]:
    """Compute the mean of each metric over the episodes that have it.

    Args:
        parts: Metrics by name, (E,) each; NaN if an episode does not have one.

    Returns:
        By metric: "mean", "interval", half the width of its 95 % confidence interval, and
        "episodes", the number of episodes that have it. A value that does not exist is None.

    >>> summarize([{"accuracy": np.array([0.5, 1.0, np.nan], np.float32)}])
    {'accuracy': {'mean': 0.75, 'interval': 0.49, 'episodes': 2}}
    """
    summary = {}
    for name in parts[0]:
        values = np.concatenate([part[name] for part in parts]).astype(np.float64)
        values = values[~np.isnan(values)]
        count = len(values)
        mean = float(values.mean()) if count else None
        interval = 1.96 * float(values.std(ddof=1)) / math.sqrt(count) if count > 1 else None
        summary[name] = {"mean": mean, "interval": interval, "episodes": count}
    return summary


def run(
    engine: Engine,
    episodes: int,
    out: Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> Json:
    """Evaluate episodes, and save the results to a folder.

    Args:
        engine: Engine.
        episodes: Number of episodes.
        out: Folder; parts that it has already are not computed again.
        progress: Called with the number of episodes of each finished batch.

    Returns:
        Configuration, number of episodes, and "metrics": mean, interval and episodes of each.
    """
    _checks.positive(episodes, "episodes")
    config = engine.describe()
    if out is not None:
        make_folder(out / "parts")
        path, text = out / "config.json", json_text(config)
        if not path.exists():
            atomic_write(path, text)
        elif path.read_text("utf-8") != text:
            raise DubitoError(f"{out} has episodes of another run: choose another folder")
    starts = range(0, episodes, PART)
    parts = [_part(engine, out, i, min(i + PART, episodes), progress) for i in starts]
    result = {**config, "episodes": episodes, "metrics": summarize(parts)}
    if out is not None:
        atomic_write(out / "result.json", json_text(result))
    return result


def _part(
    engine: Engine, out: Path | None, start: int, stop: int, progress: Callable[[int], None] | None
) -> Values:
    """Read a part, or compute and write it."""
    if out is None:
        return engine.values(start, stop, progress)
    path = out / "parts" / f"{start // PART:06d}.safetensors"
    if path.exists():
        try:
            saved = load_file(path)
        except SafetensorError as error:
            raise DubitoError(f"cannot read {path}: {error}; delete it") from error
        if len(saved["accuracy"]) >= stop - start:
            return {name: values[: stop - start] for name, values in saved.items()}
    values = engine.values(start, stop, progress)
    atomic_write(path, save(values))
    return values
