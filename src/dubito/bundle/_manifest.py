"""The manifest: what a bundle consists of, so that half of one, or a changed one, is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dubito.report import files
from dubito.training import CheckpointError

__all__ = ["CARD", "CONFIG", "FILES", "MANIFEST", "POLICY", "WEIGHTS", "BundleError", "read_json"]

MANIFEST = "manifest.json"
WEIGHTS, CONFIG, POLICY, CARD = "model.safetensors", "config.json", "policy.json", "card.md"
#: the files of a bundle; whatever else lies in its folder is none of it
FILES = (WEIGHTS, CONFIG, POLICY, CARD)
FORMAT, VERSION = "dubito-bundle", 1
LARGEST = 1 << 26  # bytes of a text file of a bundle
AT_ONCE = 1 << 20


class BundleError(CheckpointError):
    """A folder that is no whole bundle of this version."""


def sign(folder: Path) -> Path:
    """Write manifest.json over the files that are there: the last step of writing a bundle."""
    held = {
        name: {"sha256": _digest(folder / name), "bytes": _size(folder / name)} for name in FILES
    }
    return files.write(
        folder / MANIFEST, files.json_text({"format": FORMAT, "version": VERSION, "files": held})
    )


def check(folder: Path) -> None:
    """An error with the reason unless the folder holds exactly what its manifest says."""
    listed = _listed(folder)
    for name in FILES:
        path, entry = folder / name, listed[name]
        if not path.is_file():
            raise BundleError(f"{folder} is incomplete: it has no {name}")
        if _size(path) != entry["bytes"]:
            raise BundleError(
                f"{path} is damaged: it has {_size(path)} bytes, and had {entry['bytes']} when the "
                "bundle was written"
            )
        if _digest(path) != entry["sha256"]:
            raise BundleError(f"{path} was changed after the bundle was written: its hash differs")


def read_json(path: Path) -> dict[str, Any]:
    """A json file that holds keys and values, of a size that a description may have."""
    try:
        if path.stat().st_size > LARGEST:
            raise ValueError(f"it has {path.stat().st_size} bytes")
        found = json.loads(path.read_text("utf-8"))
        if not isinstance(found, dict):
            raise ValueError(f"it holds {type(found).__name__}, not keys and values")
    except (ValueError, OSError, RecursionError) as error:
        raise BundleError(f"could not read {path}: {error}") from error
    return found


def _listed(folder: Path) -> Mapping[str, Any]:
    found = read_json(folder / MANIFEST)
    if found.get("format") != FORMAT:
        raise BundleError(
            f"{folder} is no bundle of dubito: the format in its {MANIFEST} is "
            f"{found.get('format')!r}, not {FORMAT!r}"
        )
    version = found.get("version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise BundleError(f"{folder / MANIFEST} has the version {version!r}, which is no number")
    if version > VERSION:
        raise BundleError(
            f"{folder} was written by a newer dubito: its format has version {version}, and this "
            f"one reads up to {VERSION}; upgrade dubito"
        )
    held = found.get("files")
    if not isinstance(held, dict) or set(held) != set(FILES):
        names = sorted(held) if isinstance(held, dict) else held
        raise BundleError(f"{folder / MANIFEST} should list {sorted(FILES)}, and lists {names!r}")
    for name, entry in held.items():
        if not isinstance(entry, dict) or set(entry) != {"sha256", "bytes"}:
            raise BundleError(f"{folder / MANIFEST} says {entry!r} of {name}, no hash and size")
    return held


def _size(path: Path) -> int:
    return path.stat().st_size


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(AT_ONCE):
            digest.update(part)
    return digest.hexdigest()
