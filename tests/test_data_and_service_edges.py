"""Edges of data, few-shot runs, the service and the command line, each of which was wrong once."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import os
import struct
import subprocess
import sys
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from dubito import backbones, bundle, cli
from dubito.bundle import Preprocessing
from dubito.bundle._table import read_table
from dubito.cli._options import numbers
from dubito.data import read_csv, read_features, read_folder, read_npz
from dubito.data.folder import decode, read_images
from dubito.fewshot import Engine, Setting, head, run, scaling, summary
from dubito.fewshot.results import evaluate
from dubito.fewshot.tuning import ACCURACY, Tuned, tune
from dubito.report import files
from dubito.report.figures.learning import confusion
from dubito.report.figures.style import drawn
from fewshot.samples import arrays, pool

SMALL = ("--ways", "3", "--shots", "2")


# --- images --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("suffix", "options"),
    [("tif", {}), ("tif", {"compression": "tiff_lzw"}), ("png", {}), ("jpg", {"quality": 100})],
)
def test_an_image_that_lies_on_its_side_is_turned_and_keeps_its_proportions(
    tmp_path: Path, suffix: str, options: dict[str, Any]
) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    pixels = np.linspace(0, 255, 200).astype(np.uint8).reshape(10, 20)
    path = tmp_path / f"a.{suffix}"
    Image.fromarray(pixels).save(path, exif=exif, **options)
    inputs, _ = read_images([path])
    assert inputs.shape == (1, 1, 20, 10)
    assert np.abs(inputs[0, 0].numpy().astype(int) - np.rot90(pixels, -1)).max() <= 1


def test_an_orientation_that_is_none_turns_nothing(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 9
    Image.new("L", (20, 10)).save(tmp_path / "a.png", exif=exif)
    assert read_images([tmp_path / "a.png"])[0].shape == (1, 1, 10, 20)


@pytest.mark.parametrize("to_folder", [False, True])
def test_links_that_lead_to_no_image_are_not_overlooked(tmp_path: Path, to_folder: bool) -> None:
    for name in "ab":
        (tmp_path / "d" / name).mkdir(parents=True)
        Image.new("L", (8, 8)).save(tmp_path / "d" / name / "0.png")
    (tmp_path / "more").mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "more" / "1.png")
    target = tmp_path / ("more" if to_folder else "gone.png")
    (tmp_path / "d" / "a" / "link.png").symlink_to(target)
    with pytest.raises(ValueError, match=r"1 of 3 images can't be read: .*link\.png"):
        read_folder(tmp_path / "d")
    (tmp_path / "d" / "a" / "link.png").unlink()
    (tmp_path / "d" / "a" / "link.png").symlink_to(tmp_path / "more" / "1.png")
    assert read_folder(tmp_path / "d").class_counts.tolist() == [2, 1]


# --- tables --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "classes", "count"),
    [
        ("0,1,label\n5,3,0\n4,2,1\n4,2,1\n", ("0", "1"), 3),
        ("0,1,kind\n5,3,iris\n4,2,rose\n", ("iris", "rose"), 2),
        ("5.1,3,iris\n4,2,rose\n", ("iris", "rose"), 2),  # no header: nothing counts its columns
        ("0,1,iris\n4,2,rose\n4,2,iris\n", ("iris", "rose"), 3),  # nor here: a class that recurs
        ("0,1,2\n4,2,3\n", ("2", "3"), 2),
    ],
)
def test_a_header_of_numbers_is_no_sample(
    tmp_path: Path, text: str, classes: tuple[str, ...], count: int
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    found = read_csv(path)
    assert (found.classes, len(found)) == (classes, count)


@pytest.mark.parametrize("head_of_index", ["", "Unnamed: 0"])
def test_an_index_is_no_input(tmp_path: Path, head_of_index: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"{head_of_index},size,kind\n7,3.5,a\n0,2.5,b\n3,2.5,b\n")
    for reader in (read_csv, read_table):
        with pytest.raises(ValueError, match="seems to be an index"):
            reader(path)
    path.write_text("row,size,kind\n7,3.5,a\n0,2.5,b\n")  # whoever names it means it
    assert read_csv(path).shape == (2,)
    path.write_text(f"{head_of_index},size,kind\n7,3.5,a\n7,2.5,b\n")  # and this counts nothing
    assert read_csv(path).shape == (2,)


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["007", "7", "08"], ("007", "08", "7")),
        (["9007199254740993", "9007199254740992", "8"], None),
        (["1_0", "10", "9"], ("10", "1_0", "9")),
        (["10", "9", "0"], ("0", "9", "10")),
        (["1.0", "2.0", "10.0"], ("1", "2", "10")),
    ],
)
def test_labels_that_differ_are_classes_that_differ(
    tmp_path: Path, labels: list[str], classes: tuple[str, ...] | None
) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b,label\n" + "".join(f"1.5,2.5,{label}\n" for label in labels))
    found = read_csv(path)
    assert found.classes == (tuple(sorted(labels)) if classes is None else classes)
    assert len(set(found.labels.tolist())) == 3


def test_names_of_classes_as_bytes(tmp_path: Path) -> None:
    names = np.array([b"cat", b"dog"])
    for labels in (np.array([1, 0]), np.array([b"dog", b"cat"])):
        np.savez(tmp_path / "b.npz", x=np.ones((2, 3)), y=labels, classes=names)
        found = read_npz(tmp_path / "b.npz")
        assert (found.classes, found.labels.tolist()) == (("cat", "dog"), [1, 0])


def test_the_suffix_of_features_in_capitals(tmp_path: Path) -> None:
    with (tmp_path / "F.NPZ").open("wb") as file:
        np.savez(file, features=np.ones((2, 3)), labels=np.array([0, 1]))
    assert read_features(tmp_path / "F.NPZ").shape == (3,)


# --- few-shot runs -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = arrays()
    path = tmp_path_factory.mktemp("features") / "novel.npz"
    np.savez(path, features=data.inputs.numpy(), labels=data.labels.numpy())
    return path


def fewshot(*words: str | Path) -> Any:
    return CliRunner().invoke(cli.app, ["fewshot", *map(str, words)])


def test_one_episode_has_figures_without_an_interval(features: Path, tmp_path: Path) -> None:
    done = fewshot(features, *SMALL, "--episodes", "1", "--out", tmp_path)
    assert done.exit_code == 0, (done.output, done.exception)
    figure = json.loads((tmp_path / "result.json").read_text())["figures"]["accuracy"]
    assert figure["interval"] is None
    assert f"accuracy {100 * figure['mean']:.2f} %" in done.output


def test_an_empty_part_is_named(tmp_path: Path) -> None:
    engine = Engine(pool(), None, Setting(3, 2), head("softmax"))
    run(engine, 4, tmp_path)
    (tmp_path / "parts" / "part-000000.npz").write_bytes(b"")  # as a full disk or a crash leaves it
    with pytest.raises(ValueError, match=r"part-000000\.npz is no finished part: .*delete it"):
        run(engine, 4, tmp_path)


def test_writers_that_share_a_number_do_not_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 1)  # as in containers
    contents = ["a" * 100_000, "b" * 100_000]
    with ThreadPoolExecutor(4) as pool:
        for _ in pool.map(lambda i: files.write(tmp_path / "c", contents[i % 2]), range(400)):
            assert (tmp_path / "c").read_text() in contents
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_tuning_is_json_and_is_found_again(tmp_path: Path) -> None:
    given: dict[str, Any] = {"episodes": 1, "grid": (0.0, 0.1), "folder": tmp_path}
    made = tune(pool(), Setting(3, 2), **given)

    def refused(word: str) -> float:
        raise AssertionError(f"{word} is no JSON")

    json.loads((tmp_path / "tuning.json").read_text(), parse_constant=refused)
    again = tune(pool(), Setting(3, 2), **given)
    assert isinstance(again, Tuned)
    assert [one.accuracy.mean for one in again.trials] == [one.accuracy.mean for one in made.trials]
    assert np.isnan(again.trials[0].accuracy.interval)


def test_tuning_scales_by_the_reference_that_is_used_later(tmp_path: Path) -> None:
    validation, base, setting = pool(seed=1), pool(seed=2), Setting(3, 2)
    given: dict[str, Any] = {
        "episodes": 30, "grid": (0.01,), "scalings": ("centred",), "folder": tmp_path,
    }  # fmt: skip
    own = tune(validation, setting, **given).trials[0]
    found = tune(validation, setting, reference=base, **given).trials[0]
    prepared = scaling("centred", base).of(validation)
    engine = Engine(prepared, None, setting, head("iedl", fisher_weight=0.01))
    assert found.accuracy == summary(evaluate(engine, 30))[ACCURACY]
    assert found.ood_aupr != own.ood_aupr


def test_the_reference_reaches_the_tuning(features: Path, tmp_path: Path) -> None:
    base, validation = tmp_path / "base.npz", tmp_path / "validation.npz"
    for path, seed in ((base, 3), (validation, 4)):
        data = arrays(seed=seed)
        np.savez(path, features=data.inputs.numpy(), labels=data.labels.numpy())
    done = fewshot(
        features, *SMALL, "--episodes", "5", "--tune", validation, "--tune-episodes", "5",
        "--tune-scaling", "--reference", base, "--out", tmp_path / "out",
    )  # fmt: skip
    assert done.exit_code == 0, (done.output, done.exception)
    assert json.loads((tmp_path / "out/tuning.json").read_text())["reference"]["name"] == "base"


def test_a_seed_of_too_many_bits() -> None:
    assert Engine(pool(), None, Setting(3, 2, seed=2**64 - 1), head("softmax")).values(0, 1)
    with pytest.raises(ValueError, match=r"seed must be below 2\^64"):
        Setting(3, 2, seed=2**64)


# --- the command line and reports ----------------------------------------------------------------


def test_seeds_that_repeat() -> None:
    with pytest.raises(ValueError, match="--seeds must be different numbers, not '1,2,1'"):
        numbers("1,2,1", "--seeds")


def test_names_of_classes_are_no_formulas() -> None:
    figure = confusion(np.eye(3, dtype=int), ("$x^$", "from $5 to $6", r"$\foo$"))
    assert drawn(figure)["png"].startswith(b"\x89PNG")
    assert not any(label.get_parse_math() for label in figure.axes[0].get_xticklabels())


# --- the service ---------------------------------------------------------------------------------

NEEDED = ("fastapi", "httptools", "httpx", "python_multipart", "uvicorn")
serving = pytest.mark.skipif(
    any(find_spec(name) is None for name in NEEDED), reason="needs the extras serve and dev"
)


@serving
def test_scans_are_counted_of_a_jpeg_with_a_second_picture() -> None:
    from dubito.serve import _images
    from dubito.serve._problem import Problem

    picture = Image.fromarray(np.arange(64 * 64 * 3).reshape(64, 64, 3).astype(np.uint8))
    both, plain = io.BytesIO(), io.BytesIO()
    picture.save(both, "MPO", save_all=True, append_images=[picture])
    picture.save(plain, "JPEG", progressive=True)
    assert _images.decode(both.getvalue(), 0, (3, 8, 8), "RGB").shape == (3, 8, 8)
    content, two = plain.getvalue(), both.getvalue()
    scan = content[content.rindex(b"\xff\xda") : -2]
    at = two.index(b"\xff\xe2")  # the segment that tells of a second picture
    told = two[at : at + 2 + struct.unpack(">H", two[at + 2 : at + 4])[0]]
    many = content[:2] + told + content[2:-2] + scan * _images.MOST_SCANS + b"\xff\xd9"
    with Image.open(io.BytesIO(many)) as opened:
        assert opened.format == "MPO"
    with pytest.raises(Problem, match="may have 100 scans"):
        _images.decode(many, 0, (3, 8, 8), "RGB")


@serving
def test_the_gallery_shows_what_predictions_see(tmp_path: Path) -> None:
    from dubito.serve._gallery import _png

    Image.fromarray(np.full((16, 16), 20_000, np.uint16)).save(tmp_path / "deep.tif")
    Image.new("RGBA", (16, 16), (0, 0, 0, 0)).save(tmp_path / "clear.webp", lossless=True)
    for path in tmp_path.iterdir():
        with Image.open(io.BytesIO(_png(path))) as shown:
            pixels = np.asarray(shown.convert("L"))
        assert np.array_equal(pixels, decode(path, (16, 16), "L")[0].numpy()), path


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle for grey images."""
    torch.manual_seed(0)
    return bundle.save(
        tmp_path_factory.mktemp("bundle") / "b", backbones.build("mlp", (1, 8, 8), 2, hidden=(4,)),
        method="iedl", classes=("a", "b"), shape=(1, 8, 8),
        backbone={"name": "mlp", "hidden": [4]},
        preprocessing=Preprocessing(pixels=True, mode="L"),
    )  # fmt: skip


def slowed(served: Any, seconds: float) -> None:
    """Let the model take its time."""
    answer = served.answer

    def slowly(inputs: Any) -> Any:
        time.sleep(seconds)
        return answer(inputs)

    object.__setattr__(served, "answer", slowly)


@serving
def test_a_request_has_one_time_limit_for_all_of_its_way(images: Path) -> None:
    from serve.running import png, running

    with running(images, timeout_s=0.8, decoders=1) as found:
        found.service.pool.submit(time.sleep, 0.6)
        slowed(found.service.served, 0.6)
        answer = found.upload(png(np.zeros((8, 8))))
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timeout")


@serving
def test_clients_that_have_gone_take_no_room_in_the_queue(images: Path) -> None:
    from serve.running import PATIENCE, running, until
    from serve.test_limits import slowed as held

    with running(images, queue=8, max_batch=8, batch_size=8) as found:
        slow = held(found, PATIENCE)
        body = json.dumps({"inputs": [[0.5] * 64] * 8}).encode()
        head = "POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        with found.connect() as first, found.connect() as second:
            first.sendall(request)  # the model works on these
            until(lambda: found.service.batcher.busy_for() > 0)
            second.sendall(request)  # and these wait
            until(lambda: found.service.batcher.waiting == 8)
        until(lambda: found.service.connections == 0)
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(found.predict, [[0.5] * 64])
            until(lambda: found.service.batcher.waiting == 1 or asked.done())
            slow.set()
            assert asked.result().status_code == 200


@serving
def test_head_is_answered_and_a_model_before_a_reload_is_let_go(images: Path) -> None:
    from serve.running import running

    with running(images) as found:
        for path in ("/", "/healthz", "/readyz", "/v1/model", "/metrics", "/openapi.json"):
            told, whole = found.client.head(path), found.client.get(path)
            assert (told.status_code, told.content) == (200, b""), path
            assert told.headers["content-type"] == whole.headers["content-type"]
        assert found.client.head("/v1/predict").status_code == 405
        assert found.client.head("/nothing").status_code == 404
        before = weakref.ref(found.service.served)
        done = asyncio.run_coroutine_threadsafe(found.service.reload(), found.loop)
        assert done.result(20)
        gc.collect()
        assert before() is None


SUPERVISED = """
import os, signal, socket, sys, time
from dubito.serve import supervise

def killed(told):
    os.kill(os.getpid(), signal.SIGKILL)

def hung_up(told):  # SIGHUP comes while the bundle is read
    os.kill(os.getppid(), signal.SIGHUP)
    time.sleep(0.5)
    sys.exit(7)

with socket.create_server(("127.0.0.1", 0)) as listening:
    for serve in (killed, hung_up):
        try:
            supervise(serve, listening)
        except SystemExit as ended:
            if os.getpid() == PARENT:
                print(ended.code, flush=True)
            else:
                raise
"""


@serving
def test_a_supervisor_tells_how_the_first_service_died() -> None:
    script = SUPERVISED.replace("import os,", "import os\nPARENT = os.getpid()\nimport", 1)
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    env["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["137", "7"], done
