"""What of config.json a network is built from, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dubito._legacy import Method
from dubito.bundle import _network
from dubito.bundle._manifest import BundleError
from dubito.bundle._network import Factory
from dubito.bundle._preprocessing import Preprocessing

__all__ = ["FORMAT", "Described"]

FORMAT, RUN = "dubito-model-1", "dubito-run-1"
#: what a description must hold; a run's holds more
KEYS = ("format", "backbone", "method", "facts", "preprocessing", "versions")


@dataclass(frozen=True)
class Described:
    """What of config.json a network is built from."""

    method: Method
    backbone: Mapping[str, Any] | None
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    class_counts: tuple[int, ...] | None
    preprocessing: Preprocessing

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Described:
        """Check and read plain values."""
        if config.get("format") not in (FORMAT, RUN):
            raise ValueError(f"its format is {config.get('format')!r}, not {FORMAT!r} or {RUN!r}")
        for key in KEYS:
            if key not in config:
                raise ValueError(f"it has no key {key!r}")
        backbone, facts = config["backbone"], config["facts"]
        for name, section in (
            ("method", config["method"]),
            ("backbone", {"name": ""} if backbone is None else backbone),
        ):
            if not isinstance(section, Mapping) or not isinstance(section.get("name"), str):
                raise ValueError(f"{name!r} should have a name, but is {section!r:.80}")
        if not isinstance(facts, Mapping):
            raise ValueError(f"'facts' should be keys and values, but is {facts!r:.80}")
        classes, shape, counts = _facts(facts)
        prepared = config["preprocessing"]
        made = Preprocessing() if prepared is None else Preprocessing.from_dict(prepared)
        made.check(shape)
        return cls(_network.made(config["method"]), backbone, classes, shape, counts, made)

    def builder(self, factory: Factory | None, place: Path) -> Mapping[str, Any] | Factory:
        """What builds the network: the backbone by its name, or a factory."""
        if self.backbone is None and factory is None:
            raise BundleError(
                f"{place} holds the weights of a module of one's own: give the factory that builds "
                "it, a function (shape, outputs) -> module; to a command as --module "
                "package.module:factory"
            )
        if self.backbone is not None and factory is not None:
            raise BundleError(
                f"{place} names its architecture, {self.backbone['name']!r}: it needs no factory"
            )
        chosen = self.backbone if factory is None else factory
        assert chosen is not None
        return chosen


def _facts(
    facts: Mapping[str, Any],
) -> tuple[tuple[str, ...], tuple[int, ...], tuple[int, ...] | None]:
    """Classes, shape and counts of classes, checked."""
    classes: Any = facts.get("classes")
    shape: Any = facts.get("shape")
    counts: Any = facts.get("class_counts")
    if not _several(classes, str) or len(classes) < 2 or len(set(classes)) < len(classes):
        raise ValueError("'classes' must be at least two different names")
    if not _several(shape, int) or min(shape) < 1:
        raise ValueError(f"'shape' must be sizes >= 1, not {shape!r:.80}")
    if counts is not None and (not _several(counts, int) or len(counts) != len(classes)):
        raise ValueError("'class_counts' must be a number for each class")
    return tuple(classes), tuple(shape), None if counts is None else tuple(counts)


def _several(values: Any, kind: type) -> bool:
    return (
        isinstance(values, list)
        and bool(values)
        and all(isinstance(value, kind) and not isinstance(value, bool) for value in values)
    )
