"""Published files, in the data folder or downloaded."""

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from pydantic import BaseModel

from dubito._extras import need
from dubito.errors import DubitoError

__all__: list[str] = []

TIMEOUT = 30  # seconds without a byte


class Release(BaseModel, frozen=True, extra="forbid"):
    """Files as their publisher distributes them.

    Attributes:
        md5: Checksum of each file, and of the archive.
        mirrors: Addresses that a file's name is appended to, best first.
        archive: File that contains the others.
        inside: Folder of the files in the archive.
    """

    md5: dict[str, str]
    mirrors: tuple[str, ...]
    archive: str | None = None
    inside: str = ""


def data_folder() -> Path:
    """Return the folder of known datasets: DUBITO_DATA, or the user's cache folder."""
    folder = os.environ.get("DUBITO_DATA") or need("pooch", "data").os_cache("dubito")
    return Path(folder).expanduser()


def fetch(name: str, release: Release, files: Sequence[str]) -> list[Path]:
    """Return files of a release; those that are not in the data folder are downloaded.

    Args:
        name: Name of the dataset, and of its folder in the data folder.
        release: Description of the files.
        files: Files to return.
    """
    folder = data_folder() / name
    for file in files:
        if _find(folder, release, file) is None:
            _download(folder, release, release.archive or file)
    return [_checked(_find(folder, release, file) or folder / file, release) for file in files]


def _find(folder: Path, release: Release, file: str) -> Path | None:
    """Return where a file is: as published or decompressed, in the folder or as unpacked."""
    places = [folder / file, folder / release.inside / file, folder / file.removesuffix(".gz")]
    return next((place for place in places if place.is_file()), None)


def _download(folder: Path, release: Release, file: str) -> None:
    pooch = need("pooch", "data")
    bar = sys.stderr.isatty() and find_spec("tqdm") is not None
    # Some servers call .gz files an encoding of their content, which requests would undo.
    headers = {"Accept-Encoding": "identity"}
    failures = []
    for address in release.mirrors:
        try:
            pooch.retrieve(
                address + file,
                known_hash=f"md5:{release.md5[file]}",
                fname=file,
                path=folder,
                processor=pooch.Untar(extract_dir=".") if file == release.archive else None,
                downloader=pooch.HTTPDownloader(progressbar=bar, timeout=TIMEOUT, headers=headers),
            )
            return
        except (OSError, ValueError) as error:  # no connection, no such file, a wrong checksum
            failures.append(f"{address + file} ({' '.join(str(error).split())[:80]})")
    raise DubitoError(
        f"cannot download {file} from {', '.join(failures)}: put the file into {folder}, or set "
        f"DUBITO_DATA to a folder with {folder.name}/{file}"
    )


def _checked(path: Path, release: Release) -> Path:
    published = release.md5.get(path.name)
    md5 = None if published is None else need("pooch", "data").file_hash(path, alg="md5")
    if md5 != published:
        warnings.warn(
            f"{path} is not the published file: its md5 is {md5}, expected {published}; "
            "delete it to download it again",
            stacklevel=2,
        )
    return path


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn errors about the content of a file into one with the remedy.

    Args:
        path: File that is read.
    """
    try:
        yield
    except Exception as error:  # readers raise errors of many kinds for a damaged file
        raise DubitoError(
            f"{path} is truncated or another file ({type(error).__name__}: {error}); delete it to "
            "download it again"
        ) from error
