import os
import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from dubito.augmentations.shift import Shift
from dubito.formats import ArrayFormat, Encoded, Preprocessing
from dubito.model import Model
from dubito.tasks import Classification
from dubito.training import TrainConfig, Trainer
from tests.training.helpers import SHORT, TRAIN, VALIDATION, Stream, small_model, weights

TASK = Classification(classes=tuple("abc"))
PIXELS = torch.randint(256, (90, 1, 8, 8), dtype=torch.uint8, generator=torch.manual_seed(0))
TARGET = torch.arange(90) % 3
AUGMENT = Shift(flip=0.5, padding=1, degrees=10)


def image_model(dtype: str, standardized: bool = False) -> Model:
    stats = {"mean": (0.4,), "std": (0.3,)} if standardized else {}
    format = ArrayFormat(shape=(1, 8, 8), dtype=dtype)  # type: ignore[arg-type]
    return Model.build("edl", TASK, Preprocessing(inputs=format, **stats), "convnet")


def fitted(inputs: Tensor, config: TrainConfig, *, streamed: bool = False) -> Tensor:
    dtype = "uint8" if inputs.dtype == torch.uint8 else "float32"
    model = image_model(dtype, standardized=True)
    data = [inputs[:60], inputs[60:]]
    train, validation = [Stream(x) if streamed else x for x in data]
    Trainer(config).fit(model, (train, TARGET[:60]), (validation, TARGET[60:]))
    return weights(model)


@pytest.mark.parametrize(
    ("inputs", "workers"), [(PIXELS, 0), (PIXELS, 1), (PIXELS / 255, 0)],
    ids=["pixels", "pixels by a worker", "floats"],
)  # fmt: skip
def test_streamed_data_trains_like_data_in_memory(inputs: Tensor, workers: int) -> None:
    config = SHORT.model_copy(update={"augment": AUGMENT, "average_epochs": 2, "epochs": 2})
    expected = fitted(inputs, config)
    config = config.model_copy(update={"workers": workers})
    assert torch.equal(fitted(inputs, config, streamed=True), expected)


def seen(source: Stream, config: TrainConfig) -> list[Tensor]:
    """Return the inputs of the training, a tensor per epoch."""
    model, inputs = small_model(), []
    model.network.register_forward_pre_hook(
        lambda network, x: inputs.append(x[0].detach()) if network.training else None
    )
    Trainer(config).fit(model, (source, TRAIN[1]), VALIDATION)
    return list(torch.cat(inputs).view(config.epochs, -1, 4))


class Pid(Stream):
    """Source whose values are the number of the process that reads."""

    def encode(self, indices: Sequence[int]) -> Encoded:
        return Encoded(torch.full((len(indices), 4), float(os.getpid())), {}, {})


def test_workers_stay_over_the_epochs() -> None:
    epochs = seen(Pid(TRAIN[0]), SHORT.model_copy(update={"workers": 1}))
    assert len(torch.cat(epochs).unique()) == 1
    assert epochs[0][0, 0] != os.getpid()


class Noise(Stream):
    """Source that draws its inputs when they are read."""

    def encode(self, indices: Sequence[int]) -> Encoded:
        noise = [torch.rand(2), torch.tensor([random.random(), np.random.random()])]  # noqa: NPY002
        return Encoded(torch.cat(noise).expand(len(indices), -1), {}, {})


def test_random_numbers_of_workers_follow_from_seed_and_epoch() -> None:
    one, two = (
        seen(Noise(TRAIN[0]), SHORT.model_copy(update={"workers": workers})) for workers in (1, 2)
    )
    assert all(map(torch.equal, one, two))
    assert len({tuple(row.tolist()) for row in torch.cat(one)}) == 12  # a draw for each batch


def test_pixels_train_like_floats() -> None:
    torch.testing.assert_close(fitted(PIXELS, SHORT), fitted(PIXELS / 255, SHORT))


def test_memory_format_does_not_change_the_samples() -> None:
    config = SHORT.model_copy(update={"channels_last": False})
    torch.testing.assert_close(fitted(PIXELS, config), fitted(PIXELS, SHORT), rtol=1e-3, atol=1e-4)


def test_each_epoch_sees_each_sample_once_in_another_order() -> None:
    epochs = seen(Stream(TRAIN[0]), SHORT)
    for epoch in epochs:
        assert torch.equal(epoch.sort(0).values, TRAIN[0].sort(0).values)
    assert not torch.equal(epochs[0], epochs[1])


@pytest.mark.parametrize(("standardized", "low", "high"), [(False, 0, 1), (True, -3, 3)])
def test_noise_in_place_of_ood_inputs(standardized: bool, low: float, high: float) -> None:
    stats = {"mean": (0.0,) * 4, "std": (1.0,) * 4} if standardized else {}
    inputs = Preprocessing(inputs=ArrayFormat(shape=(4,)), **stats)  # type: ignore[arg-type]
    model = Model.build("rkl_pn", Classification(classes=("a", "b")), inputs, "mlp")
    noise: list[Tensor] = []
    model.network.register_forward_pre_hook(lambda _, x: noise.append(x[0][len(x[0]) // 2 :]))
    Trainer(SHORT).fit(model, TRAIN, VALIDATION)
    span = torch.cat(noise).aminmax()
    assert (span.min.item(), span.max.item()) == pytest.approx((low, high), abs=0.05)
