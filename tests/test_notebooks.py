"""The notebooks run, without Jupyter: their cells are executed in a namespace."""

import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = Path(__file__).resolve().parents[1] / "docs" / "notebooks"


@pytest.fixture
def executed(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """Return the namespace of a notebook whose cells have run in an empty folder."""
    notebook = json.loads((NOTEBOOKS / f"{request.param}.ipynb").read_text("utf-8"))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert not cell["outputs"]
            exec(compile("".join(cell["source"]), request.param, "exec", dont_inherit=True), names)
    return names


@pytest.mark.parametrize("executed", ["photos"], indirect=True)
def test_photos_are_learned_and_noise_is_not_answered(executed: dict[str, Any]) -> None:
    assert executed["result"]["metrics"]["accuracy"] > 0.8
    assert {row["input"]: row["accepted"] for row in executed["rows"]}["new/noise.png"] is False


@pytest.mark.parametrize("executed", ["trained"], indirect=True)
def test_trained_network_answers_with_few_errors(executed: dict[str, Any]) -> None:
    assert executed["result"]["metrics"]["accuracy"] > 0.8
    assert executed["answers"]["accepted"] > 0.2
    assert executed["answers"]["error_rate"] < 0.1
    assert executed["answered"] < 0.1


def test_every_notebook_is_tested() -> None:
    text = Path(__file__).read_text("utf-8")
    assert all(f'"{path.stem}"' in text for path in NOTEBOOKS.glob("*.ipynb"))
