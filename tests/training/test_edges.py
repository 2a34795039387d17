"""Rare moments of a training: batches left over, a kill between two files, weights in two places,
a loss that is no number."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from dubito import _legacy as methods
from dubito.data import Arrays
from dubito.training import CheckpointError, NonFiniteLoss, Settings, fit
from dubito.training import checkpoint as checkpoints
from dubito.training.run import Run

IEDL = methods.method("iedl")
SHORT = Settings(epochs=3, batch_size=32, validate_every=1, patience=0)


def blobs(count: int, seed: int = 1) -> Arrays:
    """Two classes of four features each."""
    drawn = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 2
    inputs = torch.randn(count, 4, generator=drawn) + 1.5 * labels[:, None]
    return Arrays(inputs, labels, ("a", "b"))


TRAIN, CHECK = blobs(128), blobs(50, seed=2)


class Normed(nn.Module):
    """A network with batch norm."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.norm(self.first(x)).relu())
        return out


class Tied(nn.Module):
    """A network that goes through one layer twice, under two names."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)
        self.second = self.first

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.second(self.first(x).relu()))
        return out


def stop_after(epoch: int) -> Callable[[dict[str, object]], None]:
    def stop(entry: dict[str, object]) -> None:
        if entry["epoch"] == epoch:
            raise KeyboardInterrupt

    return stop


def stopped(model: nn.Module, folder: Path, epoch: int, settings: Settings = SHORT) -> None:
    """A training that ends after an epoch; its checkpoint is that epoch's."""
    with pytest.raises(KeyboardInterrupt):
        fit(IEDL, model, TRAIN, CHECK, settings, out=folder, callback=stop_after(epoch))


def assert_equal_weights(one: nn.Module, other: nn.Module) -> None:
    expected = other.state_dict()
    for name, value in one.state_dict().items():
        assert torch.equal(value, expected[name]), name


# --- the mean of the weights, and batch norm ------------------------------------------------------


def assert_settled(model: nn.Module, inputs: Tensor) -> None:
    """Batch norm's statistics are those of the layer before it, for these inputs."""
    assert isinstance(model, Normed)
    seen = model.first(inputs).detach()
    torch.testing.assert_close(model.norm.running_mean, seen.mean(0), rtol=0.02, atol=0.05)
    torch.testing.assert_close(model.norm.running_var, seen.var(0), rtol=0.05, atol=0.0)


@pytest.mark.parametrize("left_over", [1, 2])
def test_a_few_samples_left_over_do_not_decide_the_mean_network_s_batch_norm(
    left_over: int,
) -> None:
    train = blobs(1000 + left_over)  # statistics are taken from up to a thousand at once
    settings = replace(SHORT, average=2, epochs=2, batch_size=64)
    assert_settled(fit(IEDL, Normed(), train, CHECK, settings).model, train.inputs)


def test_a_small_last_batch_of_a_dataset_does_not_decide_it_either() -> None:
    train = blobs(130)
    held = TensorDataset(train.inputs, train.labels)
    settings = replace(SHORT, average=2, epochs=2, batch_size=64)
    assert_settled(fit(IEDL, Normed(), held, CHECK, settings).model, train.inputs)


def test_batch_norm_that_a_network_holds_fixed_stays_as_it_is() -> None:
    class Fixed(Normed):
        """Its statistics are those of another training."""

        def __init__(self) -> None:
            super().__init__()
            assert self.norm.running_mean is not None
            assert self.norm.running_var is not None
            self.norm.running_mean.fill_(3.0)
            self.norm.running_var.fill_(5.0)

        def train(self, mode: bool = True) -> Fixed:
            super().train(mode)
            self.norm.eval()
            return self

    model = fit(IEDL, Fixed(), TRAIN, CHECK, replace(SHORT, average=2)).model
    assert isinstance(model, Fixed)
    held = model.norm.state_dict()
    assert torch.equal(held["running_mean"], torch.full((8,), 3.0))
    assert torch.equal(held["running_var"], torch.full((8,), 5.0))
    assert model.norm.momentum == 0.1


# --- random numbers of a dataset ------------------------------------------------------------------


class Drawing(Dataset[tuple[Tensor, Tensor]]):
    """Samples whose first feature is drawn anew whenever they are read, as augmentations are."""

    def __len__(self) -> int:
        return len(TRAIN)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.cat([torch.rand(1), TRAIN.inputs[index, 1:]]), TRAIN.labels[index]


def draws_of(settings: Settings) -> list[list[float]]:
    """What was drawn, a list for each epoch of a training with such samples."""
    seen: list[float] = []

    class Listening(Normed):
        """Keeps the first feature of what it is trained with."""

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                seen.extend(x[:, 0].tolist())
            return super().forward(x)

    fit(IEDL, Listening(), Drawing(), CHECK, settings)
    return [seen[i : i + len(TRAIN)] for i in range(0, len(seen), len(TRAIN))]


def test_a_dataset_read_by_a_worker_draws_other_numbers_in_each_epoch() -> None:
    settings = replace(SHORT, workers=1, epochs=2)
    first, second = draws_of(settings)
    assert len(set(first)) == len(TRAIN)
    assert not set(first) & set(second)
    assert draws_of(settings) == [first, second]  # and the same in the same training


# --- stopped at a bad moment ----------------------------------------------------------------------


def line_missing(text: str) -> str:
    return "".join(text.splitlines(keepends=True)[:-1])


def line_torn(text: str) -> str:
    return text[:-40]


@pytest.mark.parametrize(
    ("epoch", "damage"), [(2, line_torn), (3, line_torn), (3, line_missing)],
    ids=["torn", "torn-at-the-end", "missing-at-the-end"],
)  # fmt: skip
def test_the_metrics_of_a_killed_run_are_whole_again(
    tmp_path: Path, epoch: int, damage: Callable[[str], str]
) -> None:
    """It was killed with its checkpoint written and the epoch's line not, or half of it."""
    stopped(Normed(), tmp_path, epoch)
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(damage(metrics.read_text()))
    run = fit(IEDL, Normed(), TRAIN, CHECK, SHORT, out=tmp_path)
    assert [entry["epoch"] for entry in run.history] == [1, 2, 3]
    assert [json.loads(line) for line in metrics.read_text().splitlines()] == run.history


def test_a_file_half_written_when_the_process_was_killed_is_removed(tmp_path: Path) -> None:
    stopped(Normed(), tmp_path, 1)
    left = tmp_path / ".checkpoint.safetensors.123-4a.part"
    left.write_bytes(b"half of")
    fit(IEDL, Normed(), TRAIN, CHECK, SHORT, out=tmp_path)
    assert not left.exists()


def test_a_checkpoint_from_before_there_was_a_setting_goes_on(tmp_path: Path) -> None:
    stopped(Normed(), tmp_path, 2)
    path = tmp_path / "checkpoint.safetensors"
    tensors, facts = checkpoints.load(path)
    del facts["settings"]["average"]
    checkpoints.save(path, tensors, facts)
    with pytest.raises(CheckpointError, match="holds another run: its settings"):
        fit(IEDL, Normed(), TRAIN, CHECK, replace(SHORT, average=2), out=tmp_path)
    run = fit(IEDL, Normed(), TRAIN, CHECK, SHORT, out=tmp_path)
    assert_equal_weights(run.model, fit(IEDL, Normed(), TRAIN, CHECK, SHORT).model)


def test_a_long_training_keeps_the_mean_of_a_tenth_of_its_epochs(tmp_path: Path) -> None:
    long = replace(SHORT, epochs=20, validate_every=20)
    found = fit(IEDL, Normed(), TRAIN, CHECK, long).model
    assert_equal_weights(found, fit(IEDL, Normed(), TRAIN, CHECK, replace(long, average=2)).model)
    plain = fit(IEDL, Normed(), TRAIN, CHECK, replace(long, average=0), out=tmp_path).model
    assert not torch.equal(plain.get_parameter("first.weight"), found.get_parameter("first.weight"))
    with pytest.raises(CheckpointError, match=r"its settings is .*'average': 0.*'average': 2"):
        fit(IEDL, Normed(), TRAIN, CHECK, long, out=tmp_path)
    falling = replace(long, schedule="cosine")
    assert [one.averaged for one in (SHORT, replace(long, epochs=19), falling)] == [0, 0, 0]


def test_a_network_that_can_t_be_copied_says_what_to_do() -> None:
    class Held(Normed):
        """It holds what belongs to one process."""

        def __init__(self) -> None:
            super().__init__()
            self.file = threading.Lock()

    settings = replace(SHORT, epochs=20)
    with pytest.raises(TypeError, match=r"Held can't be copied.*train it with average=0"):
        fit(IEDL, Held(), TRAIN, CHECK, settings)
    assert fit(IEDL, Held(), TRAIN, CHECK, replace(settings, average=0)).epochs == 20


def test_a_network_with_tied_weights_is_saved_and_goes_on(tmp_path: Path) -> None:
    whole = fit(IEDL, Tied(), TRAIN, CHECK, SHORT)
    stopped(Tied(), tmp_path, 2)
    run = fit(IEDL, Tied(seed=1), TRAIN, CHECK, SHORT, out=tmp_path)
    assert isinstance(run.model, Tied)
    assert run.model.second.weight is run.model.first.weight
    assert_equal_weights(run.model, whole.model)


# --- what is best, and what is seen ---------------------------------------------------------------


def checked(losses: list[float], settings: Settings) -> Run:
    """A run whose checks gave these losses; its last bias is the number of the epoch."""
    run = Run(IEDL, Normed(), TRAIN, CHECK, settings, torch.device("cpu"))
    for loss in losses:
        run.epoch += 1
        nn.init.constant_(run.model.last.bias, run.epoch)  # type: ignore[union-attr, arg-type]
        entry = {"validation_accuracy": 0.5, "validation_loss": loss}
        run.keep_if_best(entry)
        run.history.append(entry)
    return run


def test_a_loss_that_is_nan_at_first_does_not_keep_later_ones_from_being_the_best() -> None:
    run = checked([math.nan, 0.9, 0.1, 0.3], Settings(keep="loss", average=0))
    assert run.best_epoch == 3
    assert run.best["last.bias"].tolist() == [3.0, 3.0]


def test_checks_that_are_all_nan_bring_nothing_better() -> None:
    settings = Settings(keep="loss", patience=3)
    assert not checked([math.nan] * 2, settings).finished()
    assert checked([math.nan] * 3, settings).finished()


def test_tensors_that_a_watch_gives_are_stored_as_numbers(tmp_path: Path) -> None:
    def watch(model: nn.Module) -> dict[str, object]:
        assert isinstance(model, Normed)
        return {"norm": model.last.weight.norm(), "outputs": torch.tensor(2), "name": "it"}

    run = fit(IEDL, Normed(), TRAIN, CHECK, replace(SHORT, epochs=1), out=tmp_path, watch=watch)
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    seen = json.loads(line)["watched"]
    assert seen == run.history[0]["watched"]
    assert isinstance(run.model, Normed)
    assert seen == {"norm": run.model.last.weight.norm().item(), "outputs": 2, "name": "it"}


# --- settings that can't work ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lbfgs", "sparseadam"])
def test_an_optimizer_that_no_step_can_use_is_unknown(name: str) -> None:
    with pytest.raises(ValueError, match=rf"unknown optimizer '{name}'; known: .*'adam'.*'sgd'"):
        Settings(optimizer=name)


def test_a_patience_of_one_check_is_refused() -> None:
    with pytest.raises(ValueError, match="patience must be 0 or at least 2, not 1: a single check"):
        Settings(patience=1)
    assert [Settings(patience=patience).patience for patience in (0, 2)] == [0, 2]


@pytest.mark.parametrize("name", ["epochs", "batch_size", "validate_every", "patience", "average"])
def test_counts_are_whole_numbers(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a whole number, not 2.5"):
        Settings(**{name: 2.5})  # type: ignore[arg-type]


def test_an_augmentation_is_told_when_it_is_given() -> None:
    with pytest.raises(TypeError, match=r"augment must be a dubito\.data\.Augment, not \{'flip'"):
        Settings(augment={"flip": 0.5})  # type: ignore[arg-type]


# --- what a check counts --------------------------------------------------------------------------


def test_soft_labels_are_checked_by_their_most_likely_class() -> None:
    soft = 0.8 * torch.eye(2)[CHECK.labels] + 0.1
    found = []
    for target in (CHECK.labels[:2], soft[:2], CHECK.labels, soft):  # also as many as classes
        held = TensorDataset(CHECK.inputs[: len(target)], target)
        model = Tied()
        fit(IEDL, model, TRAIN, held, SHORT)
        right = model(held[:][0]).argmax(-1) == CHECK.labels[: len(target)]
        run = Run(IEDL, model, TRAIN, held, SHORT, torch.device("cpu"))
        found.append(run.validate()["validation_accuracy"])
        assert found[-1] == right.double().mean()
    assert found[0] == found[1]
    assert found[2] == found[3]


def test_accuracy_is_a_share_of_the_pixels_where_each_has_a_label() -> None:
    pixels = TensorDataset(torch.randn(8, 3, 3, 4), torch.zeros(8, 3, 3, dtype=torch.long))
    for entry in fit(IEDL, nn.Linear(4, 2), pixels, pixels, SHORT).history:
        assert 0 <= entry["validation_accuracy"] <= 1


@pytest.mark.parametrize("part", ["training", "validation"])
def test_no_samples_are_an_error_before_any_training(part: str) -> None:
    none = TensorDataset(torch.zeros(0, 4), torch.zeros(0, dtype=torch.long))
    train, held = (none, CHECK) if part == "training" else (TRAIN, none)
    with pytest.raises(ValueError, match=f"there are no {part} samples"):
        fit(IEDL, Tied(), train, held, SHORT)


def test_a_last_step_that_ruins_the_network_is_a_loss_that_is_not_finite() -> None:
    class Ruined(Tied):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if self.training else torch.full((len(x), 2), torch.inf)

    with pytest.raises(NonFiniteLoss, match=r"after epoch 1 .* span \[inf, inf\]"):
        fit(IEDL, Ruined(), TRAIN, CHECK, SHORT)


def test_one_sample_left_over_is_no_batch_for_batch_norm() -> None:
    few = blobs(65)
    for train in (few, TensorDataset(few.inputs, few.labels)):
        found = fit(IEDL, Normed(), train, CHECK, replace(SHORT, batch_size=64))
        assert found.epochs == 3
        assert found.best["validation_accuracy"] > 0.5
    seen: list[int] = []

    class Counting(Tied):
        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                seen.append(len(x))
            return super().forward(x)

    fit(IEDL, Counting(), few, CHECK, replace(SHORT, batch_size=64))
    assert seen == [64, 1] * 3  # a network without it learns from all
