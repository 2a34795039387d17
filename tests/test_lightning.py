"""The LightningModule, in Lightning's own Trainer, on the embedded digits."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from dubito import _legacy as methods
from dubito import backbones, bundle
from dubito._legacy import Prediction
from dubito.bundle import Preprocessing, Promise
from dubito.data import embedded
from test_readme import Block, blocks, run_python

lightning = pytest.importorskip("lightning")
from dubito.lightning import EvidentialModule  # noqa: E402  after its extra is found to be there

DIGITS = embedded.digits()
NO_VALIDATION = pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no")
PARTS = {"train": DIGITS.train, "validation": DIGITS.validation, "test": DIGITS.test}


def loader(part: str, count: int | None = None, batch_size: int = 64) -> DataLoader[Any]:
    held = PARTS[part]
    return DataLoader(TensorDataset(held.inputs[:count], held.labels[:count]), batch_size)


def outside(count: int = 150) -> DataLoader[Any]:
    return DataLoader(TensorDataset(embedded.patches(count)), 64)


def trainer(folder: Path, epochs: int, **options: Any) -> Any:
    options = {"enable_checkpointing": False, "max_epochs": epochs, **options}
    return lightning.Trainer(
        accelerator="cpu", devices=1, default_root_dir=folder, logger=False,
        enable_progress_bar=False, enable_model_summary=False, **options,
    )  # fmt: skip


def module(method: Any = "iedl", **options: Any) -> EvidentialModule:
    torch.manual_seed(0)
    network = backbones.build("mlp", (1, 8, 8), 10, hidden=(32,))
    return EvidentialModule(network, method, DIGITS.train.classes, learning_rate=0.01, **options)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[EvidentialModule, dict[str, float]]:
    """A module after a few epochs with two loaders of OOD inputs, and what was logged."""
    torch.manual_seed(0)
    made, run = module(), trainer(tmp_path_factory.mktemp("trained"), 6)
    run.fit(made, loader("train"), [loader("validation"), outside(), outside(40)])
    return made, {name: value.item() for name, value in run.callback_metrics.items()}


def test_it_learns_and_logs_what_evaluation_says(
    trained: tuple[EvidentialModule, dict[str, float]],
) -> None:
    made, logged = trained
    terms = {f"train_{name}" for name in made.method.weights(0, 1)}
    assert set(logged) == {
        *terms, "train_loss", "val_loss", "val_accuracy", "val_uncertainty", "val_aupr",
        "val_ood_aupr", "val_ood_aupr_2",
    }  # fmt: skip
    assert logged["val_accuracy"] > 0.9

    said = made.predict(DIGITS.validation.inputs)
    labels = DIGITS.validation.labels
    close = {"rel": 1e-5}
    right = (said.label == labels).double().mean().item()
    assert logged["val_accuracy"] == pytest.approx(right, **close)
    assert logged["val_uncertainty"] == pytest.approx(said.vacuity.mean().item(), **close)
    sure = methods.misclassification(said, labels)["max_prob"]["aupr"]
    assert logged["val_aupr"] == pytest.approx(sure, **close)
    for name, count in (("val_ood_aupr", 150), ("val_ood_aupr_2", 40)):
        beyond = made.predict(embedded.patches(count))
        wanted = methods.ood_figures(said, beyond, ["vacuity"])["vacuity"]["aupr"]
        assert logged[name] == pytest.approx(wanted, **close)
    # the last epoch's weights: the KL's has risen to 5/10
    weights = torch.tensor(list(made.method.weights(5, 6).values()))
    with torch.no_grad():
        total, _ = made.method.loss_of(made.model(DIGITS.validation.inputs), labels, weights)
    assert weights[-1] == 0.5
    assert logged["val_loss"] == pytest.approx(total.item() / len(labels), **close)


@pytest.mark.parametrize(
    ("right", "area", "dtype"),
    [(2, 1.0, torch.int64), (1, 0.5, torch.uint16), (0, None, torch.int64)],
)
def test_the_area_where_all_or_none_are_right(
    tmp_path: Path, right: int, area: float | None, dtype: torch.dtype
) -> None:
    """All: 1 by the definition of the area; none: there is no area."""
    network = nn.Linear(2, 2)
    nn.init.eye_(network.weight)
    nn.init.zeros_(network.bias)
    x = torch.tensor([[2.0, 0.0], [3.0, 0.0]])  # the second is the surer one
    labels = (torch.arange(2) >= right).to(dtype)
    held: DataLoader[Any] = DataLoader(TensorDataset(x, labels), 2)
    (logged,) = trainer(tmp_path, 1).validate(
        EvidentialModule(network, "softmax", 2), held, verbose=False
    )
    assert logged["val_accuracy"] == right / 2
    assert logged.get("val_aupr") == area


@pytest.mark.parametrize("epochs", [3, -1])
def test_validation_losses_compare_while_a_weight_rises(tmp_path: Path, epochs: int) -> None:
    """A network that does not move has one, and no callback keeps an epoch for being early."""
    seen: list[float] = []

    class Losses(lightning.Callback):  # type: ignore[misc, name-defined]
        def on_validation_epoch_end(self, run: Any, _: object) -> None:
            seen.append(run.callback_metrics["val_loss"].item())

    options = {"callbacks": [Losses()], "num_sanity_val_steps": 0}
    run = trainer(tmp_path, epochs, max_steps=3 if epochs < 0 else -1, **options)
    made = module()
    made.configure_optimizers = lambda: torch.optim.SGD(made.parameters(), 0.0)  # type: ignore[method-assign]
    run.fit(made, loader("train", 64), loader("validation"))
    assert len(seen) == 3
    assert seen == pytest.approx([seen[0]] * 3, rel=1e-6)
    labels = DIGITS.validation.labels
    end = 2 if epochs > 0 else 10  # without an end the weight is what it will be for good
    weights = torch.tensor(list(made.method.weights(end, 3).values()))
    with torch.no_grad():
        total, _ = made.method.loss_of(made.model(DIGITS.validation.inputs), labels, weights)
    assert seen[0] == pytest.approx(total.item() / len(labels), rel=1e-5)


def test_predictions_come_back(
    trained: tuple[EvidentialModule, dict[str, float]], tmp_path: Path
) -> None:
    made = trained[0]
    parts = trainer(tmp_path, 1).predict(made, loader("test", 100))
    assert [type(part) for part in parts] == [Prediction, Prediction]
    said = bundle.joined(parts)
    assert torch.allclose(said.alpha, made.predict(DIGITS.test.inputs[:100]).alpha)


def test_a_bundle_of_it(trained: tuple[EvidentialModule, dict[str, float]], tmp_path: Path) -> None:
    made = trained[0]
    folder = made.to_bundle(
        tmp_path / "bundle", held_out=loader("validation"), promise=Promise(error=0.1),
        backbone={"name": "mlp", "hidden": [32]}, about=["Digits."],
    )  # fmt: skip
    loaded = bundle.load(folder)
    assert (loaded.classes, loaded.shape) == (DIGITS.train.classes, (1, 8, 8))
    assert loaded.policy is not None
    assert loaded.policy.guarantee.level == 0.1
    assert loaded.calibration is not None
    said = made.predict(DIGITS.test.inputs)
    assert torch.allclose(loaded.predict(DIGITS.test.inputs).alpha, said.alpha)


@NO_VALIDATION
def test_a_stopped_training_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    prepared = Preprocessing(pixels=True, mean=(0.3,), scale=(0.4,))
    whole = module(preprocessing=prepared)
    trainer(tmp_path, 4).fit(whole, loader("train", 300))
    half = module(preprocessing=prepared)
    run = trainer(tmp_path, 2)
    run.fit(half, loader("train", 300))
    run.save_checkpoint(tmp_path / "half.ckpt")
    rest = module(preprocessing=prepared)
    trainer(tmp_path, 4).fit(rest, loader("train", 300), ckpt_path=tmp_path / "half.ckpt")
    for ours, theirs in zip(whole.parameters(), rest.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert not torch.equal(next(whole.parameters()), next(half.parameters()))

    # all but the backbone is in the checkpoint, as plain values
    network = backbones.build("mlp", (1, 8, 8), 10, hidden=(32,))
    read = EvidentialModule.load_from_checkpoint(tmp_path / "half.ckpt", backbone=network)
    assert (read.method, read.classes, read.shape) == (half.method, half.classes, (1, 8, 8))
    assert (read.preprocessing, read.learning_rate) == (prepared, 0.01)
    x = DIGITS.test.inputs[:5]
    assert torch.equal(read.predict(x).alpha, half.predict(x).alpha)


@pytest.mark.parametrize("name", [*methods.METHODS])
def test_every_method_trains(name: str, tmp_path: Path) -> None:
    made = methods.method(name, **({"size": 2} if name == "ensemble" else {}))
    torch.manual_seed(0)
    network = backbones.build(
        "mlp", (1, 8, 8), made.outputs(10), hidden=(16,), dropout=made.dropout
    )
    one = EvidentialModule(network, made, 10, class_counts=[30] * 10)
    run = trainer(tmp_path, 1, num_sanity_val_steps=0)
    run.fit(one, loader("train", 128), [loader("validation", 64), outside(32)])
    logged = {name: value.item() for name, value in run.callback_metrics.items()}
    assert {"train_loss", "val_loss", "val_accuracy", "val_uncertainty", "val_ood_aupr"} <= set(
        logged
    )
    assert all(map(math.isfinite, logged.values()))
    assert not one.predict(DIGITS.test.inputs[:3]).probs.requires_grad


def test_bytes_are_scaled_and_parts_keep_their_mode(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))
    network[1].eval()  # frozen by its owner
    made = EvidentialModule(network, "softmax", 10)
    x = (DIGITS.test.inputs[:4] * 255).round().byte()
    assert torch.equal(made.predict(x).probs, made.predict(x / 255).probs)
    assert (network.training, network[1].training) == (True, False)


def test_an_optimizer_of_ones_own() -> None:
    def sgd(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    assert isinstance(module(optimizer=sgd).configure_optimizers(), torch.optim.SGD)
    adam = module().configure_optimizers()
    assert isinstance(adam, torch.optim.Adam)
    assert adam.defaults["lr"] == 0.01


@NO_VALIDATION
def test_what_it_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="unknown method 'odd'; known: 'iedl'"):
        EvidentialModule(nn.Linear(4, 3), "odd", 3)
    with pytest.raises(ValueError, match="unknown measure 'odd'"):
        EvidentialModule(nn.Linear(4, 3), "iedl", 3, unsure="odd")
    with pytest.raises(ValueError, match="classes must be at least two, but are 1"):
        EvidentialModule(nn.Linear(4, 3), "iedl", 1)
    with pytest.raises(ValueError, match="shape must be given"):
        EvidentialModule(nn.Linear(4, 3), "iedl", 3).to_bundle(tmp_path)

    steps = trainer(tmp_path, -1, max_steps=3)
    whole = module({"name": "iedl", "kl_ramp": "all"}, epochs=None)
    with pytest.raises(ValueError, match="kl_ramp='all' needs to know how many epochs"):
        steps.fit(whole, loader("train", 64))
    trainer(tmp_path, -1, max_steps=3).fit(module(), loader("train", 64))

    lone: DataLoader[Tensor] = DataLoader(DIGITS.train.inputs[:8])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a batch must be a pair"):
        trainer(tmp_path, 1).fit(module(), lone)

    monkeypatch.delitem(sys.modules, "dubito.lightning")
    monkeypatch.setitem(sys.modules, "lightning", None)
    with pytest.raises(ImportError, match=r"pip install 'dubito\[lightning\]'"):
        import dubito.lightning  # noqa: F401


# --- recipes of docs/integrations.md for packages that no extra brings ---------------------------

RECIPES = Path(__file__).resolve().parents[1] / "docs" / "integrations.md"
# test_readme runs what is "python" and knows the extras' packages alone
OTHERS = [block for block in blocks(RECIPES.read_text("utf-8")) if block.language == "python3"]


@pytest.mark.parametrize("block", OTHERS, ids=["timm", "transformers"])
def test_recipes_of_other_packages_run(
    block: Block, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = request.node.callspec.id
    assert f"import {package}\n" in block.text or f"from {package} import" in block.text
    pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    run_python(block, f"{RECIPES.name}:{block.line}")
