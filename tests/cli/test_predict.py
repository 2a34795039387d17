"""`dubito predict`: a row an input, in bounded memory, whatever the files hold."""

from __future__ import annotations

import csv
import io
import json
import math
import tracemalloc
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from typer.testing import CliRunner

from dubito import backbones, bundle, cli
from dubito._legacy import Prediction
from dubito.bundle import Bundle, Column, Columns, Preprocessing
from dubito.data.tables import MISSING
from tests.fuzzing import FUZZ, damaged
from tests.limits import policy, scaling

HUES = ("red", "sky")
COLUMNS = Columns(columns=(Column("size", None, (0.0, 5.0)), Column("hue", HUES)), label="y")
POLICY = policy(("max_prob", 0.5), ("vacuity", 0.9))
SCALING = scaling()


def saved(folder: Path, shape: tuple[int, ...], method: str = "iedl", **given: Any) -> Path:
    torch.manual_seed(0)
    network = backbones.build("mlp", shape, 2, hidden=(4,))
    return bundle.save(
        folder, network, method=method, classes=("a", "b"), shape=shape,
        backbone={"name": "mlp", "hidden": [4]}, **given,
    )  # fmt: skip


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle for grey images."""
    return saved(
        tmp_path_factory.mktemp("images"), (1, 6, 5), calibration=SCALING, policy=POLICY,
        preprocessing=Preprocessing(pixels=True, mode="L"),
    )  # fmt: skip


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle for rows with a number and a category."""
    made = Preprocessing(columns=COLUMNS, mean=(1.0, 0.0, 0.0), scale=(2.0, 1.0, 1.0))
    folder = tmp_path_factory.mktemp("table")
    return saved(folder, (3,), calibration=SCALING, policy=POLICY, preprocessing=made)


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle for arrays of three numbers, without calibration and policy."""
    return saved(tmp_path_factory.mktemp("numbers"), (3,), "softmax")


def predict(*words: str | Path, code: int = 0) -> str:
    done = CliRunner().invoke(cli.app, ["predict", *map(str, words)])
    assert done.exit_code == code, (done.output, done.exception)
    return done.stdout


def rows(folder: Path, *paths: Path, batch_size: int = 1024) -> list[dict[str, Any]]:
    loaded = bundle.load(folder)
    portions = bundle.stream(loaded, paths, batch_size=batch_size)
    return [row for portion in portions for row in portion.rows]


def image(path: Path, seed: int = 0, size: tuple[int, int] = (6, 5), mode: str = "L") -> Path:
    shape = size if mode == "L" else (*size, 3)
    pixels = np.random.default_rng(seed).integers(256, size=shape, dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


# --- what a row says -----------------------------------------------------------------------------


def test_a_row_says_what_the_bundle_says(images: Path, tmp_path: Path) -> None:
    files = [image(tmp_path / f"{seed}.png", seed) for seed in range(5)]
    loaded = bundle.load(images)
    x = torch.from_numpy(np.stack([np.array(Image.open(file)) for file in files]))[:, None]
    said = loaded.predict(x)
    after = said.calibrated(SCALING)
    found = rows(images, *files, batch_size=2)
    assert [row["source"] for row in found] == [str(file) for file in files]
    for at, row in enumerate(found):
        label = int(said.label[at])
        assert row["label"] == "ab"[label]
        assert row["probability"] == pytest.approx(after.probs[at, label].item())
        assert row["belief"] == pytest.approx(said.belief[at, label].item())
        for name in ("vacuity", "mutual_information", "expected_entropy"):
            assert row[name] == pytest.approx(said.measure(name)[at].item())
        accepted = bool(POLICY.decide(said.distribution).accepted[at])
        assert row["decision"] == ("accept" if accepted else "abstain")
        assert row.get("why", "accepted") == POLICY.decide(said.distribution).reason[at]


def test_why_it_abstains(images: Path, tmp_path: Path) -> None:
    loaded = bundle.load(images)
    file = image(tmp_path / "x.png")
    said = loaded.predict(torch.from_numpy(np.array(Image.open(file)))[None, None])
    for sure, vacuity, why in ((0.0, 1.0, None), (1.0, 1.0, "ambiguous"), (1.0, 0.0, "unfamiliar")):
        made = policy(("max_prob", sure), ("vacuity", vacuity))
        folder = saved(
            tmp_path / str(why), (1, 6, 5), policy=made, preprocessing=loaded.preprocessing
        )
        (row,) = rows(folder, file)
        assert row.get("why") == why
        assert row["decision"] == ("accept" if why is None else "abstain")
    assert 0 < said.max_prob[0] < 1


def test_measures_that_a_method_lacks_are_left_out(numbers: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 3)))
    text = predict(numbers, tmp_path / "x.npz", "--format", "csv")
    assert text.splitlines()[0] == "source,label,probability,note,error"
    (tmp_path / "x.csv").write_text("1,2,3\n4,5,6\n")
    first, second = rows(numbers, tmp_path / "x.csv")
    assert first.keys() == {"source", "label", "probability"}
    expected = bundle.load(numbers).predict(torch.tensor([[1.0, 2, 3], [4, 5, 6]])).max_prob
    assert [first["probability"], second["probability"]] == pytest.approx(expected.tolist())


# --- formats -------------------------------------------------------------------------------------


def test_formats_hold_the_same(images: Path, tmp_path: Path) -> None:
    files = [image(tmp_path / "in" / f"{seed}.png", seed) for seed in range(3)]
    (tmp_path / "in" / "3.png").write_text("no image")
    whole = tmp_path / "in"
    lines = [
        json.loads(s) for s in predict(images, whole, "--format", "jsonl", code=1).splitlines()
    ]
    table = list(csv.DictReader(io.StringIO(predict(images, whole, "--format", "csv", code=1))))
    assert [row["source"] for row in lines] == [str(f) for f in [*files, whole / "3.png"]]
    for one, other in zip(lines, table, strict=True):
        assert {k: str(v) for k, v in one.items()} == {k: v for k, v in other.items() if v}
    assert lines[3].keys() == {"source", "error"}
    shown = predict(images, whole, code=1).splitlines()
    assert shown[0].split()[:4] == ["source", "label", "prob.", "belief"]
    assert f"{lines[1]['probability']:.4f}" in shown[2]
    assert "cannot identify image file" in shown[4]
    places = {line.index(row["decision"]) for line, row in zip(shown[1:4], lines[:3], strict=True)}
    assert places == {shown[0].index("decision")}
    for name, wanted in (("x.csv", table), ("x.jsonl", lines)):
        assert predict(images, whole, "--out", tmp_path / name, code=1) == ""
        text = (tmp_path / name).read_text("utf-8")
        parts = csv.DictReader(io.StringIO(text)), map(json.loads, text.splitlines())
        assert list(parts[name == "x.jsonl"]) == wanted


def test_the_summary_and_the_exit_status(images: Path, tmp_path: Path) -> None:
    file = image(tmp_path / "x.png")
    done = CliRunner().invoke(cli.app, ["predict", str(images), str(file), str(tmp_path / "none")])
    assert done.exit_code == 1
    assert "2 inputs: " in done.stderr
    assert "1 not predicted" in done.stderr
    assert "No such file" in done.stdout
    done = CliRunner().invoke(cli.app, ["predict", str(images), str(file)])
    assert done.exit_code == 0
    assert "1 inputs: 1 a" in done.stderr


def test_wrong_use_is_told(images: Path, tmp_path: Path) -> None:
    for words, kind, message in [
        (
            (images, "x", "--format", "xml"),
            ValueError,
            "unknown format 'xml'; known: 'table', 'csv'",
        ),
        ((tmp_path, "x"), RuntimeError, "is no bundle: it has no manifest.json"),
        (
            (images, "x", "--out", tmp_path / "no" / "x.csv"),
            OSError,
            "cannot write .*x.csv: No such",
        ),
    ]:
        done = CliRunner().invoke(cli.app, ["predict", *map(str, words)])
        assert isinstance(done.exception, kind)
        with pytest.raises(kind, match=message):
            raise done.exception
    assert list(tmp_path.iterdir()) == []


def test_a_policy_that_accepts_nothing_is_told_once(tmp_path: Path) -> None:
    never = policy(("max_prob", math.inf), error=0.01, samples=40)
    (tmp_path / "x.csv").write_text("1,2,3\n" * 5)
    words = ["--batch-size", "2", "--format", "csv"]
    for one, count in ((never, 1), (POLICY, 0)):
        folder = saved(tmp_path / str(count), (3,), policy=one)
        done = CliRunner().invoke(
            cli.app, ["predict", str(folder), str(tmp_path / "x.csv"), *words]
        )
        assert done.exit_code == 0
        assert len(done.stdout.splitlines()) == 6
        assert done.stderr.count("abstains on everything") == count
        shown = "40 validation samples were too few, or too often wrong, to show an error rate"
        assert (f"{shown} <= 0.01 with confidence 0.95" in done.stderr) is bool(count)
        assert ("a greater --error" in done.stderr) is bool(count)


CODE = """
import torch

def factory(shape, outputs):
    return torch.nn.Sequential(torch.nn.Linear(shape[0], outputs))
"""


def test_a_network_of_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_trees.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    network = torch.nn.Sequential(torch.nn.Linear(3, 2))
    made: dict[str, Any] = {"method": "iedl", "classes": ("a", "b"), "shape": (3,)}
    folder = bundle.save(tmp_path / "b", network, **made)
    (tmp_path / "x.csv").write_text("1,2,3\n4,5,6\n")
    words = ["predict", str(folder), str(tmp_path / "x.csv"), "--format", "jsonl", "--module"]
    done = CliRunner().invoke(cli.app, [*words, "own_trees:factory"])
    assert done.exit_code == 0, (done.output, done.exception)
    assert "running your code: own_trees:factory" in done.stderr
    with torch.no_grad():
        said = Prediction.from_logits(network(torch.tensor([[1.0, 2, 3], [4, 5, 6]])))
    found = [json.loads(line)["vacuity"] for line in done.stdout.splitlines()]
    assert found == pytest.approx(said.vacuity.tolist(), rel=1e-5)
    for named, message in (
        ("own_trees", "named package.module:factory, not 'own_trees'"),
        ("own_trees:none", "has no attribute 'none'"),
        ("own_trees:torch", "own_trees:torch is no function, but module"),
    ):
        done = CliRunner().invoke(cli.app, [*words, named])
        assert isinstance(done.exception, ValueError)
        assert message in str(done.exception)


def test_a_policy_of_another_method_is_told_once(tmp_path: Path) -> None:
    folder = saved(tmp_path / "b", (3,), "softmax", policy=POLICY)
    (tmp_path / "x.csv").write_text("1,2,3\n")
    done = CliRunner().invoke(cli.app, ["predict", str(folder), str(tmp_path / "x.csv")])
    assert isinstance(done.exception, ValueError)
    assert "has no score 'vacuity'; known: 'total'" in str(done.exception)
    assert done.stdout == ""


# --- images --------------------------------------------------------------------------------------


def test_images_of_any_size_and_mode(images: Path, tmp_path: Path) -> None:
    files = [
        image(tmp_path / "in" / "a.png"),
        image(tmp_path / "in" / "b" / "c.jpg", size=(40, 30), mode="RGB"),
        image(tmp_path / "in" / ".hidden.png"),
    ]
    found = rows(images, tmp_path / "in", batch_size=1)
    assert [row["source"] for row in found] == [str(files[0]), str(files[1])]
    loaded = bundle.load(images)
    with Image.open(files[1]) as opened:
        opened.draft("L", (12, 12))
        small = np.array(opened.convert("L").resize((5, 6), Image.Resampling.BILINEAR))
    said = loaded.predict(torch.from_numpy(small)[None, None])
    assert found[1]["vacuity"] == pytest.approx(said.vacuity.item(), rel=1e-5)


def test_images_are_refused_by_a_table(table: Path, tmp_path: Path) -> None:
    (row,) = rows(table, image(tmp_path / "x.png"))
    wanted = "this bundle takes inputs of shape (3,) from a .csv or .npz file, not images"
    assert row["error"] == wanted


# --- .npz ----------------------------------------------------------------------------------------


def test_arrays_are_read_as_they_were_trained(images: Path, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(256, size=(7, 6, 5), dtype=np.uint8)
    loaded = bundle.load(images)
    expected = loaded.predict(torch.from_numpy(pixels)[:, None]).vacuity.tolist()
    arrangements: dict[str, np.ndarray[Any, Any]] = {
        "grey": pixels,
        "channels": pixels[:, None],
        "last": pixels[..., None],
        "floats": (pixels / 255)[:, None],
        "columnwise": np.asfortranarray(pixels),
    }
    for name, held in arrangements.items():
        np.savez_compressed(tmp_path / f"{name}.npz", inputs=held, labels=np.zeros(7))
        found = rows(images, tmp_path / f"{name}.npz", batch_size=3)
        assert [row["vacuity"] for row in found] == pytest.approx(expected, rel=1e-5), name
        assert found[6]["source"].endswith(f"{name}.npz[6]")


def test_bad_rows_of_an_array_are_their_own(images: Path, numbers: Path, tmp_path: Path) -> None:
    x = np.zeros((5, 3))
    x[1, 2], x[3, 0] = np.nan, 1e300
    np.savez(tmp_path / "x.npz", x=x)
    found = rows(numbers, tmp_path / "x.npz", batch_size=2)
    assert [at for at, row in enumerate(found) if "error" in row] == [1, 3]
    assert "not finite float32" in found[1]["error"]
    np.savez(tmp_path / "y.npz", x=np.stack([np.zeros((1, 6, 5)), np.full((1, 6, 5), 200.0)]))
    good, bad = rows(images, tmp_path / "y.npz")
    assert "error" not in good
    assert bad["error"] == "pixels must be bytes (uint8) or numbers in [0, 1]; these are neither"


def test_an_input_that_the_network_cannot_take(tmp_path: Path) -> None:
    first = torch.nn.Linear(3, 2)
    torch.nn.init.constant_(first.weight, 1e3)
    network = torch.nn.Sequential(first, torch.nn.Linear(2, 2))
    bundle.save(tmp_path / "b", network, method="edl", classes="ab", shape=(3,))
    loaded = bundle.load(tmp_path / "b", factory=lambda *_: network)
    x = np.zeros((9, 3), np.float32)
    x[4] = 3e38
    np.savez(tmp_path / "x.npz", x=x)
    (portion,) = bundle.stream(loaded, [tmp_path / "x.npz"])
    found = portion.rows
    assert [at for at, row in enumerate(found) if "error" in row] == [4]
    assert "must be finite" in found[4]["error"]
    assert len({row["vacuity"] for at, row in enumerate(found) if at != 4}) == 1


BAD_ARRAYS = {
    "shape": ({"x": np.zeros((2, 4))}, "inputs of shape (4,), but this bundle takes (3,)"),
    "bytes": ({"x": np.zeros((2, 3), np.uint8)}, "trained with numbers"),
    "words": ({"x": np.array([["a", "b", "c"]])}, "inputs must be numbers, not <U1"),
    "empty": ({"x": np.zeros((0, 3))}, "inputs have shape (0, 3): expected (N, *(3,)), N >= 1"),
    "name": ({"z": np.zeros((2, 3))}, "no array called inputs or x or X: it holds ['z']"),
    "nothing": ({}, "it holds nothing"),
}


@pytest.mark.parametrize(("held", "message"), BAD_ARRAYS.values(), ids=BAD_ARRAYS)
def test_an_array_of_another_kind(
    numbers: Path, tmp_path: Path, held: dict[str, Any], message: str
) -> None:
    np.savez(tmp_path / "x.npz", **held)
    (row,) = rows(numbers, tmp_path / "x.npz")
    assert message in row["error"]


def test_objects_are_not_unpickled(numbers: Path, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "sprung",))

    np.savez(tmp_path / "x.npz", x=np.array([[Trap(), 1, 2]], dtype=object), allow_pickle=True)
    (row,) = rows(numbers, tmp_path / "x.npz")
    assert "inputs must be numbers, not object" in row["error"]
    assert not (tmp_path / "sprung").exists()


def test_an_array_that_claims_too_much(numbers: Path, tmp_path: Path) -> None:
    for order in (False, True):
        held = io.BytesIO()
        claims = {"descr": "<f4", "fortran_order": order, "shape": (10**13, 3)}
        np.lib.format.write_array_header_1_0(held, claims)
        with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
            archive.writestr("x.npy", held.getvalue() + np.zeros(6, np.float32).tobytes())
        (row,) = rows(numbers, tmp_path / "x.npz")
        assert row["error"] == "the array ends before its last row"


# --- .csv ----------------------------------------------------------------------------------------


def test_columns_are_found_by_name(table: Path, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("id,hue,y,size\n1, sky ,a,2.5\n\n2,mauve,b,100\n3,red,?,-1e0\n")
    found = rows(table, tmp_path / "x.csv", batch_size=2)
    x = torch.tensor([[2.5, 0, 1], [100, 0, 0], [-1, 1, 0]])
    expected = bundle.load(table).predict(x)
    assert [row["vacuity"] for row in found] == pytest.approx(expected.vacuity.tolist())
    assert [row["source"].rpartition(":")[2] for row in found] == ["2", "4", "5"]
    assert [row.get("note") for row in found] == [
        None, "size 100 is far from [0, 5]; unseen hue 'mauve'", None,
    ]  # fmt: skip


def test_tables_without_a_header(numbers: Path, tmp_path: Path) -> None:
    x = torch.tensor([[1.0, 2, 3]])
    expected = bundle.load(numbers).predict(x).max_prob.item()
    for text, places in (("1,2,3\n", [0]), ("a,b,c\n1,2,3\n", [0]), ("1,2,3\nx,2,3\n", [0])):
        (tmp_path / "x.csv").write_text(text)
        found = rows(numbers, tmp_path / "x.csv")
        assert [found[at]["probability"] for at in places] == pytest.approx([expected])
        assert ["error" in row for row in found[1:]] == [True] * (len(found) - 1)
    (tmp_path / "x.csv").write_text("1,2,3,4\n")
    (row,) = rows(numbers, tmp_path / "x.csv")
    assert row["error"] == "row 1 has 4 columns; expected 3 without a label"
    made = Columns(columns=(Column("column 1"), Column("column 3")), header=False, label_at=1)
    folder = saved(tmp_path / "b", (2,), preprocessing=Preprocessing(columns=made))
    for text in ("1,3\n", "1,yes,3\n"):
        (tmp_path / "x.csv").write_text(text)
        (row,) = rows(folder, tmp_path / "x.csv")
        said = bundle.load(folder).predict(torch.tensor([[1.0, 3.0]]))
        assert row["vacuity"] == pytest.approx(said.vacuity.item())


def test_bad_rows_are_their_own(table: Path, tmp_path: Path) -> None:
    lines = [
        "size,hue", "1,red", "big,red", ",sky", "1,NA", "inf,red", "1", '2,"red', "3,sky",
    ]  # fmt: skip
    (tmp_path / "x.csv").write_text("\n".join(lines[:7]) + "\n2,sky\n")
    found = rows(table, tmp_path / "x.csv", batch_size=3)
    assert [row.get("error") for row in found] == [
        None, "column 'size' must be a finite number, not 'big'", "column 'size' is missing",
        "column 'hue' is missing", "column 'size' must be a finite number, not 'inf'",
        "1 columns, but row 1 has 2", None,
    ]  # fmt: skip
    (tmp_path / "x.csv").write_text("\n".join(lines[:2] + lines[7:]))
    good, bad = rows(table, tmp_path / "x.csv")
    assert "error" not in good
    assert bad["source"].endswith(":3-4")  # the quote opens in line 3 and never closes
    assert "unexpected end of data" in bad["error"]


BAD_FILES = {
    "no column": ("hue,y\nred,a\n", "the header lacks the column 'size'; it has 'hue', 'y'"),
    "no header": ("1,red\n", "the header lacks the column 'size' and 1 more; it has '1', 'red'"),
    "twice": ("size,hue,size\n1,red,2\n", "the header has the column 'size' twice"),
    "empty": ("", "the file is empty"),
    "no rows": ("size,hue\n", "the file has a header, but no rows"),
}


@pytest.mark.parametrize(("text", "message"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_table_of_another_kind(table: Path, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.csv").write_text(text)
    (row,) = rows(table, tmp_path / "x.csv")
    assert row["error"] == message


def test_other_files_for_tables_and_images(images: Path, table: Path, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("size,hue\n1,red\n")
    np.savez(tmp_path / "x.npz", x=np.zeros((1, 3)))
    (row,) = rows(images, tmp_path / "x.csv")
    assert "takes inputs of shape (1, 6, 5), not rows of a table" in row["error"]
    (row,) = rows(table, tmp_path / "x.npz")
    assert row["error"] == "this bundle's table has categories: give a .csv file"
    pixels = saved(tmp_path / "pixels", (2,), preprocessing=Preprocessing(pixels=True))
    (tmp_path / "x.csv").write_text("1,2\n")
    (row,) = rows(pixels, tmp_path / "x.csv")
    assert row["error"] == "this bundle was trained with bytes, which a table has none of"


def test_memory_is_bounded(table: Path, tmp_path: Path) -> None:
    loaded, peaks = bundle.load(table), []
    for count in (500, 10_000):
        path = tmp_path / f"{count}.csv"
        path.write_text("size,hue\n" + "1.25,red\n" * count)
        tracemalloc.start()
        seen = sum(len(part.rows) for part in bundle.stream(loaded, [path], batch_size=100))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert seen == count
    assert peaks[1] < 3 * peaks[0]  # twenty times the rows


# --- from end to end -----------------------------------------------------------------------------


def test_a_folder_is_learnt_and_predicted(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, level in (("dark", 60), ("light", 190)):
        for number in range(200):
            pixels = rng.normal(level, 25, (12 + number % 3, 12, 3)).clip(0, 255).astype(np.uint8)
            path = tmp_path / "photos" / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
    words = ["--epochs", "6", "--batch-size", "32", "--set", "size=8", "--set", "hidden=[16]"]
    out = str(tmp_path / "run")
    done = CliRunner().invoke(cli.app, ["train", str(tmp_path / "photos"), "--out", out, *words])
    assert done.exit_code == 0, (done.output, done.exception)
    new = tmp_path / "new"
    new.mkdir()
    Image.new("RGB", (90, 40), (50, 60, 70)).save(new / "a.jpg")
    Image.new("LA", (5, 5), (200, 255)).save(new / "b.png")  # grey, with transparency
    Image.new("P", (30, 30), 0).save(new / "c.gif")
    (new / "d.txt").write_text("a note")
    lines = predict(out, new, "--format", "jsonl", code=1).splitlines()
    found = [json.loads(line) for line in lines]
    assert [row.get("label") for row in found] == ["dark", "light", "dark", None]
    assert all(row["decision"] in ("accept", "abstain") for row in found[:3])
    assert "cannot identify image file" in found[3]["error"]


# --- anything ------------------------------------------------------------------------------------


def check(found: Iterable[dict[str, Any]]) -> None:
    """Each row has an error on one line, or a whole prediction."""
    for row in found:
        if "error" in row:
            assert row.keys() == {"source", "error"}
            assert row["error"]
            assert "\n" not in row["error"]
        else:
            assert row["label"] in ("a", "b")
            assert 0 <= row["probability"] <= 1
            assert row["decision"] in ("accept", "abstain")


@pytest.fixture(scope="module")
def loaded_images(images: Path) -> Bundle:
    return bundle.load(images)


@pytest.fixture(scope="module")
def loaded_table(table: Path) -> Bundle:
    return bundle.load(table)


@FUZZ
@given(st.data())
@pytest.mark.parametrize("kind", ["png", "jpg", "gif", "npz", "csv"])
def test_damaged_files_are_told_or_read(
    loaded_images: Bundle, loaded_table: Bundle, tmp_path: Path, kind: str, data: st.DataObject
) -> None:
    if kind == "npz":
        held = io.BytesIO()
        np.savez(held, x=np.zeros((2, 6, 5), np.uint8))
        content = held.getvalue()
    elif kind == "csv":
        content = b"size,hue,y\n1.5,red,a\n2,sky,b\n"
    else:
        held = io.BytesIO()
        pixels = np.arange(30, dtype=np.uint8).reshape(6, 5)
        Image.fromarray(pixels).save(held, "jpeg" if kind == "jpg" else kind)
        content = held.getvalue()
    path = tmp_path / f"x.{kind}"
    path.write_bytes(damaged(content, data))
    loaded = loaded_table if kind == "csv" else loaded_images
    portions = list(bundle.stream(loaded, [path], batch_size=2))
    assert portions
    check(row for portion in portions for row in portion.rows)


CELLS = st.one_of(
    st.sampled_from(["1", "-2.5", "1e3", "nan", "inf", "", "NA", "?", "1e39", "x", "1,5", *HUES]),
    st.floats().map(str),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6),
)


@FUZZ
@given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=8))
def test_any_cells_are_predicted_right_or_told(
    loaded_table: Bundle, tmp_path: Path, cells: list[tuple[str, str]]
) -> None:
    path = tmp_path / "x.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerows([("size", "hue"), *cells])
    found = [row for part in bundle.stream(loaded_table, [path]) for row in part.rows]
    assert len(found) == len(cells)
    check(found)
    for row, (size, hue) in zip(found, cells, strict=True):
        number, word = parsed(size), hue.strip()
        missing = word.lower() in MISSING - {"none"}
        assert ("error" in row) is (number is None or missing), (size, hue, row)
        if "error" not in row:
            x = torch.tensor([[number, float(word == "red"), float(word == "sky")]])
            expected = loaded_table.predict(x)
            assert row["vacuity"] == pytest.approx(expected.vacuity.item(), abs=1e-6)
            assert ("unseen" in row.get("note", "")) is (word not in HUES)


def parsed(cell: str) -> float | None:
    """The finite float32 number that a cell holds."""
    try:
        value = float(cell.strip())
    except ValueError:
        return None
    with np.errstate(over="ignore"):
        return value if math.isfinite(np.float32(value)) else None
