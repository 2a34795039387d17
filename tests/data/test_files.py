from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dubito.data.files import Release, read

Put = Callable[[str, bytes], Path]
NOWHERE = ("http://127.0.0.1:9/",)  # the port of the discard service: nothing listens there


def sums(files: dict[str, bytes]) -> dict[str, str]:
    return {name: hashlib.md5(data).hexdigest() for name, data in files.items()}


LOOSE = {"a.gz": b"first", "b.gz": b"second"}
PLAIN = Release("plain", sums(LOOSE), NOWHERE)


@pytest.fixture
def packed(formats: Any) -> tuple[Release, bytes]:
    members = {"a.bin": b"first", "b.bin": b"second"}
    archive = formats.tar({f"./inner/{name}": data for name, data in members.items()})
    known = sums(members | {"all.tar.gz": archive})
    return Release("packed", known, NOWHERE, archive="all.tar.gz", inside="inner"), archive


def test_files_that_are_there_are_used(put: Put, tmp_path: Path) -> None:
    for name, data in LOOSE.items():
        put(f"plain/{name}", data)
    assert [blob.data for blob in read(PLAIN, ["b.gz", "a.gz"], tmp_path)] == [b"second", b"first"]


def test_the_variable_names_the_folder(
    put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("plain/a.gz", b"first")
    monkeypatch.setenv("DUBITO_DATA", str(tmp_path))
    assert read(PLAIN, ["a.gz"], download=False)[0].path == tmp_path / "plain" / "a.gz"


def test_a_decompressed_file_is_used_without_a_checksum(put: Put, tmp_path: Path) -> None:
    put("plain/a", b"what the publisher packed")
    assert read(PLAIN, ["a.gz"], tmp_path, download=False)[0].data == b"what the publisher packed"


def test_a_file_that_differs_is_used_with_a_warning(put: Put, tmp_path: Path) -> None:
    path = put("plain/a.gz", b"other")
    with pytest.warns(UserWarning, match="is not the published file") as caught:
        (blob,) = read(PLAIN, ["a.gz"], tmp_path)
    assert blob.data == b"other"
    message = str(caught[0].message)
    for part in (str(path), hashlib.md5(b"other").hexdigest(), PLAIN.md5["a.gz"]):
        assert part in message


def test_a_missing_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        read(PLAIN, ["a.gz"], tmp_path, download=False)
    message = str(caught.value)
    for part in (str(tmp_path / "plain"), "DUBITO_DATA", "plain/a.gz", NOWHERE[0] + "a.gz"):
        assert part in message


def test_an_archive_is_read_and_its_members_kept(
    put: Put, tmp_path: Path, packed: tuple[Release, bytes]
) -> None:
    release, archive = packed
    path = put("packed/all.tar.gz", archive)
    assert read(release, ["b.bin"], tmp_path, download=False)[0].data == b"second"
    assert sorted(p.name for p in path.parent.iterdir()) == ["a.bin", "all.tar.gz", "b.bin"]
    path.unlink()
    assert read(release, ["a.bin"], tmp_path, download=False)[0].data == b"first"


def test_a_folder_without_permission_still_serves_its_archive(
    put: Put, tmp_path: Path, packed: tuple[Release, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    release, archive = packed
    path = put("packed/all.tar.gz", archive)

    def refuse(*_: object) -> int:
        raise PermissionError("read-only")

    monkeypatch.setattr(Path, "write_bytes", refuse)  # the tests may run as root, who may write
    assert read(release, ["a.bin"], tmp_path, download=False)[0].data == b"first"
    assert [p.name for p in path.parent.iterdir()] == ["all.tar.gz"]


def test_an_unpacked_archive_is_found(
    put: Put, tmp_path: Path, packed: tuple[Release, bytes]
) -> None:
    put("packed/inner/a.bin", b"first")
    assert read(packed[0], ["a.bin"], tmp_path, download=False)[0].data == b"first"


def test_a_missing_archive_is_named(tmp_path: Path, packed: tuple[Release, bytes]) -> None:
    with pytest.raises(FileNotFoundError, match=r"a\.bin not found .*packed/all\.tar\.gz"):
        read(packed[0], ["a.bin"], tmp_path, download=False)


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.95])
def test_a_truncated_archive(put: Put, tmp_path: Path, formats: Any, keep: float) -> None:
    # Noise, so that the end of the archive is the end of a member and not its padding.
    archive = formats.tar({f"{name}.bin": formats.images(50_000).tobytes() for name in "ab"})
    known = dict.fromkeys(["a.bin", "b.bin", "all.tar.gz"], "published")
    release = Release("packed", known, NOWHERE, archive="all.tar.gz")
    path = put("packed/all.tar.gz", archive[: int(len(archive) * keep)])
    with (
        pytest.warns(UserWarning, match="not the published file"),
        pytest.raises(ValueError, match=r"all\.tar\.gz .* cannot be unpacked"),
    ):
        read(release, ["b.bin"], tmp_path)
    assert [p.name for p in path.parent.iterdir()] == ["all.tar.gz"]


def test_an_archive_without_the_file(
    put: Put, tmp_path: Path, packed: tuple[Release, bytes], formats: Any
) -> None:
    put("packed/all.tar.gz", formats.tar({"inner/a.bin": b"first", "inner/strange": b""}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match=r"does not hold b\.bin, but \['a\.bin'\]"):
            read(packed[0], ["b.bin"], tmp_path)
