from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from dubito.augmentations import Shift
from dubito.training import TrainConfig


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"optimizer": "adamm"}, r"unknown optimizer 'adamm'; known: .*'adam'"),
        ({"optimizer": "lbfgs"}, r"unknown optimizer 'lbfgs'"),
        ({"epochs": 0}, r"epochs\n.*greater than or equal to 1"),
        ({"epochs": 2.5}, "valid integer"),
        ({"lr": -1}, r"lr\n.*greater than 0"),
        ({"precision": "half"}, "'tf32', 'float32' or 'bfloat16'"),
        ({"learning_rate": 1}, "Extra inputs are not permitted"),
    ],
)
def test_bad_values_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainConfig(**values)


def test_config_is_json() -> None:
    config = TrainConfig(augment=Shift(flip=0.0), optimizer_options={"weight_decay": 0.1})
    assert TrainConfig.model_validate_json(config.model_dump_json()) == config


def test_each_field_has_a_help_text() -> None:
    assert all(field.description for field in TrainConfig.model_fields.values())


def test_cosine_schedule_falls_to_zero() -> None:
    config = TrainConfig(epochs=4, lr=1.0, schedule="cosine")
    assert [round(config.lr_at(epoch), 3) for epoch in range(5)] == [1.0, 0.854, 0.5, 0.146, 0.0]


def test_averaging_is_chosen_for_long_trainings_at_a_constant_rate() -> None:
    assert [TrainConfig(epochs=n).averaged_epochs for n in (19, 20)] == [0, 2]
    assert TrainConfig(epochs=20, schedule="cosine").averaged_epochs == 0
    assert TrainConfig(epochs=20, average_epochs=0).averaged_epochs == 0


def test_frozen_parameters_are_not_optimized() -> None:
    network = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    network[0].requires_grad_(False)
    optimizer = TrainConfig(optimizer="adamw").build_optimizer(network, torch.device("cpu"))
    assert optimizer.param_groups[0]["params"] == list(network[1].parameters())
