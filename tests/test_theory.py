"""The theory page: its script runs, and its formulas and numbers agree with the library."""

import importlib.util
import math
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch import distributions as td
from torch.autograd import grad
from torch.testing import assert_close

from dubito import Dirichlet, iedl, losses
from dubito.methods import IEDL

ROOT = Path(__file__).resolve().parents[1]
#: the page without its line breaks
PAGE = " ".join((ROOT / "docs" / "theory.md").read_text(encoding="utf-8").split())
ALPHA = torch.tensor([[1.2, 1.1, 1.0], [10.0, 10.0, 1.0], [2.5, 7.0, 1.3]], dtype=torch.float64)
LABELS = torch.tensor([0, 0, 2])
CLASSES = ALPHA.shape[-1]
ONE_HOT = torch.eye(CLASSES, dtype=torch.float64)[LABELS]


@pytest.fixture(scope="module")
def theory() -> ModuleType:
    spec = importlib.util.spec_from_file_location("example_theory", ROOT / "examples" / "theory.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def dist() -> Dirichlet:
    return Dirichlet(ALPHA)


@pytest.fixture
def draws() -> Tensor:
    """Draws of p, (400,000, N, K)."""
    return td.Dirichlet(ALPHA).sample((400_000,))


def evidence(count: int, classes: int) -> Tensor:
    """Random alpha with evidence of all sizes; the first class is the label of each."""
    return (1 + (4 * torch.randn(count, classes, dtype=torch.float64)).exp()).requires_grad_()


def gradient(term: losses.Term, alpha: Tensor) -> Tensor:
    """Gradient of a term in alpha, with the first class as the label."""
    labels = torch.zeros(len(alpha), dtype=torch.long)
    return grad(term(Dirichlet(alpha), labels).sum(), alpha)[0]


def trigamma(x: Tensor) -> Tensor:
    return torch.special.polygamma(1, x)


def test_script_draws_the_figures_of_the_page(
    theory: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    theory.main(["--out", str(first)])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    theory.main(["--out", str(second)])
    names = sorted(path.name for path in first.iterdir())
    assert names == sorted(re.findall(r"assets/(theory-\w+\.svg)", PAGE))
    assert all((first / name).read_bytes() == (second / name).read_bytes() for name in names)
    assert all((ROOT / "docs" / "assets" / name).is_file() for name in names)
    assert len(rows) == 10
    assert [row for row in rows if row not in PAGE] == []


# --- from softmax to a Dirichlet ---


def test_softmax_is_the_mean_with_exponential_evidence() -> None:
    logits = torch.randn(5, 4, dtype=torch.float64)
    dist = Dirichlet.from_logits(logits, evidence="exp", prior=0.0)
    assert_close(dist.probs, logits.softmax(-1))
    assert_close((logits + 3).softmax(-1), logits.softmax(-1))


def test_posterior_of_counts_is_a_dirichlet() -> None:
    counts = torch.tensor([3, 0, 5])
    p = td.Dirichlet(torch.ones(3, dtype=torch.float64)).sample((50,))
    prior = Dirichlet(torch.ones(3, dtype=torch.float64)).to_torch().log_prob(p)
    posterior = Dirichlet(counts + 1.0).to_torch().log_prob(p)
    evidence_of_data = prior + (counts * p.log()).sum(-1) - posterior
    assert_close(evidence_of_data, evidence_of_data[:1].expand(50), rtol=1e-5, atol=1e-5)


def test_alpha_is_softplus_plus_one() -> None:
    logits = torch.randn(5, 3, dtype=torch.float64)
    dist = Dirichlet.from_logits(logits)
    assert_close(dist.alpha, torch.nn.functional.softplus(logits) + 1)
    assert_close(dist.probs, dist.alpha / dist.alpha0.unsqueeze(-1))


def test_beliefs_and_vacuity_sum_to_one(dist: Dirichlet) -> None:
    assert_close(dist.belief, (ALPHA - 1) / ALPHA.sum(-1, keepdim=True))
    assert_close(dist.vacuity, CLASSES / ALPHA.sum(-1))
    assert_close(dist.belief.sum(-1) + dist.vacuity, torch.ones(3, dtype=torch.float64))
    assert_close(dist.probs, dist.belief + dist.vacuity.unsqueeze(-1) / CLASSES)


# --- squared error ---


def test_expected_squared_error_is_bias_plus_variance(dist: Dirichlet, draws: Tensor) -> None:
    p, total = dist.probs, dist.alpha0
    bias = (ONE_HOT - p).square().sum(-1)
    variance = (p * (1 - p)).sum(-1) / (total + 1)
    assert_close(losses.mse_bias(dist, LABELS), bias)
    assert_close(losses.mse_variance(dist, LABELS), variance)
    sampled = (ONE_HOT - draws).square().sum(-1).mean(0)
    assert_close(bias + variance, sampled, rtol=5e-3, atol=0)


def test_variance_falls_when_alpha_grows_in_proportion() -> None:
    alpha = evidence(200, 5)
    slope = (gradient(losses.mse_variance, alpha) * alpha).sum(-1)
    assert (slope < 0).all()


def test_gradient_of_the_bias() -> None:
    alpha = evidence(500, 4)
    p, total = Dirichlet(alpha).probs, alpha.sum(-1, keepdim=True)
    expected = 2 / total * (p + p[:, :1] - p.square().sum(-1, keepdim=True))
    slopes = gradient(losses.mse_bias, alpha)
    assert_close(slopes[:, 1:], expected[:, 1:], rtol=1e-6, atol=1e-12)
    strongest = alpha[:, 1:].argmax(-1, keepdim=True) + 1
    assert (slopes.gather(1, strongest) > 0).all()


def test_mean_bias_is_smallest_at_the_label_frequencies() -> None:
    shares = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    alpha = (20 * shares).requires_grad_()
    by_label = losses.mse_bias(Dirichlet(alpha.expand(3, 3)), torch.arange(3))
    slopes = grad((shares * by_label).sum(), alpha)[0]
    assert_close(slopes, torch.zeros(3, dtype=torch.float64))


def test_share_of_labels_from_which_edl_gives_evidence(theory: ModuleType) -> None:
    share = torch.tensor([0.1, 0.25, 0.3], dtype=torch.float64)
    shares = torch.stack([1 - share, share, torch.zeros_like(share)], -1)
    edl, second = theory.minimize(shares, theory.EDL)[:, 1], theory.minimize(shares, theory.IEDL)
    assert (edl[:2] < 0.005).all()
    assert edl[2] > 0.01
    assert (second[:, 1] > 0.1).all()


def test_probabilities_with_a_small_kl_weight_and_without(theory: ModuleType) -> None:
    shares = torch.tensor([[0.7, 0.3, 0.0]], dtype=torch.float64)

    def probs(weights: dict[Any, float], kl_weight: float) -> str:
        evidence = theory.minimize(shares, {**weights, losses.label_removed_kl: kl_weight})[0]
        return ", ".join(f"{p:.2f}" for p in (evidence + 1) / (evidence.sum() + 3))

    edl, iedl = probs(theory.EDL, 0.1), probs(theory.IEDL, 0.1)
    assert f"With λ₂ = 0.1, p̂ is {edl} in EDL and {iedl} in I-EDL" in PAGE
    assert f"I-EDL does not ({probs(theory.IEDL, 0)})" in PAGE


# --- Fisher information ---


def test_fisher_information_is_the_covariance_of_the_score(dist: Dirichlet, draws: Tensor) -> None:
    score = draws.log() - ALPHA.digamma() + ALPHA.sum(-1, keepdim=True).digamma()
    covariance = torch.einsum("sni,snj->nij", score, score) / len(score)
    assert_close(score.mean(0), torch.zeros_like(ALPHA), rtol=0, atol=0.01)
    assert_close(dist.fisher_information, covariance, rtol=0.02, atol=0.005)


def test_fisher_information_is_the_negative_hessian(dist: Dirichlet) -> None:
    for alpha, information in zip(ALPHA, dist.fisher_information, strict=True):
        p = td.Dirichlet(torch.ones(CLASSES, dtype=torch.float64)).sample()
        hessian = torch.autograd.functional.hessian(
            lambda a, p=p: td.Dirichlet(a, validate_args=False).log_prob(p), alpha
        )
        assert_close(information, -hessian)
    diagonal = torch.diag_embed(trigamma(ALPHA))
    assert_close(dist.fisher_information, diagonal - trigamma(ALPHA.sum(-1))[:, None, None])


def test_numbers_of_trigamma() -> None:
    values = trigamma(torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64)).tolist()
    assert values == pytest.approx([1.64, 0.105, 0.010], abs=5e-3)
    assert "1.64 at α = 1 to 0.105 at 10 and 0.010 at 100" in PAGE


def test_likelihood_of_a_label_with_fisher_noise(dist: Dirichlet) -> None:
    noise, p = 0.3, td.Dirichlet(ALPHA).sample()
    normal = td.MultivariateNormal(p, precision_matrix=dist.fisher_information / noise)
    error = ONE_HOT - p
    quadratic = torch.einsum("ni,nij,nj->n", error, dist.fisher_information, error)
    constant = noise * CLASSES * math.log(2 * math.pi * noise)
    expected = quadratic - noise * dist.fisher_logdet + constant
    assert_close(-2 * noise * normal.log_prob(ONE_HOT), expected)
    assert_close(quadratic, (error.square() * trigamma(ALPHA)).sum(-1))


def test_weighted_error_is_bias_plus_variance(dist: Dirichlet, draws: Tensor) -> None:
    error = ONE_HOT - draws
    sampled = torch.einsum("sni,nij,snj->n", error, dist.fisher_information, error) / len(draws)
    p, total = dist.probs, dist.alpha0.unsqueeze(-1)
    parts = (ONE_HOT - p).square() + p * (1 - p) / (total + 1)
    expected = (parts * trigamma(ALPHA)).sum(-1)
    value = losses.fisher_bias(dist, LABELS) + losses.fisher_variance(dist, LABELS)
    assert_close(value, expected)
    assert_close(value, sampled, rtol=5e-3, atol=0)


def test_log_determinant(dist: Dirichlet) -> None:
    ratios = trigamma(ALPHA.sum(-1, keepdim=True)) / trigamma(ALPHA)
    closed_form = trigamma(ALPHA).log().sum(-1) + (1 - ratios.sum(-1)).log()
    assert_close(dist.fisher_logdet, dist.fisher_information.logdet())
    assert_close(dist.fisher_logdet, closed_form)
    assert_close(losses.fisher_penalty(dist, LABELS), -closed_form)


@pytest.mark.parametrize("classes", [2, 3, 10, 100])
def test_log_determinant_penalizes_evidence_of_every_class(classes: int) -> None:
    assert (gradient(losses.fisher_penalty, evidence(500, classes)) > 0).all()


def test_evidence_of_all_classes_makes_errors_cheap(theory: ModuleType) -> None:
    equal = torch.tensor([[0.0] * 3, [100.0] * 3], dtype=torch.float64)
    assert theory.loss(equal, theory.FISHER_MSE).tolist() == pytest.approx([1.37, 0.007], abs=5e-3)
    assert "from 1.37 without evidence to 0.007" in PAGE


@pytest.mark.parametrize(("weight", "expected"), [(0.05, 7.8), (0.005, 32.5)])
def test_log_determinant_limits_evidence(
    theory: ModuleType, weight: float, expected: float
) -> None:
    certain = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
    limit = theory.minimize(certain, {**theory.IEDL, losses.fisher_penalty: weight})[0]
    assert limit.tolist() == pytest.approx([expected, 0, 0], abs=0.05)
    assert f"{expected} for" in PAGE


def test_weighted_error_alone_has_no_minimum(theory: ModuleType) -> None:
    e = torch.logspace(-1, 6, 50, dtype=torch.float64)
    label_only = torch.stack([e, torch.zeros_like(e), torch.zeros_like(e)], -1)
    assert (theory.push(label_only, theory.FISHER_MSE)[:, 0] > 0).all()


# --- KL term ---


def test_kl_divergence_has_a_closed_form(dist: Dirichlet) -> None:
    mu = 1 + 99 * ONE_HOT
    total, mu_total = ALPHA.sum(-1), mu.sum(-1)
    digammas = ALPHA.digamma() - total.digamma().unsqueeze(-1)
    each = mu.lgamma() - ALPHA.lgamma() + (ALPHA - mu) * digammas
    closed_form = total.lgamma() - mu_total.lgamma() + each.sum(-1)
    assert_close(dist.kl_divergence(Dirichlet(mu)), closed_form)
    assert_close(losses.reverse_kl(100.0)(dist, LABELS), closed_form)
    assert_close(closed_form, td.kl_divergence(td.Dirichlet(ALPHA), td.Dirichlet(mu)))
    assert IEDL(kl_beta=100).terms["reverse_kl"] is losses.reverse_kl(100.0)


def test_prior_penalizes_evidence_for_the_label_above_beta() -> None:
    alpha = torch.tensor([[50.0, 1, 1], [100.0, 1, 1], [200.0, 1, 1]], dtype=torch.float64)
    slopes = gradient(losses.reverse_kl(100.0), alpha.requires_grad_())[:, 0]
    assert slopes[0] < 0 < slopes[2]
    assert slopes[1].item() == pytest.approx(0, abs=1e-12)


def test_label_removed_kl(dist: Dirichlet) -> None:
    removed = Dirichlet(ALPHA * (1 - ONE_HOT) + ONE_HOT)
    value = losses.label_removed_kl(dist, LABELS)
    assert_close(value, removed.kl_divergence(Dirichlet(torch.ones_like(ALPHA))))


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_label_removed_kl_acts_on_wrong_classes(classes: int) -> None:
    alpha = evidence(500, classes)
    slopes = gradient(losses.label_removed_kl, alpha)
    strongest = alpha[:, 1:].argmax(-1, keepdim=True) + 1
    assert (slopes[:, 0] == 0).all()
    assert (slopes.gather(1, strongest) > 0).all()
    only_label = torch.tensor([[30.0] + [1.0] * (classes - 1)], dtype=torch.float64)
    value = losses.label_removed_kl(Dirichlet(only_label), torch.tensor([0]))
    assert value.item() == pytest.approx(0, abs=1e-12)


def test_complete_loss(dist: Dirichlet) -> None:
    error = losses.fisher_bias(dist, LABELS) + losses.fisher_variance(dist, LABELS)
    kl = losses.label_removed_kl(dist, LABELS)
    for scale, factor in (("paper", 1.0), ("per_class", 10 / CLASSES)):
        value = iedl(dist, LABELS, fisher_weight=0.05, kl_weight=0.5, reduction="none", scale=scale)
        assert_close(value, error + factor * (-0.05 * dist.fisher_logdet + 0.5 * kl))


# --- what each term does ---


def pushes(theory: ModuleType, sample: str) -> dict[str, list[float]]:
    row = torch.tensor([theory.SAMPLES[sample]], dtype=torch.float64)
    groups = {"mse": "MSE", "weighted": "FISHER_MSE", "logdet": "PENALTY", "kl": "KL"}
    return {
        key: theory.push(row, getattr(theory, name))[0].tolist() for key, name in groups.items()
    }


def test_terms_with_little_evidence(theory: ModuleType) -> None:
    push = pushes(theory, "little")
    assert min(push["weighted"]) > 0
    assert max(push["weighted"], key=abs) > max(map(abs, push["mse"] + push["kl"]))
    assert max(push["logdet"]) < 0


def test_terms_with_conflicting_evidence(theory: ModuleType) -> None:
    push = pushes(theory, "conflicting")
    assert [theory.signed(v) for v in push["mse"][:2]] == ["+0.049", "−0.046"]
    assert [theory.signed(v) for v in push["weighted"][:2]] == ["+0.0089", "−0.0016"]
    assert "+0.049 and −0.046 for EDL's error, +0.0089 and −0.0016 for I-MSE" in PAGE
    assert -push["weighted"][1] / push["weighted"][0] == pytest.approx(0.2, abs=0.03)
    assert push["kl"][1] < min(push["mse"][1], push["weighted"][1])
    assert push["kl"][2] > 0


def test_terms_with_much_evidence(theory: ModuleType) -> None:
    right, wrong = pushes(theory, "much"), pushes(theory, "much, wrong")
    assert max(map(abs, right["mse"] + right["weighted"])) < 0.01
    assert right["kl"] == pytest.approx([0, 0, 0], abs=1e-12)
    assert right["logdet"][0] + right["weighted"][0] < 0
    assert wrong["weighted"][0] / wrong["mse"][0] == pytest.approx(20, rel=0.1)
    assert -wrong["weighted"][1] < 0.005 < -wrong["kl"][1]


def test_errors_move_evidence_from_the_plausible_class(theory: ModuleType) -> None:
    both = torch.tensor([[100.0, 100.0, 0.0]], dtype=torch.float64)
    for weights, ratio in ((theory.MSE, 1.0), (theory.FISHER_MSE, 0.3)):
        label, second, _ = theory.push(both, weights)[0].tolist()
        assert -second / label == pytest.approx(ratio, abs=0.02)


# --- uncertainties ---


def test_total_is_aleatoric_plus_epistemic(dist: Dirichlet, draws: Tensor) -> None:
    p, total = dist.probs, dist.alpha0.unsqueeze(-1)
    aleatoric = (p * ((total + 1).digamma() - (ALPHA + 1).digamma())).sum(-1)
    assert_close(dist.total, -(p * p.log()).sum(-1))
    assert_close(dist.aleatoric, aleatoric)
    assert_close(dist.epistemic, dist.total - aleatoric)
    sampled = -(draws * draws.log()).sum(-1).mean(0)
    assert_close(aleatoric, sampled, rtol=2e-3, atol=0)


def test_epistemic_uncertainty_vanishes_with_evidence() -> None:
    growing = 1 + torch.tensor([[1e1], [1e3], [1e6]], dtype=torch.float64) * torch.rand(3).double()
    epistemic = Dirichlet(growing).epistemic
    assert (epistemic.diff() < 0).all()
    assert epistemic[-1] < 1e-5
