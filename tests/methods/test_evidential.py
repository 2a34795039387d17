"""I-EDL, EDL and R-EDL: against the textbook formulas in float64, and their schedules."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Dirichlet, kl_divergence
from torch.nn.functional import one_hot, softplus

from dubito import losses
from dubito.methods import EDL, IEDL, REDL, Method, method
from methods.digits import total

LOGITS = torch.randn(32, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 3
TARGET = torch.arange(32) % 5
Y = one_hot(TARGET, 5).double()


def squared_error(alpha: Tensor, weight: Tensor | float = 1.0) -> tuple[Tensor, Tensor]:
    """The bias and the variance part, each class weighted."""
    alpha0 = alpha.sum(-1, keepdim=True)
    p = alpha / alpha0
    bias = (weight * (Y - p) ** 2).sum(-1)
    return bias, (weight * p * (1 - p) / (alpha0 + 1)).sum(-1)


def removed_kl(alpha: Tensor, prior: float = 1.0) -> Tensor:
    removed = (alpha - prior) * (1 - Y) + prior
    return kl_divergence(Dirichlet(removed), Dirichlet(torch.full_like(removed, prior)))


def test_iedl_is_the_textbook_loss() -> None:
    alpha = softplus(LOGITS) + 1
    trigamma = torch.polygamma(1, alpha)
    fisher = torch.diag_embed(trigamma) - torch.polygamma(1, alpha.sum(-1))[..., None, None]
    bias, variance = squared_error(alpha, trigamma)
    expected = bias + variance - 0.3 * torch.logdet(fisher) + 0.5 * removed_kl(alpha)
    one = IEDL(fisher_weight=0.3)
    ours = total(one, one.terms_of(LOGITS, TARGET), epoch=5, epochs=100)
    torch.testing.assert_close(ours, expected.mean())


@pytest.mark.parametrize("likelihood", losses.EDL_LIKELIHOODS)
def test_edl_is_the_textbook_loss(likelihood: str) -> None:
    alpha = softplus(LOGITS) + 1
    mine, alpha0 = alpha.gather(-1, TARGET[:, None])[:, 0], alpha.sum(-1)
    expected = {
        "mse": sum(squared_error(alpha)),
        "marginal": alpha0.log() - mine.log(),
        "cross_entropy": torch.digamma(alpha0) - torch.digamma(mine),
    }[likelihood]
    one = EDL(likelihood=likelihood, kl_weight=2.0)
    ours = total(one, one.terms_of(LOGITS, TARGET), epoch=5, epochs=100)
    torch.testing.assert_close(ours, (expected + removed_kl(alpha)).mean())


@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_the_limit_of_the_fisher_weight_in_closed_form(classes: int) -> None:
    """Along equal evidence e of all classes only psi1(1 + e) and alpha0 = K (1 + e) change."""
    k = classes
    psi1, psi2 = math.pi**2 / 6, -2 * 1.2020569031595943
    alpha0 = torch.tensor(float(k), dtype=torch.float64)
    of_sum = [torch.polygamma(order, alpha0).item() for order in (1, 2)]
    spread = 1 - 1 / k  # sum_j (y_j - p_j)^2, and sum_j p_j (1 - p_j)
    variance = spread * k / (k + 1) ** 2  # how fast it falls
    error = spread * (1 + 1 / (k + 1)) * -psi2 + variance * psi1
    ratio = k * of_sum[0] / psi1
    slope = k * (k * of_sum[1] / psi1) - ratio * psi2 / psi1
    penalty = -(k * psi2 / psi1 - slope / (1 - ratio))
    assert IEDL().fisher_limit(k) == pytest.approx(error / penalty, rel=1e-7)
    assert EDL().fisher_limit(k) == pytest.approx(variance / penalty, rel=1e-7)
    assert IEDL(scale="per_class").fisher_limit(k) == pytest.approx(error / penalty * k / 10)


@pytest.mark.parametrize(
    ("kind", "limit"), [("iedl", 0.162), ("edl", 0.00485), ("edl/cross_entropy", 0.0387)]
)
def test_beyond_its_limit_the_fisher_weight_leaves_no_evidence(kind: str, limit: float) -> None:
    """Of a network that says the same of every sample: its outputs are a bias, near none."""
    name, _, likelihood = kind.partition("/")
    given = {"likelihood": likelihood} if likelihood else {}
    for share, grows in ((0.5, True), (0.98, True), (1.02, False), (2.0, False)):
        one = method(name, fisher_weight=share * limit, **given)
        assert (one.caution(10) is None) == grows
        bias = torch.full((10,), -9.0, dtype=torch.float64, requires_grad=True)  # evidence 1e-4
        terms = one.terms_of(bias.expand(10, 10), torch.arange(10))
        total(one, terms, epoch=10, epochs=10).backward()  # with the whole KL
        assert bias.grad is not None
        assert ((bias.grad < 0) == grows).all()


def test_a_marginal_likelihood_leaves_the_fisher_weight_no_room() -> None:
    assert EDL(likelihood="marginal").fisher_limit(10) == pytest.approx(0, abs=1e-12)
    assert EDL(likelihood="marginal").caution(10) is None
    caution = EDL(likelihood="marginal", fisher_weight=1e-3).caution(10) or ""
    assert caution.endswith("with 10 classes the limit is 0")


def test_redl_is_the_textbook_loss() -> None:
    alpha = softplus(LOGITS) + 0.1
    expected = squared_error(alpha)[0] + 0.5 * removed_kl(alpha, 0.1)
    one = REDL()
    ours = total(one, one.terms_of(LOGITS, TARGET), epoch=5, epochs=100)
    torch.testing.assert_close(ours, expected.mean())


def test_redl_says_prior_k_over_s() -> None:
    said = REDL(prior=0.25).prediction(LOGITS)
    torch.testing.assert_close(said.vacuity, 0.25 * 5 / (softplus(LOGITS) + 0.25).sum(-1))
    torch.testing.assert_close(said.belief.sum(-1) + said.vacuity, torch.ones(32).double())


def test_redl_with_prior_one_and_no_variance_is_edl() -> None:
    terms, edl = REDL(prior=1.0).terms_of(LOGITS, TARGET), EDL().terms_of(LOGITS, TARGET)
    for name, term in terms.items():
        torch.testing.assert_close(term, edl[name])


@pytest.mark.parametrize("name", ["iedl", "edl", "redl"])
def test_kl_weight_rises(name: str) -> None:
    def kl(one: Method) -> list[float]:
        return [one.weights(epoch, 40)["label_removed_kl"] for epoch in (0, 5, 10, 39)]

    assert kl(method(name)) == [0.0, 0.5, 1.0, 1.0]
    assert kl(method(name, kl_ramp="all")) == [0.0, 0.125, 0.25, 0.975]
    assert kl(method(name, kl_ramp=0, kl_weight=0.3)) == [0.3] * 4


@pytest.mark.parametrize("name", ["iedl", "edl", "redl"])
def test_evidence_function_is_one_for_loss_and_prediction(name: str) -> None:
    relu, softplus_ = (method(name, evidence=function) for function in ("relu", "softplus"))
    assert not torch.allclose(relu.prediction(LOGITS).alpha, softplus_.prediction(LOGITS).alpha)
    negative = torch.full((1, 5), -3.0)
    prior = method(name).hyperparameters().get("prior", 1.0)
    assert (relu.prediction(negative).alpha == prior).all()
    assert relu.terms_of(negative, torch.tensor([0]))["label_removed_kl"].item() == 0
    assert softplus_.terms_of(negative, torch.tensor([0]))["label_removed_kl"].item() > 0


@pytest.mark.parametrize("name", ["iedl", "edl", "redl"])
def test_per_class_scale_touches_what_grows_with_the_classes(name: str) -> None:
    paper = method(name).terms_of(LOGITS, TARGET)
    scaled = method(name, scale="per_class").terms_of(LOGITS, TARGET)
    growing = {"fisher_penalty", "label_removed_kl"} & paper.keys()
    for key, term in paper.items():
        torch.testing.assert_close(scaled[key], term * 2 if key in growing else term)


def test_soft_targets_of_one_class_are_labels() -> None:
    for name in ("iedl", "edl", "redl"):
        hard, soft = (method(name).terms_of(LOGITS, target) for target in (TARGET, Y))
        for key, term in hard.items():
            torch.testing.assert_close(soft[key], term)


@pytest.mark.parametrize(
    ("name", "hyperparameters", "message"),
    [
        ("iedl", {"fisher_weight": -1.0}, "fisher_weight must be a finite number >= 0"),
        ("iedl", {"kl_weight": float("nan")}, "kl_weight must be a finite number >= 0"),
        ("iedl", {"kl_ramp": -1}, "kl_ramp must be a number of epochs >= 0 or 'all', not -1"),
        ("iedl", {"kl_ramp": "some"}, "kl_ramp must be a number of epochs >= 0 or 'all'"),
        ("iedl", {"evidence": "tanh"}, "unknown evidence function 'tanh'; known: 'softplus'"),
        ("iedl", {"scale": "log"}, "unknown scale 'log'; known: 'paper', 'per_class'"),
        ("edl", {"likelihood": "l1"}, "unknown likelihood 'l1'; known: 'mse', 'marginal'"),
        ("redl", {"prior": 0.0}, "prior must be a finite number > 0, not 0.0"),
    ],
)
def test_wrong_hyperparameters(name: str, hyperparameters: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        method(name, **hyperparameters)
