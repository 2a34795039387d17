"""Where the numbers come from: seeds, time, settings, versions, devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import mean
from typing import Any

from dubito.report.reproduction.records import Record, Records, at, differences, flattened

__all__ = ["Origin", "Setup", "origins", "setup"]


@dataclass(frozen=True)
class Origin:
    """One recipe: what it was run with, how long it took and what its settings are."""

    recipe: str
    seeds: str
    epochs: str
    best: str
    accuracy: str
    seconds: str
    device: str
    settings: tuple[tuple[str, str], ...]
    differs: tuple[str, ...]


@dataclass(frozen=True)
class Setup:
    """What all records together say: devices, versions, hours, and the first and the last day."""

    devices: tuple[str, ...]
    versions: tuple[tuple[str, str], ...]
    hours: float
    days: str
    cells: int


def origins(records: Records) -> list[Origin]:
    """One for each recipe."""
    return [_origin(recipe, found) for recipe, found in records.by_recipe.items()]


def _origin(recipe: str, found: list[Record]) -> Origin:
    accuracy = _numbers(found, "validation_accuracy")
    seconds = _numbers(found, "seconds")
    return Origin(
        recipe,
        ", ".join(str(record["seed"]) for record in found),
        ", ".join(f"{value:g}" for value in _numbers(found, "epochs")),
        ", ".join(f"{value:g}" for value in _numbers(found, "best_epoch")),
        f"{100 * mean(accuracy):.2f}" if accuracy else "–",
        duration(mean(seconds)) if seconds else "–",
        ", ".join(dict.fromkeys(str(r["device"]) for r in found if "device" in r)) or "–",
        _settings(found[0]["config"]),
        tuple(differences(found, but=("seed",))),
    )


def setup(records: Records) -> Setup:
    """What the records share, as far as they do."""
    devices = dict.fromkeys(str(r["device"]) for r in records.given if "device" in r)
    versions: dict[str, dict[str, None]] = {}
    for record in records.given:
        for name, version in record.get("versions", {}).items():
            versions.setdefault(str(name), {})[str(version)] = None
    days = sorted(str(r["created"])[:10] for r in records.given if "created" in r)
    spent = sum(_numbers(list(records.given), "seconds"))
    span = dict.fromkeys([days[0], days[-1]]) if days else {}
    return Setup(
        tuple(devices),
        tuple((name, " and ".join(found)) for name, found in sorted(versions.items())),
        spent / 3600,
        " to ".join(span),
        len(records.given),
    )


def duration(seconds: float) -> str:
    """Seconds in words.

    >>> duration(42.3), duration(754), duration(7330)
    ('42 s', '12 min 34 s', '2 h 2 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _numbers(found: list[Record], key: str) -> list[float]:
    values = [at(record, ("training", key)) for record in found]
    return [float(value) for value in values if value is not None]


def _settings(config: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The sections of a configuration, each as key=value."""
    return tuple(
        (name, "  ".join(f"{key}={value}" for key, value in flattened(section).items()))
        for name, section in config.items()
        if isinstance(section, Mapping)
    )
