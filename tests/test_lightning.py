"""The LightningModule, in Lightning's own Trainer."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.utils import shuffle
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from dubito import evaluation
from dubito.formats import ArrayFormat, Preprocessing
from dubito.methods import METHODS, Softmax
from dubito.model import Model
from dubito.tasks import Classification, Regression, Task

lightning = pytest.importorskip("lightning")
from dubito.lightning import EvidentialModule  # noqa: E402  after its extra is known to be there

BODY = {"name": "mlp", "hidden": [32]}
PIXELS = Preprocessing(inputs=ArrayFormat(shape=(1, 8, 8)), mean=(0.3,), std=(0.4,))
DIGITS = Classification(classes=tuple(map(str, range(10))), counts=(30,) * 10)
NO_VALIDATION = pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no")

CLASSIFIERS = [name for name in METHODS if "classification" in METHODS.build(name).tasks]

images, labels = shuffle(*load_digits(return_X_y=True), random_state=0)
IMAGES = torch.from_numpy(images / 16).float().view(-1, 1, 8, 8)
LABELS = torch.from_numpy(labels)
TRAIN, VALIDATION, TEST = slice(0, 800), slice(800, 1200), slice(1200, None)


def loader(part: slice, batch_size: int = 64) -> DataLoader[Any]:
    return DataLoader(TensorDataset(IMAGES[part], LABELS[part]), batch_size)


def ood_inputs(count: int) -> Tensor:
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def ood_loader(count: int = 150) -> DataLoader[Any]:
    return DataLoader(TensorDataset(ood_inputs(count)), 64)


def trainer(folder: Path, epochs: int, **options: Any) -> Any:
    options = {"enable_checkpointing": False, "max_epochs": epochs, **options}
    return lightning.Trainer(
        accelerator="cpu", devices=1, default_root_dir=folder, logger=False,
        enable_progress_bar=False, enable_model_summary=False, **options,
    )  # fmt: skip


def module(method: Any = "iedl", task: Task = DIGITS, **options: Any) -> EvidentialModule:
    return EvidentialModule(Model.build(method, task, PIXELS, BODY), lr=0.01, **options)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[EvidentialModule, dict[str, float]]:
    """Return a trained module and what was logged last."""
    torch.manual_seed(0)
    fitted, run = module(), trainer(tmp_path_factory.mktemp("trained"), 6)
    run.fit(fitted, loader(TRAIN), [loader(VALIDATION), ood_loader(), ood_loader(40)])
    return fitted, {name: value.item() for name, value in run.callback_metrics.items()}


def test_what_is_logged_is_that_of_the_evaluation(trained):
    fitted, logged = trained
    assert {"train_loss", *(f"train_{name}" for name in fitted.model.method.terms)} <= set(logged)
    assert logged["val_accuracy"] > 0.85
    dist = fitted.model.predict(IMAGES[VALIDATION]).distribution
    result = evaluation.evaluate(DIGITS, dist, LABELS[VALIDATION], ["max_prob"])
    expected = {f"val_{name}": value for name, value in result["metrics"].items()}
    expected["val_error_aupr"] = result["error_detection"]["max_prob"]["aupr"]
    expected["val_epistemic"] = dist.epistemic.mean().item()
    for name, count in (("val_ood_aupr", 150), ("val_ood_aupr_2", 40)):
        ood = fitted.model.predict(ood_inputs(count)).distribution
        detected = evaluation.ood_detection(dist, ood, ["epistemic"])["epistemic"]
        expected[name] = detected["aupr"]
    assert {name: logged[name] for name in expected} == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("correct", "aupr"), [(2, 1.0), (1, 0.5), (0, None)])
def test_error_detection_without_errors_or_without_correct_predictions(correct, aupr, tmp_path):
    network = nn.Linear(2, 2)
    nn.init.eye_(network.weight)
    nn.init.zeros_(network.bias)
    task = Classification(classes=("a", "b"))
    model = Model(network, Softmax(), task, Preprocessing(inputs=ArrayFormat(shape=(2,))))
    inputs = torch.tensor([[2.0, 0.0], [3.0, 0.0]])  # both predicted as "a", the second confidently
    target = (torch.arange(2) >= correct) * 1
    batches: DataLoader[Any] = DataLoader(TensorDataset(inputs, target), 2)
    (logged,) = trainer(tmp_path, 1).validate(EvidentialModule(model), batches, verbose=False)
    assert logged["val_accuracy"] == correct / 2
    assert logged.get("val_error_aupr") == aupr


@pytest.mark.parametrize("epochs", [3, -1])
def test_validation_losses_are_comparable_while_a_weight_rises(tmp_path, epochs):
    losses: list[float] = []

    class Losses(lightning.Callback):
        def on_validation_end(self, run: Any, _: object) -> None:
            losses.append(run.callback_metrics["val_loss"].item())

    def motionless(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.0)

    run = trainer(
        tmp_path, epochs, max_steps=3 if epochs < 0 else -1, callbacks=[Losses()],
        num_sanity_val_steps=0,
    )  # fmt: skip
    fitted = module(optimizer=motionless)
    run.fit(fitted, loader(slice(0, 64)), loader(VALIDATION))
    method = fitted.model.method
    weights = method.weight_tensor(2 if epochs > 0 else 10**6, 3)
    total, _ = method.loss(fitted(IMAGES[VALIDATION]), LABELS[VALIDATION], weights)
    assert losses == pytest.approx([total.item() / 400] * 3, rel=1e-5)


def test_predictions_of_batches(trained, tmp_path):
    first, *_ = trainer(tmp_path, 1).predict(trained[0], loader(TEST))
    expected = trained[0].model.predict(IMAGES[TEST][:64]).tensors()
    torch.testing.assert_close(first, expected)


def test_to_model_calibrates_and_fits_the_policy(trained, tmp_path):
    model = trained[0].to_model(loader(VALIDATION), error_rate=0.1)
    loaded = Model.load(model.save(tmp_path / "model"))
    assert loaded.calibration is not None
    assert loaded.policy.guarantee.level == 0.1
    result = loaded.evaluate(IMAGES[TEST], labels[TEST])
    assert result["calibrated"]["nll"] < result["metrics"]["nll"]
    assert result["policy"]["error_rate"] <= 0.1


def test_regression(tmp_path):
    values = np.stack([images.sum(1), images[:, 30]], 1)
    task = Regression.from_target(values, names=("ink", "center"), tolerance=40)
    pairs = TensorDataset(IMAGES[:600], task.encode(values[:600]))
    fitted, run = module("der", task), trainer(tmp_path, 4)
    run.fit(fitted, DataLoader(pairs, 32), DataLoader(pairs, 100))
    assert run.callback_metrics["val_rmse"] < 0.5 * values.std(0).mean()
    model = fitted.to_model(DataLoader(pairs, 100), error_rate=0.3)
    lower, upper = model.predict(IMAGES[600:900]).interval()
    inside = (lower <= task.encode(values[600:900])) & (task.encode(values[600:900]) <= upper)
    assert 0.8 < inside.double().mean() < 0.97


@NO_VALIDATION
def test_a_checkpoint_continues_to_the_same_weights(tmp_path):
    part = slice(0, 300)
    complete = module()
    trainer(tmp_path, 4).fit(complete, loader(part))
    half, run = module(), trainer(tmp_path, 2)
    run.fit(half, loader(part))
    run.save_checkpoint(tmp_path / "half.ckpt")
    resumed = module()
    trainer(tmp_path, 4).fit(resumed, loader(part), ckpt_path=tmp_path / "half.ckpt")
    for expected, actual in zip(complete.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(expected, actual)
    model = Model.build("iedl", DIGITS, PIXELS, BODY, seed=5)
    read = EvidentialModule.load_from_checkpoint(tmp_path / "half.ckpt", model=model)
    assert read.lr == 0.01
    assert torch.equal(read(IMAGES[:5]).probs, half(IMAGES[:5]).probs)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_every_method_trains(name, tmp_path):
    fitted = module(name)
    train: Any = loader(slice(0, 128))
    if fitted.model.method.ood_terms:
        train = {"train": train, "ood": ood_loader(64)}
    run = trainer(tmp_path, 1, num_sanity_val_steps=0)
    run.fit(fitted, train, [loader(slice(800, 864)), ood_loader(32)])
    logged = {name: value.item() for name, value in run.callback_metrics.items()}
    assert {"train_loss", "val_loss", "val_accuracy", "val_ood_aupr"} <= set(logged)
    assert all(map(math.isfinite, logged.values()))


@NO_VALIDATION
def test_the_method_is_finished_after_training(tmp_path):
    class Centered(Softmax):
        def finish(self, network: nn.Module, batches: Any) -> None:
            for _ in range(2):  # an ensemble reads the batches once for each member
                parts.append(torch.cat([inputs for inputs, _ in batches]))

    parts: list[Tensor] = []
    trainer(tmp_path, 1).fit(module(Centered()), loader(slice(0, 100)))
    expected = PIXELS.normalize(IMAGES[:100])
    assert all(torch.equal(part, expected) for part in parts)
    assert len(parts) == 2


@NO_VALIDATION
@pytest.mark.parametrize(
    ("method", "epochs", "batches", "error"),
    [
        ("kl_pn", 1, loader(slice(0, 64)), "trains with OOD inputs: pass fit.. a dict of loaders"),
        ({"name": "iedl", "kl_ramp": "all"}, -1, loader(slice(0, 64)), "'all' needs the number"),
        ("iedl", 1, DataLoader(IMAGES[:8]), "a batch must be a pair"),
        ("iedl", 1, DataLoader(TensorDataset(IMAGES[:8], LABELS[:8] + 10)), "labels from 0 to 9"),
    ],
)
def test_what_does_not_fit_is_an_error(method, epochs, batches, error, tmp_path):
    options = {"max_steps": 3} if epochs < 0 else {}
    with pytest.raises((ValueError, TypeError), match=error):
        trainer(tmp_path, epochs, **options).fit(module(method), batches)


def test_a_model_needs_validation_batches():
    with pytest.raises(ValueError, match="validation has no batches"):
        module().to_model([])
