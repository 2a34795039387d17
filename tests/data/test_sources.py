from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

from dubito import data
from dubito.data import DATASETS, FORMATS, load, parts


def test_a_known_name_is_not_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    assert len(load("digits", "all")) == 1797
    with pytest.raises(ValueError, match="no sub-folders"):
        load("./digits")


def test_an_unknown_source_lists_the_known() -> None:
    with pytest.raises(FileNotFoundError, match="'cifar' is neither a file") as caught:
        load("cifar")
    for name in DATASETS:
        assert repr(name) in str(caught.value)
    with pytest.raises(FileNotFoundError, match="'cifar' is neither"):
        parts("cifar")


def test_an_unknown_format_lists_the_known(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"format of .*'\.parquet'; known: '\.npz', '\.csv'"):
        load(path)


def test_suffixes_in_capitals(tmp_path: Path) -> None:
    path = tmp_path / "OWN.CSV"
    path.write_text("1,2,0\n3,4,1\n")
    assert len(load(path)) == 2


def test_options_reach_the_reader_and_unknown_ones_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("kind,a\nx,1\ny,2\n")
    assert load(path, label="kind").classes == ("x", "y")
    with pytest.raises(TypeError, match="unknown option 'size' for read_csv; known: 'label'"):
        load(path, size=3)
    with pytest.raises(TypeError, match="unknown option 'size' for data set 'digits'; known: none"):
        load("digits", size=3)


def test_a_missing_download_is_said_before_anything_is_asked_for(tmp_path: Path) -> None:
    for name, entry in DATASETS.items():
        assert parts(name) == entry.parts == ("train", "test")
        if name != "digits":
            with pytest.raises(FileNotFoundError, match=f"{name}.*download=False.*DUBITO_DATA"):
                load(name, root=tmp_path, download=False)


def test_formats_are_read_by_what_they_say(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", features=np.ones((2, 3)), labels=[0, 1])
    assert set(FORMATS) == {".npz", ".csv", ".safetensors", ".pkl", ".plk", ".pickle"}
    assert load(tmp_path / "own.npz", "all").shape == (3,)


LATE = {"PIL", "filelock", "pooch", "requests", "rich", "safetensors", "scipy", "sklearn"}


@pytest.mark.parametrize(
    "path", sorted(Path(data.__file__).parent.glob("*.py")), ids=lambda path: path.name
)
def test_importing_the_package_is_light(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    named = {
        alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names
    }
    named |= {node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert "__future__" in named or path.name == "__init__.py"
    assert not LATE & {name.split(".")[0] for name in named}
