from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dubito.bundle import read_table
from dubito.data import load, parts, read_csv, read_npz


def saved(folder: Path, **arrays: Any) -> Path:
    path = folder / "own.npz"
    np.savez(path, **arrays)
    return path


def written(folder: Path, text: str) -> Path:
    path = folder / "own.csv"
    path.write_text(text, encoding="utf-8")
    return path


X, Y = np.arange(6.0).reshape(3, 2), np.array([1, 0, 1])


@pytest.mark.parametrize(
    ("inputs", "labels"),
    [("inputs", "labels"), ("x", "y"), ("X", "Y"), ("images", "target"), ("data", "targets")],
)
def test_npz_by_any_of_its_names(tmp_path: Path, inputs: str, labels: str) -> None:
    data = read_npz(saved(tmp_path, **{inputs: X, labels: Y}))
    torch.testing.assert_close(data.inputs, torch.from_numpy(X).float())
    assert data.labels.tolist() == Y.tolist()
    assert data.name == "own"


@pytest.mark.parametrize(
    ("stored", "shape", "dtype"),
    [
        (np.zeros((3, 8, 9), np.uint8), (1, 8, 9), torch.uint8),
        (np.zeros((3, 8, 9, 3), np.uint8), (3, 8, 9), torch.uint8),
        (np.zeros((3, 3, 8, 9), np.uint8), (3, 8, 9), torch.uint8),
        (np.zeros((3, 8, 9, 1)), (1, 8, 9), torch.float32),
        (np.zeros((3, 8, 9), np.float16), (8, 9), torch.float32),
        (np.zeros((3, 8), np.int64), (8,), torch.float32),
        (np.zeros((3, 8), np.bool_), (8,), torch.float32),
    ],
)
def test_npz_shapes(tmp_path: Path, stored: np.ndarray, shape: tuple, dtype: torch.dtype) -> None:
    data = read_npz(saved(tmp_path, x=stored, y=Y))
    assert (data.shape, data.inputs.dtype) == (shape, dtype)


def test_channels_move_with_their_pixels(tmp_path: Path) -> None:
    images = np.arange(3 * 6 * 5 * 3, dtype=np.uint8).reshape(3, 6, 5, 3)
    data = read_npz(saved(tmp_path, x=images, y=Y))
    np.testing.assert_array_equal(data.inputs.permute(0, 2, 3, 1).numpy(), images)


@pytest.mark.parametrize("spelling", ["{name}_{part}", "{part}_{name}"])
def test_npz_with_parts(tmp_path: Path, spelling: str) -> None:
    arrays = {"x": X, "y": np.array(["a", "c", "b"])}, {"x": X[:2], "y": np.array(["c", "c"])}
    content = {
        spelling.format(name=name, part=part): values
        for part, pair in zip(("train", "test"), arrays, strict=True)
        for name, values in pair.items()
    }
    path = saved(tmp_path, **content)
    assert parts(path) == ("train", "test")
    assert load(path, "train").labels.tolist() == [0, 2, 1]
    assert load(path, "test").labels.tolist() == [2, 2]  # c, though a and b are not in this part
    assert load(path, "all").labels.tolist() == [0, 2, 1, 2, 2]
    with pytest.raises(ValueError, match="known: 'train', 'test', 'all'"):
        load(path, "valid")


def test_npz_without_parts_has_no_test_part(tmp_path: Path) -> None:
    path = saved(tmp_path, x=X, y=Y)
    assert parts(path) == ()
    assert len(load(path, "train")) == 3
    with pytest.raises(ValueError, match="no part called 'test'"):
        load(path, "test")


def test_npz_may_name_its_classes(tmp_path: Path) -> None:
    path = saved(tmp_path, x=X, y=Y, classes=np.array(["no", "yes", "unseen"]))
    assert read_npz(path).classes == ("no", "yes", "unseen")
    assert read_npz(path, classes=("n", "y")).classes == ("n", "y")
    path = saved(tmp_path, x=X, y=Y + 2, classes=np.array(["no", "yes", "unseen"]))
    with pytest.raises(ValueError, match=r"from 0 to 2 .*\[3\]"):
        read_npz(path)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X}, r"no array called labels or y or Y: it holds \['x'\]"),
        ({"y": Y}, "no array called inputs or x or X"),
        ({}, "it holds nothing"),
        ({"x_train": X, "y": Y}, "no array called labels or y or Y of train"),
        ({"x": X, "y": np.array([1, None, "a"], dtype=object)}, "'y' cannot be read.*refused"),
        ({"x": np.array([[1], [{}], [2]], dtype=object), "y": Y}, "'x' cannot be read.*refused"),
        ({"x": np.array([["a"], ["b"], ["c"]]), "y": Y}, "inputs must be numbers"),
        ({"x": X[:2], "y": Y}, r"2 inputs need \(2,\)"),
        ({"x": np.zeros(3), "y": Y}, r"shape \(3,\): expected \(N, \*shape\)"),
        ({"x": np.float64(3), "y": Y}, r"shape \(\): expected"),
        ({"x": np.array([[1.0], [np.nan], [np.inf]]), "y": Y}, r"2 of 3 .* at \(1, 0\): nan"),
        ({"x": np.array([[1.0], [1e300], [0.0]]), "y": Y}, r"1 of 3 .* at \(1, 0\): 1e\+300"),
    ],
)
def test_bad_npz(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_npz(saved(tmp_path, **arrays))


def test_a_file_that_is_no_npz(tmp_path: Path) -> None:
    path = saved(tmp_path, x=np.zeros((300, 9)), y=np.zeros(300))
    content = path.read_bytes()
    for bad in (content[: len(content) // 2], b"PK\x03\x04 not a zip", b"", b"\x80\x04N."):
        path.write_bytes(bad)
        with pytest.raises(ValueError, match=r"own\.npz"):
            read_npz(path)
    with path.open("wb") as stream:
        np.save(stream, X)
    with pytest.raises(ValueError, match="a single array"):
        read_npz(path)


def test_a_damaged_array(tmp_path: Path) -> None:
    path = saved(tmp_path, x=np.zeros((300, 9)), y=np.zeros(300))
    content = bytearray(path.read_bytes())
    content[5000] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"own\.npz: array 'x' cannot be read"):
        read_npz(path)


CSV = "length,width,kind\n5.1,3.5,iris\n4.9,-3e0,rose\n 4.7 , 3.2 ,iris\n"


def test_csv(tmp_path: Path) -> None:
    data = read_csv(written(tmp_path, CSV))
    torch.testing.assert_close(
        data.inputs, torch.tensor([[5.1, 3.5], [4.9, -3.0], [4.7, 3.2]]), rtol=0, atol=0
    )
    assert (data.classes, data.labels.tolist()) == (("iris", "rose"), [0, 1, 0])


@pytest.mark.parametrize(
    "text",
    [
        "5,3,1\n4,2,0\n",  # no header
        "\ufeffa,b,c\r\n5,3,1\r\n\r\n4,2,0\r\n",  # as spreadsheets write it
        'a,"b, or c",c\n5,"3",1\n4,2,0',
    ],
)
def test_csv_as_it_comes(tmp_path: Path, text: str) -> None:
    data = read_csv(written(tmp_path, text))
    assert data.inputs.tolist() == [[5, 3], [4, 2]]
    assert (data.classes, data.labels.tolist()) == (("0", "1"), [1, 0])


def test_csv_with_the_label_elsewhere(tmp_path: Path) -> None:
    path = written(tmp_path, "kind;a;b\niris;5,1;3\n".replace(",", ".") + "rose;4;2\n")
    data = read_csv(path, label="kind", delimiter=";")
    assert data.inputs.tolist() == [[pytest.approx(5.1), 3], [4, 2]]
    assert data.classes == ("iris", "rose")
    with pytest.raises(ValueError, match=r"column of .* 'king'; known: 'kind', 'a', 'b'"):
        read_csv(path, label="king", delimiter=";")
    with pytest.raises(ValueError, match=r"1 column.*is the delimiter another one"):
        read_csv(path)


def test_csv_labels_sort_as_numbers_and_follow_given_classes(tmp_path: Path) -> None:
    path = written(tmp_path, "1,10\n2,9\n3,10\n")
    assert read_csv(path).classes == ("9", "10")
    assert read_csv(path, classes=("10", "9")).labels.tolist() == [0, 1, 0]


def test_a_class_may_be_called_none(tmp_path: Path) -> None:
    assert read_csv(written(tmp_path, "1,none\n2,flu\n")).classes == ("flu", "none")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b,y\n1,2,0\n3,,1\n4,NA,0\n", "column 'b' has 2 missing value.*first in line 3"),
        ("1,2,0\nnan,4,1\n", "column 'column 1' has 1 missing .* line 2"),
        ("a,colour,y\n1,2,0\n3,red,1\n", "column 'colour' must hold numbers, but line 3 has 'red'"),
        ('a,b,y\n"1\n",2,0\n3,red,1\n', "column 'b' must hold numbers, but line 4 has 'red'"),
        ("a,b,y\n1,2,\n3,4,1\n", "column 'y' has 1 missing .* line 2"),
        ("a,b,y\n1,2,0\n3,1\n", "line 3: 2 columns, but row 1 has 3"),
        ("a,b,y\n1,inf,0\n3,1,1\n", r"1 of 4 input values .* at \(0, 1\): inf"),
        ("1,2,0.5\n3,4,0.7\n", "continuous target"),
        ("a,b,y\n", "a header, but no rows"),
        ("", "0 column"),
        ('a,b,y\n1,"2,0\n', "not a csv file"),
    ],
)
def test_bad_csv(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_csv(written(tmp_path, text))


NUMBERED = "2001,2002,region\n5,3,north\n4,2,south\n4,1,south\n"
SAMPLES = "red,small,yes\nred,large,no\nblue,small,yes\n"


@pytest.mark.parametrize("reader", [read_csv, read_table])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (NUMBERED, "line 1: is row 1 a header or a sample.* 'region', which is the label of no"),
        ("\n" + NUMBERED, "line 2: is row 1 a header"),
        (SAMPLES, "line 1: row 1 has 'red', 'small', 'yes', which occur in the same columns"),
        ("hue,y\nred,a\nhue,y\n", "'hue', 'y', which occur"),  # two files, one after the other
    ],
)
def test_a_first_row_that_may_be_either_is_not_guessed(
    tmp_path: Path, text: str, message: str, reader: Any
) -> None:
    with pytest.raises(ValueError, match=message):
        reader(written(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "classes", "count"),
    [
        (NUMBERED.replace("20", "in 20"), ("north", "south"), 3),  # both ways out of the error
        ("first,second,kind\n" + NUMBERED, ("north", "region", "south"), 4),
        ("5,3,north\n4,2,south\n4,1,east\n", ("east", "north", "south"), 3),  # nothing recurs
        ("size,0,spam\n5,0,spam\n4,0,ham\n", ("ham", "spam"), 2),  # 0 is no word
    ],
)
def test_a_first_row_that_is_plain(
    tmp_path: Path, text: str, classes: tuple[str, ...], count: int
) -> None:
    found = read_csv(written(tmp_path, text))
    assert (found.classes, len(found)) == (classes, count)


def test_a_table_of_words_with_a_header_above_it(tmp_path: Path) -> None:
    found, columns = read_table(written(tmp_path, "hue,size,sold\n" + SAMPLES))
    assert (found.classes, len(found), columns.header) == (("no", "yes"), 3, True)


def test_a_csv_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_bytes(b"a,b\n\xff\xfe\x00,1\n")
    with pytest.raises(ValueError, match="not a csv file"):
        read_csv(path)
