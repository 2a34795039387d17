"""Bundles: what comes back from a folder, what is refused, and what a training leaves in one."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

from dubito import _legacy as methods
from dubito import backbones, bundle, data, runs
from dubito._legacy import METHODS, balanced, calibration_metrics
from dubito.bundle import Column, Columns, Preprocessing, Promise
from dubito.calibration import Calibration
from dubito.methods import EDL
from dubito.policy import Policy
from dubito.training import CheckpointError
from tests.fuzzing import FUZZ
from tests.limits import policy, scaling

TRAINING = {"epochs": 12, "batch_size": 32, "learning_rate": 0.005, "patience": 0}


def config(source: str | Path, method: str = "iedl", **of_data: Any) -> runs.Config:
    return runs.configure(
        {
            "data": {"source": str(source), **of_data},
            "backbone": {"name": "mlp", "hidden": [16]},
            "method": {"name": method},
            "training": TRAINING,
        }
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on digits."""
    folder = tmp_path_factory.mktemp("trained")
    runs.train(runs.plan(config("digits"), folder))
    return folder


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small bundle that was saved by hand."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("own")
    network = backbones.build("mlp", (3,), 2, hidden=(4,))
    columns = Columns(columns=(Column("size", None, (0.0, 5.0)), Column("hue", ("red", "sky"))))
    bundle.save(
        folder, network, method="iedl", classes=("a", "b"), shape=(3,),
        backbone={"name": "mlp", "hidden": [4]},
        preprocessing=Preprocessing(columns=columns, mean=(1.0, 0.0, 0.0), scale=(2.0, 1.0, 1.0)),
        calibration=scaling(),
        policy=policy(("max_prob", 0.6), ("vacuity", 0.9)),
    )  # fmt: skip
    return folder


@pytest.fixture
def copied(own: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(own, tmp_path / "copy"))


# --- a finished run is a bundle ------------------------------------------------------------------


def test_a_finished_run_is_a_bundle(trained: Path) -> None:
    loaded, run = bundle.load(trained), runs.load(trained)
    test = data.load("digits", "test")
    assert (loaded.classes, loaded.shape) == (run.classes, run.shape)
    assert loaded.method == run.method
    assert torch.equal(loaded.predict(test.inputs).alpha, run.predict(test.inputs).alpha)
    held = sorted(path.name for path in trained.iterdir() if path.is_file())
    assert held == sorted([*bundle.FILES, bundle.MANIFEST, "metrics.jsonl", "split.npz"])
    listed = json.loads((trained / bundle.MANIFEST).read_text())
    assert (listed["format"], listed["version"]) == ("dubito-bundle", 1)
    assert sorted(listed["files"]) == sorted(bundle.FILES)


def test_calibration_and_policy_are_those_of_the_validation_samples(trained: Path) -> None:
    loaded = bundle.load(trained)
    plan = runs.plan(config("digits"), trained)
    said, labels = loaded.predict(plan.validation.inputs), plan.validation.labels
    dist = said.distribution
    assert loaded.calibration == Calibration.fit(dist, labels)
    assert loaded.policy == Policy.control_error(
        dist, said.label != labels, 0.05, ood_score="vacuity", false_alarms=0.05
    )
    effect = loaded.limits.effect
    assert effect["nll_before"] == calibration_metrics(said, labels)["nll"]
    assert effect["ece_after"] == calibration_metrics(loaded.calibrated(said), labels)["ece"]
    accepted = loaded.decide(said).accepted
    assert effect["accepted"] == pytest.approx(accepted.double().mean().item())
    assert effect["accepted_wrong"] == int((said.label != labels)[accepted].sum())
    assert 0.5 < effect["accepted"] < 1


def test_what_it_says_of_new_samples(trained: Path) -> None:
    loaded, test = bundle.load(trained), data.load("digits", "test")
    said = loaded.predict(test.inputs)
    after = loaded.calibrated(said)
    assert torch.equal(after.label, said.label)
    before, calibrated = (calibration_metrics(one, test.labels) for one in (said, after))
    assert calibrated["ece"] < 0.06 < before["ece"]
    assert calibrated["nll"] < before["nll"]
    assert loaded.policy is not None
    assert torch.equal(loaded.decide(said).codes, loaded.policy.decide(said.distribution).codes)
    with pytest.raises(ValueError, match="no score 'vacuity'"):  # there is no evidence any more
        loaded.decide(after)
    blank = loaded.decide(loaded.predict(torch.zeros(1, 1, 8, 8)))
    assert not blank.accepted.any()


def test_the_card_tells_data_figures_limits_and_critiques(trained: Path) -> None:
    loaded = bundle.load(trained)
    text = (trained / "card.md").read_text("utf-8")
    assert loaded.card == text
    effect = loaded.limits.effect
    wanted = [
        "`digits`, 1150 training and 288 validation", f"{effect['ece_after']:.2%}",
        f"{effect['nll_before']:.4f}", "Bengs", "NeurIPS 2022", "ICML 2023", "Jürgens",
        "ICML 2024", "Shen et al.", "NeurIPS 2024", "chose the epoch", "before calibration",
    ]  # fmt: skip
    for words in wanted:
        assert words in text


def test_a_finished_run_gets_another_promise_without_training(tmp_path: Path) -> None:
    chosen = config("digits")
    chosen.training["epochs"] = 3
    runs.train(runs.plan(chosen, tmp_path))
    first = bundle.load(tmp_path)
    before = (tmp_path / "metrics.jsonl").stat().st_mtime_ns
    runs.train(runs.plan(chosen, tmp_path), promise=Promise(error=0.2, false_alarms=0.1))
    second = bundle.load(tmp_path)
    assert (tmp_path / "metrics.jsonl").stat().st_mtime_ns == before
    assert first.policy is not None
    assert second.policy is not None
    assert (first.policy.guarantee.level, second.policy.guarantee.level) == (0.05, 0.2)
    assert second.calibration == first.calibration
    x = data.load("digits", "test").inputs[:9]
    assert torch.equal(first.predict(x).alpha, second.predict(x).alpha)
    # A run that was stopped after its weights were written is finished by the same call.
    (tmp_path / bundle.MANIFEST).unlink()
    with pytest.raises(CheckpointError, match="is not finished: it has no manifest"):
        runs.load(tmp_path)
    plan = runs.plan(chosen, tmp_path)
    assert plan.members[0].state == runs.STOPPED
    runs.train(plan)
    assert torch.equal(bundle.load(tmp_path).predict(x).alpha, first.predict(x).alpha)
    assert (tmp_path / "metrics.jsonl").stat().st_mtime_ns == before


@pytest.mark.parametrize("name", METHODS)
def test_every_method_ends_calibrated_with_a_policy(tmp_path: Path, name: str) -> None:
    chosen = config("digits", name)
    chosen.training["epochs"] = 1
    runs.train(runs.plan(chosen, tmp_path))
    loaded = bundle.load(tmp_path)
    effect = loaded.limits.effect
    assert effect["nll_after"] <= effect["nll_before"] + 1e-6
    (portion,) = bundle.stream(loaded, [digits_file(tmp_path)])
    assert set().union(*portion.rows) <= set(bundle.row_columns(loaded))
    said = loaded.predict(data.load("digits", "test").inputs[:5])
    assert [row["vacuity"] for row in portion.rows if "vacuity" in row] == pytest.approx(
        said.vacuity.tolist() if "vacuity" in said.available else [], abs=1e-5
    )
    assert all("decision" in row for row in portion.rows)


def digits_file(folder: Path) -> Path:
    np.savez(folder / "five.npz", x=data.load("digits", "test").inputs[:5].numpy())
    return folder / "five.npz"


def test_too_few_validation_samples_promise_nothing(tmp_path: Path) -> None:
    digits = data.load("digits", "train")
    np.savez(tmp_path / "few.npz", x=digits.inputs[:100].numpy(), y=digits.labels[:100].numpy())
    runs.train(runs.plan(config(tmp_path / "few.npz"), tmp_path / "run"))
    loaded = bundle.load(tmp_path / "run")
    assert loaded.policy is not None
    assert loaded.policy.accepts_nothing
    assert not loaded.decide(loaded.predict(digits.inputs[:50])).accepted.any()
    assert "accepts nothing" in loaded.card


# --- saved by hand -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_every_method_comes_back(tmp_path: Path, name: str) -> None:
    method = methods.method(name)
    described: dict[str, Any] = {"name": "mlp", "hidden": [8]}
    network = bundle.build(method, described, (5,), 3, [4, 5, 6]).eval()
    about: dict[str, Any] = {"classes": ("a", "b", "c"), "shape": (5,), "class_counts": [4, 5, 6]}
    bundle.save(tmp_path / "named", network, method=method, backbone=described, **about)
    bundle.save(tmp_path / "bare", network, method=method, **about)

    def factory(shape: tuple[int, ...], outputs: int) -> nn.Module:
        return backbones.build("mlp", shape, outputs, hidden=(8,), dropout=method.dropout)

    x = torch.randn(6, 5)
    state = torch.get_rng_state()
    named = bundle.load(tmp_path / "named")
    bare = bundle.load(tmp_path / "bare", factory=factory)
    assert torch.equal(torch.get_rng_state(), state)
    assert named.method == bare.method == method
    assert not named.model.training
    said = named.predict(x)
    for measure in said.available:
        assert torch.equal(said.measure(measure), bare.predict(x).measure(measure))
    torch.manual_seed(0)
    with torch.no_grad():
        assert torch.equal(method.predict(network, x).probs, said.probs)
    with pytest.raises(ValueError, match="has no policy"):
        named.decide(said)
    assert named.calibrated(said) is said
    with pytest.raises(CheckpointError, match="give the factory that builds it"):
        bundle.load(tmp_path / "bare")
    with pytest.raises(CheckpointError, match="'mlp': it needs no factory"):
        bundle.load(tmp_path / "named", factory=factory)


def test_a_wrong_factory_is_named(tmp_path: Path) -> None:
    bundle.save(tmp_path, nn.Linear(4, 3), method="edl", classes="abc", shape=(4,))
    with pytest.raises(CheckpointError, match=r"another network: .*'0\.bias'"):
        bundle.load(tmp_path, factory=lambda s, k: nn.Sequential(nn.Linear(s[0], k)))
    with pytest.raises(ZeroDivisionError):  # a fault in code of one's own is not ours to word
        bundle.load(tmp_path, factory=lambda s, k: nn.Linear(s[0] // 0, k))


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    network = nn.Linear(4, 3)
    given: dict[str, Any] = {"method": "iedl", "classes": "abc", "shape": (4,)}

    class Other(EDL):
        """A method that is not registered."""

    other = Other()
    two = Preprocessing(mean=(0.0, 0.0), scale=(1.0, 1.0))
    with pytest.raises(ValueError, match="is not that of model: 'bias' has shape none in it"):
        bundle.save(tmp_path, network, **given, backbone={"name": "mlp"})
    with pytest.raises(ValueError, match="at least two different names"):
        bundle.save(tmp_path, network, **{**given, "classes": "aab"})
    with pytest.raises(ValueError, match="2 means do not suit the shape"):
        bundle.save(tmp_path, network, **given, preprocessing=two)
    with pytest.raises(TypeError, match="none of the methods"):
        bundle.save(tmp_path, network, **{**given, "method": other})
    assert list(tmp_path.iterdir()) == []


def test_inputs_of_another_shape_are_refused(own: Path) -> None:
    loaded = bundle.load(own)
    with pytest.raises(ValueError, match=r"shape \(2, 4\), but this bundle takes \(N, \*\(3,\)\)"):
        loaded.predict(np.zeros((2, 4)))
    with pytest.raises(ValueError, match="takes"):
        loaded.predict(torch.zeros(0, 3))
    with pytest.raises(TypeError, match="must be numbers"):
        loaded.predict(torch.zeros(1, 3, dtype=torch.bool))


# --- preprocessing -------------------------------------------------------------------------------


def table(folder: Path, rows: int = 300, seed: int = 0) -> Path:
    """Two classes, told apart by a number far from 0 and a category; one in five is of class b."""
    rng = np.random.default_rng(seed)
    path = folder / "table.csv"
    with path.open("w") as file:
        file.write("size,hue,kind\n")
        for _ in range(rows):
            kind = int(rng.random() < 0.2)
            hue = rng.choice(["sky", "red"], p=[0.9, 0.1] if kind else [0.2, 0.8])
            file.write(f"{rng.normal(5000 + 300 * kind, 200):.2f},{hue},{'ab'[kind]}\n")
    return path


def test_a_table_is_standardised_by_its_training_samples(tmp_path: Path) -> None:
    plan = runs.plan(config(table(tmp_path)), tmp_path / "run")
    runs.train(plan)
    loaded = bundle.load(tmp_path / "run")
    made = loaded.preprocessing
    assert made.columns is not None
    assert made.mean is not None
    assert made.scale is not None
    sizes = plan.train.inputs[:, 0].double()
    assert list(made.mean) == pytest.approx([sizes.mean().item(), 0, 0])
    assert list(made.scale) == pytest.approx([sizes.std(correction=0).item(), 1, 1])
    assert [column.categories for column in made.columns.columns] == [None, ("red", "sky")]
    x = torch.tensor([[4900.0, 1, 0], [5400.0, 0, 1]])
    ready = torch.tensor([[(v - made.mean[0]) / made.scale[0], *rest] for v, *rest in x.tolist()])
    with torch.no_grad():
        expected = loaded.method.predict(loaded.model, ready)
    torch.testing.assert_close(loaded.predict(x).alpha, expected.alpha)
    assert loaded.predict(x).label.tolist() == [0, 1]
    judged = runs.evaluate(runs.load(tmp_path / "run"), source=str(table(tmp_path, seed=1)))
    assert judged.result["accuracy"] > 0.85


def test_images_can_be_standardised_by_channel(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(256, size=(40, 3, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "x.npz", x=pixels, y=np.arange(40) % 2)
    plan = runs.plan(config(tmp_path / "x.npz", standardize=True), tmp_path / "run")
    made = plan.config.prepared()
    assert (made.mode, made.pixels) == ("RGB", True)
    x = made.standardised(plan.train.inputs)
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.std((0, 2, 3), correction=0), torch.ones(3))
    plain = runs.plan(config(tmp_path / "x.npz"), tmp_path / "plain").config.prepared()
    assert plain.mean is None


BAD_TABLES = {
    "missing": ("size,hue,y\n1,red,a\n,sky,b\nNA,sky,b\n", "'size' has 2 missing.*line 3"),
    "no category": ("size,hue,y\n1,red,a\n2,,b\n", "'hue' has 1 missing value.*line 3"),
    "mixed": ("size,y\n1,a\n2,b\nbig,a\n", "'size' holds numbers and words, 'big' in line 4"),
    "no header": ("red,1,a\nsky,2,b\n", "row 1 holds '1' among words, so it seems to be no header"),
    "twice": ("x,x,y\n1,2,a\n2,3,b\n", "the header has the column 'x' twice"),
    "identifiers": (
        "name,y\n" + "".join(f"n{i},{'ab'[i % 2]}\n" for i in range(30)),
        "'name' has 30 different words in 30 rows",
    ),
    "seconds": (
        "t,y\n" + "".join(f"{1.7e9 + i},{'ab'[i % 2]}\n" for i in range(9)),
        "'t' varies by 2.58 around 1700000004, which float32 hardly tells apart",
    ),
}


@pytest.mark.parametrize(("text", "message"), BAD_TABLES.values(), ids=BAD_TABLES)
def test_a_table_that_cannot_be_learnt_from(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "own.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        runs.plan(config(tmp_path / "own.csv"), tmp_path / "run")


def test_numbers_may_be_categories(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("zip,y\n" + "10,a\n20,b\n" * 10)
    made = runs.plan(config(tmp_path / "own.csv", categories=["zip"]), tmp_path / "run")
    assert made.train.inputs.unique(dim=0).tolist() == [[0, 1], [1, 0]]
    with pytest.raises(ValueError, match=r"column of .*'zap'; known: 'zip'"):
        runs.plan(config(tmp_path / "own.csv", categories=["zap"]), tmp_path / "run")


def test_strange_numbers_of_an_array_are_noted_as_those_of_a_table(tmp_path: Path) -> None:
    columns = Columns(columns=(Column("size", None, (0.0, 5.0)), Column("age", None, (1.0, 9.0))))
    made = bundle.save(
        tmp_path / "made", backbones.build("mlp", (2,), 2, hidden=(4,)), method="iedl",
        classes=("a", "b"), shape=(2,), backbone={"name": "mlp", "hidden": [4]},
        preprocessing=Preprocessing(columns=columns),
    )  # fmt: skip
    given = np.array([[np.inf, 2], [3, 2], [900, -40]])
    np.savez(tmp_path / "x.npz", x=given)
    np.savetxt(tmp_path / "x.csv", given, delimiter=",", header="size,age", comments="")
    for name in ("x.csv", "x.npz"):
        (portion,) = bundle.stream(bundle.load(made), [tmp_path / name])
        notes = [row.get("note") for row in portion.rows]
        assert notes == [None, None, "size 900 is far from [0, 5]; age -40 is far from [1, 9]"]


# --- class weights -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_weighted_terms_are_the_methods_by_class(name: str) -> None:
    method = methods.method(name)
    network = bundle.build(method, {"name": "mlp", "hidden": [4]}, (3,), 2, [6, 2])
    weights = balanced([6, 2])
    assert weights == [pytest.approx(2 / 3), 2]
    x, target = torch.randn(8, 3), torch.tensor([0] * 6 + [1] * 2)
    outputs = network(method.inputs(x, torch.Generator().manual_seed(0))).detach()
    of_terms = torch.tensor(list(method.weights(0, 1).values()))
    weighted = replace(method, class_weight=torch.tensor(weights))
    _, found = weighted.loss_of(outputs, target, of_terms)
    by_hand = torch.zeros_like(found)
    for place, label in enumerate(target.tolist()):
        rows = [place, place + 8] if method.trains_with_ood else [place]
        _, sums = method.loss_of(outputs[rows], target[place : place + 1], of_terms)
        by_hand += sums * torch.tensor(
            [weights[label] if term in method.core.terms else 1.0 for term in method.weights(0, 1)]
        )
    torch.testing.assert_close(found, by_hand)


def test_balanced_classes_find_the_rare_one(tmp_path: Path) -> None:
    source = table(tmp_path, 400)
    recall = {}
    for weight in (None, "balanced"):
        runs.train(runs.plan(config(source, class_weight=weight), tmp_path / str(weight)))
        run = runs.load(tmp_path / str(weight))
        held = run.config.prepared().columns.read(table(tmp_path, 400, seed=2), run.classes)  # type: ignore[union-attr]
        table(tmp_path, 400)
        rare = held.labels == 1
        recall[weight] = (run.predict(held.inputs).label == 1)[rare].double().mean().item()
    assert recall["balanced"] > recall[None] + 0.05


# --- damage --------------------------------------------------------------------------------------


def rewritten(name: str, **changes: Any) -> Any:
    def damage(folder: Path) -> None:
        found = json.loads((folder / name).read_text())
        for key, value in changes.items():
            section, _, inner = key.partition("__")
            if inner:
                found[section][inner] = value
            else:
                found[section] = value
        (folder / name).write_text(json.dumps(found))

    return damage


def cut(name: str) -> Any:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-3])


UNSIGNED: dict[str, tuple[Any, str]] = {
    "no folder": (shutil.rmtree, "there is no folder"),
    "no manifest": (lambda f: (f / "manifest.json").unlink(), "is not finished: it has no mani"),
    "cut manifest": (cut("manifest.json"), "could not read .*manifest.json"),
    "foreign": (
        rewritten("manifest.json", format="zip"),
        "no bundle of dubito: the format .*'zip'",
    ),
    "newer": (
        rewritten("manifest.json", version=2),
        "by a newer dubito: .*version 2.*up to 1; upg",
    ),
    "no version": (rewritten("manifest.json", version="1"), "the version '1', which is no number"),
    "other files": (rewritten("manifest.json", files={"../x": {}}), "should list .*and lists"),
    "no hash": (rewritten("manifest.json", files__card=0), "should list .*and lists"),
    "no hashes": (
        rewritten("manifest.json", **{f"files__{name}": 1 for name in bundle.FILES}),
        "no hash and size",
    ),
    "changed": (
        lambda f: (f / "card.md").write_text((f / "card.md").read_text().replace("2", "3")),
        "card.md was changed after the bundle was written",
    ),
    "no policy": (lambda f: (f / "policy.json").unlink(), "is incomplete: it has no policy.json"),
    **{f"cut {name}": (cut(name), f"{name} is damaged: it has") for name in bundle.FILES},
}


@pytest.mark.parametrize(("damage", "message"), UNSIGNED.values(), ids=UNSIGNED)
def test_damage_is_told_by_the_manifest(copied: Path, damage: Any, message: str) -> None:
    damage(copied)
    with pytest.raises(bundle.BundleError, match=message):
        bundle.load(copied)


def endless(folder: Path) -> None:
    (folder / "config.json").write_text("[" * 100_000)


def not_finite(folder: Path) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors["head.bias"][0] = torch.nan
    facts = {"format": "dubito-checkpoint-1", "facts": "{}"}
    save_file(tensors, file, facts)


def of_another_kind(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["head.bias"] = tensors["head.bias"].long()
    facts = {"format": "dubito-checkpoint-1", "facts": "{}"}
    save_file(tensors, folder / "model.safetensors", facts)


def without_facts(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors, folder / "model.safetensors", {"format": "dubito-checkpoint-1"})


HUGE = {"name": "mlp", "hidden": [10**6, 10**6]}
SIGNED: dict[str, tuple[Any, str]] = {
    "no json": (endless, "could not read .*config.json"),
    "format": (rewritten("config.json", format="x"), "its format is 'x', not 'dubito-model-1'"),
    "code": (rewritten("config.json", backbone__name="os.system"), "unknown backbone 'os.system'"),
    "path": (rewritten("config.json", method__name="../x"), r"unknown method '\.\./x'"),
    "no name": (rewritten("config.json", method={}), "'method' should have a name"),
    "option": (rewritten("config.json", method__x=1), "unknown hyperparameter .*'x'"),
    "hidden": (rewritten("config.json", backbone__hidden="abc"), "describes no network"),
    "huge": (rewritten("config.json", backbone=HUGE), "would have 1000007.* numbers, but the file"),
    "shape": (rewritten("config.json", facts__shape=[0]), "'shape' must be sizes >= 1"),
    "classes": (rewritten("config.json", facts__classes=["a", "a"]), "two different names"),
    "counts": (rewritten("config.json", facts__class_counts=[1]), "a number for each class"),
    "scale": (rewritten("config.json", preprocessing__scale=[1, 0, 1]), "scale must be > 0"),
    "mean": (
        rewritten("config.json", preprocessing__mean=[10**400, 0, 1]),
        "could not read .*conf",
    ),
    "other width": (rewritten("config.json", facts__shape=[4]), "do not suit the shape"),
    "policy": (
        rewritten("policy.json", policy={"sure": 1}),
        r"could not read .*policy.json: policy\.threshold: Field required",
    ),
    "measure": (
        rewritten(
            "policy.json", policy__threshold={"score": "eval", "higher": "confidence", "value": 1}
        ),
        "unknown measure 'eval'",
    ),
    "kind": (
        rewritten("policy.json", calibration__kind="exec"),
        r"calibration\.kind: Extra inputs",
    ),
    "no kind": (rewritten("policy.json", calibration=3), "could not read .*policy.json"),
    "effect": (rewritten("policy.json", effect={"x": "y"}), "'x' in 'effect' must be a number"),
    "text": (lambda f: (f / "card.md").write_bytes(b"\xff"), "could not read .*card.md"),
    "weights": (lambda f: (f / "model.safetensors").write_bytes(b"\x80\x04N."), "could not read"),
    "kind of weights": (
        of_another_kind,
        "'head.bias' holds torch.int64, but the network has torch",
    ),
    "no facts": (without_facts, "model.safetensors is no dubito checkpoint"),
    "not finite": (not_finite, "the weights 'head.bias' are not all finite"),
}


@pytest.mark.parametrize(("damage", "message"), SIGNED.values(), ids=SIGNED)
def test_what_a_signed_bundle_may_not_hold(copied: Path, damage: Any, message: str) -> None:
    damage(copied)
    bundle.sign(copied)
    with pytest.raises(CheckpointError, match=message):
        bundle.load(copied)


@FUZZ
@given(st.data())
def test_a_changed_byte_is_never_overlooked(own: Path, tmp_path: Path, data: st.DataObject) -> None:
    copy = Path(shutil.copytree(own, tmp_path / "copy", dirs_exist_ok=True))
    name = data.draw(st.sampled_from(bundle.FILES))
    content = bytearray((copy / name).read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    (copy / name).write_bytes(content)
    with pytest.raises(bundle.BundleError, match="was changed after"):
        bundle.load(copy)


@FUZZ
@given(st.data())
def test_forged_weights_are_refused_or_weights(
    own: Path, tmp_path: Path, data: st.DataObject
) -> None:
    copy = Path(shutil.copytree(own, tmp_path / "copy", dirs_exist_ok=True))
    content = bytearray((copy / "model.safetensors").read_bytes())
    header = 8 + int.from_bytes(content[:8], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, header - 1))] = data.draw(st.integers(0, 255))
    (copy / "model.safetensors").write_bytes(content)
    bundle.sign(copy)
    try:
        loaded = bundle.load(copy)
    except bundle.BundleError:
        return
    assert loaded.predict(torch.zeros(1, 3)).probs.isfinite().all()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(max_size=5), one, max_size=3),
    max_leaves=6,
)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner: Any = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    return [path, *(leaf for key, one in inner for leaf in leaves(one, (*path, key)))]


@FUZZ
@given(st.data())
def test_a_forged_description_is_refused_or_of_the_same_kind(
    own: Path, tmp_path: Path, data: st.DataObject
) -> None:
    copy = Path(shutil.copytree(own, tmp_path / "copy", dirs_exist_ok=True))
    name = data.draw(st.sampled_from(["config.json", "policy.json", "manifest.json"]))
    found = json.loads((copy / name).read_text())
    *path, last = data.draw(st.sampled_from([leaf for leaf in leaves(found) if leaf]))
    inner = found
    for key in path:
        inner = inner[key]
    inner[last] = data.draw(JSON)
    (copy / name).write_text(json.dumps(found))
    if name != "manifest.json":
        bundle.sign(copy)
    try:
        loaded = bundle.load(copy)
        said = loaded.predict(torch.zeros(2, *loaded.shape))
        if loaded.policy is not None:
            loaded.decide(said)
        probs = loaded.calibrated(said).probs
    except (CheckpointError, ValueError):
        return
    assert probs.shape == (2, len(loaded.classes))
    torch.testing.assert_close(probs.sum(-1), torch.ones(2))
