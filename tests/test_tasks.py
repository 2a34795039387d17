"""Tasks: targets in and out, errors, metrics against scikit-learn and SciPy, files."""

import json
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pydantic import BaseModel, ValidationError
from scipy import stats
from sklearn import metrics as sk

from dubito.distributions import Categorical, Dirichlet, NormalInverseGamma
from dubito.tasks import AnyTask, Classification, Regression

ANIMALS = Classification(classes=("cat", "dog", "eel"))
SIZES = Regression(
    names=("height", "width"), mean=(10.0, 2.0), std=(4.0, 0.5), tolerance=(1.0, 0.25)
)


class Holder(BaseModel):
    task: AnyTask


# --- classification: targets ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "classes", "counts"),
    [
        (["b", "a", "b"], ("a", "b"), (1, 2)),
        ([10, 9, 10, 2], ("2", "9", "10"), (1, 1, 2)),
        (np.array([1.0, 0.0, 1.0]), ("0", "1"), (1, 2)),
        (torch.tensor([3, 1, 3]), ("1", "3"), (1, 2)),
        ([True, False, True], ("False", "True"), (1, 2)),
        (np.array(["nan", "inf", "1"]), ("1", "inf", "nan"), (1, 1, 1)),
        (pd.Series(["x", "y", "x"], dtype="category"), ("x", "y"), (2, 1)),
        ([0.5, 1.5, 0.5], ("0.5", "1.5"), (2, 1)),
    ],
)
def test_classes_from_target(values: Any, classes: tuple[str], counts: tuple[int]) -> None:
    task = Classification.from_target(values)
    assert (task.classes, task.counts, task.size) == (classes, counts, len(classes))
    encoded = task.encode(values)
    assert encoded.dtype == torch.int64
    assert torch.bincount(encoded).tolist() == list(counts)
    assert task.encode(task.decode(encoded)).tolist() == encoded.tolist()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["a", "a"], "at least two classes, but target has the one class 'a'"),
        ([], "at least two classes, but target has no samples"),
        (["a", None], "row 1 of target is None, not a class"),
        (["a", math.nan, "b"], "row 1 of target is nan, not a class"),
        (pd.Series(["a", pd.NA, "b"], dtype=object), "row 1 of target is <NA>, not a class"),
        (np.array([0.0, np.inf]), "row 1 of target is inf, not a class"),
        ([[0, 1], [1, 0]], r"row 0 of target is \[0, 1\], not a class"),
        (pd.DataFrame({"a": ["x", "y"], "b": ["x", "z"]}), r"shape \(2, 2\); expected one class"),
    ],
)
def test_bad_classes_are_named(values: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Classification.from_target(values)


def test_an_unknown_class_is_named() -> None:
    with pytest.raises(ValueError, match="row 1 of target is 'cow', which is not one of the 3 cla"):
        ANIMALS.encode(["cat", "cow"])
    with pytest.raises(ValueError, match=r"target has shape \(2, 1\); expected one class"):
        ANIMALS.encode(np.array([["cat"], ["dog"]]))


def test_soft_targets_pass_through() -> None:
    probs = np.array([[0.5, 0.25, 0.25], [0.0, 0.0, 1.0]])
    encoded = ANIMALS.encode(probs)
    assert encoded.dtype == torch.float32
    assert encoded.tolist() == probs.tolist()
    assert ANIMALS.errors(torch.tensor([0, 0]), encoded).tolist() == [False, True]
    hard = encoded.argmax(-1)
    predictive = Dirichlet(torch.tensor([[5.0, 1.0, 1.0], [1.0, 2.0, 3.0]])).predictive
    assert ANIMALS.metrics(predictive, encoded) == ANIMALS.metrics(predictive, hard)
    with pytest.raises(ValueError, match="sum to 1"):
        ANIMALS.encode(2 * probs)
    with pytest.raises(ValueError, match=r"expected class names \(N,\) or probabilities \(..., 3"):
        ANIMALS.encode(probs[:, :2])
    with pytest.raises(ValueError, match=r"target is torch\.int64 of shape"):
        ANIMALS.encode(np.zeros((2, 3), int))


# --- classification: predictions -----------------------------------------------------------------


def test_class_point_and_errors() -> None:
    point = ANIMALS.point(Dirichlet(torch.tensor([[1.0, 9.0, 2.0], [7.0, 1.0, 1.0]])))
    assert point.tolist() == [1, 0]
    assert ANIMALS.decode(point).tolist() == ["dog", "cat"]
    assert ANIMALS.errors(point, ANIMALS.encode(["dog", "eel"])).tolist() == [False, True]
    assert ANIMALS.defines_errors
    assert ANIMALS.monitor == "accuracy"


def test_class_metrics_equal_sklearn() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(500, 3, generator=generator, dtype=torch.float64)
    target = torch.randint(3, (500,), generator=generator)
    result = ANIMALS.metrics(Categorical(logits).predictive, target)
    probs = logits.softmax(-1).numpy()
    assert list(result) == ["accuracy", "nll", "brier", "ece"]
    assert result["accuracy"] == pytest.approx(sk.accuracy_score(target, probs.argmax(-1)))
    assert result["nll"] == pytest.approx(sk.log_loss(target, probs, labels=[0, 1, 2]))
    assert result["brier"] == pytest.approx(((probs - np.eye(3)[target]) ** 2).sum(-1).mean())


def test_class_nll_is_exact_where_a_probability_underflows() -> None:
    predictive = Categorical(torch.tensor([[0.0, -200.0, -200.0]])).predictive
    assert ANIMALS.metrics(predictive, torch.tensor([1]))["nll"] == pytest.approx(200)


def test_class_reliability_has_the_bins_of_the_ece() -> None:
    generator = torch.Generator().manual_seed(0)
    predictive = Categorical(2 * torch.randn(500, 3, generator=generator)).predictive
    target = torch.randint(3, (500,), generator=generator)
    curve = ANIMALS.reliability(predictive, target)
    expected, observed, count = map(np.array, curve.values())
    assert count.sum() == 500
    assert (count[:4] == 0).all()  # the largest of three probabilities is at least 1/3
    ece = (count * np.abs(expected - observed)).sum() / 500
    assert ece == pytest.approx(ANIMALS.metrics(predictive, target)["ece"], abs=1e-6)


# --- regression: targets -------------------------------------------------------------------------


def test_regression_from_target() -> None:
    task = Regression.from_target([1, 2, 6], tolerance=2)
    assert task.names == ("target",)
    assert (task.mean, task.std, task.tolerance) == (
        (3.0,),
        (pytest.approx(14**0.5 / 3**0.5),),
        (2.0,),
    )
    table = pd.DataFrame({"height": [1.0, 2.0], "width": [5, 9]})
    assert Regression.from_target(table).names == ("height", "width")
    assert Regression.from_target(table["width"]).names == ("width",)
    assert Regression.from_target(table.to_numpy()).names == ("target_0", "target_1")
    assert Regression.from_target(table, tolerance=np.int64(2)).tolerance == (2, 2)
    named = Regression.from_target(torch.rand(9, 2), ["a", "b"], tolerance=[1, 2])
    assert (named.names, named.tolerance, named.size) == (("a", "b"), (1.0, 2.0), 2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0, 1.0], "target 'target' is constant: mean 1, standard deviation 0"),
        ([1e9, 1e9 + 1], "target 'target' is nearly constant, too close for float32"),
        ([math.nan, None], "target 'target' has no values: all are missing"),
        ([1.0, -math.inf], "row 1 of target 'target' is -inf"),
        (["1.5", "tall"], "row 1 of target 'target' is 'tall', not a number"),
        (pd.Series([1.5, "tall"]), "row 1 of target 'target' is 'tall', not a number"),
        ([], r"target has shape \(0, 1\)"),
        (np.zeros((2, 2, 2)), r"target has shape \(2, 2, 2\)"),
    ],
)
def test_bad_numbers_are_named(values: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Regression.from_target(values)


def test_numbers_are_encoded_as_columns() -> None:
    one = Regression.from_target([1, 2])
    for values in ([3, 4.5], np.array([3, 4.5]), torch.tensor([[3.0], [4.5]]), pd.Series([3, 4.5])):
        encoded = one.encode(values)
        assert encoded.dtype == torch.float32
        assert encoded.tolist() == [[3.0], [4.5]]
    assert one.decode(encoded).tolist() == [3.0, 4.5]
    assert SIZES.decode(SIZES.encode([[1, 2]])).tolist() == [[1.0, 2.0]]
    with pytest.raises(ValueError, match="row 0 of target 'width' is nan"):
        SIZES.encode([[1, math.nan]])
    with pytest.raises(ValueError, match="target has 1 columns, expected 'height', 'width'"):
        SIZES.encode([1, 2])


# --- regression: predictions ---------------------------------------------------------------------


def numbers(count: int = 400, seed: int = 0) -> tuple[NormalInverseGamma, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    parameters = torch.rand(4, count, 2, generator=generator, dtype=torch.float64) + 0.2
    dist = NormalInverseGamma(*parameters)
    noise = torch.randn(count, 2, generator=generator, dtype=torch.float64)
    return dist, dist.mean + 0.5 * noise * dist.variance.sqrt()


def test_number_point_and_errors() -> None:
    dist, _ = numbers(3)
    point = SIZES.point(dist)
    assert torch.equal(point, dist.mean)
    target = point + torch.tensor([[0.9, -0.2], [-1.1, 0.0], [0.0, 0.3]])
    assert SIZES.errors(point, target).tolist() == [False, True, True]
    undefined = SIZES.model_copy(update={"tolerance": None})
    assert SIZES.defines_errors
    assert not undefined.defines_errors
    with pytest.raises(ValueError, match="need a tolerance for 'height', 'width'"):
        undefined.errors(point, target)


def test_number_metrics_equal_sklearn_and_scipy() -> None:
    dist, target = numbers()
    result = SIZES.metrics(dist.predictive, target)
    assert list(result) == ["rmse", "mae", "nll", "coverage90", "crps"]
    assert result["rmse"] == pytest.approx(sk.root_mean_squared_error(target, dist.mean))
    assert result["mae"] == pytest.approx(sk.mean_absolute_error(target, dist.mean))
    alpha = dist.alpha_minus_one + 1
    student = stats.t(2 * alpha, dist.gamma, (dist.beta * (1 + dist.nu) / (dist.nu * alpha)).sqrt())
    assert result["nll"] == pytest.approx(-student.logpdf(target).sum(-1).mean())
    lower, upper = student.interval(0.9)
    inside = (lower <= target.numpy()) & (target.numpy() <= upper)
    assert result["coverage90"] == pytest.approx(inside.mean())
    draws = student.rvs((20_000, *target.shape), random_state=np.random.default_rng(0))
    half = len(draws) // 2
    crps = abs(draws - target.numpy()).mean(0) - 0.5 * abs(draws[:half] - draws[half:]).mean(0)
    assert result["crps"] == pytest.approx(crps.mean(), rel=0.02)
    assert SIZES.monitor in result


def test_number_reliability_is_coverage_by_level() -> None:
    dist, target = numbers()
    curve = SIZES.reliability(dist.predictive, target)
    inside = 2 * (dist.predictive.cdf(target) - 0.5).abs()
    assert curve["expected"] == pytest.approx([place / 15 for place in range(1, 15)])
    for level, share in zip(curve["expected"], curve["observed"], strict=True):
        assert share == pytest.approx((inside <= level).double().mean().item(), abs=1e-9)


def test_units() -> None:
    dist, target = numbers()
    standardized = SIZES.to_training_units(target)
    torch.testing.assert_close(
        standardized, (target - torch.tensor([10.0, 2.0])) / torch.tensor([4, 0.5])
    )
    user = SIZES.to_user_units(dist)
    torch.testing.assert_close(SIZES.to_training_units(user.mean), dist.mean)
    log_volume = math.log(4 * 0.5)  # densities change by the volume
    torch.testing.assert_close(
        user.predictive.log_prob(target), dist.predictive.log_prob(standardized) - log_volume
    )
    labels = torch.tensor([0, 1])
    assert ANIMALS.to_training_units(labels) is labels


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [ANIMALS, SIZES, Classification.from_target([1, 2, 2])])
def test_json_round_trip(task: Any) -> None:
    text = Holder(task=task).model_dump_json()
    assert Holder.model_validate_json(text).task == task
    assert json.loads(text)["task"]["kind"] == task.kind


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": ["a"]}, "at least 2 items"),
        ({"classes": ["a", "b", "a"]}, "classes must be distinct, but 'a' occurs twice"),
        ({"counts": [1]}, "1 counts for 3 classes"),
        ({"counts": [1, 2, -1]}, "greater than or equal to 0"),
        ({"labels": ["a", "b"]}, "Extra inputs are not permitted"),
    ],
)
def test_bad_classification_files(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Classification.model_validate({**ANIMALS.model_dump(), **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"std": [1.0, 0.0]}, "greater than 0"),
        ({"mean": [1.0]}, "need 2 values each"),
        ({"tolerance": [-1.0, 1.0]}, "greater than or equal to 0"),
        ({"mean": [1.0, math.nan]}, "finite number"),
        ({"names": ["a", "a"]}, "names must be distinct"),
        ({"scale": 1}, "Extra inputs are not permitted"),
    ],
)
def test_bad_regression_files(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Regression.model_validate({**SIZES.model_dump(), **change})
