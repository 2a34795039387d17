"""Runs at their edges: units of their own, less memory, a kill at the end, a promise half kept."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dubito import bundle, data, evaluation, runs
from dubito.bundle import Promise
from dubito.data import embedded

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
    assert policy.promise["error"] == 0.2


def test_samples_that_are_infinitely_sure_stay_tied() -> None:
    sure = torch.tensor([torch.inf] * 4 + [1.0, 0.0])
    right = torch.tensor([True, True, False, False, True, False])
    found = evaluation.risk_coverage({"alpha0": sure}, right)
    assert found == evaluation.risk_coverage({"alpha0": sure.clamp_max(9.0)}, right)
    # of four that can't be told apart half are wrong, whichever come first
    assert found["alpha0"]["risk"][:4] == pytest.approx([0.5] * 4)
