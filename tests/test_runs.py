"""A run's folder: what is written, what comes back, what is refused, and what is judged."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from dubito import backbones, bundle, data, metrics, runs
from dubito._legacy import (
    METHODS,
    Prediction,
    calibration_metrics,
    misclassification,
    ood_figures,
)
from dubito.experiments._cell import ELSEWHERE
from dubito.training import CheckpointError, Settings, fit
from tests.limits import policy

TRAINING = {"epochs": 2, "batch_size": 32, "learning_rate": 0.01, "patience": 0}
SMALL = {"name": "mlp", "hidden": [16]}


def some(folder: Path, name: str = "some", *, count: int = 200, **further: Any) -> Path:
    """The first digits as an .npz file without parts."""
    digits = data.load("digits", "all")
    path = folder / f"{name}.npz"
    held = {"x": digits.inputs[:count].numpy(), "y": digits.labels[:count].numpy(), **further}
    np.savez(path, **{key: value for key, value in held.items() if value is not None})
    return path


def config(source: str | Path, method: str = "iedl", **training: Any) -> runs.Config:
    return runs.configure(
        {
            "data": {"source": str(source)},
            "backbone": SMALL,
            "method": {"name": method},
            "training": TRAINING | training,
        }
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on digits."""
    folder = tmp_path_factory.mktemp("trained")
    runs.train(runs.plan(config("digits", epochs=4), folder))
    return folder


@pytest.fixture(scope="module")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on a file without a test part."""
    folder = tmp_path_factory.mktemp("held_out")
    runs.train(runs.plan(config(some(folder)), folder / "run"))
    return folder / "run"


@pytest.fixture
def copied(trained: Path, tmp_path: Path) -> Path:
    """The finished run again, to be damaged."""
    return Path(shutil.copytree(trained, tmp_path / "copy"))


# --- written and read back -----------------------------------------------------------------------


def test_a_run_is_the_loop_on_the_stored_split(trained: Path) -> None:
    run = runs.load(trained)
    everything = data.load("digits", "train")
    with np.load(trained / "split.npz") as held:
        order, count = torch.from_numpy(held["order"]), int(held["train"])
    assert (count, len(order)) == (1150, 1438)
    model = run.config.network(everything.shape, 10, everything.class_counts.tolist())
    expected = fit(
        run.method,
        model,
        everything.subset(order[:count]),
        everything.subset(order[count:]),
        Settings(**TRAINING | {"epochs": 4}),
    )
    for name, value in run.model.state_dict().items():
        assert torch.equal(value, expected.model.state_dict()[name]), name
    lines = (trained / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2, 3, 4]
    assert not (trained / "checkpoint.safetensors").exists()


def test_config_holds_every_default_and_can_be_used_again(trained: Path) -> None:
    found = json.loads((trained / "config.json").read_text())
    assert found["training"].keys() == Settings().as_dict().keys()
    assert found["method"]["scale"] == "per_class"
    assert found["method"].keys() == {"name", *METHODS["iedl"]}
    assert found["backbone"] == {**found["backbone"], "name": "mlp", "hidden": [16]}
    assert found["facts"]["classes"] == [str(digit) for digit in range(10)]
    assert found["facts"]["shape"] == [1, 8, 8]
    assert sum(found["facts"]["class_counts"]) == found["facts"]["train"] == 1150
    assert set(found["versions"]) == {"dubito", "torch", "python"}
    again = runs.configure(runs.read_config(trained / "config.json"))
    assert again.sections() == {name: found[name] for name in runs.SECTIONS}
    assert runs.plan(again, trained).members[0].state == runs.FINISHED


@pytest.mark.parametrize("name", METHODS)
def test_a_loaded_run_says_the_same(tmp_path: Path, name: str, held_out: Path) -> None:
    chosen = config("digits", name, seed=3)
    facts = runs.load(held_out).config.facts
    recorded = runs.Recorded(**chosen.sections(), facts=facts)
    model = recorded.network(facts.shape, 10, facts.class_counts).eval()
    before = runs.Run(recorded.make_method(), model, recorded, tmp_path)
    runs.save(tmp_path, model, recorded)
    after = runs.load(tmp_path)
    assert after.config == recorded
    assert after.method == before.method
    x = data.load("digits", "test").inputs[:50]
    state = torch.get_rng_state()
    said, repeated = before.predict(x), after.predict(x)
    assert torch.equal(torch.get_rng_state(), state)
    assert said.available == repeated.available
    for measure in said.available:
        assert torch.equal(said.measure(measure), repeated.measure(measure)), measure
    torch.testing.assert_close(after.predict(x, batch_size=7).probs, said.probs)


def test_bytes_are_pixels(held_out: Path) -> None:
    run = runs.load(held_out)
    pixels = torch.randint(256, (5, 1, 8, 8), dtype=torch.uint8)
    assert torch.equal(run.predict(pixels).alpha, run.predict(pixels / 255).alpha)
    with pytest.raises(
        ValueError, match=r"x has shape \(5, 64\), but this run takes \(N, \*\(1, 8"
    ):
        run.predict(torch.zeros(5, 64))


# --- damaged and foreign folders -----------------------------------------------------------------


def damaged_config(**changes: Any) -> Any:
    def damage(folder: Path) -> None:
        path = folder / "config.json"
        found = json.loads(path.read_text())
        for key, value in changes.items():
            section, _, inner = key.partition("__")
            if inner:
                found[section][inner] = value
            else:
                found[section] = value
        path.write_text(json.dumps(found))

    return damage


def shortened(name: str) -> Any:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-50])


DAMAGES: dict[str, tuple[Any, str]] = {
    "no config": (
        lambda folder: (folder / "config.json").unlink(),
        "is no run's folder: it has no",
    ),
    "no folder": (shutil.rmtree, "there is no folder"),
    "cut config": (shortened("config.json"), "could not read .*config.json"),
    "other format": (damaged_config(format="x"), "its format is not 'dubito-run-1'"),
    "further key": (damaged_config(further=1), "it should have the keys"),
    "no number": (damaged_config(training__epochs="many"), "'epochs' in .training. should be"),
    "code as a name": (damaged_config(backbone__name="os.system"), "unknown backbone 'os.system'"),
    "other classes": (damaged_config(facts__shape=[1, 8, 7]), "the weights of another network"),
    "no image": (
        damaged_config(backbone={"name": "convnet"}, facts__shape=[1, 4, 4]),
        "no network",
    ),
    "no weights": (
        lambda f: (f / "model.safetensors").unlink(),
        "is not finished: it has no model",
    ),
    "cut weights": (shortened("model.safetensors"), "could not read .*model.safetensors"),
    "strange weights": (
        lambda folder: save_file({"x": torch.zeros(2)}, folder / "model.safetensors"),
        "no dubito checkpoint",
    ),
    "other weights": (
        damaged_config(backbone__hidden=[8]),
        r"'head.weight', with shape \(10, 16\)",
    ),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_damage_is_named(copied: Path, damage: Any, message: str) -> None:
    damage(copied)
    if all((copied / name).exists() for name in bundle.FILES):
        bundle.sign(copied)  # what tests/test_bundle.py damages without, is told by the manifest
    with pytest.raises(CheckpointError, match=message):
        runs.load(copied)


def test_a_folder_of_several_runs_names_them(trained: Path, tmp_path: Path) -> None:
    for seed in (1, 2):
        shutil.copytree(trained, tmp_path / f"seed-{seed}")
    with pytest.raises(
        CheckpointError, match="holds several runs, name one of them: seed-1, seed-2"
    ):
        runs.load(tmp_path)


# --- plans ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        ((1, 20, 24), "convnet"),
        ((1, 19, 28), "mlp"),
        ((3, 32, 32), "vgg16"),
        ((3, 28, 28), "mlp"),
        ((7,), "mlp"),
    ],
)
def test_the_backbone_follows_from_the_shape(
    tmp_path: Path, shape: tuple[int, ...], wanted: str
) -> None:
    x = np.zeros((10, *shape), np.float32)
    np.savez(tmp_path / "x.npz", x=x, y=np.arange(10) % 2)
    made = runs.plan(
        runs.configure({"data": {"source": str(tmp_path / "x.npz")}}), tmp_path / "run"
    )
    assert made.config.backbone["name"] == wanted
    assert not (tmp_path / "run").exists()
    made.config.network(shape, 2, [4, 4])


def test_a_stored_split_is_used_rather_than_drawn(tmp_path: Path) -> None:
    chosen = config(some(tmp_path))
    first = runs.plan(chosen, tmp_path / "run")
    runs.train(first)
    other = torch.cat([first.order[:160].flip(0), first.order[160:].flip(0)])
    np.savez(tmp_path / "run" / "split.npz", order=other.numpy(), train=160)
    again = runs.plan(chosen, tmp_path / "run")
    assert torch.equal(again.order, other)
    assert torch.equal(again.train.labels, first.train.labels.flip(0))
    np.savez(tmp_path / "run" / "split.npz", order=np.zeros(200, np.int64), train=160)
    with pytest.raises(CheckpointError, match="does not divide 200 samples"):
        runs.plan(chosen, tmp_path / "run")


def test_classes_are_divided_in_proportion(tmp_path: Path) -> None:
    made = runs.plan(config("digits"), tmp_path)
    share = made.validation.class_counts / (made.train.class_counts + made.validation.class_counts)
    assert share.tolist() == pytest.approx([0.2] * 10, abs=0.01)
    assert sorted(made.order.tolist()) == list(range(1438))


def test_changed_data_is_another_run(tmp_path: Path) -> None:
    source = some(tmp_path)
    runs.train(runs.plan(config(source), tmp_path / "run"))
    digits = data.load("digits", "all")
    np.savez(source, x=digits.inputs[:200].numpy() * 0.5, y=digits.labels[:200].numpy())
    with pytest.raises(CheckpointError, match=r"holds another run: its facts\.fingerprint is"):
        runs.plan(config(source), tmp_path / "run")
    with pytest.raises(CheckpointError, match="has changed since the run"):
        runs.evaluate(runs.load(tmp_path / "run"))


def test_weights_without_a_config_are_not_overwritten(copied: Path) -> None:
    (copied / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"holds weights without a config\.json"):
        runs.plan(config("digits", epochs=4), copied)


def test_an_image_folder_is_read_alike_later(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for part, side in (("train", 12), ("test", 20)):
        for name, grey in (("dark", 40), ("light", 200)):
            (tmp_path / "images" / part / name).mkdir(parents=True)
            for number in range(10):
                pixels = (grey + rng.integers(-30, 30, (side, side))).astype(np.uint8)
                Image.fromarray(pixels).save(tmp_path / "images" / part / name / f"{number}.png")
    made = runs.plan(config(tmp_path / "images"), tmp_path / "run")
    assert (made.config.data["size"], made.config.data["mode"]) == ([12, 12], "L")
    runs.train(made)
    run = runs.load(tmp_path / "run")
    outside = tmp_path / "images" / "test" / "light"  # loose images, no classes
    judged = runs.evaluate(run, ood=[str(outside)])
    assert judged.result["test"] == {"data": "images", "part": "test", "samples": 20}
    assert judged.result["ood"]["light"]["samples"] == 10
    (outside / "gone.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises((ValueError, OSError), match=r"gone\.png"):
        runs.evaluate(run, ood=[str(outside)])


def test_ood_inputs_to_train_with(tmp_path: Path) -> None:
    bank = some(tmp_path, "bank", count=20)
    for name in ("kl_pn", "iedl"):
        sections = config(some(tmp_path), name).sections()
        sections["data"]["train_ood"] = str(bank)
        if name == "iedl":
            with pytest.raises(ValueError, match=r"\(kl_pn, rkl_pn\), not for 'iedl'"):
                runs.configure(sections)
            continue
        runs.train(runs.plan(runs.configure(sections), tmp_path / "given"))
        sections["data"]["train_ood"] = None
        runs.train(runs.plan(runs.configure(sections), tmp_path / "noise"))
    given, noise = (
        runs.load(tmp_path / folder).model.state_dict() for folder in ("given", "noise")
    )
    assert not torch.equal(given["head.weight"], noise["head.weight"])


# --- judged --------------------------------------------------------------------------------------


def test_figures_are_those_of_the_evaluator(trained: Path, tmp_path: Path) -> None:
    run, test = runs.load(trained), data.load("digits", "test")
    patches = torch.rand(70, 1, 8, 8)
    np.savez(tmp_path / "patches.npz", x=patches.numpy())  # no labels
    judged = runs.evaluate(run, ood=[str(tmp_path / "patches.npz")], noise=[0.1])
    found = judged.result
    said, outside = run.predict(test.inputs), run.predict(patches)
    drawn = torch.Generator().manual_seed(0)
    noise = test.inputs + 0.1 * torch.randn(test.inputs.shape, generator=drawn)
    assert found["test"] == {"data": "digits", "part": "test", "samples": 359}
    assert found["accuracy"] == pytest.approx((said.label == test.labels).double().mean().item())
    assert found["misclassification"] == misclassification(said, test.labels)
    assert found["calibration"] == calibration_metrics(said, test.labels)
    for name, value in found["aurc"].items():
        right = said.label == test.labels
        assert value == metrics.aurc(said.confidence(name), right).item()
    assert found["ood"]["patches"]["detection"] == ood_figures(said, outside)
    assert found["ood"]["patches"]["samples"] == 70
    assert found["noise"]["0.1"]["detection"] == ood_figures(said, run.predict(noise))
    assert found["seconds"] > 0
    assert found["notes"] == []


def test_figures_follow_from_the_written_arrays(trained: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", x=np.zeros((9, 1, 8, 8), np.float32))
    judged = runs.evaluate(runs.load(trained), ood=[str(tmp_path / "other.npz")], noise=[0.2])
    judged.write(tmp_path / "evaluation")
    found = json.loads((tmp_path / "evaluation" / "result.json").read_text())
    with np.load(tmp_path / "evaluation" / "arrays.npz") as arrays:
        alpha, labels = arrays["test/alpha"], arrays["labels"]
        assert found["accuracy"] == pytest.approx(np.mean(alpha.argmax(-1) == labels))
        for key, one in (
            ("ood/other", found["ood"]["other"]),
            ("noise/0.2", found["noise"]["0.2"]),
        ):
            inside, outside = (
                Prediction.from_alpha(torch.from_numpy(a)) for a in (alpha, arrays[f"{key}/alpha"])
            )
            assert one["detection"] == ood_figures(inside, outside)
            assert np.allclose(arrays[f"{key}/alpha0"], arrays[f"{key}/alpha"].sum(-1))


def test_without_a_test_part_the_held_out_samples_are_judged(held_out: Path) -> None:
    judged = runs.evaluate(runs.load(held_out))
    assert judged.result["test"] == {"data": "some", "part": runs.HELD_OUT, "samples": 40}
    lines = [json.loads(line) for line in (held_out / "metrics.jsonl").read_text().splitlines()]
    best = max(line.get("validation_accuracy", 0) for line in lines)
    assert judged.result["accuracy"] == pytest.approx(best)


def test_other_data_must_have_the_classes(held_out: Path, tmp_path: Path) -> None:
    run = runs.load(held_out)
    judged = runs.evaluate(run, source="digits")
    assert judged.result["test"]["samples"] == 359
    few = some(tmp_path, "few", count=3)  # labels 0, 1, 2 of ten
    assert runs.evaluate(run, source=str(few)).result["test"]["samples"] == 3
    strange = some(tmp_path, "strange", count=2, y=np.array(["a", "b"]))
    with pytest.raises(ValueError, match=r"labels \['a', 'b'\] are outside the classes"):
        runs.evaluate(run, source=str(strange))


def test_measures_that_a_method_lacks_are_absent(tmp_path: Path) -> None:
    for name, kind in (("softmax", 2), ("mc_dropout", 4)):
        runs.train(runs.plan(config(some(tmp_path), name), tmp_path / name))
        run = runs.load(tmp_path / name)
        judged = runs.evaluate(run, noise=[1.0])
        assert len(judged.result["misclassification"]) == kind
        assert judged.result["noise"]["1"]["detection"].keys() == judged.result["aurc"].keys()
        assert "test/alpha" not in judged.arrays
        assert "alpha0" not in judged.result["aurc"]
        assert np.allclose(judged.arrays["test/probs"].sum(-1), 1)
        again = runs.evaluate(run, noise=[1.0])
        assert again.result["noise"] == judged.result["noise"]


def test_only_right_predictions_rank_nothing(trained: Path, tmp_path: Path) -> None:
    run, digits = runs.load(trained), data.load("digits", "test")
    right = run.predict(digits.inputs).label == digits.labels
    held = {"x": digits.inputs[right].numpy(), "y": digits.labels[right].numpy()}
    np.savez(tmp_path / "right.npz", **held)
    judged = runs.evaluate(run, source=str(tmp_path / "right.npz"))
    assert judged.result["accuracy"] == 1
    assert judged.result["misclassification"] == {}
    assert judged.result["notes"] == [
        f"misclassification has no figures: all {int(right.sum())} predictions are right"
    ]


def test_other_shapes_are_converted_only_if_asked(trained: Path, tmp_path: Path) -> None:
    run = runs.load(trained)
    colours = np.random.default_rng(0).integers(256, size=(6, 3, 16, 12), dtype=np.uint8)
    np.savez(tmp_path / "colours.npz", x=colours)
    outside = str(tmp_path / "colours.npz")
    message = r"inputs of shape \(3, 16, 12\), but the network takes \(1, 8, 8\); `dubito evaluate"
    with pytest.raises(ValueError, match=message):
        runs.evaluate(run, ood=[outside])
    judged = runs.evaluate(run, ood=[outside], resize=True)
    grey = [Image.fromarray(one.transpose(1, 2, 0)).convert("L") for one in colours]
    small = [np.array(one.resize((8, 8), Image.Resampling.BILINEAR)) for one in grey]
    expected = run.predict(torch.from_numpy(np.stack(small))[:, None])
    found = torch.from_numpy(judged.arrays["ood/colours/alpha"])
    torch.testing.assert_close(found, expected.alpha, rtol=0.05, atol=0.05)  # Pillow rounds
    np.savez(tmp_path / "rows.npz", x=np.zeros((4, 5), np.float32))
    with pytest.raises(ValueError, match=r"\(5,\), but the network takes \(1, 8, 8\)$"):
        runs.evaluate(run, ood=[str(tmp_path / "rows.npz")], resize=True)


def test_arguments_out_of_range(trained: Path, tmp_path: Path) -> None:
    run = runs.load(trained)
    with pytest.raises(ValueError, match="noise must be a finite number > 0, not -1"):
        runs.evaluate(run, noise=[-1.0])
    with pytest.raises(FileNotFoundError, match="'fasion' is neither a file or folder nor a known"):
        runs.evaluate(run, ood=["fasion"])
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        run.predict(torch.zeros(1, 1, 8, 8), 0)
    with pytest.raises(ValueError, match="seeds must be different numbers"):
        runs.plan(config("digits"), tmp_path, seeds=[1, 1])
    sections = config("digits", "mc_dropout").sections()
    sections["backbone"]["dropout"] = 0.5
    twice = runs.configure(sections)
    with pytest.raises(
        ValueError, match=r"the method 'mc_dropout' has dropout 0\.25, but the back"
    ):
        twice.network((1, 8, 8), 10, [1] * 10)


def test_a_backbone_of_every_name_is_built_again(tmp_path: Path, held_out: Path) -> None:
    facts = replace(runs.load(held_out).config.facts, shape=[3, 32, 32])
    for name in backbones.BACKBONES:
        small = {"depth": 10, "width": 1} if name == "wide_resnet" else {}
        sections = config("digits").sections() | {"backbone": {"name": name, **small}}
        recorded = runs.Recorded(**runs.configure(sections).sections(), facts=facts)
        model = recorded.network(facts.shape, 10, facts.class_counts).eval()
        runs.save(tmp_path / name, model, recorded)
        x = torch.rand(2, 3, 32, 32)
        with torch.no_grad():
            assert torch.equal(runs.load(tmp_path / name).model(x), model(x)), name


def test_a_run_without_limits_is_judged_without_them(copied: Path) -> None:
    run = runs.load(copied)
    judged = runs.evaluate(run, noise=[0.2]).result
    runs.save(copied, run.model, run.config)  # neither calibration nor policy
    bare = runs.evaluate(runs.load(copied), noise=[0.2]).result
    assert set(judged) - set(bare) == {"limits"}
    assert bare["noise"] == judged["noise"]


def test_nothing_accepted_has_no_share_of_errors(copied: Path) -> None:
    run = runs.load(copied)
    never = policy(("max_prob", float("inf")), error=0.01)
    runs.save(copied, run.model, run.config, limits=bundle.Limits(policy=never))
    found = runs.evaluate(runs.load(copied)).result["limits"]
    refused = {"accepted": 0, "ambiguous": 1, "unfamiliar": 0}
    promise = {"error": 0.01, "confidence": 0.95}
    assert found == {"promise": promise, "test": refused, "ood": {}, "noise": {}}


def test_limits_are_no_part_of_a_record(trained: Path) -> None:
    kept = set(runs.evaluate(runs.load(trained)).result) - set(ELSEWHERE)
    figures = {"accuracy", "calibration", "aurc", "misclassification", "ood", "noise"}
    assert kept == {"test", "notes", *figures}
