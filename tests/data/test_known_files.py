import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from dubito.data.known import Release, data_folder, fetch
from dubito.errors import DubitoError

CONTENT = bytes(range(256)) * 100
MD5 = hashlib.md5(CONTENT).hexdigest()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """Serve a folder on this machine."""
    folder = tmp_path / "site"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DUBITO_DATA", str(tmp_path / "store"))
    return tmp_path / "store"


def test_file_is_downloaded_once_from_the_first_mirror_that_has_it(site, store):
    folder, address = site
    (folder / "a.bin").write_bytes(CONTENT)
    release = Release(md5={"a.bin": MD5}, mirrors=(f"{address}missing/", address))
    assert fetch("set", release, ["a.bin"]) == [store / "set" / "a.bin"]
    (folder / "a.bin").unlink()
    assert fetch("set", release, ["a.bin"])[0].read_bytes() == CONTENT


def test_wrong_checksum_and_missing_file(site, store):
    folder, address = site
    (folder / "a.bin").write_bytes(b"something else")
    release = Release(md5={"a.bin": MD5}, mirrors=(address, f"{address}missing/"))
    with pytest.raises(DubitoError, match=r"a\.bin \(.*hash.*404.*set DUBITO_DATA to a folder"):
        fetch("set", release, ["a.bin"])
    assert not (store / "set" / "a.bin").exists()


def test_archive_is_unpacked(site, store):
    folder, address = site
    with tarfile.open(folder / "all.tar.gz", "w:gz") as archive:
        for name in ("inside/a.bin", "inside/b.bin"):
            info = tarfile.TarInfo(name)
            info.size = len(CONTENT)
            archive.addfile(info, io.BytesIO(CONTENT))
    checksum = hashlib.md5((folder / "all.tar.gz").read_bytes()).hexdigest()
    release = Release(
        md5={"all.tar.gz": checksum, "a.bin": MD5},
        mirrors=(address,),
        archive="all.tar.gz",
        inside="inside",
    )
    paths = fetch("set", release, ["a.bin", "b.bin"])
    assert [path.read_bytes() for path in paths] == [CONTENT, CONTENT]


def test_other_file_is_used_with_a_warning(store):
    path = store / "set" / "a.bin"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"cropped again")
    with pytest.warns(UserWarning, match=r"a\.bin is not the published file: its md5 is"):
        assert fetch("set", Release(md5={"a.bin": MD5}, mirrors=()), ["a.bin"]) == [path]


def test_default_data_folder(monkeypatch):
    monkeypatch.delenv("DUBITO_DATA")
    assert data_folder().name == "dubito"
