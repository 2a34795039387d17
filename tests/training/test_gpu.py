"""On a GPU: a captured step is the step, and runs side by side do not touch each other."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dubito.augmentations.photo import Photo
from dubito.augmentations.shift import Shift
from dubito.formats import ArrayFormat, Preprocessing
from dubito.model import Model
from dubito.tasks import Classification, Regression
from dubito.training import NonFiniteLoss, TrainConfig, Trainer
from tests.training.helpers import StopIn, Stream, weights

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("default"),  # the compiler of torch warns about its own parts
]

CONFIG = TrainConfig(
    epochs=4, batch_size=32, lr=3e-3, precision="float32", validate_every=1, patience=0
)
TASK = Classification(classes=tuple("abc"), counts=(50, 50, 50))


def images(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noisy images of three classes."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.arange(count) % 3
    pixels = torch.randint(180, (count, 1, 8, 8), generator=generator)
    pixels[torch.arange(count), :, 2 * target] += 75
    return pixels.to(torch.uint8), target


TRAIN, VALIDATION = images(300, 0), images(60, 1)  # nine full batches and a part


def with_values(**values: Any) -> TrainConfig:
    return CONFIG.model_copy(update=values)


def normed(shape: tuple[int, ...]) -> nn.Module:
    backbone = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2)
    )
    backbone.out_features = 32  # type: ignore[assignment]
    return backbone


def build(
    method: Any = "iedl", seed: int = 0, dropout: float = 0.0, backbone: Any = None, **stats: Any
) -> Model:
    preprocessing = Preprocessing(inputs=ArrayFormat(shape=(1, 8, 8), dtype="uint8"), **stats)
    mlp = {"name": "mlp", "hidden": (32,), "dropout": dropout}
    return Model.build(method, TASK, preprocessing, backbone or mlp, seed=seed)


def fitted(model: Model, config: TrainConfig = CONFIG, train: Any = TRAIN, **options: Any) -> Model:
    history = Trainer(config, device="cuda").fit(model, train, VALIDATION, **options)
    assert history.best["validation"]["accuracy"] > 0.6
    return model


def assert_close(one: Model, other: Model) -> None:
    torch.testing.assert_close(weights(one), weights(other), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"augment": Shift(padding=1)},
        {"optimizer": "sgd", "lr": 0.1, "optimizer_options": {"momentum": 0.9}},
        {"schedule": "cosine", "average_epochs": 2, "epochs": 6},  # learns less in an epoch
        {"schedule": "linear", "warmup_steps": 0.2, "layer_decay": 0.5, "epochs": 6},
        {"optimizer": "sgd", "lr": 0.1, "max_grad_norm": 0.5, "warmup_steps": 5},
        {"ema_decay": 0.8, "augment": Photo(flip=0, scale=0.9)},
    ],
    ids=str,
)
def test_captured_step_is_the_step(values: dict[str, Any]) -> None:
    captured = fitted(build(), with_values(**values))
    assert_close(captured, fitted(build(), with_values(graph=False, **values)))


def test_captured_step_normalizes_channels() -> None:
    stats = {"mean": (0.3,), "std": (0.2,)}
    captured = fitted(build(**stats))
    assert_close(captured, fitted(build(**stats), with_values(graph=False)))


def test_compiled_network_is_the_network() -> None:
    assert_close(fitted(build(), with_values(compile=True)), fitted(build()))


def test_gpu_trains_like_a_cpu() -> None:
    on_cpu = build()
    Trainer(CONFIG, device="cpu").fit(on_cpu, TRAIN, VALIDATION)
    torch.testing.assert_close(
        weights(fitted(build())).cpu(), weights(on_cpu), rtol=0.01, atol=1e-3
    )


def test_streamed_data_trains_like_data_in_memory() -> None:
    streamed = fitted(build(), train=(Stream(TRAIN[0]), TRAIN[1]))
    assert_close(streamed, fitted(build(), with_values(graph=False)))


@pytest.mark.parametrize("method", ["kl_pn", "mc_dropout", "posterior_network", "fedl", "softmax"])
def test_methods_are_captured(method: str) -> None:
    model = build(method, dropout=0.25)
    history = Trainer(with_values(epochs=8), device="cuda").fit(model, TRAIN, VALIDATION)
    assert history.best["validation"]["accuracy"] > 0.4


def test_regression_is_captured() -> None:
    x = TRAIN[0].float().flatten(1) / 255
    target = 1000 + 100 * x[:, :1]
    task = Regression.from_target(target)
    preprocessing = Preprocessing.fit(ArrayFormat(shape=(64,)), x)
    model = Model.build("der", task, preprocessing, {"name": "mlp", "hidden": (32,)})
    config = with_values(epochs=20)
    history = Trainer(config, device="cuda").fit(model, (x, target), (x, target))
    assert history.best["validation"]["rmse"] < target.std()


@pytest.mark.parametrize(
    "values", [{}, {"compile": True}, {"precision": "bfloat16"}, {"average_epochs": 2}], ids=str
)
def test_seeds_side_by_side_are_those_of_single_trainings(values: dict[str, Any]) -> None:
    """With dropout and batch norm, whose random numbers and buffers are each run's own."""
    config = with_values(epochs=3, **values)
    single = [
        weights(fitted(build(seed=seed, backbone=normed), config.model_copy(update={"seed": seed})))
        for seed in (1, 2, 3)
    ]
    models = [build(seed=seed, backbone=normed) for seed in (1, 2, 3)]
    Trainer(config, device="cuda").fit_many(models, TRAIN, VALIDATION, seeds=[1, 2, 3])
    for model, expected in zip(models, single, strict=True):
        assert torch.equal(weights(model), expected)


@pytest.mark.parametrize(
    "values",
    [
        {"average_epochs": 0},
        {"average_epochs": 2},
        {"ema_decay": 0.8, "schedule": "cosine", "warmup_steps": 3, "max_grad_norm": 1.0},
    ],
    ids=str,
)
def test_interrupted_training_ends_with_the_same_weights(
    tmp_path: Path, values: dict[str, Any]
) -> None:
    config = with_values(epochs=5, **values)
    expected = fitted(build(backbone=normed), config)
    with pytest.raises(KeyboardInterrupt):
        Trainer(config, device="cuda", callbacks=[StopIn(3)]).fit(
            build(backbone=normed), TRAIN, VALIDATION, out=tmp_path
        )
    resumed = fitted(build(backbone=normed), config, out=tmp_path)
    assert torch.equal(weights(resumed), weights(expected))


@pytest.mark.parametrize("graph", [True, False])
def test_loss_that_is_not_finite_names_epoch_step_and_terms(graph: bool) -> None:
    config = with_values(graph=graph, lr=1e30, optimizer="sgd")
    with pytest.raises(NonFiniteLoss, match=r"not finite in epoch 1, step \d+: mean terms fisher_"):
        Trainer(config, device="cuda").fit(build(), TRAIN, VALIDATION)


def test_random_state_and_precision_stay() -> None:
    state, tf32 = torch.cuda.get_rng_state(), torch.backends.cuda.matmul.allow_tf32
    fitted(build(dropout=0.2), with_values(precision="tf32"))
    assert torch.equal(torch.cuda.get_rng_state(), state)
    assert torch.backends.cuda.matmul.allow_tf32 == tf32
