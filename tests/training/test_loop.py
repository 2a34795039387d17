"""The loop: it learns, keeps the best, stops, resumes exactly, and says what went wrong."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch.utils.data import TensorDataset

from dubito import _legacy as methods
from dubito import backbones, data
from dubito.data import Arrays, Augment
from dubito.training import CheckpointError, NonFiniteLoss, Settings, fit, fit_many
from dubito.training import checkpoint as checkpoints
from dubito.training.run import Run

DIGITS = data.load("digits", "train")
TRAIN, VALIDATION, _ = data.split(data.split(DIGITS, 0.5, seed=0)[0], 0.8, seed=0)
IEDL = methods.method("iedl")


def network(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return backbones.build("mlp", TRAIN.shape, 10, hidden=(32,))


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_it_learns_and_tells(tmp_path: Path) -> None:
    told: list[dict[str, object]] = []
    settings = Settings(epochs=8, batch_size=32, learning_rate=3e-3)
    run = fit(IEDL, network(), TRAIN, VALIDATION, settings, out=tmp_path, callback=told.append)
    assert run.best["validation_accuracy"] > 0.8
    assert not run.model.training
    assert [entry["epoch"] for entry in told] == list(range(1, 9))
    assert "validation_accuracy" in told[1]
    assert "validation_accuracy" not in told[0]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == run.history
    terms = lines[-1]["terms"]
    assert set(terms) == set(IEDL.weights(0, 8))
    expected = sum(weight * terms[name] for name, weight in IEDL.weights(7, 8).items())
    assert lines[-1]["loss"] == pytest.approx(expected)


def test_checks_compare_while_a_weight_rises() -> None:
    """A network that does not move has one validation loss, whatever the epoch's KL weight."""
    settings = Settings(epochs=4, batch_size=64, validate_every=1, learning_rate=1e-12)
    run = fit(IEDL, network(), TRAIN, VALIDATION, settings)
    first, *others = [entry["validation_loss"] for entry in run.history]
    assert others == pytest.approx([first] * 3, rel=1e-5)
    assert len({round(entry["loss"], 3) for entry in run.history}) == 4  # the training's rises


def test_the_best_weights_come_back() -> None:
    settings = Settings(epochs=6, batch_size=32, validate_every=1, learning_rate=0.02)
    run = fit(IEDL, network(), TRAIN, VALIDATION, settings)
    with torch.no_grad():
        said = IEDL.predict(run.model, VALIDATION.floats())
    right = (said.label == VALIDATION.labels).double().mean().item()
    assert right == pytest.approx(run.best["validation_accuracy"])
    assert right == max(entry["validation_accuracy"] for entry in run.history)


@pytest.mark.parametrize("keep", ["accuracy", "loss"])
def test_it_stops_when_nothing_improves(keep: str) -> None:
    settings = Settings(
        epochs=50, batch_size=64, validate_every=1, patience=3, keep=keep, learning_rate=1e-12
    )
    run = fit(IEDL, network(), TRAIN, VALIDATION, settings)
    assert run.epochs < 20
    name = f"validation_{keep}"
    last = [entry[name] for entry in run.history][-3:]
    assert last[0] == (max if keep == "accuracy" else min)(last)


def test_a_run_can_be_repeated_and_leaves_the_random_state_alone() -> None:
    settings = Settings(epochs=2, batch_size=32, seed=5)
    method = methods.method("mc_dropout")
    results = []
    for _ in range(2):
        torch.manual_seed(9)
        model = method.model(backbones.build("mlp", TRAIN.shape, 10, dropout=0.5), 10)
        state = torch.get_rng_state()
        results.append(weights(fit(method, model, TRAIN, VALIDATION, settings).model))
        assert torch.equal(torch.get_rng_state(), state)
        torch.rand(3)
    assert torch.equal(*results)


def test_a_stopped_run_goes_on_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "SHARE", math.inf)  # a checkpoint an epoch
    settings = Settings(epochs=6, batch_size=32, schedule="cosine", validate_every=1)
    whole = fit(IEDL, network(), TRAIN, VALIDATION, settings)

    class Stop(Exception):
        pass

    def stop(entry: dict[str, object]) -> None:
        if entry["epoch"] == 3:
            raise Stop

    with pytest.raises(Stop):
        fit(IEDL, network(), TRAIN, VALIDATION, settings, out=tmp_path, callback=stop)
    epochs: list[object] = []
    again = fit(
        IEDL, network(1), TRAIN, VALIDATION, settings, out=tmp_path,
        callback=lambda entry: epochs.append(entry["epoch"]),
    )  # fmt: skip
    assert epochs == [4, 5, 6]
    assert torch.equal(weights(again.model), weights(whole.model))
    finished = fit(IEDL, network(2), TRAIN, VALIDATION, settings, out=tmp_path)
    assert torch.equal(weights(finished.model), weights(whole.model))


def test_another_run_is_refused(tmp_path: Path) -> None:
    settings = Settings(epochs=1, batch_size=64)
    fit(IEDL, network(), TRAIN, VALIDATION, settings, out=tmp_path)
    other = Settings(epochs=1, batch_size=32)
    with pytest.raises(
        CheckpointError, match=r"holds another run: its settings .*'batch_size': 64"
    ):
        fit(IEDL, network(), TRAIN, VALIDATION, other, out=tmp_path)
    method = methods.method("edl")
    with pytest.raises(CheckpointError, match=r"holds another run: its method .*iedl"):
        fit(method, network(), TRAIN, VALIDATION, settings, out=tmp_path)
    changed = replace(TRAIN, labels=TRAIN.labels.flip(0))
    with pytest.raises(CheckpointError, match="holds another run: its data"):
        fit(IEDL, network(), changed, VALIDATION, settings, out=tmp_path)


def test_data_is_known_by_its_labels_and_pixels() -> None:
    pixels = replace(TRAIN, inputs=(255 * TRAIN.inputs).to(torch.uint8))
    known = pixels.fingerprint(numbers=False)
    assert known == replace(pixels, name="other").fingerprint(numbers=False)
    assert known != replace(pixels, inputs=pixels.inputs.flip(0)).fingerprint(numbers=False)
    assert known != replace(pixels, labels=pixels.labels.flip(0)).fingerprint(numbers=False)
    nearly = replace(TRAIN, inputs=TRAIN.inputs + 1e-7)
    assert nearly.fingerprint(numbers=False) == TRAIN.fingerprint(numbers=False)
    assert nearly.fingerprint() != TRAIN.fingerprint()


@pytest.mark.parametrize("damage", [b"", b"not a checkpoint", None])
def test_a_damaged_checkpoint_is_named(tmp_path: Path, damage: bytes | None) -> None:
    settings = Settings(epochs=1, batch_size=64)
    fit(IEDL, network(), TRAIN, VALIDATION, settings, out=tmp_path)
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-100] if damage is None else damage)
    with pytest.raises(CheckpointError, match=r"could not read .*checkpoint.safetensors"):
        fit(IEDL, network(), TRAIN, VALIDATION, settings, out=tmp_path)


def test_a_foreign_file_is_no_checkpoint(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match="no dubito checkpoint"):
        checkpoints.load(tmp_path / "other.safetensors")


@pytest.mark.parametrize("epoch", [0, 2])
def test_a_non_finite_loss_stops_the_run(
    tmp_path: Path, epoch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "SHARE", math.inf)  # a checkpoint an epoch

    class Explodes(torch.nn.Module):
        """Gives infinite outputs from some step on."""

        def __init__(self, steps: int) -> None:
            super().__init__()
            self.inner, self.left = network(), steps

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.left -= self.training
            return self.inner(x) * (1.0 if self.left >= 0 else torch.inf)

    batches = -(-len(TRAIN) // 32)
    message = (
        rf"not finite in epoch {epoch}, batch 4: mean terms fisher_bias .* outputs span \[-inf"
    )
    model, settings = Explodes(epoch * batches + 4), Settings(epochs=4, batch_size=32)
    with pytest.raises(NonFiniteLoss, match=message):
        fit(IEDL, model, TRAIN, VALIDATION, settings, out=tmp_path)
    if epoch:
        _, facts = checkpoints.load(tmp_path / "checkpoint.safetensors")
        assert facts["epoch"] == epoch


def test_equal_checkpoints_are_equal_files(tmp_path: Path) -> None:
    tensors = {"b": torch.arange(3.0), "a": torch.zeros(2, 2)}
    files = [tmp_path / str(number) for number in range(8)]
    for file in files:
        checkpoints.save(file, tensors, {"epoch": 1, "history": []})
    assert len({file.read_bytes() for file in files}) == 1
    read, facts = checkpoints.load(files[0])
    assert facts == {"epoch": 1, "history": []}
    assert torch.equal(read["b"], tensors["b"])


def test_checkpoints_of_before_are_read(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "old", {
        "format": "dubito-checkpoint-1", "facts": '{"epoch": 2}',
    })  # fmt: skip
    assert checkpoints.load(tmp_path / "old")[1] == {"epoch": 2}
    save_file({"a": torch.ones(1)}, tmp_path / "other", {"format": "pt"})
    with pytest.raises(CheckpointError, match="no dubito checkpoint"):
        checkpoints.load(tmp_path / "other")


@pytest.mark.parametrize("runs", [1, 5])
def test_checkpoints_take_a_small_share_of_the_time(
    monkeypatch: pytest.MonkeyPatch, runs: int
) -> None:
    clock, saved = [0.0], []
    monkeypatch.setattr(checkpoints.time, "perf_counter", lambda: clock[0])

    def slow(path: Path, tensors: object, facts: object) -> None:
        clock[0] += 3.0
        saved.append(path)

    monkeypatch.setattr(checkpoints, "save", slow)
    pace = checkpoints.Pace()
    for _ in range(10_000):
        clock[0] += 1.0
        if pace.due():
            for _ in range(runs):
                pace.save(Path("here"), {}, {})
    assert len(saved) >= 2 * runs
    assert 0.04 < 3.0 * len(saved) / clock[0] < 0.052


def test_several_seeds_are_those_of_single_runs(tmp_path: Path) -> None:
    settings = [Settings(epochs=2, batch_size=32, seed=seed) for seed in (1, 2)]
    single = [weights(fit(IEDL, network(s.seed), TRAIN, VALIDATION, s).model) for s in settings]
    many = fit_many(IEDL, [network(1), network(2)], TRAIN, VALIDATION, settings)
    for run, expected in zip(many, single, strict=True):
        assert torch.equal(weights(run.model), expected)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_torch_dataset_trains_like_data_in_memory(workers: int) -> None:
    held = [TensorDataset(part.inputs, part.labels) for part in (TRAIN, VALIDATION)]
    settings = Settings(epochs=2, batch_size=32, augment=Augment(flip=0.0, padding=1, degrees=5))
    expected = fit(IEDL, network(), TRAIN, VALIDATION, settings)
    run = fit(IEDL, network(), *held, replace(settings, workers=workers))
    assert torch.equal(weights(run.model), weights(expected.model))
    assert run.best["validation_accuracy"] == expected.best["validation_accuracy"]


def test_augmentation_optimisers_and_switches() -> None:
    settings = Settings(
        epochs=2, batch_size=50, optimizer="sgd", optimizer_options={"momentum": 0.9},
        learning_rate=0.05, augment=Augment(flip=0.0, padding=1, degrees=5), channels_last=True,
    )  # fmt: skip
    torch.manual_seed(0)
    model = backbones.build("convnet", TRAIN.shape, 10)
    run = fit(IEDL, model, TRAIN, VALIDATION, settings)
    assert run.epochs == 2
    assert all(torch.isfinite(p).all() for p in run.model.parameters())


def test_settings_say_what_is_wrong() -> None:
    with pytest.raises(ValueError, match=r"unknown optimizer 'adamm'; known: .*'adam'"):
        Settings(optimizer="adamm")
    with pytest.raises(ValueError, match="epochs must be at least 1, not 0"):
        Settings(epochs=0)
    with pytest.raises(ValueError, match="learning_rate must be > 0, not -1"):
        Settings(learning_rate=-1)
    with pytest.raises(ValueError, match="unknown precision 'half'; known: 'float32'"):
        Settings(precision="half")
    with pytest.raises(ValueError, match="graph=True needs a CUDA device"):
        fit(IEDL, network(), TRAIN, VALIDATION, Settings(graph=True))


def test_the_mean_of_the_weights_is_judged_and_kept(tmp_path: Path) -> None:
    settings = Settings(epochs=5, batch_size=32, validate_every=5, patience=0)
    seen: list[torch.Tensor] = []

    class Normed(torch.nn.Module):
        """One with batch norm."""

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first = torch.nn.Linear(64, 16)
            self.norm = torch.nn.BatchNorm1d(16)
            self.last = torch.nn.Linear(16, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.last(self.norm(self.first(x.flatten(1)).relu()))
            return out

    def after(entry: dict[str, object]) -> None:
        seen.append(weights(model))

    model = Normed()
    fit(IEDL, model, TRAIN, VALIDATION, replace(settings, validate_every=1), callback=after)
    averaged = fit(IEDL, Normed(), TRAIN, VALIDATION, replace(settings, average=3))
    expected = (seen[0] + seen[1] + seen[2]) / 3
    for later in seen[3:]:
        expected = expected.lerp(later, 1 / 3)
    torch.testing.assert_close(weights(averaged.model), expected)
    # its batch norm is that of its own activations
    assert isinstance(averaged.model, Normed)
    x = averaged.model.first(TRAIN.floats().flatten(1)).relu()
    torch.testing.assert_close(averaged.model.norm.running_mean, x.mean(0), rtol=0.02, atol=1e-3)
    chosen = replace(settings, average=3)
    with pytest.raises(KeyboardInterrupt):
        fit(IEDL, Normed(), TRAIN, VALIDATION, chosen, out=tmp_path, callback=_stop_after(3))
    resumed = fit(IEDL, Normed(), TRAIN, VALIDATION, chosen, out=tmp_path)
    assert torch.equal(weights(resumed.model), weights(averaged.model))


def _stop_after(epoch: int) -> Callable[[dict[str, object]], None]:
    def stop(entry: dict[str, object]) -> None:
        if entry["epoch"] == epoch:
            raise KeyboardInterrupt

    return stop


def test_a_watch_sees_the_network_at_each_check(tmp_path: Path) -> None:
    settings = Settings(epochs=4, batch_size=32, validate_every=2)

    def watch(model: torch.nn.Module) -> dict[str, float]:
        assert not model.training
        with torch.no_grad():
            said = IEDL.predict(model, VALIDATION.floats())
        return {"right": (said.label == VALIDATION.labels).double().mean().item()}

    watched = fit(IEDL, network(), TRAIN, VALIDATION, settings, out=tmp_path, watch=watch)
    alone = fit(IEDL, network(), TRAIN, VALIDATION, settings)
    assert torch.equal(weights(watched.model), weights(alone.model))
    assert ["watched" in entry for entry in watched.history] == [False, True, False, True]
    for entry in watched.history[1::2]:
        assert entry["watched"]["right"] == pytest.approx(entry["validation_accuracy"])


def test_a_restored_optimizer_is_laid_out_as_its_parameters(tmp_path: Path) -> None:
    """A network with more than ten parameters, images channels last, and a fused optimiser."""

    def images(count: int) -> Arrays:
        drawn = torch.Generator().manual_seed(count)
        x = torch.randint(256, (count, 1, 16, 16), dtype=torch.uint8, generator=drawn)
        return Arrays(x, torch.arange(count) % 10, tuple("0123456789"), "random")

    train, check = images(96), images(20)
    settings = Settings(epochs=3, batch_size=32, validate_every=1, patience=0)

    def convnet() -> torch.nn.Module:
        torch.manual_seed(0)
        return backbones.build("convnet", train.shape, 10)

    whole = fit(IEDL, convnet(), train, check, settings)

    class Stop(Exception):
        pass

    def stop(entry: dict[str, object]) -> None:
        if entry["epoch"] == 1:
            raise Stop

    with pytest.raises(Stop):
        fit(IEDL, convnet(), train, check, settings, out=tmp_path, callback=stop)
    run = Run(IEDL, convnet(), train, check, settings, torch.device("cpu"))
    run.restore(*checkpoints.load(tmp_path / "checkpoint.safetensors"))
    parameters = [p for group in run.optimizer.param_groups for p in group["params"]]
    assert list(run.optimizer.state) == parameters
    assert len(parameters) > 10
    for parameter, held in run.optimizer.state.items():
        assert held["exp_avg"].stride() == parameter.stride()
    again = fit(IEDL, convnet(), train, check, settings, out=tmp_path)
    assert torch.equal(weights(again.model), weights(whole.model))
