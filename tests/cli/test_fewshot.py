"""`dubito fewshot`: from feature files to figures."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from dubito import cli
from dubito._legacy import MEASURES
from dubito.data import read_features
from dubito.fewshot import Engine, Pool, Setting, evaluate, head, scaling, summary
from fewshot.samples import arrays


def invoke(*words: str | Path) -> Any:
    return CliRunner().invoke(cli.app, ["fewshot", *(str(word) for word in words)])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Feature files: novel classes, OOD classes, validation classes."""
    folder = tmp_path_factory.mktemp("features")
    paths = {}
    for seed, name in enumerate(("novel", "ood", "validation")):
        data = arrays(seed=seed)
        paths[name] = folder / f"{name}.npz"
        np.savez(paths[name], features=data.inputs.numpy(), labels=data.labels.numpy())
    return paths


SMALL = ("--ways", "3", "--shots", "2", "--episodes", "20")


def test_figures_are_printed_and_written(files: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = invoke(
        files["novel"], "--ood", files["ood"], *SMALL, "--weight", "0.05", "--seed", "3",
        "--save-episodes", "--out", out,
    )  # fmt: skip
    assert done.exit_code == 0, (done.output, done.exception)
    result = json.loads((out / "result.json").read_text())
    novel, ood = (Pool.of(read_features(files[name])) for name in ("novel", "ood"))
    engine = Engine(novel, ood, Setting(3, 2, seed=3), head("iedl", fisher_weight=0.05))
    for name, figure in summary(evaluate(engine, 20)).items():
        assert result["figures"][name]["mean"] == pytest.approx(figure.mean, abs=1e-6)
    assert f"accuracy {100 * result['figures']['accuracy']['mean']:.2f} ±" in done.output
    for measure in MEASURES.values():
        assert measure.label in done.output
    assert f"{100 * result['figures']['ood/alpha0/auroc']['mean']:.2f}" in done.output
    with np.load(out / "episodes.npz") as held:
        assert held["accuracy"].shape == (20,)


def test_shards_and_a_second_call(files: dict[str, Path], tmp_path: Path) -> None:
    words = (files["novel"], *SMALL, "--method", "softmax", "--out", tmp_path)
    done = invoke(*words, "--shard", "2/2")
    assert "shard 2/2 is done; other parts are missing" in done.output
    assert not (tmp_path / "result.json").exists()
    done = invoke(*words, "--shard", "1/2")
    assert done.exit_code == 0
    written = (tmp_path / "result.json").read_bytes()
    (part,) = (tmp_path / "parts").iterdir()
    before = part.stat().st_mtime_ns
    assert invoke(*words).exit_code == 0
    assert part.stat().st_mtime_ns == before
    assert (tmp_path / "result.json").read_bytes() == written
    assert "D.Ent." not in done.output  # probabilities have no evidence


def test_tuning_comes_first_and_is_kept(files: dict[str, Path], tmp_path: Path) -> None:
    done = invoke(
        files["novel"], "--ood", files["ood"], *SMALL, "--tune", files["validation"],
        "--objective", "ood_aupr", "--tune-episodes", "10", "--out", tmp_path,
    )  # fmt: skip
    assert done.exit_code == 0, (done.output, done.exception)
    chosen = json.loads((tmp_path / "tuning.json").read_text())
    assert chosen["features"]["name"] == "validation"
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["head"]["fisher_weight"] == chosen["choice"]["fisher_weight"]
    assert "Validation classes, by ood_aupr" in done.output
    assert (tmp_path / "pareto.png").exists()


def test_the_choice_of_another_run_is_not_overwritten(
    files: dict[str, Path], tmp_path: Path
) -> None:
    words = (files["novel"], *SMALL, "--tune", files["validation"], "--tune-episodes", "5")
    assert invoke(*words, "--objective", "accuracy", "--out", tmp_path).exit_code == 0
    before = (tmp_path / "tuning.json").read_text()
    done = invoke(*words, "--objective", "ood_aupr", "--out", tmp_path)
    with pytest.raises(ValueError, match="holds episodes that another search chose for"):
        raise done.exception
    assert (tmp_path / "tuning.json").read_text() == before


def test_a_preset_decides_head_and_scaling(files: dict[str, Path], tmp_path: Path) -> None:
    words = (files["novel"], "--ood", files["ood"], *SMALL, "--preset", "centred")
    done = invoke(*words, "--reference", files["validation"], "--out", tmp_path)
    assert done.exit_code == 0, (done.output, done.exception)
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["features"]["scaling"] == result["ood"]["scaling"] == "centred"
    novel, ood, validation = (
        Pool.of(read_features(files[name])) for name in ("novel", "ood", "validation")
    )
    made = scaling("centred", validation)
    chosen = head("iedl", fisher_weight=0.0, kl_weight=0.0)
    engine = Engine(made.of(novel), made.of(ood), Setting(3, 2), chosen)
    wanted = summary(evaluate(engine, 20))["ood/alpha0/aupr"].mean
    assert result["figures"]["ood/alpha0/aupr"]["mean"] == pytest.approx(wanted, abs=1e-6)


def test_scalings_are_tuned_as_well(files: dict[str, Path], tmp_path: Path) -> None:
    done = invoke(
        files["novel"], "--ood", files["ood"], *SMALL, "--tune", files["validation"], "--method",
        "edl", "--tune-scaling", "--tune-kl", "--tune-episodes", "5", "--out", tmp_path,
    )  # fmt: skip
    assert done.exit_code == 0, (done.output, done.exception)
    chosen = json.loads((tmp_path / "tuning.json").read_text())
    assert len(chosen["trials"]) == 12
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["features"].get("scaling", "none") == chosen["scaling"]
    assert "KL 0/10, centred" in done.output


class Foreign:
    """What a pickle of features must not hold."""


def test_bad_input_is_told_in_a_line(files: dict[str, Path], tmp_path: Path) -> None:
    strange = tmp_path / "strange.pkl"
    strange.write_bytes(pickle.dumps({"features": Foreign()}))
    holes = tmp_path / "holes.npz"
    features = np.ones((80, 4), np.float32)
    features[5, 1] = np.nan
    np.savez(holes, features=features, labels=np.arange(80) % 4)
    narrow = tmp_path / "narrow.npz"
    np.savez(narrow, features=np.ones((80, 4)), labels=np.arange(80) % 4)
    copied = tmp_path / "copied.npz"
    copied.write_bytes(files["novel"].read_bytes())
    out = ("--out", tmp_path / "out")
    cases = {
        (strange,): "Foreign",
        (holes, "--ways", "2"): "holds NaN|hold NaN|finite",
        (files["novel"], "--ood", narrow): "same dimension, but novel has 64 and narrow 4",
        (files["novel"], "--ways", "30"): "ways=30, but novel has 8 classes",
        (files["novel"], "--shots", "26"): "need 52 samples of each class",
        (files["novel"], "--method", "magic"): "unknown head 'magic'; known: 'iedl'",
        (files["novel"], "--shard", "3/2"): "shard must be i/n",
        (files["novel"], "--method", "edl", "--weight", "0"): "leave --weight out: the head 'edl'",
        (files["novel"], "--method", "softmax", "--weight", "1", "--kl-ramp", "0"): (
            "leave --weight, --kl-ramp out: the head 'softmax' has no such term"
        ),
        (files["novel"], "--ood", files["novel"]): "holds the features of .* itself: name a file",
        (files["novel"], "--ood", copied): "copied.npz holds the features of .* itself",
        (
            files["novel"],
            "--tune",
            copied,
        ): "--tune .* holds the features of novel itself",
        (files["novel"], "--tune", files["validation"], "--weight", "1"): "leave the options out",
        (files["novel"], "--tune", files["validation"], "--reference", files["ood"]): (
            "leave --reference out: scalings are not searched without --tune-scaling"
        ),
        (tmp_path / "none.npz",): "none.npz",
        (files["novel"], "--preset", "best"): "unknown preset 'best'; known: 'published'",
        (files["novel"], "--preset", "centred"): "needs a reference",
        (files["novel"], "--preset", "centred", "--method", "edl"): "leave --method out",
        (files["novel"], "--address", "auto"): "no cluster without --ray",
        (files["novel"], "--tune-kl", "--objective", "magic"): (
            "leave --tune-kl, --objective out: nothing is chosen without --tune"
        ),
        (files["novel"], "--search", "optuna"): "leave --search out",
        (files["novel"], "--tune-episodes", "9"): "leave --tune-episodes out",
        (files["novel"], "--reference", files["validation"]): "it is for --scaling unit or centred",
        (files["novel"], "--tune", narrow): "novel has features of 64 numbers, and narrow of 4",
        (files["novel"], "--scaling", "unit", "--reference", narrow): "of the same network",
        (
            files["novel"],
            "--tune",
            files["validation"],
            "--preset",
            "centred",
        ): "leave one of them out",
        (files["novel"], "--tune", files["validation"], "--ways", "30"): "ways=30, but novel has 8",
    }
    for words, message in cases.items():
        done = invoke(*words, *out)
        assert done.exit_code != 0
        with pytest.raises((ValueError, OSError), match=message) as told:
            raise done.exception
        assert "\n" not in str(told.value)


def test_a_ramp_below_0_is_told_by_its_option(files: dict[str, Path]) -> None:
    done = invoke(files["novel"], *SMALL, "--kl-ramp", "-1")
    assert done.exit_code == 2
    assert "Invalid value for '--kl-ramp'" in done.output


@pytest.mark.parametrize("what", ["parts", "candidates"])
def test_ctrl_c_is_told_and_the_same_command_goes_on(
    what: str, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (files["novel"], "--ood", files["ood"], *SMALL, "--out", tmp_path)
    if what == "candidates":
        words = (*words, "--tune", files["validation"], "--tune-episodes", "2", "--method", "edl")
    values, seen = Engine.values, []

    def interrupted(self: Engine, *given: Any) -> Any:
        seen.append(given)
        raise KeyboardInterrupt

    monkeypatch.setattr(Engine, "values", interrupted)
    stopped = invoke(*words)
    assert seen
    assert stopped.exit_code == 130
    assert f"the {what} that are done stay, and the same command goes on" in stopped.output
    monkeypatch.setattr(Engine, "values", values)
    assert invoke(*words).exit_code == 0
