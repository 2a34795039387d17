from __future__ import annotations

import math
import threading

import pytest
import torch
from torch import Tensor

from dubito.errors import DubitoError
from dubito.model import Model
from dubito.training import TrainConfig, Trainer
from dubito.training.optimizer import averaged, moving_average, update_moving_average
from tests.training.helpers import (
    SHORT,
    TRAIN,
    VALIDATION,
    AtEpochEnd,
    Normed,
    Stream,
    blobs,
    weights,
    wrap,
)

AVERAGED = SHORT.model_copy(update={"average_epochs": 2, "epochs": 2})


def fit(model: Model, config: TrainConfig = AVERAGED, train: object = TRAIN) -> Model:
    Trainer(config).fit(model, train, VALIDATION)  # type: ignore[arg-type]
    return model


def test_first_epochs_count_alike_and_later_ones_fade() -> None:
    network = torch.nn.Linear(1, 1, bias=False)
    average = averaged(network, 3)
    for value in (1.0, 2.0, 6.0, 0.0):
        torch.nn.init.constant_(network.weight, value)
        average.update_parameters(network)
    assert average.module.weight.item() == pytest.approx(3.0 * 2 / 3)


def test_moving_average_forgets_the_initial_weights() -> None:
    network = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(network.weight, 100.0)
    average, expected = moving_average(network, torch.device("cpu")), 100.0
    for step in range(40):
        torch.nn.init.constant_(network.weight, value := math.sin(step))
        update_moving_average(average, network, 0.75)
        decay = min(0.75, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * value
        assert average.module.weight.item() == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert average.n_averaged == 40


def test_moving_average_of_all_steps_is_kept() -> None:
    config = SHORT.model_copy(update={"keep": "last", "epochs": 4})
    model, steps = wrap(torch.nn.Linear(4, 2)), []
    start = {name: value.clone() for name, value in model.network.state_dict().items()}
    model.network.register_forward_hook(lambda *_: steps.append(weights(model)))
    Trainer(config).fit(model, TRAIN)
    expected = steps[0]
    for number, current in enumerate([*steps[1:], weights(model)]):
        decay = min(0.6, (1 + number) / (10 + number))
        expected = decay * expected + (1 - decay) * current
    average = wrap(torch.nn.Linear(4, 2))
    average.network.load_state_dict(start)
    Trainer(config.model_copy(update={"ema_decay": 0.6})).fit(average, TRAIN)
    torch.testing.assert_close(weights(average), expected, rtol=1e-5, atol=1e-7)


def test_averaged_weights_are_kept() -> None:
    snapshots: list[Tensor] = []
    config = SHORT.model_copy(update={"epochs": 4, "validate_every": 4})
    model = wrap(torch.nn.Linear(4, 2))
    start = {name: value.clone() for name, value in model.network.state_dict().items()}
    trainer = Trainer(config, callbacks=[AtEpochEnd(lambda _: snapshots.append(weights(model)))])
    trainer.fit(model, TRAIN, VALIDATION)
    model.network.load_state_dict(start)
    fit(model, config.model_copy(update={"average_epochs": 4}))
    torch.testing.assert_close(weights(model), sum(snapshots) / 4, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("count", [130, 1026])
def test_batch_norm_statistics_are_those_of_the_average(count: int, streamed: bool) -> None:
    """A few samples that are left over do not decide them."""
    x, target = blobs(count)
    model = fit(wrap(Normed()), train=(Stream(x) if streamed else x, target))
    network = model.network
    assert isinstance(network, Normed)
    features = network.first(x).detach()
    torch.testing.assert_close(network.norm.running_mean, features.mean(0), rtol=0.02, atol=0.05)
    torch.testing.assert_close(network.norm.running_var, features.var(0), rtol=0.05, atol=0.0)


class Fixed(Normed):
    """Batch norm with the statistics of another training."""

    def __init__(self) -> None:
        super().__init__()
        self.norm.running_mean = torch.full((8,), 3.0)

    def train(self, mode: bool = True) -> Fixed:
        super().train(mode)
        self.norm.eval()
        return self


def test_fixed_batch_norm_keeps_its_statistics() -> None:
    network = fit(wrap(Fixed())).network
    assert isinstance(network, Fixed)
    assert network.norm.running_mean.tolist() == [3.0] * 8
    assert network.norm.momentum == 0.1


def test_network_that_cannot_be_copied_names_the_remedy() -> None:
    model = wrap(Normed())
    model.network.lock = threading.Lock()  # type: ignore[assignment]
    with pytest.raises(DubitoError, match=r"Normed cannot be copied .*average_epochs=0"):
        fit(model)
