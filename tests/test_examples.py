"""The examples run, on little data, and show what they claim."""

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
import torch

import dubito

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture(scope="module", autouse=True)
def _path() -> Iterator[None]:
    """Import examples as scripts do: from their folder."""
    sys.path.insert(0, str(EXAMPLES))
    yield
    sys.path.remove(str(EXAMPLES))


@pytest.fixture(scope="module")
def segmentation() -> ModuleType:
    return import_module("segmentation")


def figures(folder: Path) -> set[str]:
    """Return the names of the figures in a folder."""
    paths = list(folder.glob("*.png"))
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
    return {path.name for path in paths}


def numbers(line: str) -> list[float]:
    return [float(word.rstrip("%")) for word in line.split() if re.match(r"^[\d.]+%?$", word)]


def test_every_example_is_tested():
    tests = Path(__file__).read_text("utf-8")
    names = {path.stem for path in EXAMPLES.glob("*.py")} - {"demo", "shared", "theory"}
    assert {name for name in names if f'import_module("{name}")' in tests} == names


def test_uncertainty(tmp_path, capsys):
    module = import_module("uncertainty")
    module.main(["--seeds", "1", "--epochs", "20", "--out", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    areas = {line.split()[0]: numbers(line) for line in lines[2:-1]}
    assert set(areas) == set(module.SCORES)
    assert all(area > 70 for name in ("max_prob", "vacuity") for area in areas[name][:3])
    assert areas["dissonance"][3] < 50  # higher for blends than for patches
    assert figures(tmp_path) == {"triangles.png", "scores.png"}


def test_weights(tmp_path, capsys):
    import_module("weights").main(["--seeds", "1", "--epochs", "3", "--out", str(tmp_path)])
    rows = [numbers(line) for line in capsys.readouterr().out.splitlines()[1:-1]]
    results = {tuple(row[:3]): row[3:] for row in rows}
    assert len(results) == 24
    assert results[0.05, 1, 10][0] > 80  # accuracy
    assert results[0.5, 1, 10][0] < 50  # a Fisher weight that is far too large
    assert results[0.5, 1, 10][2] < 11  # leaves no evidence
    assert figures(tmp_path) == {"fisher.png", "kl.png"}


def test_settings_of_weights_are_independent():
    module, shared = import_module("weights"), import_module("shared")
    samples = shared.digits()
    x, y = samples.x.flatten(1)[:128], samples.y[:128]
    both = module.train([(0.05, 1.0, 10), (0.0, 0.1, 10)], x, y, seeds=2, epochs=2)
    alone = module.train([(0.0, 0.1, 10)], x, y, seeds=2, epochs=2)
    torch.testing.assert_close(both(x)[1], alone(x)[0], rtol=1e-3, atol=1e-3)


def test_abstain(tmp_path, capsys):
    module = import_module("abstain")
    module.main(["--splits", "1", "--epochs", "12", "--out", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    shares = {line[:16].strip(): numbers(line[16:]) for line in lines[2:-1]}
    assert list(shares) == ["clean", "noise 0.1", "noise 0.3", "one pixel right", "photo patches"]
    for accepted, ambiguous, unfamiliar, *_ in shares.values():
        assert accepted + ambiguous + unfamiliar == pytest.approx(100, abs=0.2)
    assert shares["clean"][0] > 50
    assert shares["clean"][4] < 5 < shares["one pixel right"][4]
    assert shares["photo patches"][3] == 100
    assert figures(tmp_path) == {"risk.png", "decisions.png"}


def test_plane(tmp_path, capsys):
    import_module("plane").main(["--seeds", "1", "--steps", "120", "--out", str(tmp_path)])
    values = [numbers(line) for line in capsys.readouterr().out.splitlines()[:-1]]
    assert len(values) == 2 * 5
    assert all(0 < value < 1 for row in (*values[1:5], *values[6:]) for value in row)
    assert figures(tmp_path) == {"map.png", "samples.png"}


def test_many_classes(capsys):
    module = import_module("many_classes")
    module.main(["--classes", "10", "200", "--epochs", "3", "--rows", "8"])
    lines = capsys.readouterr().out.splitlines()
    ten, many = numbers(lines[4]), numbers(lines[5])
    assert ten[1] == ten[2]  # scales agree at ten classes
    assert many[2] > many[1] + 20


def test_segmentation_runs(segmentation, tmp_path, monkeypatch, capsys):
    options = ["--scenes", "8", "--epochs", "2", "--out", str(tmp_path / "scenes.png")]
    monkeypatch.setattr(sys, "argv", ["segmentation.py", *options])
    segmentation.main()
    printed = capsys.readouterr().out
    assert len(re.findall(r"^epoch \d/2  loss \d\.\d+", printed, re.MULTILINE)) == 2
    vacuity = [float(mean) for mean in re.findall(r"mean vacuity (\d\.\d\d)", printed)]
    auroc = [float(area) for area in re.findall(r"(\d\.\d{3}) against", printed)]
    assert (len(vacuity), len(auroc)) == (4, 4)
    assert all(0 < value < 1 for value in vacuity + auroc)
    assert figures(tmp_path) == {"scenes.png"}


def test_segmentation_learns(segmentation):
    train, _ = import_module("shared").train_and_test_digits()
    scenes = segmentation.scenes(train, 16, seed=1)
    model = segmentation.UNet(segmentation.CLASSES)
    segmentation.train(model, scenes.x, scenes.y, epochs=6, batch=4)
    dist = segmentation.predict(model, scenes.x)
    # A few steps find the ink; which digit it is takes more.
    predicted = dist.probs.argmax(-1) != segmentation.BACKGROUND
    ink = scenes.y != segmentation.BACKGROUND
    assert 0.2 < ink.double().mean() < 0.4
    assert (predicted == ink).double().mean() > 0.85


def test_serve_digits_writes_a_model_and_a_gallery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fastapi")
    example = import_module("serve_digits")
    short = example.TRAINING.model_copy(update={"epochs": 1, "validate_every": 1})
    little = {"VARIANTS": 1, "STROKES": 60, "OUTLIERS": 120, "TRAINING": short}
    for name, value in little.items():
        monkeypatch.setattr(example, name, value)
    example.main(["--out", str(tmp_path / "page"), "--train-only"])
    gallery = tmp_path / "page" / example.GALLERY
    assert {"0", "9", "Letters", "Signs", "Noise"} <= {path.name for path in gallery.iterdir()}
    prediction = dubito.load(tmp_path / "page" / example.MODEL).predict([gallery / "3" / "00.png"])
    assert prediction.accepted is not None


def test_trainer_of_transformers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    import_module("trainer").main(["--epochs", "8", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    accuracy, answered, wrong, noise = (numbers(line)[0] for line in printed.splitlines()[-4:])
    assert accuracy > 70
    assert answered < 100
    assert wrong < 100 - accuracy
    assert noise < answered


def test_cubic(tmp_path, capsys):
    import_module("cubic").main(["--steps", "150", "--out", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()[1:-1]
    doubt = {line[:19].strip(): numbers(line[19:]) for line in lines}
    assert list(doubt) == ["Gaussian", "DER", "SDER", "I-DER", "MC Dropout", "Ensemble"]
    assert doubt["Gaussian"] == [0, 0, 0]
    for several in ("MC Dropout", "Ensemble"):
        assert doubt[several][2] > 2 * doubt[several][0]
    for single in ("DER", "SDER", "I-DER"):  # one network does not know where it has seen nothing
        assert doubt[single][2] < 2 * doubt[single][0]
    assert figures(tmp_path) == {"cubic.png"}


def test_denoise(tmp_path, capsys):
    import_module("denoise").main(["--steps", "300", "--out", str(tmp_path)])
    error, rank, inside = (
        [float(value) for value in re.findall(r"-?\d+\.\d+", line)]
        for line in capsys.readouterr().out.splitlines()[:3]
    )
    assert error[1] < 0.6 * error[0]
    assert len(rank) == 1
    assert inside[0] > 85 > inside[1]
    assert figures(tmp_path) == {"denoise.png"}


def test_chemprop_loss(capsys: pytest.CaptureFixture[str]) -> None:
    if find_spec("chemprop") is None:
        with pytest.raises(SystemExit, match="needs chemprop: pip install chemprop"):
            import_module("chemprop_loss")
        return
    import_module("chemprop_loss").main(["--epochs", "30"])
    theirs, ours, *_, error, _ = capsys.readouterr().out.splitlines()
    assert theirs.endswith("-inf")
    assert ours.endswith("-0.5")
    rmse, deviation = numbers(error.replace(",", ""))
    assert rmse < deviation
