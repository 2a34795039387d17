from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor

from dubito.errors import DubitoError
from dubito.model import Model
from dubito.training import TrainConfig, Trainer
from dubito.training.run import averaged
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
