"""The commands, from training to export."""

import csv
import json
import subprocess
import sys
import warnings
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import typer
from PIL import Image
from sklearn.datasets import load_digits

import dubito
from dubito import cli
from dubito.augmentations import AUGMENTATIONS
from dubito.backbones import BACKBONES
from dubito.cli._commands import COMMANDS
from dubito.cli._generate import of_fields
from dubito.formats import FORMATS
from dubito.methods import METHODS
from dubito.scores import SCORES
from tests.commands import run

OPTIONS = ["--epochs", "6", "--lr", "0.01", "--training.batch_size=16", "--backbone.hidden", "32"]
METHOD = ["--method.kl_weight", "0.5"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Return a folder with images of three digits."""
    folder, data = tmp_path_factory.mktemp("data") / "photos", load_digits(n_class=3)
    for number, (image, label) in enumerate(zip(data.images, data.target, strict=True)):
        path = folder / str(label) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * 15).astype(np.uint8)).save(path)
    return folder


@pytest.fixture(scope="module")
def trained(photos, tmp_path_factory) -> Path:
    """Return the folder of a model."""
    out = tmp_path_factory.mktemp("runs") / "run"
    assert run("train", photos, "--out", out, *OPTIONS, *METHOD) == 0
    return out


# --- the program ---


def test_help_imports_neither_torch_nor_pydantic(source_env):
    code = (
        "import sys; from dubito.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'pydantic', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=source_env, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
    for name in cli.SUMMARIES:
        assert name in done.stdout


@pytest.mark.parametrize("name", cli.SUMMARIES)
def test_summaries_are_the_first_lines_of_docstrings(name):
    if name == "serve":
        pytest.importorskip("fastapi")
    function = getattr(import_module(COMMANDS[name][0]), name)
    assert function.__doc__.splitlines()[0] == cli.SUMMARIES[name]


def test_version(capsys):
    assert run("--version") == 0
    assert capsys.readouterr().out == f"dubito {dubito.__version__}\n"


@pytest.mark.parametrize(
    "words", [["trian"], ["train", "x"], ["train", "x", "--out", "y", "--lrr"]]
)
def test_wrong_use(words, capsys):
    assert run(*words) == 2
    assert "Error" in capsys.readouterr().err


def test_a_known_error_is_one_line_and_warnings_are_printed_as_before(capsys):
    before = warnings.showwarning
    assert run("predict", "nowhere", "x.png") == 2
    assert capsys.readouterr().err == "error: there is no folder nowhere\n"
    assert warnings.showwarning is before


def test_a_bug_is_not_caught(monkeypatch):
    def broken(**_):
        raise ValueError("a bug")

    monkeypatch.setattr("dubito.api.Model.load", broken)
    with pytest.raises(TypeError):
        cli.main(["predict", "nowhere", "x.png"])


METHOD_OPTION = "--method.fisher-weight"
LISTED = ["auto, convnet, eff", "der, distill", "energy", "adam, adamw", "photo, shift"]
ENTRIES = ["--backbone.width", "--augment.padding", "--posthoc.energy.temperature"]


@pytest.mark.parametrize(
    ("words", "shown", "absent"),
    [
        ("", [METHOD_OPTION, "Weight of the log-determinant.", *LISTED], "--method.likelihood"),
        ("--method edl", ["--method.likelihood"], "--method.samples"),
        ("--backbone resnet --augment shift", ENTRIES, "--backbone.hidden"),
        ("--augment shift", ["--augment.padding"], "--augment.scale"),
    ],
)
def test_help_of_train_follows_what_is_named(words, shown, absent, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    assert run("train", "--help", *words.split()) == 0
    text = capsys.readouterr().out
    assert all(part in text for part in shown)
    assert absent not in text


# --- train ---


def test_train_writes_a_model_once(trained, photos, capsys):
    names = {path.name for path in trained.iterdir()}
    assert {"model.json", "card.md", "report.html", "metrics.jsonl"} <= names
    assert "checkpoint.safetensors" not in names
    config = dubito.load(trained).record.config
    assert config["method"]["kl_weight"] == 0.5
    assert config["training"]["batch_size"] == 16
    assert config["backbone"]["hidden"] == [32]
    before = (trained / "model.json").read_bytes()
    assert run("train", photos, "--out", trained, *OPTIONS, *METHOD) == 0
    assert "epoch 1/6" not in capsys.readouterr().out
    assert (trained / "model.json").read_bytes() == before


def test_train_shows_progress(photos, tmp_path, capsys):
    assert run("train", photos, "--out", tmp_path, "--epochs", "2", "--no-report") == 0
    text = capsys.readouterr().out
    assert "430 training and 107 calibration images of shape (1, 8, 8), 3 classes; " in text
    assert "method iedl, backbone mlp, cpu" in text
    assert "epoch 2/2" in text
    assert "samples/s" in text
    assert "left" in text
    assert "label_removed_kl" not in text
    assert run("train", photos, "--out", tmp_path / "b", "--epochs", "1", "--verbose") == 0
    assert "label_removed_kl" in capsys.readouterr().out


def test_train_takes_options_of_entries(photos, tmp_path):
    words = ["--training.augment", "photo", "--augment.scale", 0.8, "--format=image"]
    words += ["--format.size", "10,8", "--format.mode", "L", "--posthoc.energy.temperature", 2]
    assert run("train", photos, "--out", tmp_path, "--epochs", 1, "--no-report", *words) == 0
    model = dubito.load(tmp_path)
    assert model.preprocessing.shape == (1, 10, 8)
    assert model.scores["energy"].temperature == 2
    augment = model.record.config["training"]["augment"]
    assert (augment["name"], augment["scale"]) == ("photo", 0.8)


@pytest.mark.parametrize(
    ("words", "member"),
    [
        ("ensemble --method.size 2 --method.member iedl", {"name": "iedl"}),
        ('ensemble --method.size 2 --method.member name="edl",kl_ramp=3', {"kl_ramp": 3}),
        ("mc_dropout --method.member edl", {"name": "edl"}),
        ("logit_norm --method.member re_edl", {"name": "re_edl"}),
    ],
)
def test_train_takes_the_member_of_a_method(words, member, photos, tmp_path):
    options = ["--epochs", 1, "--no-report", "--method", *words.split()]
    assert run("train", photos, "--out", tmp_path, *options) == 0
    saved = dubito.load(tmp_path).record.config["method"]["member"]
    assert saved | member == saved


def test_an_unknown_member_is_one_line(photos, tmp_path, capsys):
    words = ["--method", "ensemble", "--method.member", "magic"]
    assert run("train", photos, "--out", tmp_path, *words) == 2
    assert "error: method 'ensemble': unknown method 'magic'" in capsys.readouterr().err


@pytest.mark.parametrize("entry", ["method", "backbone", "augment"])
def test_an_unknown_entry_is_reported_before_its_options(entry, tmp_path, capsys):
    words = [f"--{entry}", "gamma", f"--{entry}.rate", "2"]
    assert run("train", "digits", "--out", tmp_path, *words) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: unknown ")
    assert " 'gamma'; known: " in error
    assert error.endswith("; import the module that registers it first (--import MODULE)\n")


@pytest.mark.parametrize(
    "registry", [METHODS, BACKBONES, SCORES, FORMATS, AUGMENTATIONS], ids=lambda one: one.what
)
def test_each_option_of_each_entry_reads_a_text(registry):
    for name in registry:
        for setting in of_fields(registry[name].__pydantic_fields__, registry.what):
            with suppress(typer.BadParameter):  # it is no value of this option
                setting.read("x")


def test_flags_override_a_config_file(photos, tmp_path):
    config = tmp_path / "config.toml"
    lines = [f'data.source = "{photos}"', 'method = {name = "edl", kl_ramp = 3}']
    config.write_text("\n".join([*lines, "training.epochs = 9"]))
    words = ["train", "--out", tmp_path / "run", "--config", config, "--epochs", "1"]
    assert run(*words, "--method.likelihood", "marginal", "--no-report") == 0
    saved = dubito.load(tmp_path / "run").record.config
    assert saved["method"]["name"] == "edl"
    assert (saved["method"]["kl_ramp"], saved["method"]["likelihood"]) == (3, "marginal")
    assert saved["training"]["epochs"] == 1


def test_an_earlier_model_is_a_config(trained, tmp_path):
    words = ["train", "--out", tmp_path, "--config", trained / "model.json", "--seed", "1"]
    assert run(*words, "--no-report") == 0
    first, second = (dubito.load(path).record.config for path in (trained, tmp_path))
    assert second["training"].pop("seed") == 1
    first["training"].pop("seed")
    assert first == second


def test_ctrl_c_prints_how_to_resume(photos, monkeypatch, capsys, tmp_path):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("dubito.training.Trainer.fit_many", interrupted)
    assert run("train", photos, "--out", tmp_path) == 130
    hint = "run the same command again to resume, or with --finish to use what is there"
    assert capsys.readouterr().err == f"interrupted: {hint}\n"


# --- the others ---


def test_evaluate(trained, capsys, tmp_path):
    words = ["--ood", "digits", "--noise", "0.5", "--out", tmp_path / "result.json"]
    assert run("evaluate", trained, *words) == 0
    text = capsys.readouterr().out
    assert "calibration samples" in text
    assert "accuracy" in text
    assert "noise 0.5" in text
    result = json.loads((tmp_path / "result.json").read_text())
    assert list(result["ood"]) == ["digits"]
    assert result["metrics"]["accuracy"] > 0.8


@pytest.fixture(scope="module")
def evaluated(trained, tmp_path_factory) -> tuple[Path, Path]:
    """Return a model and a folder of noise with a long name."""
    noise = tmp_path_factory.mktemp("data") / "unlike_anything/noise"
    noise.mkdir(parents=True)
    for number in range(20):
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8), dtype=np.uint8)
        Image.fromarray(pixels).save(noise / f"{number}.png")
    return trained, noise


def test_evaluate_fits_into_80_columns(evaluated, capsys, monkeypatch):
    model, noise = evaluated
    monkeypatch.chdir(noise.parents[1])
    monkeypatch.setenv("COLUMNS", "80")
    assert run("evaluate", model, "--ood", "unlike_anything/noise") == 0
    text = capsys.readouterr().out
    assert "  unlike_anything/noise  " in text
    assert "…" not in text
    assert "out of range" not in text  # of no image
    assert f"report: {model / 'evaluation' / 'report.html'}" in text
    assert "max_prob (right or wrong)" in text
    assert "mahalanobis (foreign)" in text
    heads = [line.split() for line in text.splitlines() if "AUROC" in line and "score" in line]
    assert heads[0] == ["score", "AUROC", "↑", "FPR95", "↓", "AUPR", "↑"]
    assert "Prefer AUROC: AUPR is high where one set is much larger" in text
    page = (model / "evaluation" / "report.html").read_text("utf-8")
    assert "What it accepts" in page


def test_evaluate_shortens_long_paths(evaluated, capsys, monkeypatch):
    model, noise = evaluated
    monkeypatch.setenv("COLUMNS", "80")
    assert run("evaluate", model, "--no-report", "--ood", noise) == 0
    policy = capsys.readouterr().out.partition("Policy")[2].partition("Detection")[0]
    assert f"  …{str(noise)[-23:]}  " in policy
    assert "errors of accepted" in policy


def test_evaluate_shows_all_scores(evaluated, capsys):
    model, noise = evaluated
    counts = []
    for words in ([], ["--verbose", "--no-report"]):
        assert run("evaluate", model, "--ood", noise, *words) == 0
        text = capsys.readouterr().out
        counts.append(sum(line.startswith(("  alpha0", "  vacuity")) for line in text.splitlines()))
    assert counts[1] == 4
    assert counts[0] < 4


def test_predict_a_table_of_rows(trained, photos, capsys):
    assert run("predict", trained, photos / "1") == 0
    shown = capsys.readouterr()
    head, first, *_ = shown.out.splitlines()
    assert head.split()[:3] == ["input", "prediction", "probability"]
    assert first.split()[1] in "012"
    assert "inputs: " in shown.err


def test_predict_reports_a_broken_image(trained, photos, tmp_path, capsys):
    (tmp_path / "broken.png").write_bytes(b"no image")
    good = next((photos / "2").iterdir())
    out = tmp_path / "rows.csv"
    assert run("predict", trained, good, tmp_path / "broken.png", "--out", out) == 1
    assert "1 with errors" in capsys.readouterr().err
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert rows[0]["prediction"] in "012"
    assert "cannot identify" in rows[1]["error"]
    assert rows[1]["prediction"] == ""


def test_predict_names_files_as_they_are_given(trained, photos, tmp_path, monkeypatch):
    monkeypatch.chdir(photos.parent)
    first = min((photos / "0").iterdir()).name
    for words in (["photos"], ["photos", "photos/1"], ["photos/0"]):
        assert run("predict", trained, *words, "--out", tmp_path / "rows.csv") == 0
        rows = csv.DictReader((tmp_path / "rows.csv").read_text().splitlines())
        assert next(rows)["input"] == f"photos/0/{first}"


def test_predict_json_lines(trained, photos, capsys):
    words = ["--format", "jsonl", "--scores", "vacuity"]
    assert run("predict", trained, photos / "0", *words) == 0
    row = json.loads(capsys.readouterr().out.splitlines()[0])
    assert set(row["probs"]) == {"0", "1", "2"}
    assert 0 < row["vacuity"] < 1


def test_promises_and_the_sanity_check_are_printed(trained, tmp_path, capsys):
    assert run("calibrate", trained, "--ood-score", "epistemic", "--out", tmp_path) == 0
    text = capsys.readouterr().out
    policy = dubito.load(tmp_path).policy
    shares = next(line for line in text.splitlines() if "answered (%)" in line).split()[2:]
    assert shares == [f"{100 * point.coverage:.2f}" for point in policy.table]
    assert f"made from the data: noise {policy.sanity['noise'].accepted:.0%}, flat" in text
    assert "More than 5% wrong answers to" in text


def test_calibrate_adds_prediction_sets(trained, photos, tmp_path, capsys):
    assert run("calibrate", trained, "--levels", "0.999,0.5", "--out", tmp_path) == 0
    assert run("predict", tmp_path, photos / "0", "--out", tmp_path / "rows.csv") == 0
    rows = list(csv.DictReader((tmp_path / "rows.csv").read_text().splitlines()))
    assert {row["set"] for row in rows} == {"0|1|2"}  # too few samples for this level
    assert all(row["set50"] == row["prediction"] for row in rows)
    assert run("evaluate", tmp_path, photos) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("mean size of 99.9% sets" in line and "3.0000" in line for line in lines)
    assert "sets of 99.9% and 50% contain the true class" in (tmp_path / "card.md").read_text()
    capsys.readouterr()
    assert run("calibrate", tmp_path, "--error-rate", "0.2") == 0
    assert dubito.load(tmp_path).calibration.levels == (0.999, 0.5)


def test_calibrate_adds_a_score_and_changes_the_policy(trained, tmp_path, capsys):
    words = ["--posthoc", "energy", "--posthoc.energy.temperature", 2, "--ood-score", "energy"]
    assert run("calibrate", trained, *words, "--error-rate", "0.2", "--out", tmp_path) == 0
    text = capsys.readouterr().out
    assert "error <= 0.2" in text
    assert "energy" in text
    model = dubito.load(tmp_path)
    assert model.policy.guarantee.level == 0.2
    assert model.policy.ood_threshold.score == "energy"
    assert model.scores["energy"].temperature == 2
    assert dubito.load(trained).policy.guarantee.level == 0.05


def test_calibrate_keeps_a_policy_that_accepts(trained, capsys):
    before = (trained / "model.json").read_bytes()
    assert run("calibrate", trained, "--error-rate", "0.001") == 2
    assert "error: the model keeps its policy" in capsys.readouterr().err
    assert (trained / "model.json").read_bytes() == before


def test_a_damaged_plugin_is_one_line(tmp_path, capsys):
    (tmp_path / "damaged.py").write_text("class Mine(5): pass")
    assert run("train", "digits", "--out", tmp_path, "--import", tmp_path / "damaged.py") == 2
    assert "damaged.py: TypeError" in capsys.readouterr().err


def test_serve_needs_a_model(capsys):
    pytest.importorskip("fastapi")
    assert run("serve") == 2
    assert "Missing argument 'MODEL'" in capsys.readouterr().err
    assert run("serve", "x", "--engine", "steam") == 2
    assert "Invalid value for --engine" in capsys.readouterr().err


def test_features_and_fewshot(trained, photos, tmp_path, capsys):
    out = tmp_path / "features.npz"
    assert run("features", trained, photos, out) == 0
    assert "537 x 32 features of 3 classes" in capsys.readouterr().out
    words = ["--ways", "2", "--shots", "1", "--episodes", "20", "--method.kl_weight", "0"]
    assert run("fewshot", out, *words, "--out", tmp_path / "result") == 0
    text = capsys.readouterr().out
    assert "2-way 1-shot, 20 episodes" in text
    assert "accuracy" in text
    result = json.loads((tmp_path / "result" / "result.json").read_text())
    assert result["method"]["kl_weight"] == 0
    assert run("fewshot", out, *words, "--preset", "published") == 2
    assert "pass either preset" in capsys.readouterr().err
