import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from dubito import data
from dubito.errors import DubitoError
from dubito.formats import FORMATS

HOUSES = """\
area,postcode,heating,price
50,04109,gas,100
,04109,oil,150.5

120,04315,,300
80,04315,gas,200
"""


@pytest.fixture
def houses(put: Any) -> data.Source:
    return data.open(put("houses.csv", HOUSES), target="price")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_numbers_and_categories(put, kind):
    path = put("a.csv", "size, color ,kind\n2.5,red,x\n1e1, blue,y\n")
    if kind == "parquet":
        pytest.importorskip("pyarrow")
        frame = pd.DataFrame({"size": [2.5, 10], "color": ["red", "blue"], "kind": ["x", "y"]})
        frame.to_parquet(path := path.with_suffix(".parquet"))
    source = data.open(path)
    assert source.load().tolist() == [[2.5, 0, 1], [10, 1, 0]]
    assert source.target.tolist() == ["x", "y"]


def test_missing_values_and_codes(houses):
    area, code, heating = houses.load().split((2, 2, 3), 1)
    assert area.tolist() == [[50, 0], [80, 1], [120, 0], [80, 0]]  # the median and an indicator
    assert code.tolist() == [[1, 0], [1, 0], [0, 1], [0, 1]]  # a category, though of digits
    assert heating.tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0], [0, 1, 0]]
    assert [houses.item(row)[-1] for row in range(4)] == ["2", "3", "5", "6"]  # lines of the file
    format = houses.format
    assert FORMATS.build(json.loads(json.dumps(FORMATS.to_dict(format)))) == format


@pytest.mark.parametrize("kind", ["rows", "frame", "file"])
def test_prediction_reads_rows_frames_and_files_alike(houses, put, kind):
    rows = [
        {"heating": "oil", "extra": 1, "postcode": "04315", "area": 60},
        {"heating": None, "extra": 2, "postcode": "04109", "area": None},
    ]
    frame = pd.DataFrame(rows)
    path = put("new.csv", frame.to_csv(index=False))
    items = {"rows": rows, "frame": frame, "file": path}[kind]
    encoded = houses.format.encode(items)
    assert encoded.inputs.tolist() == [[60, 0, 0, 1, 0, 0, 1], [80, 1, 1, 0, 1, 0, 0]]
    assert (encoded.errors, encoded.notes) == ({}, {})


def test_values_far_outside_and_unseen_categories(houses):
    rows = [
        {"area": 700, "postcode": "99999", "heating": "gas"},
        {"area": -20, "postcode": "04109", "heating": "gas"},
        {"area": 50, "postcode": "04109", "heating": "wood"},
    ]
    encoded = houses.format.encode(rows)
    assert encoded.notes == {
        0: "area is 700, far from [50, 120]; postcode is '99999', unseen in training",
        2: "heating is 'wood', unseen in training",
    }
    assert houses.format.in_range(encoded.inputs).tolist() == [False, True, False]
    assert houses.format.in_range(houses.load()).all()


def test_describe_returns_the_cells_of_a_row():
    frame = pd.DataFrame({"age": [1.5, None, 3.0], "hue": ["red", "tan", "red"]})
    format = data.open(frame, labeled=False).format
    inputs = format.encode([*frame.to_dict("records"), {"age": 2, "hue": "sky"}]).inputs
    rows = [list(format.describe(row).values()) for row in inputs]
    assert rows == [[1.5, "red"], ["", "tan"], [3.0, "red"], [2.0, None]]


def test_rows_that_cannot_be_read(put):
    format = data.open(put("a.csv", "n,c,y\n1,a,0\n2,b,1\n3,a,1\n")).format
    rows = [{"n": "x", "c": "a"}, {"n": 1, "c": None}, {"n": "inf", "c": "a"}, {"n": 2, "c": "b"}]
    encoded = format.encode(rows)
    assert encoded.errors == {
        0: "column 'n' is 'x', not a finite number",
        1: "column 'c' is missing, as in no row of the training data",
        2: "column 'n' is 'inf', not a finite number",
    }
    assert encoded.inputs.tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, 0], [2, 0, 1]]


def test_column_missing_at_prediction(houses):
    with pytest.raises(DubitoError, match="lacks the column 'heating'; it has 'area', 'postcode'"):
        houses.format.encode([{"area": 1, "postcode": "04109"}])


def test_ignored_columns_and_categories(put):
    rows = "".join(f"u{i},{i % 3},{i % 2}\n" for i in range(30))
    path = put("a.csv", f"id,floor,y\n{rows}")
    assert data.open(path, ignore=["id"]).load().tolist()[2:4] == [[2], [0]]
    source = data.open(path, ignore=["id"], categories=["floor"])
    assert [column.name for column in source.format.columns] == ["floor"]
    assert data.open(path, ignore="id", categories="floor").format == source.format
    assert source.load().tolist()[2:4] == [[0, 0, 1], [1, 0, 0]]
    encoded = source.format.encode([{"floor": 2}, {"floor": 1.0}])
    assert encoded.inputs.tolist() == [[0, 0, 1], [0, 1, 0]]


def test_all_problems_are_reported_at_once(put):
    lines = [f"u{i},{'x' if i == 3 else i},{1e9 + i / 1e3},," for i in range(30)]
    path = put("bad.csv", "id,n,time,none,price\n" + "\n".join(lines))
    with pytest.raises(DubitoError, match=r"^bad\.csv: ") as caught:
        data.open(path)
    message = str(caught.value)
    assert "column 'id' has 30 different values in 30 rows, like an identifier: ignore" in message
    assert "column 'n' has numbers, but line 5 is 'x'" in message
    assert "column 'time' varies by 0.00866 around 1000000000" in message
    assert "column 'none' has no values" in message
    assert "target 'price' is missing in 30 rows, the first is line 2" in message


def test_rows_without_a_target_are_left_out(put):
    path = put("a.csv", "n,w,a,b\n1,1,5,\n2,1,,\n3,0.5,6,7\n9,1,nan,\n")
    with pytest.warns(UserWarning, match=r"2 of 4 samples have no target .* first is a\.csv:3"):
        source = data.open(path, target=["a", "b"], weight="w")
    assert source.load().tolist() == [[1], [3]]
    assert np.array_equal(source.target.to_numpy(), [[5, np.nan], [6, 7]], equal_nan=True)
    assert source.weight.tolist() == [1, 0.5]
    assert source.subset([1]).weight.tolist() == [0.5]
    unlabeled = data.open(path, format=source.format, labeled=False)
    assert len(unlabeled) == 4


def test_labels_of_arrays_may_be_missing():
    inputs = np.arange(6.0).reshape(3, 2)
    with pytest.warns(UserWarning, match="1 of 3 samples have no target .* first is sample 1"):
        source = data.open((inputs, ["cat", None, "dog"]))
    assert source.load().tolist() == [[0, 1], [4, 5]]
    assert list(source.target) == ["cat", "dog"]


def test_weights_are_numbers_of_at_least_zero(put):
    path = put("a.csv", "text,y,w\ngood,1,2\nbad,0,1\n")
    assert data.open(path, text="text", weight="w").weight.tolist() == [2, 1]
    path = put("a.csv", "n,w,y\n1,1,5\n2,-1,6\n")
    with pytest.raises(DubitoError, match="weight 'w' of line 3 is '-1', not a number of at least"):
        data.open(path, weight="w")
    with pytest.raises(DubitoError, match="weight='w' is for tables"):
        data.open(np.zeros((2, 2)), weight="w")


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1", "2"], [1, 2]),
        (["1.5", "2"], [1.5, 2.0]),
        (["04109", "4110"], ["04109", "4110"]),
        (["b", " a "], ["b", "a"]),
        (["1", "x"], [1, "x"]),
        (["NA", "none"], ["NA", "none"]),
    ],
)
def test_targets_are_numbers_or_text(put, cells, expected):
    path = put("a.csv", "n,y\n" + "".join(f"{row},{cell}\n" for row, cell in enumerate(cells)))
    assert data.open(path).target.tolist() == expected


def test_several_targets(put):
    source = data.open(put("a.csv", "y,n,z\n1,2,3\n4,5,6\n"), target=["z", "y"])
    assert list(source.target.columns) == ["z", "y"]
    assert source.load().tolist() == [[2], [5]]
    assert source.subset([1]).target.to_numpy().tolist() == [[6, 4]]


def test_data_frame():
    frame = pd.DataFrame(
        {"n": [1.0, np.nan, 3.0], "b": [True, False, True], "c": ["x", "y", None], "y": [1, 2, 3]}
    )
    source = data.open(frame, target="y")
    assert source.load().tolist() == [
        [1, 0, 0, 1, 0, 1, 0], [2, 1, 1, 0, 0, 0, 1], [3, 0, 0, 1, 1, 0, 0],
    ]  # fmt: skip
    assert source.item(1) == "row 1"
    pair = data.open((frame.drop(columns="y"), ["a", "b", "a"]))
    assert torch.equal(pair.load(), source.load())
    assert pair.target.tolist() == ["a", "b", "a"]


def test_unusual_frames():
    frame = pd.DataFrame({"n": [1.0, 2.0], "embedding": [[1, 2], [3, 4]], "y": [0, 1]})
    with pytest.raises(DubitoError, match="'embedding' has cells that are neither numbers nor te"):
        data.open(frame)
    names = pd.MultiIndex.from_product([["a"], ["x", "y"]])
    source = data.open(pd.DataFrame([[1.0, 0], [2.0, 1]], columns=names))
    assert source.format.columns[0].name == "('a', 'x')"


def test_index_column_is_ignored(put):
    frame = pd.DataFrame({"n": [1, 2, 3], "y": [0, 1, 0]})
    with pytest.warns(UserWarning, match="first column has no name and counts rows"):
        source = data.open(put("a.csv", frame.to_csv()))
    assert source.load().tolist() == [[1], [2], [3]]


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_delimiters(put, delimiter):
    path = put("a.csv", HOUSES.replace(",", delimiter))
    assert data.open(path, target="price").load().shape == (4, 7)


def test_evaluation_uses_the_format_of_a_model(houses, put):
    path = put("test.csv", "price,heating,area,postcode\n250,oil,90,04315\n")
    source = data.open(path, format=houses.format, ignore=["id"])
    assert source.load().tolist() == [[90, 0, 0, 1, 0, 0, 1]]
    assert source.target.tolist() == [250]
    assert source.target.name == "price"


def test_unreadable_rows_raise_unless_reported(put):
    format = data.open(put("a.csv", "n,y\n1,0\n2,1\n")).format
    path = put("b.csv", "n,y\n1,0\nx,1\n")
    with pytest.raises(DubitoError, match=r"1 of 2 inputs.*b\.csv:3: column 'n' is 'x'"):
        data.open(path, format=format)
    source = data.open(path, format=format, labeled=False, on_error="report")
    assert list(source.encode([1, 0]).errors) == [0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("a,b\n", "there are no inputs in bad.csv"),
        ("a,a\n1,2\n", "has the column 'a' twice"),
        ("1.5,x\n2.5,y\n", "line 1 has '1.5' among the names"),
        ("a,b\n1,2,3\n", r"cannot be read as a table: .*Expected 2 fields in line 2, saw 3"),
        ('a,b\n1,"2\n', "cannot be read as a table: .*EOF inside string"),
        (b"a,b\n\xff,2\n", "cannot be read as a table: .*utf-8"),
        ("y\n1\n2\n", "no input columns"),
    ],
)
def test_bad_files(put, content, message):
    with pytest.raises(DubitoError, match=message):
        data.open(put("bad.csv", content))


@pytest.mark.parametrize("option", ["target", "ignore", "categories"])
def test_unknown_columns(put, option):
    with pytest.raises(ValueError, match=r"unknown column of a\.csv 'z'; known: 'n', 'y'"):
        data.open(put("a.csv", "n,y\n1,2\n"), **{option: ["z"]})


def test_refit_takes_ranges_and_categories_from_some_rows():
    frame = pd.DataFrame(
        {"age": [20.0, 30.0, None, 700.0], "city": ["a", "b", "a", "c"], "y": [0, 1, 0, 1]}
    )
    source = data.open(frame, target="y").refit([0, 1])
    age, city = source.format.columns
    assert (age.low, age.high, age.fill) == (20, 30, 25)
    assert city.categories == ("a", "b")
    assert source.format.in_range(source.load()).tolist() == [True, True, True, False]
