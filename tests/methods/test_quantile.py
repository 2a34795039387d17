"""The pinball loss against scikit-learn and its definition, with censored and missing targets."""

import numpy as np
import pytest
import torch
from sklearn.metrics import mean_pinball_loss

from dubito.distributions.quantiles import Quantiles
from dubito.methods import METHODS, MethodLoss
from dubito.targets import Target

P = (0.1, 0.25, 0.5, 0.9)


def drawn(count=200, size=1):
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(count, len(P) * size, generator=generator).double().requires_grad_()
    return outputs, 2 * torch.randn(count, size, generator=generator).double()


def quantiles(outputs):
    """The quantiles of one value by their definition, (N, K) in NumPy."""
    center, *raw = outputs.detach().numpy().T
    gaps = np.log1p(np.exp(np.stack(raw, 1)))
    places = np.concatenate([0 * gaps[:, :1], gaps.cumsum(1)], 1)
    return center[:, None] + places - places[:, 2:3]


def loss(outputs, target):
    return MethodLoss(METHODS.build("quantile", probabilities=P))(outputs, target)


def test_loss_is_that_of_scikit_learn():
    outputs, y = drawn()
    each = [
        mean_pinball_loss(y[:, 0], predicted, alpha=share)
        for predicted, share in zip(quantiles(outputs).T, P, strict=True)
    ]
    assert loss(outputs, y).item() == pytest.approx(np.mean(each))
    weight = torch.rand(200, generator=torch.Generator().manual_seed(1))
    each = [
        mean_pinball_loss(y[:, 0], predicted, alpha=share, sample_weight=weight.numpy())
        for predicted, share in zip(quantiles(outputs).T, P, strict=True)
    ]
    assert loss(outputs, Target(y, weight)).item() == pytest.approx(np.mean(each), rel=1e-6)


def test_gradient_is_the_share_of_targets_on_either_side():
    outputs, y = drawn()
    (gradient,) = torch.autograd.grad(loss(outputs, y), outputs)
    above = y.numpy() > quantiles(outputs)
    slopes = np.where(above, -np.array(P), 1 - np.array(P)) / len(P) / len(y)
    np.testing.assert_allclose(gradient[:, 0], slopes.sum(1), atol=1e-12)  # the center moves all
    softplus = 1 / (1 + np.exp(-outputs.detach().numpy()[:, 1:]))
    moved = [-slopes[:, 0], -slopes[:, :2].sum(1), slopes[:, 3]]  # by each gap
    np.testing.assert_allclose(gradient[:, 1], moved[0] * softplus[:, 0], atol=1e-12)
    np.testing.assert_allclose(gradient[:, 2], moved[1] * softplus[:, 1], atol=1e-12)
    np.testing.assert_allclose(gradient[:, 3], moved[2] * softplus[:, 2], atol=1e-12)


def test_the_minimum_has_the_quantiles_of_the_data():
    rng = np.random.default_rng(0)
    y = torch.as_tensor(rng.exponential(1, (999, 1)))
    outputs = torch.zeros(1, len(P), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([outputs], max_iter=300, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        value = loss(outputs.expand(999, -1), y)
        value.backward()
        return value

    optimizer.step(closure)
    np.testing.assert_allclose(quantiles(outputs)[0], np.quantile(y, P), atol=0.02)


def test_a_censored_target_costs_as_much_as_the_nearest_bound():
    outputs, y = drawn()
    own = quantiles(outputs)
    lower, upper = y.clone(), y + 1
    lower[::3], upper[1::3] = -torch.inf, torch.inf
    nearest = np.clip(own, lower.numpy(), upper.numpy())
    deviation = nearest - own
    each = np.maximum(np.array(P) * deviation, (np.array(P) - 1) * deviation).mean(1)
    result = loss(outputs, Target(y, None, lower, upper))
    assert result.item() == pytest.approx(each.mean())
    (gradient,) = torch.autograd.grad(result, outputs)
    inside = (own[:, 0] >= lower.numpy()[:, 0]) & (own[:, -1] <= upper.numpy()[:, 0])
    assert inside.any()
    assert (gradient[inside] == 0).all()


def test_quantiles_short_of_a_common_bound_are_those_of_the_whole_truth():
    """Powell's case: the bound is the same for like inputs; 30% of the targets are above it."""
    rng = np.random.default_rng(1)
    y = torch.as_tensor(rng.normal(size=(2000, 1)))
    bound = torch.full_like(y, float(np.quantile(y, 0.7)))
    lower = torch.where(y > bound, bound, -torch.inf)
    target = Target(torch.minimum(y, bound), None, lower, torch.full_like(y, torch.inf))
    outputs = torch.zeros(1, len(P), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([outputs], lr=0.02)
    for _ in range(600):
        optimizer.zero_grad()
        loss(outputs.expand(2000, -1), target).backward()
        optimizer.step()
    expected = np.quantile(y, P)
    expected[-1] = bound[0].item()  # nothing is known beyond it
    np.testing.assert_allclose(quantiles(outputs)[0], expected, atol=0.05)


def test_missing_targets_do_not_count():
    outputs, y = drawn(60, 2)
    known = torch.rand(60, 2, generator=torch.Generator().manual_seed(2)) < 0.7
    target = Target(torch.where(known, y, 99.0), known.float())
    dist = Quantiles.from_outputs(outputs, P)
    expected = 2 * dist.pinball(y)[known].sum() / known.sum()
    torch.testing.assert_close(loss(outputs, target), expected)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((0.5,), "at least 2 items"),
        ((0.5, 0.5), "probabilities must be ascending, not 0.5, 0.5"),
        ((0.5, 1.0), "less than 1"),
    ],
)
def test_wrong_probabilities_are_named(values, message):
    with pytest.raises(ValueError, match=message):
        METHODS.build("quantile", probabilities=values)
