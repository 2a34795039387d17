import math
from typing import Any

import pytest
from pydantic import ValidationError

from dubito.augmentations.shift import Shift
from dubito.training import TrainConfig


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"optimizer": "lbfgs"}, r"unknown optimizer 'lbfgs'"),
        ({"epochs": 0}, r"epochs\n.*greater than or equal to 1"),
        ({"epochs": 2.5}, "valid integer"),
        ({"lr": -1}, r"lr\n.*greater than 0"),
        ({"warmup_steps": 1.5}, "a number of steps or a share below 1, not 1.5"),
        ({"ema_decay": 0.9, "average_epochs": 3}, "both average the weights: drop one"),
        ({"learning_rate": 1}, "Extra inputs are not permitted"),
    ],
)
def test_bad_values_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainConfig(**values)


def test_config_is_json() -> None:
    config = TrainConfig(
        augment=Shift(flip=0.0), optimizer_options={"weight_decay": 0.1},
        param_groups={"backbone.*": {"lr": 0.1}},
    )  # fmt: skip
    assert TrainConfig.model_validate_json(config.model_dump_json()) == config


def test_each_field_has_a_help_text() -> None:
    assert all(field.description for field in TrainConfig.model_fields.values())


def factors(steps: int = 4, **values: Any) -> list[float]:
    config = TrainConfig(**values)
    return [factor for epoch in range(config.epochs) for factor in config.lr_factors(epoch, steps)]


@pytest.mark.parametrize("warmup", [0, 3, 0.25])
@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_schedule_is_that_of_transformers(schedule: str, warmup: float) -> None:
    """Whose warm-up begins with a step at 0."""
    count = warmup if warmup >= 1 or not warmup else warmup * 12
    result = factors(epochs=3, schedule=schedule, warmup_steps=warmup)
    assert result[: int(count)] == pytest.approx([(i + 1) / (count + 1) for i in range(int(count))])
    progress = [i / (12 - count) for i in range(12 - int(count))]
    falling = [(1 + math.cos(math.pi * p)) / 2 if schedule == "cosine" else 1 - p for p in progress]
    assert result[int(count) :] == pytest.approx(falling)


def test_schedule_by_epoch_has_one_rate_per_epoch() -> None:
    result = factors(2, epochs=4, schedule="cosine", schedule_by="epoch")
    assert [round(factor, 3) for factor in result] == [1, 1, 0.854, 0.854, 0.5, 0.5, 0.146, 0.146]


def test_warm_up_of_a_constant_rate() -> None:
    assert factors(epochs=2, warmup_steps=3) == [0.25, 0.5, 0.75, 1, 1, 1, 1, 1]


def test_averaging_is_chosen_for_long_trainings_at_a_constant_rate() -> None:
    assert [TrainConfig(epochs=n).averaged_epochs for n in (19, 20)] == [0, 2]
    assert TrainConfig(epochs=20, schedule="cosine").averaged_epochs == 0
    assert TrainConfig(epochs=20, ema_decay=0.9).averaged_epochs == 0
    assert TrainConfig(epochs=20, average_epochs=0).averaged_epochs == 0
