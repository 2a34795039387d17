"""What the losses do with targets, weights, axes and reductions; their terms have other tests."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import one_hot, softplus

from dubito import EDLLoss, IEDLLoss, losses
from dubito.schedules import Constant, Linear

N, K = 16, 5
GENERATOR = torch.Generator().manual_seed(0)
LOGITS = 3 * torch.randn(N, K, generator=GENERATOR)
ALPHA = softplus(LOGITS) + 1
LABELS = torch.randint(K, (N,), generator=GENERATOR)
IEDL_TERMS = ("fisher_bias", "fisher_variance", "fisher_penalty", "label_removed_kl")


def textbook(alpha: torch.Tensor, y: torch.Tensor, fisher: float, kl: float) -> torch.Tensor:
    """The paper's formula as it stands there."""
    alpha, y = alpha.double(), y.double()
    total = alpha.sum(-1, keepdim=True)
    p, psi1 = alpha / total, torch.polygamma(1, alpha)
    spread = alpha * (total - alpha) / (total**2 * (total + 1))
    mse = (((y - p) ** 2 + spread) * psi1).sum(-1)
    logdet = psi1.log().sum(-1) + torch.log(1 - (torch.polygamma(1, total) / psi1).sum(-1))
    removed = torch.distributions.Dirichlet(alpha * (1 - y) + y)
    uniform = torch.distributions.Dirichlet(torch.ones_like(alpha))
    divergence = torch.distributions.kl_divergence(removed, uniform)
    return mse - fisher * logdet + kl * divergence


@pytest.mark.parametrize(("fisher", "kl"), [(0.05, 1.0), (0.0, 0.3), (2.0, 0.0)])
def test_iedl_is_the_papers_formula(fisher: float, kl: float) -> None:
    ours = losses.iedl(ALPHA, LABELS, fisher_weight=fisher, kl_weight=kl, reduction="none")
    theirs = textbook(ALPHA, one_hot(LABELS, K), fisher, kl)
    torch.testing.assert_close(ours, theirs.float(), rtol=2e-5, atol=1e-6)


def test_the_module_equals_the_function() -> None:
    expected = losses.iedl(ALPHA, LABELS, fisher_weight=0.1, kl_weight=0.7)
    assert IEDLLoss(0.1, 0.7)(LOGITS, LABELS) == expected
    assert EDLLoss("mse", 0.7)(LOGITS, LABELS) == losses.edl(ALPHA, LABELS, kl_weight=0.7)


def test_a_loss_is_the_weighted_sum_of_its_terms() -> None:
    criterion = IEDLLoss(0.1, 0.7, reduction="none")
    named = criterion.terms(LOGITS, LABELS)
    assert tuple(named) == IEDL_TERMS
    expected = named["fisher_bias"] + named["fisher_variance"]
    expected = expected + 0.1 * named["fisher_penalty"] + 0.7 * named["label_removed_kl"]
    torch.testing.assert_close(criterion(LOGITS, LABELS), expected)


@pytest.mark.parametrize("loss", [losses.iedl, losses.edl, losses.uce])
def test_one_hot_targets_are_labels(loss) -> None:  # type: ignore[no-untyped-def]
    soft = one_hot(LABELS, K).float()
    torch.testing.assert_close(loss(ALPHA, soft), loss(ALPHA, LABELS))
    torch.testing.assert_close(loss(ALPHA, soft.bfloat16()), loss(ALPHA, LABELS))


def test_soft_targets_follow_the_formula() -> None:
    soft = torch.rand(N, K, generator=GENERATOR).softmax(-1)
    ours = losses.iedl(ALPHA, soft, reduction="none")
    torch.testing.assert_close(ours, textbook(ALPHA, soft, 0.05, 1).float(), rtol=2e-5, atol=1e-6)


def test_dense_inputs_and_leading_axes() -> None:
    dense = ALPHA.reshape(2, 2, 4, K)
    labels = LABELS.reshape(2, 2, 4)
    expected = losses.iedl(ALPHA, LABELS, reduction="none").reshape(2, 2, 4)
    torch.testing.assert_close(losses.iedl(dense, labels, reduction="none"), expected)
    channel_first = dense.movedim(-1, 1)
    ours = losses.iedl(channel_first, labels, reduction="none", class_dim=1)
    torch.testing.assert_close(ours, expected)
    soft = one_hot(labels, K).float().movedim(-1, 1)
    ours = losses.iedl(channel_first, soft, reduction="none", class_dim=1)
    torch.testing.assert_close(ours, expected)
    logits = LOGITS.reshape(2, 2, 4, K).movedim(-1, 1)
    ours = IEDLLoss(class_dim=1, reduction="none")(logits, labels)
    torch.testing.assert_close(ours, expected)


def test_reductions() -> None:
    each = losses.iedl(ALPHA, LABELS, reduction="none")
    torch.testing.assert_close(losses.iedl(ALPHA, LABELS), each.mean())
    torch.testing.assert_close(losses.iedl(ALPHA, LABELS, reduction="sum"), each.sum())


def test_ignored_samples_count_for_nothing() -> None:
    labels = LABELS.clone()
    labels[::2] = -100
    kept = losses.iedl(ALPHA[1::2], LABELS[1::2])
    torch.testing.assert_close(losses.iedl(ALPHA, labels), kept)
    logits = LOGITS.clone().requires_grad_()
    IEDLLoss()(logits, labels).backward()
    assert logits.grad is not None
    assert (logits.grad[::2] == 0).all()
    assert (logits.grad[1::2] != 0).any()
    labels[:] = 7
    assert losses.iedl(ALPHA, labels, ignore_index=7) == 0


def test_class_weights_are_those_of_cross_entropy() -> None:
    weight = torch.tensor([1.0, 0.0, 2.0, 0.5, 3.0])
    each = losses.iedl(ALPHA, LABELS, reduction="none")
    expected = (weight[LABELS] * each).sum() / weight[LABELS].sum()
    torch.testing.assert_close(losses.iedl(ALPHA, LABELS, class_weight=weight), expected)
    labels = LABELS.clone()
    labels[3] = -100
    ours = losses.cross_entropy(LOGITS, labels, class_weight=weight)
    theirs = torch.nn.functional.cross_entropy(LOGITS, labels, weight=weight)
    torch.testing.assert_close(ours, theirs)
    soft = LOGITS.flip(0).softmax(-1)  # a sample counts as the classes of its target do
    each, by_sample = losses.iedl(ALPHA, soft, reduction="none"), soft @ weight
    expected = (by_sample * each).sum() / by_sample.sum()
    torch.testing.assert_close(losses.iedl(ALPHA, soft, class_weight=weight), expected)


SOFT = torch.rand(N, K, generator=torch.Generator().manual_seed(1)).softmax(-1)
SOME = torch.where(torch.arange(N) % 3 == 0, -100, LABELS)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weight", [None, torch.tensor([1.0, 0.0, 2.0, 0.5, 3.0])])
@pytest.mark.parametrize("target", [LABELS, SOME, SOFT], ids=["labels", "some", "soft"])
def test_cross_entropy_is_torchs(
    target: torch.Tensor, weight: torch.Tensor | None, smoothing: float, reduction: losses.Reduction
) -> None:
    logits = LOGITS.clone().requires_grad_()
    ours = losses.cross_entropy(
        logits, target, smoothing=smoothing, class_weight=weight, reduction=reduction
    )
    theirs = torch.nn.functional.cross_entropy(
        logits, target, weight, label_smoothing=smoothing, reduction=reduction
    )
    torch.testing.assert_close(ours, theirs)
    slopes = [torch.autograd.grad(loss.sum(), logits)[0] for loss in (ours, theirs)]
    torch.testing.assert_close(*slopes)


def test_a_batch_of_which_nothing_counts_has_the_mean_0() -> None:
    labels, weight = torch.ones_like(LABELS), torch.tensor([1.0, 0.0, 1.0, 1.0, 1.0])
    assert losses.iedl(ALPHA, labels, class_weight=weight) == 0
    logits = LOGITS.clone().requires_grad_()
    loss = losses.cross_entropy(logits, labels, class_weight=weight, smoothing=0.1)
    loss.backward()
    assert loss == 0
    assert logits.grad is not None
    assert (logits.grad == 0).all()


def test_uce_is_expected_cross_entropy_less_entropy() -> None:
    target = torch.distributions.Dirichlet(ALPHA.double())
    expected = losses.expected_cross_entropy(ALPHA, LABELS) - 0.1 * target.entropy().float()
    ours = losses.uce(ALPHA, LABELS, entropy_weight=0.1, reduction="none")
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


def test_the_label_dirichlet() -> None:
    target = losses.label_dirichlet(LABELS, K, beta=50)
    assert target.shape == (N, K)
    assert (target.gather(-1, LABELS.unsqueeze(-1)) == 50).all()
    assert (target.sum(-1) == 50 + K - 1).all()
    assert (losses.reverse_kl(target, target) == 0).all()
    assert (losses.forward_kl(ALPHA, target) > 0).all()


def test_scales_agree_at_ten_classes_and_shrink_beyond() -> None:
    for classes, factor in ((10, 1.0), (100, 0.1)):
        alpha, labels = 1 + torch.rand(4, classes), torch.arange(4)
        named = losses.terms(IEDL_TERMS, alpha, labels)
        expected = named["fisher_bias"] + named["fisher_variance"]
        expected = expected + factor * (named["fisher_penalty"] + named["label_removed_kl"])
        ours = losses.iedl(alpha, labels, fisher_weight=1.0, scale="per_class", reduction="none")
        torch.testing.assert_close(ours, expected)


def test_the_kl_weight_follows_its_schedule() -> None:
    criterion = IEDLLoss(kl_weight=Linear(4, weight=0.8))
    seen = []
    for epoch in (0, 1, 2, 4, 9):
        criterion.set_epoch(epoch)
        seen.append(criterion.kl_weight.item())
    assert seen == pytest.approx([0, 0.2, 0.4, 0.8, 0.8])
    fixed = IEDLLoss(kl_weight=0.3)
    fixed.set_epoch(5)
    assert fixed.kl_weight.item() == pytest.approx(0.3)
    assert Constant(0.3)(5) == 0.3
    assert criterion.state_dict() == {}  # weights of a loss are no part of a model


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    logits = LOGITS.to(dtype).requires_grad_()
    loss = IEDLLoss()(logits, LABELS)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, IEDLLoss()(LOGITS.to(dtype).float(), LABELS))
    loss.backward()
    assert logits.grad is not None
    assert logits.grad.dtype == dtype
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("label_dtype", [torch.uint8, torch.int16, torch.int32])
def test_labels_of_any_integer_type(label_dtype: torch.dtype) -> None:
    assert IEDLLoss()(LOGITS, LABELS.to(label_dtype)) == IEDLLoss()(LOGITS, LABELS)


@pytest.mark.parametrize("evidence", ["softplus", "relu", "exp"])
@pytest.mark.parametrize("size", [0.0, 1.0, 30.0, 1e4, 1e30])
def test_no_logits_give_a_non_finite_loss_or_gradient(evidence: str, size: float) -> None:
    logits = torch.tensor([[1.0, -1.0, 0.5], [-1.0, -1.0, -1.0], [1.0, 1.0, 1.0]]) * size
    logits.requires_grad_()
    loss = IEDLLoss(evidence=evidence, reduction="none")(logits, torch.tensor([0, 1, 2]))
    loss.sum().backward()
    assert loss.isfinite().all()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_it_says_what_it_is() -> None:
    assert repr(IEDLLoss(0.05, Linear(10))) == (
        "IEDLLoss(fisher_weight=0.05, kl_weight=Linear(epochs=10, weight=1.0), "
        "evidence='softplus', scale='paper')"
    )
    assert "likelihood='marginal', kl_weight=0.5" in repr(EDLLoss("marginal", 0.5))
