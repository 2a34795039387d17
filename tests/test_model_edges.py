"""Edges of losses, predictions, bundles, the estimator and Lightning that once went wrong."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from dubito import _legacy as methods
from dubito import bundle
from dubito._legacy import Prediction
from dubito.bundle import Preprocessing
from dubito.calibration import Calibration
from dubito.estimator import EvidentialClassifier
from dubito.losses import IEDLLoss
from dubito.report import figures
from dubito.report import training as report
from tests.limits import policy as made_policy

QUICK: dict[str, Any] = {"epochs": 3, "hidden": (16,), "random_state": 0}


def linear(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), outputs))


def saved(folder: Path, network: nn.Module, method: Any = "iedl", **options: Any) -> Path:
    names = ("a", "b", "c")
    return bundle.save(folder, network, method=method, classes=names, shape=(4,), **options)


# --- losses --------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [200, 300])
@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_labels_of_few_bits_are_labels(classes: int, precision: torch.dtype) -> None:
    logits = torch.randn(3, classes, dtype=precision, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([156, 190, 44])  # among bytes 156 is -100, and 300 is 44
    loss, few = IEDLLoss(reduction="none"), labels % 100
    assert torch.equal(loss(logits, labels.byte()), loss(logits, labels))
    assert torch.equal(loss(logits, few.to(torch.int8)), loss(logits, few))


def test_the_loss_is_nothing_where_a_label_is_ignored() -> None:
    logits, labels = torch.randn(3, 4), torch.tensor([0, -100, 2])
    criterion = IEDLLoss(reduction="none")
    assert (criterion(logits, labels) == 0).tolist() == [False, True, False]
    with pytest.raises(ValueError, match=r"from 0 to 3 or ignore_index=-100, but has \[7\]"):
        criterion(logits, torch.tensor([0, 7, 2]))


def test_weights_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="must be a finite number >= 0, not -1"):
        IEDLLoss(kl_weight=-1.0)
    endless = IEDLLoss(weight=torch.tensor([1.0, torch.inf]))
    with pytest.raises(ValueError, match=r"weight must be >= 0 and finite, but spans \[1, i"):
        endless(torch.zeros(2, 2), torch.tensor([0, 1]))


# --- predictions ---------------------------------------------------------------------------------


def test_an_index_is_of_samples_for_each_kind_of_prediction() -> None:
    probs = torch.randn(4, 3, 2, 5, generator=torch.Generator().manual_seed(0)).softmax(-1)
    sampled, alone = Prediction.from_samples(probs), Prediction.from_probs(probs.mean(0))
    mask = torch.tensor([True, False, True])
    places = torch.arange(6).reshape(3, 2)  # of the samples
    of_samples = (1, (0, 1), (slice(1, 3), 0), mask, (mask, 1), [2, 0], None)
    for index in (*of_samples, ..., (..., 0), (..., 2, 1), (1, ...), (mask, ..., 0), (..., None)):
        expected = probs.mean(0).flatten(0, 1)[places[index]]
        torch.testing.assert_close(alone[index].probs, expected)
        torch.testing.assert_close(sampled[index].probs, expected)
        assert len(sampled[index].samples) == 4
    for said in (sampled, alone, Prediction.from_alpha(1 + probs[0])):
        for beyond in ((slice(None), slice(None), 0), (..., 0, 0, 0)):  # of the classes
            with pytest.raises(IndexError):
                said[beyond]


@pytest.mark.parametrize("prior", [0.7, 0.9])  # float32 holds less
def test_no_evidence_is_no_belief_whatever_the_prior(prior: float) -> None:
    redl = methods.method("redl", prior=prior)
    said = redl.prediction(torch.tensor([[-300.0, 5.0], [-300.0, -300.0]]))
    assert said.belief[0, 0] == 0
    assert said.dissonance[1] == 0
    assert torch.allclose(said.belief.sum(-1) + said.vacuity, torch.ones(2))
    with pytest.raises(ValueError, match=r"alpha must be >= 0\.7"):
        _ = Prediction.from_alpha(torch.tensor([0.69999, 1.0]), prior=0.7).belief


# --- bundles -------------------------------------------------------------------------------------


class Slow(nn.Sequential):
    """Threads meet in it."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 32), nn.Dropout(0.5), nn.Linear(32, 3))

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.001)
        outputs: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
        return outputs


@pytest.mark.parametrize("method", ["iedl", "mc_dropout"])
def test_threads_do_not_disturb_each_other(tmp_path: Path, method: str) -> None:
    network = methods.method(method).model(Slow(), 3)
    held = bundle.load(saved(tmp_path, network, method), factory=lambda shape, outputs: Slow())
    x, found = torch.randn(5, 4), list[Tensor]()
    expected = held.predict(x).probs
    torch.manual_seed(7)
    before = torch.get_rng_state()
    threads = [
        Thread(target=lambda: found.extend(held.predict(x).probs for _ in range(4)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 16
    assert all(torch.equal(one, expected) for one in found)
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(module.training for module in held.model.modules())


def test_bytes_and_numbers_are_not_taken_for_each_other(tmp_path: Path) -> None:
    X, y = (part[:300] for part in load_digits(return_X_y=True))
    X = X.astype(np.uint8)
    model = EvidentialClassifier(calibrate=False, **QUICK).fit(X, y)
    held = bundle.load(model.save(tmp_path / "numbers"))
    assert np.array_equal(held.predict(X.astype(np.float32)).label.numpy(), model.predict(X))
    with pytest.raises(ValueError, match="inputs are bytes, which are read as pixels"):
        held.predict(X)  # they would be divided by 255
    pixels = saved(tmp_path / "pixels", linear((4,), 3), preprocessing=Preprocessing(pixels=True))
    held = bundle.load(pixels, factory=linear)
    assert len(held.predict(X[:2, :4])) == 2
    with pytest.raises(TypeError, match=r"bytes \(uint8\) or floats from 0 to 1, not torch.int64"):
        held.predict(X[:2, :4].astype(np.int64))


def test_arrays_may_be_locked_or_flipped(tmp_path: Path) -> None:
    held = bundle.load(saved(tmp_path, linear((4,), 3)), factory=linear)
    x = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    expected = held.predict(x.copy()).alpha
    x.flags.writeable = False
    assert torch.equal(held.predict(x).alpha, expected)
    assert torch.equal(held.predict(x[::-1]).alpha, expected.flip(0))


def test_what_is_saved_can_be_loaded(tmp_path: Path) -> None:
    network = linear((4,), 3)
    compiled: Any = torch.compile(network, backend="eager")
    held = bundle.load(saved(tmp_path / "compiled", compiled), factory=linear)
    assert torch.equal(held.model.state_dict()["1.weight"], network.state_dict()["1.weight"])
    other = bundle.load(
        saved(tmp_path / "other", linear((4,), 5)), factory=lambda shape, _: linear(shape, 5)
    )
    with pytest.raises(ValueError, match="tells 5 classes apart, but this bundle names 3"):
        other.predict(torch.zeros(2, 4))


def test_a_save_that_fails_leaves_the_bundle_before_it(tmp_path: Path) -> None:
    saved(tmp_path, linear((4,), 3))
    spoilt = Calibration.model_construct(theta=(float("nan"), 0.0), levels=(), quantiles=())
    with pytest.raises(ValueError, match="is not a number"):
        saved(tmp_path, linear((4,), 3), calibration=spoilt)
    assert bundle.load(tmp_path, factory=linear).policy is None


# --- the estimator -------------------------------------------------------------------------------


def categories(count: int = 3000) -> tuple[Any, Any]:
    """Few different inputs, so that many tie at any threshold."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 3, (count, 3)).astype(float)
    return X, (rng.random(count) < 1 / (1 + np.exp(-3 * (X.sum(1) - 3)))).astype(int)


def test_a_saved_policy_decides_as_the_estimator_where_inputs_tie(tmp_path: Path) -> None:
    X, y = categories()
    different = np.unique(X, axis=0)
    for seed in range(4):
        options = {**QUICK, "random_state": seed, "method": "redl" if seed % 2 else "iedl"}
        model = EvidentialClassifier(error=0.08, validation_fraction=0.3, **options).fit(X, y)
        held = bundle.load(model.save(tmp_path / str(seed)))
        expected = model.decide(different).codes
        for batch in (1, 27):
            assert torch.equal(held.decide(held.predict(different, batch)).codes, expected)


@pytest.mark.parametrize("column", ["constant", "seconds"])
def test_what_float32_does_not_resolve_is_not_saved(tmp_path: Path, column: str) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    X[:, 2] = 1234567891.0 if column == "constant" else 1.6e9 + 60 * X[:, 0]
    model = EvidentialClassifier(calibrate=False, **QUICK).fit(X, X[:, 0] > 0)
    with pytest.raises(ValueError, match="hardly tell the values of feature 2 apart"):
        model.save(tmp_path)
    X[:, 2] = 2026.0  # constant too, and small
    model.fit(X, X[:, 0] > 0)
    held = bundle.load(model.save(tmp_path))
    proba = model.predict_proba(X)
    assert np.allclose(held.predict(X).probs.numpy(), proba, atol=1e-5)


def test_a_fit_that_fails_forgets_the_network_of_other_classes() -> None:
    X = np.random.default_rng(0).normal(size=(40, 2))
    y = np.where(X[:, 0] > 0, "b", "a")
    model = EvidentialClassifier(calibrate=False, **QUICK).fit(X, y)
    with pytest.raises(ValueError, match="learning_rate must be > 0"):
        model.set_params(learning_rate=-1.0).fit(X, np.where(X[:, 0] > 0, "y", "x"))
    with pytest.raises(NotFittedError):
        model.predict(X)


def test_parameters_of_a_search_can_be_saved_and_others_are_named(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(60, 2))
    y = (X[:, 0] > 0).astype(int)
    drawn: dict[str, Any] = {"hidden": (np.int64(8),), "epochs": np.int64(2)}
    drawn |= {"error": np.float32(0.4), "validation_fraction": np.float64(0.5)}
    model = EvidentialClassifier(random_state=0, **drawn).fit(X, y)
    assert bundle.load(model.save(tmp_path)).config["backbone"]["hidden"] == [8]
    for name in ("epochs", "batch_size"):
        with pytest.raises(TypeError, match=f"{name} must be a whole number, not 1.5"):
            EvidentialClassifier().set_params(**{name: 1.5}).fit(X, y)
    with pytest.raises(ValueError, match=r"classes are \[0\]; a classifier needs two"):
        EvidentialClassifier(**QUICK).partial_fit(X, 0 * y, classes=[0])


# --- the report ----------------------------------------------------------------------------------


def test_a_picture_of_one_value_is_a_picture() -> None:
    assert np.isfinite(np.asarray(report._image(torch.full((1, 8, 8), 5.0)))).all()


def test_what_is_refused_as_unfamiliar_is_shown_without_vacuity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # members agree on the first input, and not on the second
    probs = torch.tensor([[[0.9, 0.1], [0.9, 0.1]], [[0.9, 0.1], [0.2, 0.8]]])
    said = Prediction.from_samples(probs)
    policy = made_policy(("max_prob", 0.1), ("mutual_information", 0.01))
    trained = report.Trained(
        title="", classes=("a", "b"), inputs=torch.rand(2, 1, 8, 8), labels=said.label, said=said,
        limits=bundle.Limits(None, policy), history=(), epoch=0, facts=(),
    )  # fmt: skip
    shown: list[Any] = []
    real = figures.pictures

    def noted(title: str, rows: Any) -> Any:
        shown.append(list(rows))
        return real(title, rows)

    monkeypatch.setattr(figures, "pictures", noted)
    assert report._sheet(trained) is not None
    assert shown == [["unfamiliar"]]


# --- Lightning -----------------------------------------------------------------------------------


def module(outputs: int = 3, classes: Any = 3, method: str = "iedl", **options: Any) -> Any:
    pytest.importorskip("lightning")
    from dubito.lightning import EvidentialModule

    return EvidentialModule(linear((4,), outputs), method, classes, **options)


def fitted(made: Any, x: Tensor, y: Tensor, precision: str = "32-true") -> Any:
    from lightning import Trainer

    run = Trainer(
        accelerator="cpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, precision=precision,  # type: ignore[arg-type]
    )  # fmt: skip
    data: DataLoader[Any] = DataLoader(TensorDataset(x, y), 16)
    run.fit(made, data, data)
    return run


LIGHTNING = pytest.mark.filterwarnings("ignore:.*does not have many workers")


@LIGHTNING
@pytest.mark.parametrize("precision", ["64-true", "bf16-true"])
def test_a_trainer_chooses_the_precision(precision: str) -> None:
    made = module()
    run = fitted(made, torch.randn(32, 4), torch.arange(32) % 3, precision)
    assert run.callback_metrics["train_loss"].isfinite()
    assert (
        next(made.parameters()).dtype == {"64": torch.float64, "bf": torch.bfloat16}[precision[:2]]
    )


@LIGHTNING
def test_lightning_refuses_what_does_not_fit() -> None:
    x, y = torch.randn(32, 4), torch.arange(32) % 3
    with pytest.raises(ValueError, match="has 5 outputs, but 3 classes need 3"):
        fitted(module(outputs=5), x, y)
    for method in ("iedl", "softmax"):
        with pytest.raises(ValueError, match="labels must be from 0 to 2"):
            fitted(module(method=method), x, torch.where(y == 1, -100, y))
    with pytest.raises(ValueError, match="classes must have different names"):
        module(classes=["a", "b", "a"])
    assert module(classes=np.int64(3)).classes == ("0", "1", "2")


@LIGHTNING
def test_a_network_of_bytes_is_asked_with_bytes(tmp_path: Path) -> None:
    x, y = torch.randint(256, (32, 4), dtype=torch.uint8), torch.arange(32) % 3
    made = module()
    fitted(made, x, y)
    with pytest.raises(ValueError, match="held_out must give at least one batch"):
        made.to_bundle(tmp_path / "none", held_out=[])
    kept: dict[str, Any] = {}
    made.on_save_checkpoint(kept)
    again = module()
    again.load_state_dict(made.state_dict())
    again.on_load_checkpoint(kept)
    np.savez(tmp_path / "new.npz", inputs=x.numpy())
    held = bundle.load(again.to_bundle(tmp_path / "bundle"), factory=linear)
    (rows,) = bundle.stream(held, [tmp_path / "new.npz"])
    assert rows.failed == 0
    expected = made.predict(x).max_prob.tolist()
    assert [row["probability"] for row in rows.rows] == pytest.approx(expected, rel=1e-5)
