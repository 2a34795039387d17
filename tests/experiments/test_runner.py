"""What is done is skipped, what was stopped goes on, what changed runs again."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import random
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from dubito import experiments, runs
from dubito._legacy import calibration_metrics
from dubito.data import load
from dubito.experiments import Outcome, Store, _recipe
from tests.experiments import _job
from tests.training.forked import Job


class Told:
    """Listens, and runs the recipes of a folder in the test's own folders."""

    def __init__(self, folder: Path) -> None:
        self.out, self.work, self.recipes = folder / "out", folder / "work", folder / "recipes"
        self.events: list[dict[str, Any]] = []

    def __call__(self, **options: Any) -> Outcome:
        self.events.clear()
        known = list(experiments.read_recipes(self.recipes).values())
        return experiments.reproduce(
            known, out=self.out, work=self.work, device="cpu", tell=self.events.append, **options
        )

    def count(self, kind: str) -> int:
        return sum(event["event"] == kind for event in self.events)

    @property
    def results(self) -> bytes:
        return (self.out / "results.json").read_bytes()


@pytest.fixture
def run(tmp_path: Path) -> Told:
    return Told(tmp_path)


def test_done_cells_are_skipped(write: Any, run: Told) -> None:
    write("one")
    first, before = run(), run.results
    assert first.ran == ["one seed 1", "one seed 2"]
    assert run.count("epoch") == 6
    second = run()
    assert (second.ran, second.skipped) == ([], first.ran)
    assert run.events == []
    assert run.results == before


def test_the_record_has_what_the_run_gives(write: Any, run: Told, uniform: Path) -> None:
    write("one", seeds="[5]")
    (record,) = run().records
    (folder,) = run.work.glob("*/seed-5")
    trained, test = runs.load(folder), load("digits", "test")
    said = trained.predict(test.inputs)
    judged = runs.evaluate(trained, ood=[str(uniform)], noise=[0.3]).result
    for key in ("accuracy", "calibration", "aurc", "misclassification", "noise"):
        assert record["result"][key] == judged[key], key
    told_apart = record["result"]["ood"]["uniform"]["detection"]
    assert told_apart == judged["ood"]["uniform"]["detection"]
    assert (record["recipe"], record["seed"], record["quick"]) == ("one", 5, False)
    assert record["config"]["training"]["seed"] == 5
    assert record["training"]["history"]["epoch"] == [1, 2, 3]
    best = record["training"]["history"]["validation_accuracy"]
    assert record["training"]["validation_accuracy"] == max(best)
    after = record["result"]["calibrated"]
    assert after["kind"] == "evidence_scaling"
    assert set(after["ood"]["uniform"]["detection"]) == set(told_apart)
    assert after["calibration"]["nll"] < record["result"]["calibration"]["nll"]
    assert calibration_metrics(said, test.labels) == record["result"]["calibration"]
    path = run.out / "one" / "seed-5.json"
    assert json.loads(path.read_text()) == record
    assert path.stat().st_size < 60_000


def test_a_changed_recipe_runs_again_and_the_old_record_is_kept(write: Any, run: Told) -> None:
    write("one")
    write("other", method="softmax", seeds="[1]")
    old = run().records
    write("one", rate=0.02)
    done = run()
    assert done.ran == ["one seed 1", "one seed 2"]
    assert done.skipped == ["other seed 1"]
    assert run.count("aside") == 2
    kept = run.out / "one" / f"seed-1.{old[0]['id']}.stale"
    assert json.loads(kept.read_text()) == old[0]
    assert {r["config"]["training"]["learning_rate"] for r in done.records[:2]} == {0.02}
    assert [r["recipe"] for r in done.records] == ["one", "one", "other"]


def test_a_change_that_is_undone_brings_the_record_back(write: Any, run: Told) -> None:
    write("one", seeds="[1]")
    old = run().records
    write("one", seeds="[1]", rate=0.02)
    new = run().records
    write("one", seeds="[1]")
    done = run()
    assert done.ran == []
    assert done.records == old
    kept = run.out / "one" / f"seed-1.{new[0]['id']}.stale"
    assert json.loads(kept.read_text()) == new[0]


def test_with_another_default_it_is_another_training(
    write: Any, run: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of the one before would be refused: it holds another run."""
    write("one", seeds="[1]")
    assert run().failed == {}
    before = _recipe.RESOLVED["training"]

    def moved(sections: Any) -> dict[str, dict[str, Any]]:
        found = before(sections)
        return {**found, "training": {**found["training"], "validate_every": 3}}

    monkeypatch.setitem(_recipe.RESOLVED, "training", moved)
    known = experiments.read_recipes(run.recipes)["one"]
    _recipe._resolved.cache_clear()
    try:
        assert known.training_id not in {path.name.split("-")[-1] for path in run.work.iterdir()}
    finally:
        _recipe._resolved.cache_clear()
    monkeypatch.undo()
    assert known.training_id in {path.name.split("-")[-1] for path in run.work.iterdir()}


def test_an_ood_set_of_another_shape_is_told_before_the_training(
    write: Any, run: Told, tmp_path: Path
) -> None:
    np.savez(tmp_path / "colour.npz", images=np.zeros((9, 3, 8, 8), np.uint8))
    write("one", seeds="[1]")
    write("other", seeds="[1, 2]", ood=tmp_path / "colour.npz")  # the same training
    done = run()
    assert set(done.failed) == {"other seed 1", "other seed 2"}
    assert "shape (3, 8, 8), but the network takes (1, 8, 8)" in done.failed["other seed 1"]
    assert done.ran == ["one seed 1"]
    assert {event["cell"] for event in run.events if event["event"] == "start"} == {"one seed 1"}


def test_who_can_not_be_judged_leaves_no_trace_in_the_training_of_others(
    write: Any, run: Told, tmp_path: Path
) -> None:
    np.savez(tmp_path / "colour.npz", images=np.zeros((9, 3, 8, 8), np.uint8))
    write("one", seeds="[1]")
    watched = {"seeds": "[1]", "extra": "watch = true\n"}
    write("two", ood=tmp_path / "colour.npz", **watched)  # the same training
    assert run().ran == ["one seed 1"]
    write("two", **watched)
    assert run().ran == ["two seed 1"]


def test_records_put_aside_do_not_take_each_others_place(
    write: Any, run: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("one", seeds="[1]")
    (first,) = run().records
    store, folder = Store(run.out), run.out / "one"
    for rate in (0.5, 0.7):  # as defaults that have moved: the recipe is the same
        config = {**first["config"], "training": {**first["config"]["training"], "epochs": rate}}
        store.write({**first, "config": config})
        (cell,) = experiments.read_recipes(run.recipes)["one"].cells()
        assert store.state(cell) == experiments.CHANGED
        store.put_aside(cell)
    store.write(first)
    store.put_aside(cell)
    assert len(list(folder.glob("*.stale"))) == 3
    done = run()
    assert (done.ran, done.records) == ([], [first])
    assert len(list(folder.glob("*.stale"))) == 2


def test_a_damaged_record_that_was_put_aside_stays_there(write: Any, run: Told) -> None:
    write("one", seeds="[1]")
    run()
    write("one", seeds="[1]", rate=0.02)
    run()
    (aside,) = (run.out / "one").glob("*.stale")
    aside.write_text(aside.read_text()[:100])
    write("one", seeds="[1]")
    assert run().ran == ["one seed 1"]
    assert len(aside.read_text()) == 100


def test_nothing_is_put_aside_before_it_can_run(write: Any, run: Told) -> None:
    write("one", seeds="[1]")
    run()
    write("one", seeds="[1]", rate=0.02)
    known = list(experiments.read_recipes(run.recipes).values())
    with pytest.raises(ValueError, match="device"):
        experiments.reproduce(known, out=run.out, work=run.work, device="bogus")
    with FileLock(run.work / ".lock"), pytest.raises(OSError, match="is at work"):
        run()
    assert (run.out / "one" / "seed-1.json").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"result": {"accuracy": float("nan")}}, "NaN is no figure"),
        ({"id": None}, "it does not tell the state"),
        ({"config": None}, "it does not tell the state"),
        ({"seed": 7}, "it is of 'one', seed 7"),
        ({"recipe": "two"}, "it is of 'two', seed 1"),
    ],
)
def test_a_record_of_something_else_is_named(
    write: Any, run: Told, change: dict[str, Any], words: str
) -> None:
    write("one", seeds="[1]")
    path = run.out / "one" / "seed-1.json"
    path.parent.mkdir(parents=True)
    held = {"format": 1, "id": "x", "recipe": "one", "seed": 1, "config": {}, "result": {}}
    path.write_text(json.dumps({**held, "quick": False, **change}))
    with pytest.raises(ValueError, match=f"seed-1.json can't be used: {words}"):
        run()


def test_a_changed_evaluation_does_not_train_again(write: Any, run: Told) -> None:
    folder = write("one", seeds="[1]")
    run()
    file = folder / "one.toml"
    file.write_text(file.read_text().replace("noise = [0.3]", "noise = [0.3, 0.6]"))
    done = run()
    assert done.ran == ["one seed 1"]
    assert run.count("epoch") == 0
    assert list(done.records[0]["result"]["noise"]) == ["0.3", "0.6"]


def test_a_new_title_changes_nothing(write: Any, run: Told) -> None:
    folder = write("one", seeds="[1]")
    run()
    file = folder / "one.toml"
    file.write_text(file.read_text().replace("one on digits", "another title"))
    assert run().ran == []


def test_an_outdated_record_is_left_out_and_named(write: Any, run: Told) -> None:
    write("one", seeds="[1]")
    run()
    write("one", seeds="[1]", rate=0.02)
    write("two", seeds="[1]", method="softmax")
    known = experiments.read_recipes(run.recipes)
    done = experiments.reproduce(
        [known["two"]], out=run.out, work=run.work, among=known.values(), device="cpu"
    )
    assert done.outdated == ["one seed 1"]
    assert list(json.loads(run.results)["results"]) == ["two"]
    assert (run.out / "one" / "seed-1.json").exists()


def test_a_default_that_moved_runs_again(write: Any, run: Told) -> None:
    write("one", seeds="[1]")
    run()
    path = run.out / "one" / "seed-1.json"
    record = json.loads(path.read_text())
    record["config"]["training"]["patience"] += 1  # as if it had been another one then
    record["config"]["training"]["graph"] = True  # decides how fast, not what
    del record["config"]["training"]["keep"]  # as if it had not been known then
    Store(run.out).write(record)
    assert run().ran == ["one seed 1"]
    assert run.count("aside") == 1


def test_recipes_with_the_same_training_share_it(write: Any, run: Told) -> None:
    write("one", seeds="[1, 2]")
    write("two", seeds="[1]")
    done = run()
    assert len(done.ran) == 3
    assert len(list(run.work.glob("*/seed-*"))) == 2
    one, _, two = (record["result"] for record in done.records)
    assert one == two
    assert done.records[0]["id"] == done.records[2]["id"]


def test_a_failing_cell_is_told_and_the_others_go_on(write: Any, run: Told) -> None:
    write("bad", ood="missing-data", seeds="[1]")
    write("diverging", method="rkl_pn", rate=1e30, seeds="[1]")
    write("good", seeds="[1]")
    done = run()
    assert done.ran == ["good seed 1"]
    assert set(done.failed) == {"bad seed 1", "diverging seed 1"}
    assert "missing-data" in done.failed["bad seed 1"]
    assert "not finite" in done.failed["diverging seed 1"]
    assert [record["recipe"] for record in done.records] == ["good"]
    assert run.count("failed") == 2


def test_a_missing_set_is_known_before_the_training(write: Any, run: Told) -> None:
    write("bad", ood="missing-data", seeds="[1]")
    run()
    assert run.count("epoch") == 0


def test_two_commands_do_not_share_a_folder(write: Any, run: Told) -> None:
    write("one", seeds="[1]")
    run.work.mkdir()
    with FileLock(run.work / ".lock"), pytest.raises(OSError, match="another `dubito reproduce`"):
        run()


def test_quick_and_real_records_do_not_mix(write: Any, run: Told) -> None:
    write("one", seeds="[1]")
    run()
    (recipe,) = experiments.read_recipes(run.recipes).values()
    with pytest.raises(ValueError, match="quick and real records do not mix"):
        experiments.reproduce([experiments.quick(recipe)], out=run.out, work=run.work)


def _lines(file: Path) -> int:
    return file.read_text("utf-8").count("\n") if file.exists() else 0


def test_killed_at_a_random_moment_it_ends_the_same(write: Any, run: Told, tmp_path: Path) -> None:
    write("one", epochs=6)
    write("two", method="mc_dropout", epochs=6, seeds="[7]")
    whole = Told(tmp_path / "whole")
    whole.recipes = run.recipes
    assert whole().failed == {}
    moment = random.SystemRandom().randrange(1, 20), random.SystemRandom().random() / 5
    events = tmp_path / "events"
    job = Job(_job.main, run.recipes, run.out, run.work, events)
    while _lines(events) < moment[0] and job.running:
        time.sleep(0.002)
    time.sleep(moment[1])
    job.process.kill()
    job.wait()
    assert run().failed == {}
    # of the lines that were read, five at most were no epochs: these are not trained again
    assert run.count("epoch") <= 18 - max(0, moment[0] - 5), moment
    assert run.results == whole.results, moment


def test_jobs_give_the_same_and_warn_once_and_a_lost_process_takes_one_unit(
    write: Any, run: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUBITO_DATA", str(tmp_path / "data"))
    _few_digits(tmp_path / "data" / "mnist")
    outside = tmp_path / "outside.npz"
    np.savez(outside, images=_images(80)[:, None])
    given = {"source": "mnist", "method": "softmax"}
    write("bad", rate=0.02, ood="missing-data", seeds="[1]", **given)
    write("one", ood=outside, seeds="[1, 2, 3]", **given)
    known = list(experiments.read_recipes(run.recipes).values())
    killed: list[Any] = []

    def tell(event: dict[str, Any]) -> None:
        if event["event"] == "epoch" and not killed:
            killed.append(multiprocessing.active_children()[0])
            killed[0].kill()

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("default")
        done = experiments.reproduce(
            known, out=run.out, work=run.work, device="cpu", jobs=2, tell=tell
        )
    texts = [str(one.message) for one in heard]
    assert any("train-images" in text and "not the published file" in text for text in texts)
    assert len(texts) == len(set(texts)), texts
    lost = {name for name, reason in done.failed.items() if "exit code -9" in reason}
    assert set(done.failed) == {"bad seed 1", *lost}
    assert len(lost) == 1
    assert len(done.ran) == 4 - len(done.failed)  # the killed one may have been the bad one
    alone = Told(tmp_path / "alone")
    alone.recipes = run.recipes
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert set(run().ran) == lost - {"bad seed 1"}
        alone()
    assert run.results == alone.results


def _images(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(256, size=(count, 28, 28), dtype=np.uint8)


def _few_digits(folder: Path) -> None:
    """Files like MNIST's, with 600 images."""
    folder.mkdir(parents=True)
    sizes = b"".join(size.to_bytes(4, "big") for size in (600, 28, 28))
    for part in ("train", "t10k"):
        for name, head, data in (
            (f"{part}-images-idx3-ubyte.gz", b"\0\0\x08\x03" + sizes, _images(600).tobytes()),
            (f"{part}-labels-idx1-ubyte.gz", b"\0\0\x08\x01" + sizes[:4], bytes(range(10)) * 60),
        ):
            (folder / name).write_bytes(gzip.compress(head + data, 1))
