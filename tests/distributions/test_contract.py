"""What every distribution does, over one example of each kind."""

import pytest
import torch
from torch.utils import _pytree

from dubito.distributions import Dirichlet, Distribution
from dubito.errors import DubitoError
from tests.distributions.examples import EXAMPLES, build, outputs_of

# torch.compile's own use of torch
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
EACH = pytest.mark.parametrize("name", EXAMPLES)


@EACH
def test_total_is_aleatoric_plus_epistemic(name):
    dist = build(name, outputs_of(name, 5))
    assert dist.total.shape == (5,)
    torch.testing.assert_close(dist.total, dist.aleatoric + dist.epistemic)
    assert (dist.aleatoric >= 0).all()
    assert (dist.epistemic >= 0).all()


@EACH
def test_every_score_has_batch_shape_and_direction(name):
    dist = build(name, outputs_of(name, 2, 3))
    for score in ("total", "aleatoric", "epistemic", *dist.scores):
        value = dist.score(score)
        assert value.shape == (2, 3)
        assert value.isfinite().all()
        sign = 1 if dist.higher(score) == "confidence" else -1
        assert torch.equal(dist.confidence(score), sign * value)
        assert dist.label(score)
    assert repr(dist).endswith("(batch_shape=(2, 3))")
    with pytest.raises(ValueError, match=r"no score 'magic'; known: 'total', 'aleatoric'"):
        dist.score("magic")


@EACH
@pytest.mark.parametrize(
    "index",
    [1, slice(1, 3), torch.tensor([2, 0]), torch.tensor([True, False, True, False]), ...,
     (slice(None), 0), (..., 1), (0, 1), None, (torch.tensor([0, 1]), torch.tensor([1, 0]))],
    ids=str,
)  # fmt: skip
def test_indexing_applies_to_batch_axes(name, index):
    dist = build(name, outputs_of(name, 4, 2))
    torch.testing.assert_close(dist[index].total, dist.total[index])


@EACH
def test_indexing_an_event_axis_raises(name):
    with pytest.raises(IndexError, match=r"too many indices.*batch shape \(4,\)"):
        build(name, outputs_of(name, 4))[:, 0]


@EACH
def test_cat_joins_batches(name):
    dist = build(name, outputs_of(name, 6, 2))
    torch.testing.assert_close(Distribution.cat([dist[:2], dist[2:]]).total, dist.total)
    wide = Distribution.cat([dist, dist], dim=-1)
    assert wide.batch_shape == (6, 4)
    with pytest.raises(IndexError, match="dim 2"):
        Distribution.cat([dist, dist], dim=2)


def test_cat_rejects_different_kinds():
    alpha = torch.ones(2, 3)
    with pytest.raises(ValueError, match="one kind"):
        Distribution.cat([Dirichlet(alpha), Dirichlet(alpha, prior=0.5)])


@EACH
def test_to_converts_all_tensors(name):
    dist = build(name, outputs_of(name, 3)).to(torch.float64)
    assert dist.total.dtype == torch.float64
    assert len(dist) == 3


@EACH
def test_detach_stops_gradients(name):
    outputs = outputs_of(name, 3).requires_grad_()
    assert build(name, outputs).total.requires_grad
    assert not build(name, outputs).detach().total.requires_grad


@EACH
def test_value_cached_without_gradients_is_not_reused(name):
    outputs = outputs_of(name, 3).requires_grad_()
    dist = build(name, outputs)
    with torch.no_grad():
        before = dist.total
    dist.total.sum().backward()
    assert not before.requires_grad
    assert outputs.grad.abs().sum() > 0


@EACH
def test_inference_mode_leaves_nothing_behind_for_autograd(name):
    outputs = outputs_of(name, 3)
    dist = build(name, outputs)
    with torch.inference_mode():
        dist.total  # noqa: B018
    weight = torch.ones(3, requires_grad=True)
    (weight * dist.total).sum().backward()


@EACH
def test_pytree_round_trip(name):
    dist = build(name, outputs_of(name, 3))
    tensors, spec = _pytree.tree_flatten(dist)
    again = _pytree.tree_unflatten(tensors, spec)
    assert type(again) is type(dist)
    assert torch.equal(again.total, dist.total)


@EACH
def test_compile_without_graph_breaks(name):
    def loss(outputs, other):
        dist = build(name, outputs)
        return dist.total.sum() + dist.epistemic.sum() + other.total.sum(), dist

    outputs = outputs_of(name, 3)
    other = build(name, outputs + 1)
    expected, _ = loss(eager := outputs.clone().requires_grad_(), other)
    expected.backward()
    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    value, dist = compiled(traced := outputs.clone().requires_grad_(), build(name, outputs + 1))
    value.backward()
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(traced.grad, eager.grad)
    torch.testing.assert_close(dist.total, build(name, outputs).total)


@EACH
def test_vmap_over_the_batch(name):
    dist = build(name, outputs_of(name, 3, 2))
    torch.testing.assert_close(torch.vmap(lambda d: d.total)(dist), dist.total)


@EACH
def test_per_sample_gradients(name):
    outputs = outputs_of(name, 3)
    each = torch.vmap(torch.func.grad(lambda z: build(name, z).total))(outputs)
    (joint,) = torch.autograd.grad(
        build(name, leaf := outputs.clone().requires_grad_()).total.sum(), leaf
    )
    torch.testing.assert_close(each, joint)


@EACH
def test_autocast_computes_in_float32(name):
    linear = torch.nn.Linear(5, outputs_of(name).shape[-1])
    x = torch.randn(3, *outputs_of(name).shape[:-1], 5)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = linear(x)
        dist = build(name, outputs)
        assert outputs.dtype == torch.bfloat16
        if not name.endswith("dirichlet"):  # that one is made of alpha, here in bfloat16
            torch.testing.assert_close(dist.total, build(name, outputs.float()).total)
    assert dist.total.dtype == torch.float32


@EACH
def test_mixture_of_equal_members_is_the_member(name):
    dist = build(name, outputs_of(name, 4))
    twice = Distribution.cat([dist[:, None], dist[:, None]], dim=1).mixture()
    torch.testing.assert_close(twice.total, dist.total)
    torch.testing.assert_close(twice.epistemic, dist.epistemic)
    assert twice.batch_shape == (4,)


@EACH
def test_calibration_with_zeros_is_the_predictive(name):
    dist = build(name, outputs_of(name, 4))
    theta = torch.zeros(len(dist.calibration_bounds))
    target = torch.randn(4, 2) if "regression" in name or "normal" in name else torch.arange(4)
    torch.testing.assert_close(
        dist.calibrated(theta).log_prob(target), dist.predictive.log_prob(target)
    )


@EACH
def test_validate_rejects_nan(name):
    outputs = outputs_of(name, 4)
    build(name, outputs).validate()
    outputs.view(4, -1)[2] = torch.nan
    with pytest.raises(ValueError, match="finite"):
        build(name, outputs).validate()


@EACH
def test_added_scores_are_treated_like_own_ones(name):
    dist = build(name, outputs_of(name, 4))
    values = torch.arange(4.0)
    more = dist.with_scores({"distance": (values, "uncertainty")})
    assert "distance" in more.scores
    assert "distance" in more.default_scores
    assert "distance" not in dist.scores
    assert torch.equal(more.confidence("distance"), -values)
    assert more.label("distance") == "distance"
    assert torch.equal(Distribution.cat([more[2:], more[:2]]).score("distance"), values.roll(2))
    assert torch.equal(more.to(torch.float64).score("distance"), values.double())
    torch.testing.assert_close(more.total, dist.total)


def test_added_score_cannot_replace_an_own_one():
    dist = Dirichlet(torch.ones(2, 3))
    for name in ("vacuity", "total"):
        with pytest.raises(DubitoError, match=f"Dirichlet already has a score '{name}'"):
            dist.with_scores({name: (torch.zeros(2), "uncertainty")})
