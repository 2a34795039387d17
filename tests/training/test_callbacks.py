import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dubito.errors import DubitoError
from dubito.training import Callback, JSONLines, Progress, TensorBoard, Trainer
from tests.training.helpers import SHORT, TRAIN, VALIDATION, StopIn, small_model


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_json_lines_are_the_records(tmp_path: Path) -> None:
    path = tmp_path / "new" / "metrics.jsonl"
    history = Trainer(SHORT, callbacks=[JSONLines(path)]).fit(small_model(), TRAIN, VALIDATION)
    assert lines(path) == [{"seed": 0, **record} for record in history.records]


@pytest.mark.parametrize("left", ["", '{"seed": 0, "epo', '{"seed": 0, "epoch": 2}\n'])
def test_json_lines_of_a_killed_training_are_replaced(tmp_path: Path, left: str) -> None:
    """It was killed while it wrote a line, or before it saved the epoch of the line."""
    path = tmp_path / "metrics.jsonl"
    with pytest.raises(KeyboardInterrupt):
        Trainer(SHORT, callbacks=[StopIn(2), JSONLines(path)]).fit(
            small_model(), TRAIN, VALIDATION, out=tmp_path
        )
    path.write_text(path.read_text() + left)
    history = Trainer(SHORT, callbacks=[JSONLines(path)]).fit(
        small_model(), TRAIN, VALIDATION, out=tmp_path
    )
    assert lines(path) == [{"seed": 0, **record} for record in history.records]


def test_json_lines_of_several_seeds(tmp_path: Path) -> None:
    both, second = tmp_path / "both.jsonl", tmp_path / "second.jsonl"
    for _ in range(2):  # the second training replaces the lines of the first
        callbacks = [JSONLines(both), JSONLines(second, seed=2)]
        Trainer(SHORT, callbacks=callbacks).fit_many(
            [small_model(), small_model()], TRAIN, VALIDATION, seeds=[1, 2]
        )
    assert [line["seed"] for line in lines(both)] == [1, 2, 1, 2, 1, 2]
    assert [line["seed"] for line in lines(second)] == [2, 2, 2]


class Events(Callback):
    """Keeps the names of events with their epoch and step."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int, int]] = []

    def _see(self, name: str, progress: Progress) -> None:
        self.seen.append((name, progress.epoch, progress.step))

    def on_train_begin(self, progress: Progress) -> None:
        assert progress.record is None
        self._see("train begin", progress)

    def on_epoch_begin(self, progress: Progress) -> None:
        assert progress.record is None
        self._see("begin", progress)

    def on_progress(self, progress: Progress) -> None:
        assert progress.record is None
        assert progress.samples_per_second > 0
        assert 0 <= progress.metrics["accuracy"] <= 1
        self._see("progress", progress)

    def on_epoch_end(self, progress: Progress) -> None:
        assert progress.record is not None
        self._see("end", progress)

    def on_train_end(self, progress: Progress) -> None:
        assert progress.record is not None
        assert not progress.network.training
        self.network = progress.network
        self._see("train end", progress)


def test_events_come_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dubito.training.trainer.MIN_INTERVAL", 0.0)
    events = Events()
    config = SHORT.model_copy(update={"epochs": 2, "batch_size": 64, "average_epochs": 2})
    model = small_model()
    Trainer(config, callbacks=[events]).fit(model, TRAIN, VALIDATION)
    assert events.network is model.network
    epochs = [
        [("begin", e, 0), ("progress", e, 1), ("progress", e, 2), ("end", e, 2)] for e in (1, 2)
    ]
    assert events.seen == [("train begin", 1, 0), *epochs[0], *epochs[1], ("train end", 2, 2)]


def test_resumed_training_begins_with_its_next_epoch(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        Trainer(SHORT, callbacks=[StopIn(3)]).fit(small_model(), TRAIN, VALIDATION, out=tmp_path)
    for expected in (
        (("train begin", 3, 0), ("begin", 3, 0), ("end", 3, 4), ("train end", 3, 4)),
        (),
    ):
        events = Events()
        Trainer(SHORT, callbacks=[events]).fit(small_model(), TRAIN, VALIDATION, out=tmp_path)
        assert tuple(event for event in events.seen if event[0] != "progress") == expected


class Sum(Callback):
    """Adds up the losses of all epochs."""

    def __init__(self) -> None:
        self.value = 0.0

    def on_epoch_end(self, progress: Progress) -> None:
        assert progress.record is not None
        self.value += progress.record["loss"]

    def state_dict(self) -> dict[str, object]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, object]) -> None:
        assert isinstance(state["value"], float)
        self.value = state["value"]


class Product(Sum):
    """Multiplies them."""

    def on_epoch_end(self, progress: Progress) -> None:
        assert progress.record is not None
        self.value = (self.value or 1.0) * progress.record["loss"]


@pytest.mark.parametrize("seeds", [[1], [1, 2]])
def test_state_of_callbacks_is_restored(tmp_path: Path, seeds: list[int]) -> None:
    def fit(callbacks: Sequence[Callback], out: Path) -> None:
        Trainer(SHORT, callbacks=callbacks).fit_many(
            [small_model() for _ in seeds], TRAIN, VALIDATION, seeds=seeds,
            out=[out / str(seed) for seed in seeds],
        )  # fmt: skip

    expected = Sum(), Product()
    fit(expected, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        fit([Sum(), Product(), StopIn(2)], tmp_path)
    resumed = JSONLines(tmp_path / "log"), Product(), Sum()
    fit(resumed, tmp_path)
    assert [resumed[2].value, resumed[1].value] == [callback.value for callback in expected]


def test_functions_are_refused() -> None:
    with pytest.raises(DubitoError, match=r"subclasses of dubito.training.Callback, not <built-in"):
        Trainer(SHORT, callbacks=[print])  # type: ignore[list-item]


@pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is not None, reason="tensorboard is installed"
)
def test_tensorboard_names_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(DubitoError, match="pip install tensorboard"):
        TensorBoard(tmp_path)


def test_tensorboard_writes_events(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    Trainer(SHORT, callbacks=[TensorBoard(tmp_path)]).fit(small_model(), TRAIN, VALIDATION)
    assert list((tmp_path / "0").glob("events.*"))
