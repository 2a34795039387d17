"""The examples run, on little data, and do what they say."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from dubito.data import embedded

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def loaded(name: str) -> ModuleType:
    """The example as a module; its name is known, since dataclasses look theirs up."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def segmentation() -> ModuleType:
    return loaded("segmentation")


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
    inked = said.probs.argmax(-1) != segmentation.BACKGROUND
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


def test_every_example_is_tested() -> None:
    tested = {"abstain", "many_classes", "measures", "plane", "segmentation", "weights"}
    assert {path.stem for path in EXAMPLES.glob("*.py")} == tested


def drawn(folder: Path) -> set[str]:
    """The names of the pictures in a folder."""
    pictures = list(folder.glob("*.png"))
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)
    return {path.name for path in pictures}


def numbers(line: str) -> list[float]:
    return [float(word.rstrip("%")) for word in line.split() if re.match(r"^[\d.]+%?$", word)]


def test_measures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = loaded("measures")
    module.main(["--seeds", "1", "--epochs", "20", "--out", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    found = {line.split()[0]: numbers(line) for line in lines[2:-1]}
    assert len(found) == 9
    # A network that learnt knows its errors, blends and patches; dissonance is another matter.
    assert all(area > 70 for name in ("max_prob", "vacuity") for area in found[name][:3])
    assert found["dissonance"][3] < 50
    assert drawn(tmp_path) == {"triangles.png", "found.png"}


def test_blends_of_measures() -> None:
    digits = embedded.digits().test
    mixed = loaded("measures").blends(digits, 30, seed=0)
    assert mixed.shape == (30, 1, 8, 8)
    gaps = (mixed[:, None] - digits.floats()[None]).flatten(2).abs().amax(-1)
    assert (gaps.min(1).values > 0.1).all()  # a blend is no digit of the set


def test_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = loaded("weights")
    module.main(["--seeds", "1", "--epochs", "3", "--out", str(tmp_path)])
    rows = [numbers(line) for line in capsys.readouterr().out.splitlines()[1:-1]]
    found = {tuple(row[:3]): row[3:] for row in rows}
    assert len(found) == 24
    assert found[0.05, 1, 10][0] > 80  # accuracy with the default weights
    assert found[0.5, 1, 10][0] < 50  # and with a lambda that is far too large
    assert found[0.5, 1, 10][2] < 11  # which leaves no evidence
    assert drawn(tmp_path) == {"fisher.png", "kl.png"}


def test_the_settings_of_weights_do_not_touch_each_other() -> None:
    module, digits = loaded("weights"), embedded.digits().train
    x, y = digits.floats().flatten(1)[:128], digits.labels[:128]
    both = module.train([(0.05, 1.0, 10), (0.0, 0.1, 10)], x, y, seeds=2, epochs=2)
    alone = module.train([(0.0, 0.1, 10)], x, y, seeds=2, epochs=2)
    torch.testing.assert_close(both(x)[1], alone(x)[0], rtol=1e-3, atol=1e-3)


def test_abstain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loaded("abstain").main(["--splits", "1", "--epochs", "12", "--out", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    found = {line[:16].strip(): numbers(line[16:]) for line in lines[2:-1]}
    assert list(found) == ["clean", "noise 0.1", "noise 0.3", "one pixel right", "photo patches"]
    for accepted, ambiguous, unfamiliar, *_ in found.values():
        assert accepted + ambiguous + unfamiliar == pytest.approx(100, abs=0.2)
    assert found["clean"][0] > 50
    assert found["clean"][4] < 5 < found["one pixel right"][4]
    assert found["photo patches"][3] == 100
    assert drawn(tmp_path) == {"risk.png", "decisions.png"}


def test_plane(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loaded("plane").main(["--seeds", "1", "--steps", "120", "--out", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * 5 + 1
    values = [numbers(line) for line in lines[:-1]]
    assert all(0 < value < 1 for row in (*values[1:5], *values[6:]) for value in row)
    assert drawn(tmp_path) == {"map.png", "samples.png"}


def test_many_classes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUBITO_KERNELS", "auto")
    loaded("many_classes").main(["--classes", "10", "200", "--epochs", "3", "--rows", "8"])
    told = capsys.readouterr().out.splitlines()
    ten, many = numbers(told[4]), numbers(told[5])
    assert ten[1] == ten[2]  # at ten classes the scales are one
    assert many[2] > many[1] + 20
    assert os.environ["DUBITO_KERNELS"] == "auto"  # as it was
