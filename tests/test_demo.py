"""The demonstration: its data, its training, its numbers and its files."""

from __future__ import annotations

import io
import json
import math
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dubito import backbones, demo
from dubito._legacy import MEASURES
from dubito._threads import one_thread
from dubito.data import Batches, embedded
from dubito.losses import EDLLoss, IEDLLoss
from dubito.report import figures, files
from dubito.report.demo import SHOWN, reading, tables
from dubito.report.tables import terminal

EPOCHS = 3
FILES = ["densities.png", "report.html", "results.json", "results.md"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "new" / "folder"


@pytest.fixture(scope="module")
def told() -> list[tuple[int, int, str]]:
    return []


@pytest.fixture(scope="module")
def results(folder: Path, told: list[tuple[int, int, str]]) -> demo.Results:
    return demo.run(folder, epochs=EPOCHS, seed=1, progress=lambda *news: told.append(news))


@pytest.fixture(scope="module")
def written(results: demo.Results, folder: Path) -> dict[str, Any]:
    return json.loads((folder / "results.json").read_text("utf-8"))


def leaves(tree: Any) -> Iterator[float]:
    """Yield the numbers of nested dictionaries and lists."""
    if isinstance(tree, dict | list):
        for branch in tree.values() if isinstance(tree, dict) else tree:
            yield from leaves(branch)
    elif isinstance(tree, float):
        yield tree


# --- the run -------------------------------------------------------------------------------------


def test_the_four_files_are_written_and_nothing_else(results: demo.Results, folder: Path) -> None:
    assert sorted(os.listdir(folder)) == FILES
    assert sorted(results.files) == FILES
    assert all(path.stat().st_size for path in results.files.values())


def test_progress_is_told_after_each_epoch(results: demo.Results, told: list[Any]) -> None:
    assert [done for done, _, _ in told] == list(range(1, 2 * EPOCHS + 1))
    assert {total for _, total, _ in told} == {2 * EPOCHS}
    assert [title for _, _, title in told] == ["EDL"] * EPOCHS + ["I-EDL"] * EPOCHS


def test_the_json_holds_every_figure(written: dict[str, Any]) -> None:
    assert list(written) == ["dubito", "settings", "samples", "methods", "examples", "reading"]
    assert written["settings"]["epochs"] == EPOCHS
    assert written["settings"]["seed"] == 1
    samples = {"train": 1258, "validation": 180, "test": 359, "patches": 359, "noisy": 359}
    assert written["samples"] == samples
    assert list(written["methods"]) == ["edl", "iedl"]
    for outcome in written["methods"].values():
        assert list(outcome) == ["title", "runs", "energy_distance"]
        assert len(outcome["runs"]) == written["settings"]["runs"]
        for run in outcome["runs"]:
            assert set(run["ood"]) == {"patches", "noisy"}
            for detection in (run["confidence"], *run["ood"].values()):
                assert list(detection) == list(MEASURES)
                assert all(
                    list(found) == ["aupr", "auroc", "fpr95"] for found in detection.values()
                )


def test_the_numbers_are_in_range(written: dict[str, Any]) -> None:
    for outcome in written["methods"].values():
        for run in outcome["runs"]:
            run = {**run, "calibration": {"ece": run["calibration"]["ece"]}}
            assert all(0 <= number <= 1 for number in leaves(run))
        assert all(0 < distance < math.sqrt(2) for distance in leaves(outcome["energy_distance"]))
    assert all(0 <= number <= 1 for number in leaves(written["examples"]))


def test_the_methods_learn_and_doubt_what_is_no_digit(results: demo.Results) -> None:
    for outcome in results.methods.values():
        for scores in outcome.runs:
            assert scores.accuracy > 0.7  # chance is 0.1
            assert scores.refused["patches"] > 2 * scores.refused["digits"]


def test_the_threshold_keeps_its_promise(results: demo.Results) -> None:
    for outcome in results.methods.values():
        for scores in outcome.runs:
            assert scores.refused["validation"] <= 1 - results.settings.accepted


def test_a_seed_gives_the_same_files(results: demo.Results, folder: Path, tmp_path: Path) -> None:
    torch.rand(7)  # the state of the global generator must not matter
    demo.run(tmp_path, epochs=EPOCHS, seed=1)
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), name


def test_torch_is_left_as_it_was() -> None:
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        data = embedded.digits()
        with one_thread():
            assert torch.get_num_threads() == 1
            demo._train(EDLLoss(), data.validation, demo.Settings(epochs=1), lambda epoch: None)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "loss", [EDLLoss(), IEDLLoss(fisher_weight=0.05, kl_ramp=2)], ids=["edl", "iedl"]
)
def test_runs_side_by_side_are_what_each_is_alone(loss: EDLLoss | IEDLLoss) -> None:
    settings = demo.Settings(epochs=3, runs=3, seed=5)
    data = embedded.digits().validation
    together = demo._train(loss, data, settings, lambda epoch: None)(data.floats())
    for i in range(settings.runs):
        torch.testing.assert_close(together[i], alone(loss, i, settings), rtol=1e-3, atol=1e-3)


def alone(loss: EDLLoss | IEDLLoss, index: int, settings: demo.Settings) -> Tensor:
    """Train one network by itself, with the start and the batches that it has beside others."""
    data = embedded.digits().validation
    torch.manual_seed(settings.seed)
    networks = [backbones.build("mlp", (1, 8, 8), 10, hidden=(256,)) for _ in range(settings.runs)]
    network = networks[index]
    optimiser = torch.optim.Adam(network.parameters(), lr=5e-3, weight_decay=1e-4)
    generator = torch.Generator().manual_seed(settings.seed)
    for epoch in range(settings.epochs):
        loss.set_epoch(epoch)
        orders = [torch.randperm(len(data), generator=generator) for _ in networks]
        for chosen in orders[index].split(64):
            optimiser.zero_grad()
            loss(network(data.floats()[chosen]), data.labels[chosen]).backward()
            optimiser.step()
    with torch.no_grad():
        logits: Tensor = network(data.floats())
    return logits


def test_bad_settings_are_named() -> None:
    with pytest.raises(ValueError, match="epochs must be at least 1, not 0"):
        demo.Settings(epochs=0)
    with pytest.raises(ValueError, match="seed must be at least 0, not -1"):
        demo.Settings(seed=-1)


# --- what is told of it --------------------------------------------------------------------------


def test_tables_show_the_means_of_the_runs(results: demo.Results, written: dict[str, Any]) -> None:
    digits, patches, _ = tables(results)
    runs = [outcome["runs"] for outcome in written["methods"].values()]
    accuracy = [100 * np.mean([run["accuracy"] for run in of]) for of in runs]
    assert [cell.text.split()[0] for cell in digits.rows[0][1]] == [f"{a:.1f}" for a in accuracy]
    found = [
        100 * np.std([r["ood"]["patches"]["alpha0"]["auroc"] for r in of], ddof=1) for of in runs
    ]
    row = dict(patches.rows)[MEASURES["alpha0"].label]
    assert [cell.text.split("±")[1] for cell in row[2:]] == [f"{f:.1f}" for f in found]
    assert len(patches.rows) == len(SHOWN)


def test_the_markdown_has_every_measure(results: demo.Results) -> None:
    text = results.files["results.md"].read_text("utf-8")
    for measure in MEASURES.values():
        assert text.count(f"| {measure.label} | ") == 2
    assert reading(results) in text


def test_the_reading_follows_the_numbers(results: demo.Results) -> None:
    base, ours = results.methods.values()
    counts = re.compile(r"run for (\d+) and the worse one in every run for (\d+)")

    def counted(first: demo.Outcome, second: demo.Outcome) -> tuple[str, str]:
        found = counts.search(reading(replace(results, methods={"edl": first, "iedl": second})))
        assert found
        return found[1], found[2]

    better, worse = counted(base, ours)
    assert counted(ours, base) == (worse, better)
    assert counted(base, base) == ("0", "0")
    half = replace(ours, runs=tuple(replace(scores, accuracy=0.5) for scores in ours.runs))
    assert "is right on 50.0 %" in reading(replace(results, methods={"edl": base, "iedl": half}))


def test_a_run_without_a_mistake_has_a_dash(results: demo.Results, tmp_path: Path) -> None:
    flawless = {
        name: replace(
            outcome, runs=tuple(replace(scores, confidence={}) for scores in outcome.runs)
        )
        for name, outcome in results.methods.items()
    }
    row = tables(replace(results, methods=flawless))[0].rows[2]
    assert row[0].startswith("Right or wrong")
    assert [cell.text for cell in row[1]] == ["–", "–"]


def test_tables_fit_a_terminal_of_80_columns(results: demo.Results) -> None:
    from rich.console import Console

    console = Console(width=80, record=True, file=io.StringIO())
    for table in tables(results):
        console.print(terminal(table))
        for name, row in table.rows:
            line = re.escape(name) + r"\s+" + r"\s+".join(re.escape(cell.text) for cell in row)
            assert re.search(line, console.export_text(clear=False))


def test_examples_are_what_they_are_called(results: demo.Results) -> None:
    found = {example.heading: example for example in results.examples}
    scores = results.methods["iedl"].runs[0]
    surest, torn = found["The surest digit"], found["The most torn digit"]
    assert surest.label == surest.truth
    assert surest.vacuity < torn.vacuity
    assert torn.second_belief > surest.second_belief
    mistake = found["The surest mistake"]
    assert mistake.label != mistake.truth
    doubted, believed = found["The most doubted patch"], found["The most believed patch"]
    assert doubted.truth is believed.truth is None
    assert doubted.vacuity >= believed.vacuity
    for example in results.examples:
        assert example.refused == (example.vacuity > scores.vacuity_threshold)
        assert example.belief + example.second_belief + example.vacuity <= 1 + 1e-6


class Page(HTMLParser):
    """Collects the addresses, the tags left open and the text of a page."""

    VOID = frozenset({"meta", "img", "br", "source"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [v or "" for k, v in attrs if k in ("src", "srcset", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_stands_alone(results: demo.Results) -> None:
    text = results.files["report.html"].read_text("utf-8")
    page = Page(text)
    assert page.open == []
    assert len(page.addresses) == 2 + len(results.examples)
    assert all(address.startswith("data:image/png;base64,") for address in page.addresses)
    assert not re.search(r"https?:|<script|<link|@import|url\(", text)
    assert "prefers-color-scheme: dark" in text
    assert reading(results) in page.text
    for example in results.examples:
        assert example.heading in page.text
    for table in tables(results, MEASURES):
        assert all(cell.text in page.text for _, row in table.rows for cell in row)


def test_the_picture_is_small_and_not_blank(results: demo.Results) -> None:
    from PIL import Image

    path = results.files["densities.png"]
    assert path.stat().st_size < 200_000
    with Image.open(path) as image:
        assert image.size[0] > image.size[1] > 400
        colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 20) or []}
    wanted = {tuple(int(c[i : i + 2], 16) for i in (1, 3, 5)) for c in figures.COLOURS[:3]}
    assert wanted <= colours


# --- its parts -----------------------------------------------------------------------------------


def test_digits_are_divided_without_overlap() -> None:
    parts = embedded.digits(3)
    keys = [x.numpy().tobytes() for part in vars(parts).values() for x in part.floats()]
    everything = embedded.DATASETS["digits"].load("all")
    assert sorted(keys) == sorted(x.numpy().tobytes() for x in everything.floats())
    for part in vars(parts).values():
        assert part.shape == (1, 8, 8)
        assert part.floats().aminmax() == (0, 1)
        assert part.class_counts.min() > 0.8 * part.class_counts.max()
    again, other = embedded.digits(3), embedded.digits(4)
    assert torch.equal(again.test.floats(), parts.test.floats())
    assert not torch.equal(other.test.labels, parts.test.labels)


def test_patches_are_cut_from_the_photographs() -> None:
    from PIL import Image
    from sklearn.datasets import load_sample_images

    patches = embedded.patches(9, seed=2)
    assert patches.shape == (9, 1, 8, 8)
    small = []
    for pixels in load_sample_images().images:
        grey = Image.fromarray(pixels).convert("L")
        width, height = (4 * (side // 4) for side in grey.size)
        box = grey.crop((0, 0, width, height)).resize(
            (width // 4, height // 4), Image.Resampling.BOX
        )
        small.append(np.lib.stride_tricks.sliding_window_view(np.asarray(box) / 255, (8, 8)))
    for i, patch in enumerate(patches[:, 0].numpy()):
        photograph = small[0 if i < 5 else 1]  # five of the first, four of the second
        assert np.abs(photograph - patch).max((2, 3)).min() < 1.5 / 255  # PIL rounds twice


def test_patches_follow_the_seed_and_keep_their_contrast() -> None:
    patches = embedded.patches(300, seed=2)
    assert torch.equal(patches, embedded.patches(300, seed=2))
    assert not torch.equal(patches, embedded.patches(300, seed=3))
    assert len(patches.flatten(1).unique(dim=0)) == 300
    assert 0 <= patches.min() < 0.1
    assert 0.9 < patches.max() <= 1
    contrast = patches.flatten(1).std(1)
    assert contrast.min() < 0.1 * contrast.max()


@pytest.mark.parametrize("count", [0, 10**6])
def test_a_wrong_number_of_patches_is_named(count: int) -> None:
    with pytest.raises(ValueError, match=rf"count must be from 1 to \d+, .* not {count}"):
        embedded.patches(count)


def test_noise_has_its_deviation_and_stays_in_range() -> None:
    grey = torch.full((2000, 8), 0.5)
    noise = embedded.noisy(grey, 0.05, seed=1) - grey
    assert noise.std().item() == pytest.approx(0.05, rel=0.03)
    assert noise.mean().item() == pytest.approx(0, abs=2e-3)
    strong = embedded.noisy(grey, 1.0, seed=1)
    assert (strong.min().item(), strong.max().item()) == (0, 1)
    assert torch.equal(embedded.noisy(grey, 0.0), grey)
    with pytest.raises(ValueError, match=r"deviation must be >= 0, not -0\.1"):
        embedded.noisy(grey, -0.1)


def test_density_is_that_of_the_sample() -> None:
    from scipy.stats import norm

    grid, random = np.linspace(0, 1, 501), np.random.default_rng(0)
    wanted = norm(0.4, 0.06).pdf(grid)
    found = figures.density(random.normal(0.4, 0.06, 4000), grid)
    assert np.abs(found - wanted).max() < 0.08 * wanted.max()
    at_end = figures.density(random.uniform(0, 0.3, 4000), grid)
    assert np.trapezoid(at_end, grid) == pytest.approx(1, abs=1e-3)
    assert at_end[0] == pytest.approx(1 / 0.3, rel=0.15)  # without the mirror, half of that
    constant = figures.density(np.full(5, 0.5), grid)
    assert np.trapezoid(constant, grid) == pytest.approx(1, abs=1e-6)


def test_a_file_is_replaced_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = files.write(tmp_path / "a.txt", "first ±")
    assert path.read_text("utf-8") == "first ±"

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        files.write(path, b"second")
    assert path.read_text("utf-8") == "first ±"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_file_for_which_there_is_no_room_is_named(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(OSError, match=r"File too large: '.*long\.txt'"):
            files.write(tmp_path / "long.txt", b"x" * 101)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("below", ["", "further/down"])
def test_a_folder_that_cannot_be_is_named(tmp_path: Path, below: str) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(
        OSError, match=r"cannot write to the folder '.*taken.*': a file is in the way"
    ):
        files.folder(tmp_path / "taken" / below)


def test_batches_of_the_runs_differ() -> None:
    data = embedded.digits().validation
    generator = torch.Generator().manual_seed(0)
    first, second = (Batches(data, 64, generator) for _ in range(2))
    (_, a), (_, b) = next(iter(zip(first, second, strict=True)))
    assert not torch.equal(a, b)
