"""The examples run, on little data, and do what they say."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from dubito.data import embedded

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture(scope="module")
def segmentation() -> ModuleType:
    spec = importlib.util.spec_from_file_location("segmentation", EXAMPLES / "segmentation.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_segmentation_from_end_to_end(source_env: dict[str, str], tmp_path: Path) -> None:
    words = ["--scenes", "16", "--epochs", "2", "--out", "scenes.png"]
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / "segmentation.py"), *words],
        env=source_env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert len(re.findall(r"^epoch \d/2  loss \d\.\d+", done.stdout, re.MULTILINE)) == 2
    vacuity = [float(mean) for mean in re.findall(r"mean vacuity (\d\.\d\d)", done.stdout)]
    auroc = [float(area) for area in re.findall(r"(\d\.\d{3}) against", done.stdout)]
    assert len(vacuity) == 4
    assert len(auroc) == 4
    assert all(0 < value < 1 for value in vacuity + auroc)
    assert done.stdout.endswith("scenes.png\n")
    assert (tmp_path / "scenes.png").read_bytes().startswith(b"\x89PNG")


def test_segmentation_learns(segmentation: ModuleType) -> None:
    seen = segmentation.scenes(embedded.digits().train, 16, seed=1)
    model = segmentation.UNet(segmentation.CLASSES)
    segmentation.train(model, seen.x, seen.y, epochs=6, batch=4)
    said = segmentation.predict(model, seen.x)
    # Where the ink is comes first. Which digit it is takes more than these few steps.
    inked = said.label != segmentation.BACKGROUND
    ink = seen.y != segmentation.BACKGROUND
    assert 0.2 < ink.double().mean() < 0.4
    assert (inked == ink).double().mean() > 0.85


def test_scenes_of_segmentation(segmentation: ModuleType) -> None:
    digits = embedded.digits().test
    plain = segmentation.scenes(digits, 20, seed=3)
    seen = segmentation.scenes(digits, 20, seed=3, photographs=torch.ones(20, 1, 8, 8))
    assert plain.x.shape == (20, 1, 48, 48)
    assert plain.y.shape == plain.foreign.shape == (20, 48, 48)
    assert not plain.foreign.any()
    # One cell of each scene is the photograph's, none of a digit; the rest stays as it is.
    assert (seen.foreign.flatten(1).sum(1) == 16 * 16).all()
    assert (seen.x[:, 0][seen.foreign] == 1).all()
    assert (plain.x[:, 0][seen.foreign] == 0).all()
    assert torch.equal(plain.x[:, 0][~seen.foreign], seen.x[:, 0][~seen.foreign])
    assert torch.equal(plain.y, seen.y)
    ink = plain.x[:, 0] > segmentation.INK
    assert torch.equal(plain.y != segmentation.BACKGROUND, ink)
    # Six digits: each cell is of one class beside background, and six of nine have ink.
    cells = plain.y.unfold(1, 16, 16).unfold(2, 16, 16).flatten(3).flatten(1, 2)
    kinds = [{int(k) for k in cell.unique()} - {10} for cell in cells.flatten(0, 1)]
    assert all(len(kind) <= 1 for kind in kinds)
    assert sum(map(len, kinds)) == 20 * 6
