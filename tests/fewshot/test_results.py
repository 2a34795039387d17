"""Results in parts."""

from pathlib import Path

import numpy as np
import pytest

from dubito.errors import DubitoError
from dubito.fewshot import _results
from dubito.fewshot._engine import Engine
from dubito.fewshot._episodes import Setting
from dubito.fewshot._results import summarize
from dubito.methods import METHODS
from tests.fewshot.samples import draw_features


def engine(shots: int = 1) -> Engine:
    return Engine(METHODS.build("softmax"), draw_features(), setting=Setting(ways=4, shots=shots))


@pytest.fixture(autouse=True)
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_results, "PART", 20)


def test_interrupted_run_continues(tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    def stop(count: int) -> None:
        counts.append(count)
        if sum(counts) > 20:
            raise Stopped

    counts: list[int] = []
    with pytest.raises(Stopped):
        _results.run(engine(), 50, tmp_path, stop)
    assert [path.stem for path in (tmp_path / "parts").iterdir()] == ["000000"]
    computed: list[int] = []
    result = _results.run(engine(), 50, tmp_path, computed.append)
    assert sum(computed) == 30
    assert result["metrics"] == _results.run(engine(), 50)["metrics"]


def test_more_episodes_reuse_what_there_is(tmp_path: Path) -> None:
    _results.run(engine(), 40, tmp_path)
    computed: list[int] = []
    _results.run(engine(), 50, tmp_path, computed.append)
    assert sum(computed) == 10
    fewer = _results.run(engine(), 30, tmp_path)
    assert (fewer["episodes"], fewer["metrics"]) == (30, _results.run(engine(), 30)["metrics"])


def test_folder_of_another_run_is_an_error(tmp_path: Path) -> None:
    _results.run(engine(), 10, tmp_path)
    with pytest.raises(DubitoError, match="has episodes of another run"):
        _results.run(engine(shots=2), 10, tmp_path)


def test_damaged_part_is_an_error(tmp_path: Path) -> None:
    _results.run(engine(), 10, tmp_path)
    (tmp_path / "parts" / "000000.safetensors").write_bytes(b"?")
    with pytest.raises(DubitoError, match=r"cannot read .*000000.safetensors.* delete it"):
        _results.run(engine(), 10, tmp_path)


def test_metric_that_no_episode_has_is_none() -> None:
    assert summarize([{"a": np.array([np.nan], np.float32)}]) == {
        "a": {"mean": None, "interval": None, "episodes": 0}
    }
