"""What users of tables would take instead, and what a prediction is measured by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from scipy import special, stats
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dubito.distributions.regression import StudentT

__all__ = ["LEVELS", "RIVALS", "Prediction", "of_distribution", "scores"]

Array = np.ndarray[Any, Any]
LEVELS = (0.9, 0.5, 0.8, 0.95)
#: equally probable values that stand for a distribution
DRAWS = 200
MIDDLES = (np.arange(DRAWS) + 0.5) / DRAWS
#: probabilities of the quantiles whose calibration is measured
CALIBRATED = np.arange(0.05, 0.96, 0.05)
#: hyperparameters of gradient boosting, as many as networks have
BOOSTING = [
    {"learning_rate": rate, "min_samples_leaf": least} for rate in (0.1, 0.05) for least in (20, 5)
]


@dataclass(frozen=True)
class Prediction:
    """Prediction of N test samples.

    Attributes:
        mean: Point predictions, (N,).
        spread: Uncertainties that rank the samples, (N,).
        draws: Equally probable values in ascending order, (N, DRAWS).
        nll: Negative log-likelihoods, (N,); None without a density.
        intervals: Ends of intervals by level; those of the draws where there are none.
    """

    mean: Array
    spread: Array
    draws: Array
    nll: Array | None
    intervals: Mapping[float, tuple[Array, Array]]


def of_distribution(dist: Any, y: Array, predictive: Any = None) -> Prediction:
    """Describe a predicted distribution of one number.

    Args:
        dist: Distribution, batch shape (N,).
        y: Targets, (N,).
        predictive: Calibrated distribution of the target; None for that of `dist`.
    """
    predictive = dist.predictive if predictive is None else predictive
    own = getattr(predictive, "components", predictive)  # of a mixture, (N, S)
    members = own.batch_shape[1:].numel()
    middles = (np.arange(each := DRAWS // members) + 0.5) / each
    if isinstance(own, StudentT):  # SciPy's quantiles are faster
        parts = (part.double().numpy() for part in (own.loc, own.scale, own.df))
        loc, scale, df = (part.reshape(len(y), -1, 1) for part in parts)
        shape = special.ndtri(middles) if df.min() > 1e9 else special.stdtrit(df, middles)
        draws = loc + scale * shape
    else:
        levels = torch.as_tensor(middles).reshape(-1, *[1] * (len(own.batch_shape) + 1))
        draws = own.icdf(levels.expand(-1, *own.batch_shape, 1)).movedim(0, -1).numpy()
    draws = np.sort(draws.reshape(len(y), -1), 1)
    logs = predictive.log_prob(torch.as_tensor(y)[:, None]).double().numpy()
    mean = dist.mean[:, 0].double().numpy()
    return Prediction(mean, dist.total.double().sqrt().numpy(), draws, -logs, {})


def quantile(draws: Array, level: float) -> Array:
    """Interpolate a quantile between sorted draws: (N, K) -> (N,)."""
    place = np.clip(level * draws.shape[1] - 0.5, 0, draws.shape[1] - 1)
    low, share = int(place), place - int(place)
    found: Array = (1 - share) * draws[:, low] + share * draws[:, min(low + 1, draws.shape[1] - 1)]
    return found


def scores(prediction: Prediction, y: Array) -> dict[str, float]:
    """Measure a prediction.

    Args:
        prediction: Prediction.
        y: Targets, (N,).

    Returns:
        rmse, mae, nll, crps; coverage and width by level; calibration, the mean distance between
        the shares of targets below 19 quantiles and their probabilities; aurc, the mean absolute
        error of the most certain samples, averaged over their share; spearman, the rank correlation
        of uncertainties and absolute errors.
    """
    draws, error = prediction.draws, np.abs(prediction.mean - y)
    gap = y[:, None] - draws
    middles = (np.arange(draws.shape[1]) + 0.5) / draws.shape[1]
    found = {
        "rmse": np.sqrt(np.mean(error**2)),
        "mae": error.mean(),
        "crps": 2 * np.mean(np.maximum(middles * gap, (middles - 1) * gap)),
    }
    if prediction.nll is not None:
        found["nll"] = prediction.nll.mean()
    for level in LEVELS:
        tails = (quantile(draws, (1 - level) / 2), quantile(draws, (1 + level) / 2))
        lower, upper = prediction.intervals.get(level, tails)
        found[f"coverage/{level}"] = np.mean((lower <= y) & (y <= upper))
        found[f"width/{level}"] = np.mean(upper - lower)
    shares = [np.mean(y <= quantile(draws, p)) for p in CALIBRATED]
    found["calibration"] = np.abs(shares - CALIBRATED).mean()
    ranked = error[np.argsort(prediction.spread, kind="stable")]
    found["aurc"] = (ranked.cumsum() / np.arange(1, len(y) + 1)).mean()
    constant = np.ptp(prediction.spread) == 0
    found["spearman"] = 0.0 if constant else stats.spearmanr(prediction.spread, error).statistic
    return {name: float(value) for name, value in found.items()}


# --- rivals: training samples, test samples, seed and random numbers to a prediction ---

Rival = Callable[[Array, Array, Array, Array, Generator], Prediction]


def boosting(x: Array, y: Array, x_test: Array, y_test: Array, rng: Generator) -> Prediction:
    """Gradient boosting: a model of the mean, and quantiles with CQR (Romano et al., 2019)."""
    first, second = parts(len(y), rng)

    def fit(rows: Array, **options: Any) -> Any:
        return HistGradientBoostingRegressor(random_state=0, **options).fit(x[rows], y[rows])

    errors = [np.mean((fit(first, **o).predict(x[second]) - y[second]) ** 2) for o in BOOSTING]
    best = BOOSTING[int(np.argmin(errors))]
    probabilities, values, intervals = [0.5], [], {}
    middle = fit(first, loss="quantile", quantile=0.5, **best)
    values.append(middle.predict(x_test))
    for level in LEVELS:
        ends = (1 - level) / 2, (1 + level) / 2
        models = [fit(first, loss="quantile", quantile=end, **best) for end in ends]
        low, high = (model.predict(x[second]) for model in models)
        widening = conformal(np.maximum(low - y[second], y[second] - high), level)
        lower, upper = (model.predict(x_test) for model in models)
        intervals[level] = lower - widening, np.maximum(upper + widening, lower - widening)
        probabilities += ends
        values += intervals[level]
    order = np.argsort(probabilities)
    knots = special.ndtri(np.array(probabilities)[order])
    sorted_values = np.sort(np.stack(values, 1)[:, order], 1)
    draws = np.stack([_extended(knots, row) for row in sorted_values])
    lower, upper = intervals[LEVELS[0]]
    mean = fit(np.arange(len(y)), **best).predict(x_test)
    return Prediction(mean, upper - lower, draws, None, intervals)


def _extended(knots: Array, values: Array) -> Array:
    """Interpolate quantiles between their normal scores, and extend them by lines."""
    z = special.ndtri(MIDDLES)
    inside: Array = np.interp(z, knots, values)
    for end, sign in ((0, -1), (-1, 1)):
        slope = (values[end] - values[end - sign]) / (knots[end] - knots[end - sign])
        beyond = sign * (z - knots[end]) > 0
        inside[beyond] = values[end] + slope * (z[beyond] - knots[end])
    return inside


def mlp(x: Array, y: Array, x_test: Array, y_test: Array, rng: Generator) -> Prediction:
    """`MLPRegressor` on standardized data, with the errors that it makes on held-out samples."""

    def fit(rows: Array) -> Any:
        network = make_pipeline(StandardScaler(), MLPRegressor(random_state=0, max_iter=200))
        model = TransformedTargetRegressor(network, transformer=StandardScaler())
        return model.fit(x[rows], y[rows])

    first, second = parts(len(y), rng)
    errors = y[second] - fit(first).predict(x[second])
    mean = fit(np.arange(len(y))).predict(x_test)
    draws = mean[:, None] + np.quantile(errors, MIDDLES)
    std = np.sqrt(np.mean(errors**2))
    intervals = {}
    for level in LEVELS:
        half = conformal(np.abs(errors), level)
        intervals[level] = mean - half, mean + half
    nll = -stats.norm.logpdf(y_test, mean, std)
    return Prediction(mean, np.full(len(mean), std), draws, nll, intervals)


def ngboost(x: Array, y: Array, x_test: Array, y_test: Array, rng: Generator) -> Prediction:
    """NGBoost (Duan et al., 2020), a normal distribution; held-out samples end the training."""
    first, second = parts(len(y), rng)
    model = import_module("ngboost").NGBRegressor(verbose=False, random_state=0)
    model.fit(x[first], y[first], x[second], y[second], early_stopping_rounds=50)
    dist = model.pred_dist(x_test, max_iter=model.best_val_loss_itr)
    loc, scale = dist.loc, dist.scale
    draws = loc[:, None] + scale[:, None] * special.ndtri(MIDDLES)
    return Prediction(loc, scale, draws, -stats.norm.logpdf(y_test, loc, scale), {})


def defaults(x: Array, y: Array, x_test: Array, y_test: Array, rng: Generator) -> Prediction:
    """`EvidentialRegressor` as it is."""
    from dubito.sklearn import EvidentialRegressor

    seed = int(rng.integers(2**31))
    model = EvidentialRegressor(levels=sorted(LEVELS), random_state=seed).fit(x, y)
    prediction = model.prediction(x_test)
    found = of_distribution(prediction.distribution, y_test, prediction.predictive)
    intervals = {level: model.predict_interval(x_test, level) for level in LEVELS}
    return Prediction(found.mean, found.spread, found.draws, found.nll, intervals)


def conformal(errors: Array, level: float) -> float:
    """Return what a share of errors does not exceed, that of a further one included."""
    rank = int(np.ceil(level * (len(errors) + 1)))
    return float(np.sort(errors)[min(rank, len(errors)) - 1])


def parts(count: int, rng: Generator) -> tuple[Array, Array]:
    """Divide samples at random: four fifths and one fifth."""
    order = rng.permutation(count)
    return order[count // 5 :], order[: count // 5]


RIVALS: dict[str, Rival] = {
    "defaults": defaults, "boosting": boosting, "ngboost": ngboost, "mlp": mlp,
}  # fmt: skip
