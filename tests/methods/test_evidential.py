"""Evidential methods: textbook formulas in float64, schedules, limits of the Fisher weight."""

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Dirichlet, kl_divergence
from torch.nn.functional import one_hot, softplus

from dubito.methods import EDL, IEDL, METHODS, Method
from dubito.methods.edl import fisher_limit
from tests.methods.digits import task_of

LOGITS = torch.randn(32, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 3
TARGET = torch.arange(32) % 5
Y = one_hot(TARGET, 5).double()
TEN = task_of(IEDL())


def loss(method: Method, epoch: int = 5, epochs: int = 100) -> Tensor:
    return method.loss(method.distribution(LOGITS), TARGET, method.weight_tensor(epoch, epochs))[0]


def squared_error(alpha: Tensor, weight: Tensor | float = 1.0) -> tuple[Tensor, Tensor]:
    alpha0 = alpha.sum(-1, keepdim=True)
    p = alpha / alpha0
    return (weight * (Y - p) ** 2).sum(-1), (weight * p * (1 - p) / (alpha0 + 1)).sum(-1)


def removed_kl(alpha: Tensor, prior: float = 1.0) -> Tensor:
    removed = (alpha - prior) * (1 - Y) + prior
    return kl_divergence(Dirichlet(removed), Dirichlet(torch.full_like(removed, prior)))


def test_iedl_is_the_textbook_loss():
    alpha = softplus(LOGITS) + 1
    trigamma = torch.polygamma(1, alpha)
    fisher = torch.diag_embed(trigamma) - torch.polygamma(1, alpha.sum(-1))[..., None, None]
    bias, variance = squared_error(alpha, trigamma)
    expected = bias + variance - 0.3 * torch.logdet(fisher) + 0.5 * removed_kl(alpha)
    torch.testing.assert_close(loss(IEDL(fisher_weight=0.3, scale="paper")), expected.sum())


def test_iedl_with_beta_is_regularized_toward_the_papers_prior():
    alpha = softplus(LOGITS) + 1
    target = kl_divergence(Dirichlet(alpha), Dirichlet(1 + 9 * Y)).sum()
    for scale, factor in {"paper": 1, "per_class": 10 / LOGITS.shape[-1]}.items():
        with_beta = IEDL(kl_beta=10.0, kl_ramp=0, scale=scale)
        without = IEDL(kl_weight=0.0, scale=scale)
        torch.testing.assert_close(loss(with_beta) - loss(without), factor * target)


@pytest.mark.parametrize("likelihood", ["mse", "marginal", "cross_entropy"])
def test_edl_is_the_textbook_loss(likelihood):
    alpha = softplus(LOGITS) + 1
    own, alpha0 = alpha.gather(-1, TARGET[:, None])[:, 0], alpha.sum(-1)
    expected = {
        "mse": sum(squared_error(alpha)),
        "marginal": alpha0.log() - own.log(),
        "cross_entropy": torch.digamma(alpha0) - torch.digamma(own),
    }[likelihood]
    ours = loss(EDL(likelihood=likelihood, kl_weight=2.0, scale="paper"))
    torch.testing.assert_close(ours, (expected + removed_kl(alpha)).sum())


def test_redl_is_the_textbook_loss():
    alpha = softplus(LOGITS) + 0.1
    expected = squared_error(alpha)[0] + 0.5 * removed_kl(alpha, 0.1)
    torch.testing.assert_close(loss(METHODS.build("redl", scale="paper")), expected.sum())


def test_re_edl_is_the_squared_error_alone():
    method = METHODS.build("re_edl")
    torch.testing.assert_close(loss(method), squared_error(softplus(LOGITS) + 0.8)[0].sum())


@pytest.mark.parametrize("soft", [False, True])
def test_red_adds_evidence_for_the_target_where_there_is_none(soft):
    method, edl = METHODS.build("red"), EDL(evidence="exp", likelihood="marginal")
    logits = LOGITS.clone().requires_grad_()
    dist, weights = method.distribution(logits), method.weight_tensor(5, 100)
    target, y = (0.9 * Y + 0.02,) * 2 if soft else (TARGET, Y)
    vacuity = 5 / (logits.exp() + 1).sum(-1).detach()
    expected = edl.loss(dist, target, edl.weight_tensor(5, 100))[0]
    expected = expected - (vacuity * (y * logits).sum(-1)).sum()
    ours = method.loss(dist, target, weights)[0]
    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(*(torch.autograd.grad(v, logits)[0] for v in (ours, expected)))


def test_red_learns_from_a_sample_without_evidence():
    logits = torch.full((1, 10), -100.0, requires_grad=True)
    for name, learns in (("edl", False), ("red", True)):
        method = METHODS.build(name, evidence="exp")
        loss, _ = method.loss(
            method.distribution(logits), torch.tensor([3]), method.weight_tensor(9, 10)
        )
        (gradient,) = torch.autograd.grad(loss, logits)
        assert (gradient[0, 3] < -0.9) == learns


def test_per_class_scale_doubles_the_growing_terms_at_five_classes():
    paper, scaled = (
        IEDL(scale=scale).loss(IEDL().distribution(LOGITS), TARGET, IEDL().weight_tensor(5, 100))[1]
        for scale in ("paper", "per_class")
    )
    torch.testing.assert_close(scaled, paper * torch.tensor([1.0, 1.0, 2.0, 2.0]))


@pytest.mark.parametrize("name", ["iedl", "edl", "redl", "red"])
def test_kl_weight_rises(name):
    def kl(method: Method) -> list[float]:
        return [method.weights(epoch, 40)["label_removed_kl"] for epoch in (0, 5, 10, 39)]

    assert kl(METHODS.build(name)) == [0.0, 0.5, 1.0, 1.0]
    assert kl(METHODS.build(name, kl_ramp="all")) == [0.0, 0.125, 0.25, 0.975]
    assert kl(METHODS.build(name, kl_ramp=0, kl_weight=0.3)) == [0.3] * 4


@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_limit_of_the_fisher_weight_in_closed_form(classes):
    """Along equal evidence e of all classes only psi1(1 + e) and alpha0 = K (1 + e) change."""
    k = classes
    psi1, psi2 = math.pi**2 / 6, -2 * 1.2020569031595943
    alpha0 = torch.tensor(float(k), dtype=torch.float64)
    of_sum = [torch.polygamma(order, alpha0).item() for order in (1, 2)]
    spread = 1 - 1 / k
    variance = spread * k / (k + 1) ** 2
    error = spread * (1 + 1 / (k + 1)) * -psi2 + variance * psi1
    ratio = k * of_sum[0] / psi1
    slope = k * (k * of_sum[1] / psi1) - ratio * psi2 / psi1
    penalty = -(k * psi2 / psi1 - slope / (1 - ratio))
    assert fisher_limit(IEDL(scale="paper"), k) == pytest.approx(error / penalty, rel=1e-7)
    assert fisher_limit(EDL(scale="paper"), k) == pytest.approx(variance / penalty, rel=1e-7)
    assert fisher_limit(IEDL(), k) == pytest.approx(error / penalty * k / 10)


@pytest.mark.parametrize(
    ("name", "options", "limit"),
    [("iedl", {}, 0.162), ("edl", {}, 0.00485), ("edl", {"likelihood": "cross_entropy"}, 0.0387)],
)
def test_beyond_the_limit_an_untrained_network_loses_its_evidence(name, options, limit):
    for share, grows in ((0.5, True), (0.98, True), (1.02, False), (2.0, False)):
        method = METHODS.build(name, fisher_weight=share * limit, **options)
        assert (method.warning(TEN) is None) == grows
        bias = torch.full((10,), -9.0, dtype=torch.float64, requires_grad=True)  # evidence 1e-4
        dist = method.distribution(bias.expand(10, 10))
        method.loss(dist, torch.arange(10), method.weight_tensor(10, 10))[0].backward()
        assert ((bias.grad < 0) == grows).all()


def test_a_marginal_likelihood_leaves_no_room_for_the_fisher_weight():
    assert EDL(likelihood="marginal").warning(TEN) is None
    warning = EDL(likelihood="marginal", fisher_weight=1e-3).warning(TEN)
    assert warning.endswith("with 10 classes the limit is 0")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("iedl", {"kl_ramp": "some"}, "kl_ramp"),
        ("iedl", {"evidence": "tanh"}, "'softplus', 'relu' or 'exp'"),
        ("iedl", {"scale": "log"}, "'per_class' or 'paper'"),
        ("iedl", {"kl_beta": 0.0}, "kl_beta: Input should be greater than 0"),
        ("edl", {"likelihood": "l1"}, "'mse', 'marginal' or 'cross_entropy'"),
        ("redl", {"prior": 0.0}, "prior: Input should be greater than 0, not 0.0"),
        ("rkl_pn", {"beta": 1.0}, "beta: Input should be greater than 1, not 1.0"),
    ],
)
def test_wrong_hyperparameters_name_the_choices(name, options, message):
    with pytest.raises(ValueError, match=message):
        METHODS.build(name, **options)
