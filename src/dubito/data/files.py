"""Published files on disk: found loose, unpacked or in their archive, checked, else downloaded."""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
import warnings
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dubito._whole import whole
from dubito.data.download import data_root, fetch, md5

__all__ = ["Blob", "Release", "read"]


@dataclass(frozen=True)
class Blob:
    """The content of a file, and the path that messages name."""

    path: Path
    data: bytes


@dataclass(frozen=True)
class Release:
    """Files as their publisher distributes them.

    `md5` has every file's checksum and, where the files come in an archive, the archive's.
    `mirrors` are addresses that a file's name is appended to, the best first. `inside` is the
    folder of the files in their archive.
    """

    name: str
    md5: Mapping[str, str]
    mirrors: tuple[str, ...]
    archive: str | None = None
    inside: str = ""


def read(
    release: Release,
    names: Sequence[str],
    root: str | os.PathLike[str] | None = None,
    download: bool = True,
) -> list[Blob]:
    """The named files of a release, from `root`/`release.name` or the publisher.

    A file that is there is used; one that differs from what was published brings a warning.
    """
    folder = data_root(root) / release.name
    found = {name: _find(folder, release, name) for name in names}
    missing = [name for name, path in found.items() if path is None]
    if missing and release.archive is not None:
        archive = _obtain(folder, release, release.archive, missing, download)
        return _unpack(archive, release, names)
    for name in missing:
        found[name] = _obtain(folder, release, name, [name], download)
    return [_checked(path, release) for path in found.values() if path is not None]


def _find(folder: Path, release: Release, name: str) -> Path | None:
    """Where a file is, as published or decompressed, in the folder or as its archive unpacks."""
    places = [folder / name, folder / release.inside / name, folder / name.removesuffix(".gz")]
    return next((place for place in places if place.is_file()), None)


def _obtain(
    folder: Path, release: Release, file: str, wanted: Sequence[str], download: bool
) -> Path:
    """A file of the release, or the archive that holds the wanted ones."""
    path = folder / file
    if path.is_file():
        return path
    if download:
        return fetch(path, release.md5[file], release.mirrors)
    sources = " or ".join(mirror + file for mirror in release.mirrors)
    raise FileNotFoundError(
        f"{release.name}: {', '.join(wanted)} not found in {folder}, and download=False. "
        f"Set DUBITO_DATA (or root=) to a folder that holds {release.name}/{file}, put the file "
        f"from {sources} there, or allow the download"
    )


def _checked(path: Path, release: Release) -> Blob:
    data = path.read_bytes()
    published = release.md5.get(path.name)
    if published is not None and (seen := md5(data)) != published:
        warnings.warn(
            f"{release.name}: {path} is not the published file: its md5 is {seen}, "
            f"but {published} is published. It is used as it is; delete it to download it again",
            stacklevel=2,
        )
    return Blob(path, data)


def _unpack(path: Path, release: Release, names: Sequence[str]) -> list[Blob]:
    """The named members of the archive; all that the release knows are kept beside it."""
    members = _members(_checked(path, release), release)
    absent = [name for name in names if name not in members]
    if absent:
        raise ValueError(f"{path} does not hold {', '.join(absent)}, but {sorted(members)}")
    for name, data in members.items():
        # Only to save the next decompression: a folder without room or permission costs seconds.
        with contextlib.suppress(OSError):
            _keep(path.with_name(name), data)
    return [Blob(path / name, members[name]) for name in names]


def _members(archive: Blob, release: Release) -> dict[str, bytes]:
    members: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(archive.data), mode="r:gz") as tar:
            for member in tar:
                name = Path(member.name).name
                content = tar.extractfile(member) if name in release.md5 else None
                if content is not None:
                    members[name] = content.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise ValueError(
            f"{archive.path} ({len(archive.data):,} bytes) cannot be unpacked: {error}. "
            "Is it truncated? Delete it to download it again"
        ) from error
    return members


def _keep(path: Path, data: bytes) -> None:
    """Write a file that is whole whenever it has its name, also with several processes at it."""
    if path.exists():
        return
    with whole(path) as part:
        part.write_bytes(data)
