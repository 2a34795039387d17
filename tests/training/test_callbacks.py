import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from dubito.errors import DubitoError
from dubito.training import JSONLines, TensorBoard, Trainer
from tests.training.helpers import SHORT, TRAIN, VALIDATION, small_model, stop_in


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
        Trainer(SHORT, callbacks=[stop_in(2), JSONLines(path)]).fit(
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
    assert [line["seed"] for line in lines(both)] == [1, 1, 1, 2, 2, 2]
    assert [line["seed"] for line in lines(second)] == [2, 2, 2]


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
