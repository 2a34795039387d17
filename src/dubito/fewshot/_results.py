"""Results of many episodes, computed in parts that are saved.

| file | content |
| --- | --- |
| config.json | all inputs of the values; a folder takes the results of one configuration |
| parts/000000.safetensors | metrics of each episode of a part, 10,000 episodes |
| result.json | means with their 95 % confidence intervals |

A part is a fixed range of episode numbers. So an interrupted run continues where it stopped, a run
with more episodes reuses the parts that exist, and parts may be computed on several machines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from dubito._files import atomic_write, json_text, make_folder
from dubito.errors import DubitoError
from dubito.fewshot._engine import Engine, Values

__all__ = ["ranges", "run", "summarize"]

#: episodes of a part
PART = 10_000


def summarize(parts: Iterable[Mapping[str, NDArray[np.float32]]]) -> dict[str, dict[str, Any]]:
    """Compute the mean of each metric over the episodes that have it.

    Args:
        parts: Metrics by name, (E,) each; NaN if an episode does not have one.

    Returns:
        By metric: "mean", "interval", half the width of its 95 % confidence interval, and
        "episodes", the number of episodes that have it. A value that does not exist is None.

    >>> summarize([{"accuracy": np.array([0.5, 1.0, np.nan], np.float32)}])
    {'accuracy': {'mean': 0.75, 'interval': 0.49, 'episodes': 2}}
    """
    columns: dict[str, list[NDArray[np.float32]]] = {}
    for part in parts:
        for name, values in part.items():
            columns.setdefault(name, []).append(values[~np.isnan(values)])
    return {name: _estimate(np.concatenate(values)) for name, values in columns.items()}


def _estimate(values: NDArray[np.float32]) -> dict[str, Any]:
    exact, count = values.astype(np.float64), len(values)
    mean = float(exact.mean()) if count else None
    interval = 1.96 * float(exact.std(ddof=1)) / math.sqrt(count) if count > 1 else None
    return {"mean": mean, "interval": interval, "episodes": count}


def ranges(episodes: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a run: first episode and end."""
    if episodes < 1:
        raise DubitoError(f"episodes must be at least 1, not {episodes}")
    for start in range(0, episodes, PART):
        yield start, min(start + PART, episodes)


def run(
    engine: Engine,
    episodes: int,
    out: Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Evaluate episodes, and save the results to a folder.

    Args:
        engine: Engine.
        episodes: Number of episodes.
        out: Folder; parts that it has already are not computed again.
        progress: Called with the number of episodes of each finished batch.

    Returns:
        Configuration, number of episodes, and "metrics": mean, interval and episodes of each.
    """
    config = engine.describe()
    if out is not None:
        _claim(out, config)
    parts = [_part(engine, out, *part, progress) for part in ranges(episodes)]
    result = {**config, "episodes": episodes, "metrics": summarize(parts)}
    if out is not None:
        atomic_write(out / "result.json", json_text(result))
    return result


def _claim(folder: Path, config: Mapping[str, Any]) -> None:
    """Write the configuration to a new folder, or compare it with that of an existing one."""
    make_folder(folder / "parts")
    path, text = folder / "config.json", json_text(config)
    if not path.exists():
        atomic_write(path, text)
    elif path.read_text("utf-8") != text:
        raise DubitoError(f"{folder} has episodes of another run: choose another folder")


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
