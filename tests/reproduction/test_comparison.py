"""One protocol for all methods, on embedded data."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.colors import hsv_to_rgb, rgb_to_hsv
from scipy.ndimage import gaussian_filter

from dubito.errors import DubitoError
from reproduction.comparison import QUICK, Protocol, best_of, run, train
from reproduction.comparison_data import CORRUPTIONS, FOREIGN, corrupted, long_tail
from reproduction.comparison_page import Results, write
from reproduction.report import DOCS
from reproduction.store import Record, comparable

ROOT = Path(__file__).parents[2]


def quick(*methods: str) -> Protocol:
    protocol = Protocol(seeds=[1, 2])
    protocol.settings[QUICK] |= {"methods": list(methods)}
    return protocol


def finish(protocol: Protocol, folder: Path, report: Any = lambda line: None) -> list[Record]:
    problems = run(
        protocol, [QUICK], folder / "results", folder / "work", device="cpu", report=report
    )
    assert problems == {}
    store = protocol.store(folder / "results")
    cells = [cell for one in protocol.entrants([QUICK], store) for cell in one.cells()]
    return [record for cell in cells if (record := store.get(cell)) is not None]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Record]]:
    folder = tmp_path_factory.mktemp("whole")
    return folder, finish(quick("softmax", "ensemble", "distill"), folder)


def test_records_are_complete(whole: tuple[Path, list[Record]]) -> None:
    trials = [record for record in whole[1] if "trial" in record["recipe"]]
    finals = {(r["recipe"], r["seed"]): r["result"] for r in whole[1] if r not in trials}
    assert len(trials) == 12
    names = ("softmax", "ensemble", "distill")
    assert [*finals] == [(f"quick/{name}", seed) for name in names for seed in (1, 2)]
    for result in finals.values():
        assert {*result["ood"]} == {"gaussian", "uniform"}
        assert {"energy", "knn", "vim", result["declared"]["ood"]} <= {*result["ood"]["uniform"]}
        assert result["shifted"].keys() == {"5"}
        assert 0 <= result["answered"] <= 1
    assert finals["quick/softmax", 1]["declared"] == {"errors": "max_prob", "ood": "energy"}


def test_interrupted_run_ends_with_the_same_records(
    whole: tuple[Path, list[Record]], tmp_path: Path
) -> None:
    def stop(line: str) -> None:
        if line.startswith("[2/"):
            raise KeyboardInterrupt

    protocol = quick("softmax")
    with pytest.raises(KeyboardInterrupt):
        finish(protocol, tmp_path, stop)
    assert len(protocol.store(tmp_path / "results")) == 2
    expected = [record for record in whole[1] if record["recipe"].startswith("quick/softmax")]
    again = finish(protocol, tmp_path)
    assert [*map(comparable, again)] == [*map(comparable, expected)]


def test_trials_do_not_read_ood_sets(tmp_path: Path) -> None:
    protocol = quick("softmax")
    protocol.settings[QUICK]["images"] |= {"ood": ["no such set"]}
    trial = next(protocol.entrants([QUICK]))
    (record,) = train(trial, [0], tmp_path / "trial", "cpu")
    assert {*record["result"]["by_kind"]} == {*FOREIGN}


def test_best_mean_rank_chooses() -> None:
    def record(*values: float) -> Record:
        return {"result": dict(zip(("accuracy", "nll", "errors", "foreign"), values, strict=True))}

    first, second = record(0.9, 0.3, 0.99, 0.80), record(0.8, 0.2, 0.98, 0.95)
    assert best_of([first, second]) == 0  # equal ranks
    assert best_of([first, second, record(0.85, 0.1, 0.995, 0.9)]) == 2


def test_trial_that_diverges_is_not_chosen(tmp_path: Path) -> None:
    protocol = quick("softmax")
    protocol.methods["softmax"]["trials"] = [{"lr_times": 1e30}, {}]
    trials = [*protocol.entrants([QUICK])]
    records = [train(trial, [0], tmp_path / str(i), "cpu")[0] for i, trial in enumerate(trials)]
    assert records[0]["result"] == {"accuracy": 0.0, "nll": "inf", "errors": 0.0, "foreign": 0.0}
    assert best_of(records) == 1


def test_every_method_has_as_many_trials(tmp_path: Path) -> None:
    text = (ROOT / "reproduction" / "comparison.toml").read_text("utf-8")
    (tmp_path / "other.toml").write_text(text.replace("trials = [{}, ", "trials = [", 1))
    with pytest.raises(DubitoError, match="same number of trials"):
        Protocol(tmp_path / "other.toml")


def test_page_shows_what_was_run(whole: tuple[Path, list[Record]], tmp_path: Path) -> None:
    protocol = quick("softmax", "ensemble", "distill")
    text = write(protocol, whole[0] / "results", tmp_path).read_text("utf-8")
    assert "Not run yet: `python -m reproduction comparison cifar10-vgg16`." in text
    accuracies = [r["result"]["accuracy"] for r in whole[1] if r["recipe"] == "quick/ensemble"]
    mean, spread = 100 * np.mean(accuracies), 100 * np.std(accuracies, ddof=1)
    (row,) = (line for line in text.splitlines() if line.startswith("| Ensemble of 5 softmax | 9"))
    assert f"{mean:.2f}" in row
    assert f"± {spread:.2f}" in row
    assert (tmp_path / "comparison-ranks.png").exists()


def test_gains_are_paired(whole: tuple[Path, list[Record]]) -> None:
    protocol = quick("softmax", "ensemble", "distill")
    gains = Results(protocol, whole[0] / "results").gains(QUICK)
    nll = {
        name: np.array([r["result"]["nll"] for r in whole[1] if r["recipe"] == f"quick/{name}"])
        for name in ("softmax", "ensemble")
    }
    apart = nll["softmax"] - nll["ensemble"]
    found = gains.loc["Ensemble of 5 softmax", "nll"]
    assert found["mean"] == pytest.approx(apart.mean(), rel=1e-4)
    half = 12.7062 * apart.std(ddof=1) / math.sqrt(2)  # Student's t with one degree of freedom
    assert found["half"] == pytest.approx(half, rel=1e-3)


def test_page_of_the_documentation_is_current(tmp_path: Path) -> None:
    page = write(Protocol(), ROOT / "results", tmp_path, "assets")
    assert page.read_text("utf-8") == (DOCS / "comparison.md").read_text("utf-8")


def test_corruptions_equal_other_implementations() -> None:
    images = torch.randint(256, (5, 3, 32, 32), generator=torch.Generator().manual_seed(0))
    changed = corrupted(images.to(torch.uint8), 5, torch.Generator()).numpy()
    x = images.numpy() / 255
    kinds = [*CORRUPTIONS]
    blur = kinds.index("gaussian_blur")
    blurred = gaussian_filter(x[blur], (0, 1.0, 1.0), mode="nearest")
    assert np.abs(changed[blur] / 255 - blurred).max() < 2 / 255
    bright = kinds.index("brightness")
    hsv = rgb_to_hsv(np.moveaxis(x[bright], 0, -1))
    hsv[..., 2] = np.minimum(hsv[..., 2] + 0.3, 1)
    assert np.abs(changed[bright] / 255 - np.moveaxis(hsv_to_rgb(hsv), -1, 0)).max() < 2 / 255
    contrast = kinds.index("contrast")
    ratio = changed[contrast].std() / images[contrast].float().std().item()
    assert ratio == pytest.approx(0.15, abs=0.01)


def test_foreign_images_are_made_of_the_given_ones() -> None:
    images = torch.arange(4 * 3 * 8 * 8).reshape(4, 3, 8, 8).remainder(251).to(torch.uint8)
    labels = torch.tensor([0, 0, 1, 1])
    made = {
        name: change(images, labels, torch.Generator().manual_seed(0))
        for name, change in FOREIGN.items()
    }
    patches = made["patches"]
    assert torch.equal(patches.flatten(1).sort().values, images.flatten(1).sort().values)
    assert torch.equal(patches[0, :, :2, :2] - patches[0, :, :1, :1], images[0, :, :2, :2] - images[0, :, :1, :1])  # fmt: skip # noqa: E501
    assert not torch.equal(patches, images)
    blend, others = made["blended"].int(), {0: (2, 3), 1: (2, 3), 2: (0, 1), 3: (0, 1)}
    for row, partners in others.items():
        halves = [(images[row].int() + images[other].int()) // 2 for other in partners]
        assert any(torch.equal(blend[row], half) for half in halves)
    assert torch.equal(made["inverted"], 255 - images)


def test_long_tail_has_the_ratio() -> None:
    labels = torch.arange(1000).remainder(10)
    kept = long_tail(labels, 0.01, torch.Generator().manual_seed(0))
    counts = torch.bincount(labels[kept]).tolist()
    assert (counts[0], counts[-1]) == (100, 1)
    assert counts == sorted(counts, reverse=True)
    assert len(kept.unique()) == len(kept)
