"""The folder of a model: what it contains, interrupted saves, and damage."""

import json
import os
import shutil
import stat
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from dubito.errors import DubitoError
from dubito.model import Model
from dubito.model import folder as model_folder
from dubito.model.folder import TrainingRecord, digest
from tests.fuzzing import FUZZ
from tests.model import models

X, _ = models.samples()


@pytest.fixture(scope="module")
def model():
    return models.fitted()


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    return model.save(tmp_path_factory.mktemp("saved"))


@pytest.fixture
def folder(saved, tmp_path):
    return Path(shutil.copytree(saved, tmp_path / "copy"))


def weights_of(folder: Path) -> Path:
    (path,) = folder.glob("weights-*.safetensors")
    return path


def edit(folder: Path, *, sign: bool = True, **changes: object) -> None:
    """Change model.json; a double underscore separates nested keys."""
    path = folder / "model.json"
    plain = json.loads(path.read_text())
    for key, value in changes.items():
        *outer, last = key.split("__")
        inner = plain
        for name in outer:
            inner = inner[name]
        inner[last] = value
    if sign:
        plain["sha256"] = digest(plain)
    path.write_text(json.dumps(plain))


# --- content ---


def test_loaded_model_predicts_the_same(model, saved):
    loaded = Model.load(saved)
    for name in ("method", "task", "preprocessing", "backbone", "calibration", "policy"):
        assert getattr(loaded, name) == getattr(model, name)
    assert not loaded.training
    assert loaded.predict(X).columns() == model.predict(X).columns()


def test_training_record_is_loaded(tmp_path):
    model = models.build()
    model.record = TrainingRecord(
        config={"training": {"lr": 0.1}}, seed=3, epochs=5, metrics={"nll": float("inf")}
    )
    assert Model.load(model.save(tmp_path)).record == model.record


def test_folder_has_three_files_that_all_users_can_read(tmp_path):
    before = os.umask(0o022)
    try:
        models.build().save(tmp_path)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert set(modes.values()) == {0o644}
    assert sorted(modes) == ["card.md", "model.json", weights_of(tmp_path).name]


def test_loading_leaves_the_random_state(saved):
    before = torch.get_rng_state()
    Model.load(saved)
    assert torch.equal(torch.get_rng_state(), before)


def test_new_policy_does_not_write_the_weights_again(folder):
    path = weights_of(folder)
    before = path.stat().st_mtime_ns, (folder / "model.json").read_text()
    model = Model.load(folder).fit_policy(X, models.names(), error_rate=0.3)
    model.save(folder)
    assert weights_of(folder) == path
    assert path.stat().st_mtime_ns == before[0]
    assert (folder / "model.json").read_text() != before[1]
    assert Model.load(folder).policy == model.policy


def test_new_weights_replace_the_old_ones(folder):
    before = weights_of(folder)
    (folder / ".model.json.1-a.part").write_text("left by a killed process")
    models.build(seed=5).save(folder)
    assert weights_of(folder) != before
    assert not list(folder.glob(".*.part"))


def test_tied_weights_are_saved(tmp_path):
    class Tied(models.Custom):
        def __init__(self) -> None:
            super().__init__()
            self.again = self.layer

    build = models.build("softmax")
    model = Model(Tied(), build.method, build.task, build.preprocessing)
    loaded = Model.load(model.save(tmp_path), network=Tied)
    assert torch.equal(loaded.predict(X).point, model.predict(X).point)


def test_compiled_network_is_saved_by_its_own_names(tmp_path):
    model = models.build()
    model.network = torch.compile(model.network, backend="eager")
    names = load_file(weights_of(model.save(tmp_path)))
    assert "network.head.bias" in names


# --- interrupted saves ---


@pytest.mark.parametrize("fails", ["weights", "model"])
def test_full_disk_keeps_the_old_model(folder, monkeypatch, fails):
    before = sorted(path.name for path in folder.iterdir())
    expected = Model.load(folder).predict(X).columns()
    replace = os.replace

    def full(source, target):
        if Path(target).name.startswith(fails):
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(DubitoError, match=r"cannot write .*: No space left on device"):
        models.build(seed=5).save(folder)
    assert sorted(path.name for path in folder.iterdir()) == before
    assert Model.load(folder).predict(X).columns() == expected


def test_killed_save_keeps_the_old_model(folder, monkeypatch):
    class Killed(BaseException):
        pass

    def killed(path, content):
        if path.name == "model.json":
            raise Killed
        return write(path, content)

    write = model_folder.atomic_write
    expected = Model.load(folder).predict(X).columns()
    monkeypatch.setattr(model_folder, "atomic_write", killed)
    with pytest.raises(Killed):
        models.build(seed=5).save(folder)
    assert Model.load(folder).predict(X).columns() == expected


# --- damage ---


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


DAMAGE = {
    "no folder": (shutil.rmtree, "there is no folder"),
    "no model.json": (lambda f: (f / "model.json").unlink(), "is not a model: it has no model"),
    "cut model.json": (lambda f: cut(f / "model.json"), r"model\.json is damaged"),
    "nested": (lambda f: (f / "model.json").write_text("[" * 10**5), r"model\.json is damaged"),
    "a list": (lambda f: (f / "model.json").write_text("[]"), "does not describe a dubito model"),
    "changed": (lambda f: edit(f, sign=False, backbone__hidden=[9]), r"model\.json is damaged"),
    "newer": (lambda f: edit(f, sign=False, version=2), r"newer dubito \(format 2.*upgrade dubito"),
    "no weights": (lambda f: weights_of(f).unlink(), "cannot read .*weights-.*No such file"),
    "cut weights": (lambda f: cut(weights_of(f)), r"weights-.*\.safetensors is damaged"),
    # hashes that match: written by hand, or by someone with other ideas
    "path": (lambda f: edit(f, weights__name="../x"), "not valid: weights.name: String should"),
    "extra": (lambda f: edit(f, hook="os.system"), "not valid: hook: Extra inputs"),
    "method": (lambda f: edit(f, method__name="os.system"), "unknown method 'os.system'"),
    "backbone": (lambda f: edit(f, backbone__name="os.system"), "unknown backbone 'os.system'"),
    "option": (lambda f: edit(f, method__x=1), "unknown option 'x'"),
    "std": (lambda f: edit(f, preprocessing__std=[1, 0, 1, 1]), r"preprocessing\.std\.1: Input"),
    "score": (lambda f: edit(f, scores=[{"name": "magic"}]), "unknown score 'magic'"),
    "task": (lambda f: edit(f, task__kind="ranking"), "not valid: task: Input tag 'ranking'"),
    "architecture": (
        lambda f: edit(f, backbone__hidden=[9]),
        r"weights of another network: size mismatch for network\.backbone\.layers\.0\.weight",
    ),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_one_clear_error(folder, damage, message):
    damage(folder)
    with pytest.raises(DubitoError, match=message) as caught:
        Model.load(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def test_folder_of_several_models_lists_them(folder):
    with pytest.raises(DubitoError, match="contains several models, choose one: copy"):
        Model.load(folder.parent)


def test_custom_network_has_to_be_passed(tmp_path, folder):
    build = models.build("softmax")
    Model(models.Custom(), build.method, build.task, build.preprocessing).save(tmp_path / "own")
    with pytest.raises(DubitoError, match=r"own: it has a custom network: pass network=\.\.\."):
        Model.load(tmp_path / "own")
    with pytest.raises(DubitoError, match="weights of another network"):
        Model.load(tmp_path / "own", network=models.Custom(5))
    with pytest.raises(DubitoError, match="names its backbone, 'mlp': load it without network"):
        Model.load(folder, network=models.Custom)


@FUZZ
@given(st.data())
def test_changed_byte_is_never_overlooked(saved, tmp_path_factory, data):
    folder = Path(shutil.copytree(saved, tmp_path_factory.mktemp("fuzz") / "copy"))
    path = data.draw(st.sampled_from([folder / "model.json", weights_of(folder)]))
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    if path.name == "model.json" and _equal_json(content, saved):
        return  # another spelling of white space
    with pytest.raises(DubitoError):
        Model.load(folder)


def _equal_json(content: bytes, saved: Path) -> bool:
    try:
        return bool(json.loads(content) == json.loads((saved / "model.json").read_bytes()))
    except ValueError:
        return False
