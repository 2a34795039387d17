"""What several commands do with options: sections of a configuration, a cluster, refusals."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import typer

__all__ = ["ADDRESS", "GPUS", "cluster", "merged", "numbers", "refuse"]

Sections = dict[str, dict[str, Any]]
ADDRESS: Any = typer.Option(
    help="The cluster's address; by default that on this machine, else a new one here."
)
GPUS: Any = typer.Option(min=0, help="GPUs, or the share of one, for each task on a cluster.")


def refuse(options: Mapping[str, Any], why: str) -> None:
    """An error that names the options that are given, where they would do nothing."""
    given = [name for name, value in options.items() if value is not None and value is not False]
    if given:
        raise ValueError(f"leave {', '.join(given)} out: {why}")


def cluster(ray: bool, address: str | None, gpus: float | None) -> str | None:
    """The address of the Ray cluster that was asked for, if one was."""
    if not ray:
        refuse({"--address": address, "--gpus": gpus}, "there is no cluster without --ray")
        return None
    return address or "auto"


def merged(file: Path | None, flags: Mapping[str, Mapping[str, Any]], sets: Iterable[str]) -> Any:
    """The sections in the file, overridden by the flags that are given, and these by `--set`."""
    from dubito import runs

    sections: dict[str, Any] = runs.read_config(file) if file is not None else {}
    for name, values in flags.items():
        given = {key: value for key, value in values.items() if value is not None}
        before = sections.get(name, {})
        if given and isinstance(before, Mapping):  # what it is else is told when it is checked
            sections[name] = {**before, **given}
    for assignment in sets:
        _assign(sections, assignment)
    return sections


def _assign(sections: dict[str, Any], assignment: str) -> None:
    """Put one `key=value` into its section; the section's name may stand before the key."""
    from dubito import runs

    path, equals, text = assignment.partition("=")
    if not equals or not path.strip():
        raise ValueError(f"--set takes key=value, not {assignment!r}")
    keys = path.strip().split(".")
    if keys[0] in runs.SECTIONS and len(keys) > 1:
        section, keys = keys[0], keys[1:]
    else:
        section = _section_of(keys[0], sections)
    inner = sections.setdefault(section, {})
    for key in keys[:-1]:
        inner = inner.setdefault(key, {})
        if not isinstance(inner, dict):
            raise ValueError(f"--set {assignment}: {key!r} holds no keys, but {inner!r}")
    inner[keys[-1]] = _value(text.strip())


def _section_of(key: str, sections: Mapping[str, Any]) -> str:
    from dubito import runs

    known = runs.known_keys(sections)
    homes = [name for name, keys in known.items() if key in keys]
    if not homes:
        every = dict.fromkeys(each for keys in known.values() for each in keys)
        raise ValueError(runs.unknown(key, every, "--set"))
    if len(homes) > 1:
        choice = " or ".join(f"{home}.{key}" for home in homes)
        raise ValueError(f"--set {key}: several sections have that key; write {choice}")
    return homes[0]


def _value(text: str) -> Any:
    """A value as TOML has it, and a word that is none as it stands."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def numbers(text: str, name: str) -> list[int]:
    """Different whole numbers with commas between them.

    >>> numbers("1, 2,3", "seeds")
    [1, 2, 3]
    """
    try:
        found = [int(word) for word in text.split(",")]
    except ValueError:
        raise ValueError(
            f"{name} must be whole numbers with commas between, not {text!r}"
        ) from None
    if len(set(found)) < len(found):
        raise ValueError(f"{name} must be different numbers, not {text!r}")
    return found
