"""Runs at their edges: units of their own, less memory, a kill at the end, a promise half kept."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dubito import bundle, data, evaluation, runs
from dubito.bundle import Promise
from dubito.data import embedded
from dubito.distributions import Dirichlet
from dubito.report import tables
from dubito.runs import _train
from dubito.training import NonFiniteLoss
from dubito.training.run import Run

CHECKPOINT = "checkpoint.safetensors"


def config(source: str | Path = "digits", method: str = "iedl", **given: Any) -> runs.Config:
    """A small network, for two epochs."""
    return runs.configure(
        {
            "data": {"source": str(source), **given},
            "backbone": {"name": "mlp", "hidden": [16]},
            "method": {"name": method},
            "training": {"epochs": 2, "validate_every": 1, "patience": 0},
        }
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, and what was its checkpoint beside it."""
    folder = tmp_path_factory.mktemp("trained")

    def keep(entry: dict[str, Any]) -> None:
        shutil.copy(folder / "run" / CHECKPOINT, folder / CHECKPOINT)

    runs.train(runs.plan(config(), folder / "run"), keep)
    return folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return runs.load(folder).model.state_dict()


def test_inputs_from_elsewhere_are_standardised_as_those_to_train_with(tmp_path: Path) -> None:
    digits = data.load("digits", "train").subset(range(300))
    outside = 30 + 16 * embedded.patches(100, 0)  # in units of their own, both

    def trained_with(name: str, inside: torch.Tensor, other: torch.Tensor) -> runs.Plan:
        files = [str(tmp_path / f"{name}-{part}.npz") for part in ("in", "out")]
        np.savez(files[0], images_train=inside.numpy(), labels_train=digits.labels.numpy())
        np.savez(files[1], images=other.numpy(), labels=np.arange(100) % 10)
        asked = name == "asked"
        chosen = config(files[0], "rkl_pn", standardize=asked, train_ood=files[1])
        plan = runs.plan(chosen, tmp_path / name)
        runs.train(plan)
        return plan

    inside = 30 + 16 * digits.inputs
    standardised = trained_with("asked", inside, outside).config.prepared().standardised
    trained_with("done", standardised(inside), standardised(outside))
    expected = weights(tmp_path / "done")
    for name, value in weights(tmp_path / "asked").items():
        assert torch.equal(value, expected[name]), name


def test_a_run_goes_on_when_the_data_no_longer_fits_on_the_device(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(entry: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runs.train(runs.plan(config(), tmp_path), stop)
    monkeypatch.setattr(data, "fits", lambda *args, **options: False)
    plan = runs.plan(config(), tmp_path)
    assert plan.members[0].state == "stopped"
    epochs: list[int] = []
    runs.train(plan, lambda entry: epochs.append(entry["epoch"]))
    assert epochs == [2]
    expected = weights(trained / "run")
    for name, value in weights(tmp_path).items():
        assert torch.equal(value, expected[name]), name


def test_a_run_killed_once_its_bundle_was_written_keeps_no_checkpoint(
    trained: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(trained / "run", tmp_path / "run")
    shutil.copy(trained / CHECKPOINT, folder / CHECKPOINT)
    plan = runs.plan(config(), folder)
    assert plan.members[0].state == "finished"
    (summary,) = runs.train(plan)
    assert summary["epochs"] == 2
    assert not (folder / CHECKPOINT).exists()


def test_what_is_outside_may_be_named_by_a_generator(trained: Path) -> None:
    run = runs.load(trained / "run")
    found = runs.evaluate(run, ood=(source for source in ["digits"])).result["ood"]
    assert found == runs.evaluate(run, ood=["digits"]).result["ood"]
    assert list(found) == ["digits"]


def test_a_promise_kept_as_far_as_the_method_can_is_not_made_again(tmp_path: Path) -> None:
    chosen = config(method="softmax")  # nothing is unfamiliar to it: it has no false alarms

    def written(promise: Promise) -> tuple[int, int]:
        runs.train(runs.plan(chosen, tmp_path), promise=promise)
        told = (tmp_path / "policy.json").stat()
        return told.st_ino, told.st_mtime_ns

    first = written(Promise(error=0.1, false_alarms=0.01))
    assert written(Promise(error=0.1, false_alarms=0.01)) == first
    assert written(Promise(error=0.2, false_alarms=0.01)) != first
    policy = bundle.read_limits(tmp_path).policy
    assert policy is not None
    assert policy.guarantee is not None
    assert policy.guarantee.level == 0.2


def test_samples_that_are_infinitely_sure_stay_tied() -> None:
    evidence = torch.tensor([torch.inf] * 4 + [3.0, 2.0])
    wrong = torch.tensor([False, False, True, True, False, True])
    found, finite = (
        evaluation.risk_coverage(Dirichlet(torch.stack([alpha, alpha], -1)), wrong, ["alpha0"])
        for alpha in (evidence, evidence.clamp_max(9.0))
    )
    assert found == finite
    # of four that can't be told apart half are wrong, whichever come first
    assert found["alpha0"]["risk"][:4] == pytest.approx([0.5] * 4)


# --- tables ---------------------------------------------------------------------------------------


def table(path: Path, kinds: list[str], middle: float, seed: int) -> Path:
    """The label first; `a` tells the kinds apart, and whole numbers stand last."""
    drawn = np.random.default_rng(seed)
    rows = [
        f"{kinds[i % len(kinds)]},{middle + 4 * (i % len(kinds)) + drawn.normal():.3f},"
        f"{drawn.integers(90, 110)}"
        for i in range(90)
    ]
    path.write_text("kind,a,b\n" + "\n".join(rows) + "\n")
    return path


def test_a_file_with_some_of_the_classes_has_their_labels(tmp_path: Path) -> None:
    """Classes 1, 2 and x: where no x occurs a 1 is still the class 1, and not the second."""
    chosen = config(table(tmp_path / "all.csv", ["1", "2", "x"], 0, 0), label="kind")
    runs.train(runs.plan(chosen, tmp_path / "run"))
    run = runs.load(tmp_path / "run")
    some = table(tmp_path / "some.csv", ["1", "2"], 0, 1)
    assert runs.evaluate(run, source=str(some)).arrays["labels"][:4].tolist() == [0, 1, 0, 1]
    found = data.load(some, label="kind", classes=("1", "2", "x"))
    assert found.labels[:4].tolist() == [0, 1, 0, 1]


def test_inputs_to_train_with_have_the_columns_of_the_data(tmp_path: Path) -> None:
    outside = table(tmp_path / "outside.csv", ["p", "q"], 50, 1)
    inside = table(tmp_path / "inside.csv", ["p", "q"], 0, 0)
    chosen = config(inside, "rkl_pn", label="kind", train_ood=str(outside))
    plan = runs.plan(chosen, tmp_path / "run")
    bank = _train._outside(plan.config, plan.device)["ood"]
    features = np.loadtxt(outside, delimiter=",", skiprows=1, usecols=(1, 2), dtype=np.float32)
    assert torch.equal(bank, plan.config.prepared().standardised(torch.from_numpy(features)))
    assert bank[:, 0].min() > 5  # far outside


# --- several seeds --------------------------------------------------------------------------------


def test_a_seed_that_fails_leaves_the_others_their_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Run.check_finite

    def check(self: Run) -> None:
        if self.settings.seed == 2:
            raise NonFiniteLoss("the loss is not finite")
        whole(self)

    monkeypatch.setattr(Run, "check_finite", check)
    for _ in range(2):  # the same again
        plan = runs.plan(config(), tmp_path, seeds=[1, 2, 3])
        with pytest.raises(
            NonFiniteLoss, match=r"1 of 3 seeds .*\. seed 2: the loss is not finite"
        ):
            runs.train(plan)
        states = [one.state for one in runs.plan(config(), tmp_path, seeds=[1, 2, 3]).members]
        assert states == ["finished", "new", "finished"]


def test_an_infinite_figure_has_no_deviation() -> None:
    found = runs.averaged([{"nll": 1.0, "ece": 0.1}, {"nll": math.inf, "ece": 0.3}])
    assert found["nll"] == {"mean": math.inf, "deviation": None}
    assert found["ece"]["deviation"] == pytest.approx(math.sqrt(0.02))
    texts = [cell.text for cell in tables.mean_cells([[1.0, math.inf], [1.0, 3.0]])]
    assert texts == ["inf", "2.0 ±1.4"]


def test_another_promise_leaves_what_is_known_of_the_training(
    trained: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(trained / "run", tmp_path / "run")
    told = json.loads((folder / "config.json").read_text())
    told["facts"]["device"], told["versions"]["torch"] = "another machine", "2.4.0"
    (folder / "config.json").write_text(json.dumps(told))
    runs.train(runs.plan(config(), folder), promise=Promise(error=0.37))
    policy = bundle.read_limits(folder).policy
    assert policy is not None
    assert policy.guarantee is not None
    assert policy.guarantee.level == 0.37
    after = json.loads((folder / "config.json").read_text())
    assert (after["facts"], after["versions"]) == (told["facts"], told["versions"])
