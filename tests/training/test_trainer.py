import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dubito import methods
from dubito.errors import DubitoError
from dubito.formats import FORMATS, Preprocessing
from dubito.model import Model
from dubito.training import History, NonFiniteLoss, Progress, TrainConfig, Trainer
from tests.training.helpers import (
    SHORT,
    TASK,
    TRAIN,
    VALIDATION,
    AtEpochEnd,
    Normed,
    blobs,
    regression,
    small_model,
    trained,
    weights,
    wrap,
)


def with_values(**values: Any) -> TrainConfig:
    return SHORT.model_copy(update=values)


@pytest.fixture(scope="module")
def model() -> Model:
    return small_model()


@pytest.fixture(scope="module")
def calls() -> list[Progress]:
    return []


@pytest.fixture(scope="module")
def history(model: Model, calls: list[Progress]) -> History:
    config = TrainConfig(epochs=7, batch_size=16, lr=0.01, patience=0)
    return Trainer(config, callbacks=[AtEpochEnd(calls.append)]).fit(model, TRAIN, VALIDATION)


def test_fit_learns(history: History) -> None:
    assert history.best["validation"]["accuracy"] > 0.85


def test_model_ends_in_evaluation_mode(history: History, model: Model) -> None:
    assert not model.network.training


def test_validated_epochs_have_metrics_and_loss(history: History) -> None:
    validated = [record["epoch"] for record in history.records if "validation" in record]
    assert validated == [2, 4, 6, 7]
    assert set(history.best["validation"]) == {"accuracy", "nll", "brier", "ece", "loss"}


def test_loss_is_weighted_sum_of_terms(history: History) -> None:
    last = history.records[-1]
    current = methods.METHODS.build("iedl").weights(epoch=6, epochs=7)
    assert last["loss"] == pytest.approx(sum(w * last["terms"][k] for k, w in current.items()))


def test_callbacks_see_each_epoch_once(history: History, calls: list[Progress]) -> None:
    assert [progress.record for progress in calls] == history.records
    assert [(p.epoch, p.epochs, p.step, p.steps) for p in calls] == [
        (epoch, 7, 8, 8) for epoch in range(1, 8)
    ]
    assert calls[-1].seconds_left == 0 < calls[0].seconds_left
    assert history.seconds > sum(record["seconds"] for record in history.records)


# --- the best weights ---


@pytest.mark.parametrize(("keep", "best"), [(None, max), ("nll", min), ("loss", min)])
def test_best_weights_are_loaded(keep: str | None, best: Any) -> None:
    model = small_model()
    config = with_values(epochs=8, lr=0.1, keep=keep)
    history = Trainer(config).fit(model, TRAIN, blobs(60, seed=5, shift=0.7))
    metric = keep or "accuracy"
    values = [record["validation"][metric] for record in history.records]
    assert history.best["validation"][metric] == best(values)
    assert history.best_epoch == values.index(best(values)) + 1
    x, target = blobs(60, seed=5, shift=0.7)
    right = (model(x).probs.argmax(-1) == target).double().mean().item()
    assert right == pytest.approx(history.best["validation"]["accuracy"])


@pytest.mark.parametrize("average", [0, 3])
def test_last_weights_are_kept(average: int) -> None:
    values = {"keep": "last", "average_epochs": average, "patience": 1, "lr": 0.1}
    config, without = with_values(epochs=6, **values), wrap(Normed())
    history = Trainer(config).fit(without, TRAIN)
    assert history.best_epoch == len(history.records) == 6
    assert "validation" not in history.best
    model = wrap(Normed())
    validated = Trainer(config).fit(model, TRAIN, blobs(60, seed=5, shift=0.0))
    assert torch.equal(weights(model), weights(without))
    assert [record["epoch"] for record in validated.records if "validation" in record] == [
        1, 2, 3, 4, 5, 6,
    ]  # fmt: skip
    x, target = blobs(60, seed=5, shift=0.0)
    right = (model(x).probs.argmax(-1) == target).double().mean().item()
    assert right == pytest.approx(validated.best["validation"]["accuracy"])


def test_best_weights_need_validation_samples() -> None:
    with pytest.raises(DubitoError, match=r"keep='accuracy' needs validation .*keep='last'"):
        Trainer(SHORT).fit(small_model(), TRAIN)


def test_last_weights_that_are_not_finite_are_an_error() -> None:
    config, model = with_values(keep="last", epochs=1, batch_size=1000), small_model()
    next(model.network.parameters()).register_hook(lambda gradient: gradient * math.inf)
    with pytest.raises(NonFiniteLoss, match=r"weights are not finite after epoch 1: lower lr="):
        Trainer(config).fit(model, TRAIN)


@pytest.mark.parametrize("every", [1, 2])
def test_patience_counts_validations_without_improvement(every: int) -> None:
    config = with_values(epochs=50, patience=3, keep="accuracy", lr=1e-12, validate_every=every)
    history = Trainer(config).fit(small_model(), TRAIN, VALIDATION)
    assert history.best_epoch == every  # the first of equals
    assert len(history.records) == history.best_epoch + 3 * every


def test_unknown_metric_is_refused_before_training() -> None:
    with pytest.raises(
        DubitoError, match=r"unknown metric to keep 'f1'; known: 'accuracy'.*'loss'"
    ):
        trained(small_model(), with_values(keep="f1"))


def test_validation_loss_is_comparable_while_a_weight_rises() -> None:
    history = Trainer(with_values(lr=1e-12)).fit(small_model(), TRAIN, VALIDATION)
    first, *rest = [record["validation"]["loss"] for record in history.records]
    assert rest == pytest.approx([first] * 2, rel=1e-5)
    assert len({round(record["loss"], 4) for record in history.records}) == 3


# --- methods, tasks and options ---


def test_regression_is_validated_in_user_units() -> None:
    task, train, validation = regression()
    model = small_model("der", task=task)
    config = with_values(epochs=30, lr=0.02)
    history = Trainer(config).fit(model, train, validation)
    best = history.best["validation"]
    assert set(best) == {"rmse", "mae", "nll", "crps", "coverage90", "loss"}
    assert 1 < best["rmse"] < 50 < train[1].std()
    assert best["nll"] == min(record["validation"]["nll"] for record in history.records)


def test_soft_targets_train() -> None:
    soft = 0.8 * torch.eye(2)[TRAIN[1]] + 0.1
    config = with_values(lr=0.03, epochs=10)
    history = Trainer(config).fit(small_model("edl"), (TRAIN[0], soft), VALIDATION)
    assert history.best["validation"]["accuracy"] > 0.8


def test_class_weight_favors_its_class() -> None:
    shares = []
    for heavy in (0, 1):
        weight = torch.tensor([1.0, 1.0])
        weight[heavy] = 20.0
        model = trained(small_model(), with_values(epochs=10, lr=0.03), class_weight=weight)
        shares.append((model(VALIDATION[0]).probs.argmax(-1) == 0).double().mean().item())
    assert shares[0] > shares[1]


def test_ood_inputs_lower_the_evidence_for_them() -> None:
    outside = torch.full((20, 4), -3.0)
    config = with_values(epochs=30, lr=0.03)
    evidence = []
    for ood in (outside, -outside):
        model = trained(small_model("rkl_pn"), config, ood=ood)
        evidence.append(model(outside).score("alpha0").mean().item())
    assert evidence[0] < evidence[1]


def test_ood_inputs_of_another_method_are_refused() -> None:
    with pytest.raises(DubitoError, match="IEDL does not train with out-of-distribution inputs"):
        trained(small_model(), ood=TRAIN[0])
    with pytest.raises(DubitoError, match=r"ood has shape \(3, 5\); expected \(M, 4,\)"):
        trained(small_model("kl_pn"), ood=torch.zeros(3, 5))


def test_noise_cannot_take_the_place_of_ood_texts() -> None:
    words = Preprocessing(inputs=FORMATS.build("text", vocabulary=("a",), length=3))
    model = Model.build("kl_pn", TASK, words, {"name": "embedding", "vocabulary": 9})
    train = torch.zeros(128, 3, dtype=torch.long), TRAIN[1]
    with pytest.raises(DubitoError, match=r"^KLPriorNetwork trains with .* noise is no text: pass"):
        Trainer(SHORT).fit(model, train, train)
    Trainer(SHORT).fit(model, train, train, ood=train[0] + 1)


def test_method_finishes_on_the_training_data() -> None:
    counts = []

    class Finishing(methods.IEDL):
        def finish(self, network: nn.Module, batches: Any) -> None:
            assert not network.training
            counts.extend(sum(len(x) for x, _ in batches) for _ in range(2))  # twice, for ensembles

    trained(wrap(Normed(), Finishing()))
    assert counts == [128, 128]


@pytest.mark.parametrize(
    "values",
    [
        {"optimizer": "sgd", "optimizer_options": {"momentum": 0.9}, "schedule": "cosine"},
        {"optimizer": "rmsprop"},
        {"precision": "bfloat16"},
        {"batch_size": 1000},
    ],
    ids=str,
)
def test_options_train(values: dict[str, Any]) -> None:
    model = trained(small_model(), with_values(**values))
    assert weights(model).isfinite().all()


def test_cuda_graph_needs_a_gpu() -> None:
    with pytest.raises(DubitoError, match="graph=True needs a GPU; one of the optimizers"):
        trained(small_model(), with_values(graph=True, optimizer="nadam"))


def test_batch_norm_skips_a_batch_of_one_sample() -> None:
    few, sizes = blobs(65), []

    class Counting(Normed):
        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                sizes.append(len(x))
            return super().forward(x)

    Trainer(with_values(batch_size=64, epochs=1)).fit(wrap(Counting()), few, VALIDATION)
    assert sizes == [64]
    linear = wrap(nn.Linear(4, 2))
    linear.network.register_forward_hook(lambda _, x, __: sizes.append(len(x[0])))
    Trainer(with_values(batch_size=64, epochs=1)).fit(linear, few, VALIDATION)
    assert sizes[1:3] == [64, 1]


# --- random numbers ---


def test_training_repeats_and_leaves_the_random_state() -> None:
    results = []
    for _ in range(2):
        model = small_model("mc_dropout")
        state = torch.get_rng_state()
        results.append(weights(trained(model)))
        assert torch.equal(torch.get_rng_state(), state)
        torch.rand(3)
    assert torch.equal(*results)


@pytest.mark.parametrize("method", ["iedl", "der"])
def test_trainings_side_by_side_are_those_of_single_ones(method: str) -> None:
    task, (x, y), _ = regression()
    task, y = (task, y) if method == "der" else (TASK, torch.arange(len(x)) % 2)
    folds = [(x[:96], y[:96]), (x[:95], y[:95])]
    models, singles = ([small_model(method, s, task) for s in (1, 2)] for _ in range(2))
    config = with_values(batch_size=20, average_epochs=2, keep="last", schedule="cosine")
    together = Trainer(config).fit_many(models, folds, seeds=[1, 2])
    for seed, (fold, model) in enumerate(zip(folds, singles, strict=True), 1):
        own = config.model_copy(update={"seed": seed})
        history = Trainer(own).fit(model, fold)
        torch.testing.assert_close(weights(models[seed - 1]), weights(model))
        for one, other in zip(together[seed - 1].records, history.records, strict=True):
            assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
            assert one["terms"] == pytest.approx(other["terms"], rel=1e-5)


def test_trainings_side_by_side_can_keep_one_epoch() -> None:
    task, (x, y), _ = regression()
    parts = [(x[:64], y[:64]), (x[64:], y[64:])]
    config = with_values(
        batch_size=16, keep="rmse", patience=0, validate_every=1, epochs=8, lr=0.02
    )
    found = {}
    for one_epoch in (False, True):
        models = [small_model("der", seed, task) for seed in (1, 2)]
        histories = Trainer(config).fit_many(
            models, parts, parts[::-1], seeds=[1, 2], one_epoch=one_epoch
        )
        rmse = np.array([[r["validation"]["rmse"] for r in h.records] for h in histories])
        found[one_epoch] = [history.best_epoch for history in histories]
    assert found[False] == (rmse.argmin(1) + 1).tolist()
    assert found[True] == [rmse.mean(0).argmin() + 1] * 2
    assert found[False] != found[True]


def test_a_metric_that_a_method_lacks_raises() -> None:
    task, (x, y), _ = regression()
    model = small_model({"name": "ensemble", "member": "der", "size": 2}, task=task)
    with pytest.raises(DubitoError, match=r"keep='crps'.* has 'rmse'"):
        Trainer(with_values(keep="crps")).fit(model, (x, y), (x, y))


def test_models_that_train_together_have_one_method() -> None:
    models = [small_model(), small_model("edl")]
    with pytest.raises(DubitoError, match="need the same method"):
        Trainer(SHORT).fit_many(models, TRAIN, VALIDATION, seeds=[1, 2])
    with pytest.raises(DubitoError, match="no models to train"):
        Trainer(SHORT).fit_many([], TRAIN, VALIDATION, seeds=[])


# --- values that are not finite ---


class Exploding(nn.Module):
    """Network with infinite outputs from a step on, or in evaluation only."""

    def __init__(self, steps: float, value: float = math.inf) -> None:
        super().__init__()
        self.inner, self.left, self.value = Normed(), steps, value

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.inner(x)
        if self.training:
            self.left -= 1
            return outputs if self.left >= 0 else outputs * 0 + self.value
        return outputs if self.left != math.inf else outputs + math.inf


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_loss_that_is_not_finite_names_epoch_step_and_terms(value: float) -> None:
    message = r"not finite in epoch 2, step 3: mean terms fisher_bias .*outputs span \[.*Lower lr="
    with pytest.raises(NonFiniteLoss, match=message):
        trained(wrap(Exploding(6, value)))


def test_validation_outputs_that_are_not_finite_are_an_error() -> None:
    with pytest.raises(NonFiniteLoss, match=r"validation samples span \[inf, inf\] after epoch 1"):
        trained(wrap(Exploding(math.inf)))


# --- bad data ---


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ((TRAIN[0][:0], TRAIN[1][:0]), "there are no training samples"),
        ((TRAIN[0], TRAIN[1][:9]), "training data: 128 inputs, but 9 targets"),
        ((TRAIN[0].clone().index_fill_(0, torch.tensor([7]), torch.nan), TRAIN[1]), r"\[7, 0\]"),
        ((TRAIN[0], TRAIN[1] + 1), r"labels must be from 0 to 1, but span \[1, 2\]"),
        ((TRAIN[0], torch.full((128, 2), torch.nan)), "training targets must be finite"),
        ((TRAIN[0], torch.full((128, 3), 0.3)), r"shape \(128, 3\).*\(N, 2\)"),
    ],
)  # fmt: skip
def test_bad_samples_are_named(train: Any, message: str) -> None:
    with pytest.raises(DubitoError, match=message):
        Trainer(SHORT).fit(small_model(), train, VALIDATION)


def test_class_weight_needs_one_value_per_class() -> None:
    with pytest.raises(DubitoError, match=r"weight has shape \(3,\); expected one per class"):
        trained(small_model(), class_weight=torch.ones(3))
