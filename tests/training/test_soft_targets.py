"""Label smoothing and mixup: what the network and the loss see, and who may train with them."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dubito.errors import DubitoError
from dubito.formats import FORMATS, Preprocessing
from dubito.methods import METHODS, Method
from dubito.model import Model
from dubito.targets import Target
from dubito.training import TrainConfig, Trainer
from tests.outside.method import MyMoDEX
from tests.training.helpers import SHORT, TASK, TRAIN, regression, small_model, weights, wrap


def train(model: Model, data: Any = TRAIN, **values: Any) -> Model:
    config = TrainConfig(**{**SHORT.model_dump(), "keep": "last", **values})
    Trainer(config).fit(model, data)
    return model


class Recorder(nn.Module):
    """A network that records its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.seen = nn.Linear(4, 2), list[Tensor]()

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen.append(x.clone())
        outputs: Tensor = self.layer(x)
        return outputs


def record(**values: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Inputs and targets of the steps of a training."""
    targets = []

    def loss(dist: Any, target: Tensor) -> Tensor:
        targets.append(target)
        return -dist.log_probs.mean(-1)

    class Probe(Method):
        def distribution(self, outputs: Tensor) -> Any:
            return METHODS.build("softmax").distribution(outputs)

        @property
        def terms(self) -> Any:
            return {"loss": loss}

    model = wrap(Recorder(), Probe())
    train(model, average_epochs=0, **values)
    targets = [target for target in targets if len(target) == 32]
    return model.network.seen, targets  # type: ignore[return-value]


def test_smoothed_labels_are_those_of_the_method() -> None:
    ours = train(small_model("softmax"), label_smoothing=0.1)
    theirs = train(small_model("label_smoothing"))
    torch.testing.assert_close(weights(ours), weights(theirs))


def test_weights_are_kept() -> None:
    weight = torch.rand(128)
    ours = train(small_model("softmax"), (TRAIN[0], Target(TRAIN[1], weight)), label_smoothing=0.1)
    theirs = train(small_model("label_smoothing"), (TRAIN[0], Target(TRAIN[1], weight)))
    torch.testing.assert_close(weights(ours), weights(theirs))


def test_soft_labels_are_smoothed_too() -> None:
    soft = torch.nn.functional.one_hot(TRAIN[1], 2).float()
    ours, theirs = (
        train(small_model("softmax"), (TRAIN[0], target), label_smoothing=0.1)
        for target in (TRAIN[1], soft)
    )
    torch.testing.assert_close(weights(ours), weights(theirs))


def test_mixup_mixes_inputs_and_labels_alike() -> None:
    plain, labels = record()
    inputs, targets = record(mixup=0.4, label_smoothing=0.1)
    assert len(inputs) == len(plain) == 12
    shares = []
    for x, y, before, label in zip(inputs, targets, plain, labels, strict=True):
        one_hot = 0.9 * torch.nn.functional.one_hot(label, 2).float() + 0.05
        other = before.roll(1, 0)
        share = ((x - other) / (before - other)).median()
        torch.testing.assert_close(x, share * before + (1 - share) * other, rtol=1e-3, atol=1e-3)
        mixture = share * one_hot + (1 - share) * one_hot.roll(1, 0)
        torch.testing.assert_close(y, mixture, rtol=1e-3, atol=1e-3)
        shares.append(share.item())
    assert 0 <= min(shares) < 0.3 < 0.7 < max(shares) <= 1


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_for_classes_takes_soft_targets(name: str) -> None:
    if "classification" in METHODS.build(name).tasks and name != "my_modex":
        train(small_model(name), epochs=1, mixup=1.0)


def test_trainings_without_soft_targets_are_refused() -> None:
    task, data, _ = regression()
    with pytest.raises(DubitoError, match=r"^label_smoothing is for classes, not for regression: "):
        train(small_model("der", task=task), data, label_smoothing=0.1)
    with pytest.raises(DubitoError, match=r"^MyMoDEX cannot train with mixup, since its terms do "):
        train(small_model(MyMoDEX()), mixup=0.2)
    with pytest.raises(DubitoError, match=r"^mixup cannot mix samples with weights or missing "):
        train(small_model(), (TRAIN[0], Target(TRAIN[1], torch.rand(128))), mixup=0.2)
    words = Preprocessing(inputs=FORMATS.build("text", vocabulary=("a",), length=3))
    model = Model.build("iedl", TASK, words, {"name": "embedding", "vocabulary": 9})
    with pytest.raises(DubitoError, match=r"^mixup cannot mix indices, as of words: leave it out"):
        train(model, (torch.zeros(128, 3, dtype=torch.long), TRAIN[1]), mixup=0.2)
