import random
import resource
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dubito.augmentations import AUGMENTATIONS
from dubito.errors import DubitoError
from dubito.formats import ArrayFormat, Preprocessing
from dubito.model import Model
from dubito.targets import Target
from dubito.training import TrainConfig, Trainer
from dubito.training.config import GroupOptions
from tests.training.helpers import (
    SHORT,
    TASK,
    TRAIN,
    VALIDATION,
    AtEpochEnd,
    Normed,
    StopIn,
    Stream,
    small_model,
    weights,
    wrap,
)
from tools import resume_proof

CHECKPOINT = "checkpoint.safetensors"


def with_values(**values: Any) -> TrainConfig:
    return SHORT.model_copy(update=values)


def resumed(
    make: Any, config: TrainConfig, out: Path, train: Any, validation: Any = VALIDATION
) -> Model:
    """Train with an interruption in the third epoch."""
    with pytest.raises(KeyboardInterrupt):
        Trainer(config, callbacks=[StopIn(3)]).fit(make(), train, validation, out=out)
    model: Model = make()
    nn.init.zeros_(next(model.network.parameters()))  # the checkpoint has the weights
    Trainer(config).fit(model, train, validation, out=out)
    return model


PHOTOS = torch.randint(256, (128, 3, 8, 8), dtype=torch.uint8, generator=torch.manual_seed(0))
FINE_TUNING: dict[str, Any] = {
    "optimizer": "adamw", "schedule": "cosine", "warmup_steps": 0.1, "max_grad_norm": 0.1,
    "ema_decay": 0.9, "layer_decay": 0.5, "augment": AUGMENTATIONS.build("photo"),
    "param_groups": {"*.bias": GroupOptions(weight_decay=0.0)},
}  # fmt: skip


def photo_backbone(shape: tuple[int, ...]) -> nn.Module:
    layers = [nn.Flatten(), nn.Linear(192, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2)]
    backbone = nn.Sequential(*layers)
    backbone.out_features = 8  # type: ignore[assignment]
    return backbone


def photo_model() -> Model:
    """Build a network with batch norm and dropout for photos."""
    format = ArrayFormat(shape=(3, 8, 8), dtype="uint8")
    return Model.build("iedl", TASK, Preprocessing(inputs=format), photo_backbone)


class Tied(nn.Module):
    """Network with one layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)
        self.second = self.first

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.last(self.second(self.first(x).relu()))
        return outputs


@pytest.mark.parametrize(
    ("make", "values", "train"),
    [
        (lambda: small_model("mc_dropout"), {"schedule": "cosine"}, TRAIN),
        (lambda: wrap(Normed()), {"average_epochs": 3}, TRAIN),
        (lambda: wrap(Normed()), {"optimizer": "sgd"}, (Stream(TRAIN[0]), TRAIN[1])),
        (lambda: small_model("kl_pn"), {"keep": "nll"}, TRAIN),
        (lambda: wrap(Tied()), {"optimizer": "nadam"}, TRAIN),
        (photo_model, FINE_TUNING, (PHOTOS, TRAIN[1])),
        (small_model, {}, (TRAIN[0], Target(TRAIN[1], torch.rand(128)))),
        (lambda: small_model("daedl"), {"average_epochs": 3}, TRAIN),
        (small_model, {"label_smoothing": 0.1, "mixup": 0.4}, TRAIN),
    ],
    ids=[
        "dropout",
        "averaged",
        "streamed",
        "ood",
        "tied",
        "fine-tuning",
        "weighted",
        "spectral norm",
        "mixed",
    ],
)
def test_interrupted_training_ends_with_the_same_weights(
    tmp_path: Path, make: Any, values: dict[str, Any], train: Any
) -> None:
    config = with_values(epochs=5, **values)
    validation = train if train[0] is PHOTOS else VALIDATION
    model = make()
    history = Trainer(config).fit(model, train, validation)
    again = resumed(make, config, tmp_path, train, validation)
    assert torch.equal(weights(again), weights(model))
    finished = make()
    restored = Trainer(config).fit(finished, train, validation, out=tmp_path)
    assert torch.equal(weights(finished), weights(model))
    assert restored.best["validation"] == history.best["validation"]


@pytest.mark.parametrize("keep", ["nll", "last"])
def test_interrupted_training_can_be_finished(tmp_path: Path, keep: str) -> None:
    config = with_values(epochs=9, average_epochs=3, keep=keep)
    with pytest.raises(KeyboardInterrupt):
        Trainer(config, callbacks=[StopIn(4)]).fit(wrap(Normed()), TRAIN, VALIDATION, out=tmp_path)
    model = wrap(Normed())
    trainer = Trainer(config, callbacks=[StopIn(4)])
    history = trainer.fit(model, TRAIN, VALIDATION, out=tmp_path, finish=True)
    assert len(history.records) == 3
    assert not model.network.training
    dist = model(VALIDATION[0]).predictive
    metrics = model.task.metrics(dist, VALIDATION[1])
    assert metrics == pytest.approx({k: history.best["validation"][k] for k in metrics})
    assert history.best_epoch == 3 if keep == "last" else history.best_epoch > 0
    resumed = wrap(Normed())
    Trainer(config).fit(resumed, TRAIN, VALIDATION, out=tmp_path)  # may still be trained on
    whole = wrap(Normed())
    Trainer(config).fit(whole, TRAIN, VALIDATION)
    assert torch.equal(weights(resumed), weights(whole))


def test_training_without_a_checkpoint_cannot_be_finished(tmp_path: Path) -> None:
    with pytest.raises(DubitoError, match=f"{tmp_path} has no weights to finish with: .*validati"):
        Trainer(SHORT).fit(small_model(), TRAIN, VALIDATION, out=tmp_path, finish=True)


@pytest.mark.parametrize("kind", resume_proof.KINDS)
def test_killed_training_ends_with_the_same_weights(kind: str, tmp_path: Path) -> None:
    chance = random.Random(time.time_ns())
    assert resume_proof.prove(kind, kills=2, folder=tmp_path, chance=chance, epochs=12) >= 1


@pytest.mark.parametrize(
    ("values", "model", "train", "message"),
    [
        ({"batch_size": 64}, small_model(), TRAIN, r"another batch_size \(32, now 64\)"),
        ({"average_epochs": 2}, small_model(), TRAIN, r"another average_epochs \(0, now 2\)"),
        ({}, small_model("edl"), TRAIN, r"another method \(IEDL\("),
        ({}, small_model(hidden=(9,)), TRAIN, "another network"),
        ({}, small_model(), (TRAIN[0] + 1e-7, TRAIN[1]), "another data"),
        ({}, small_model(), (TRAIN[0], TRAIN[1].flip(0)), "another data"),
    ],
    ids=["setting", "average", "method", "network", "inputs", "targets"],
)  # fmt: skip
def test_folder_of_another_training_is_refused(
    tmp_path: Path, values: dict[str, Any], model: Model, train: Any, message: str
) -> None:
    Trainer(with_values(epochs=1)).fit(small_model(), TRAIN, VALIDATION, out=tmp_path)
    with pytest.raises(DubitoError, match=f"{tmp_path} contains another training, with {message}"):
        Trainer(with_values(epochs=1, **values)).fit(model, train, VALIDATION, out=tmp_path)


def test_options_of_speed_may_change(tmp_path: Path) -> None:
    config = with_values(epochs=4)
    with pytest.raises(KeyboardInterrupt):
        Trainer(config, callbacks=[StopIn(2)]).fit(
            small_model(), TRAIN, VALIDATION, out=tmp_path
        )  # fmt: skip
    other = config.model_copy(update={"workers": 2, "channels_last": False, "compile": True})
    assert len(Trainer(other).fit(small_model(), TRAIN, VALIDATION, out=tmp_path).records) == 4


def test_part_of_a_file_that_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    Trainer(SHORT).fit(small_model(), TRAIN, VALIDATION, out=tmp_path)
    left = tmp_path / f".{CHECKPOINT}.123-4a.part"
    left.write_bytes(b"half of it")
    Trainer(SHORT).fit(small_model(), TRAIN, VALIDATION, out=tmp_path)
    assert not left.exists()


def test_full_disk_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(progress: Any) -> None:
        if progress.epoch == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))

    try:
        with pytest.raises(DubitoError, match=f"cannot write {tmp_path / CHECKPOINT}"):
            Trainer(SHORT, callbacks=[AtEpochEnd(fill)]).fit(
                small_model(), TRAIN, VALIDATION, out=tmp_path
            )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    expected = small_model()
    Trainer(SHORT).fit(expected, TRAIN, VALIDATION)
    model, epochs = small_model(seed=1), []
    Trainer(SHORT, callbacks=[AtEpochEnd(lambda p: epochs.append(p.epoch))]).fit(
        model, TRAIN, VALIDATION, out=tmp_path
    )
    assert epochs == [2, 3]
    assert torch.equal(weights(model), weights(expected))
    assert not list(tmp_path.glob("*.part"))
