"""Losses: targets, weights, axes, reductions, schedules, errors. Terms are tested by form."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.nn.functional import one_hot

from dubito import losses
from dubito.distributions import Categorical, Dirichlet
from dubito.losses import EDLLoss, IEDLLoss, edl, iedl, uce

N, K = 16, 5
GENERATOR = torch.Generator().manual_seed(0)
LOGITS = 3 * torch.randn(N, K, generator=GENERATOR)
LABELS = torch.randint(K, (N,), generator=GENERATOR)
SOFT = torch.rand(N, K, generator=GENERATOR).softmax(-1)
WEIGHT = torch.tensor([1.0, 0.0, 2.0, 0.5, 3.0])
DIST = Dirichlet.from_logits(LOGITS)
# torch.compile's own use of torch
compiles = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


def textbook(alpha: Tensor, y: Tensor, fisher: float, kl: float) -> Tensor:
    """The I-EDL loss as the paper writes it, in float64."""
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


@pytest.mark.parametrize("target", [LABELS, SOFT], ids=["labels", "soft"])
@pytest.mark.parametrize(("fisher", "kl"), [(0.05, 1.0), (0.0, 0.3), (2.0, 0.0)])
def test_iedl_is_the_papers_formula(fisher, kl, target):
    ours = iedl(DIST, target, fisher_weight=fisher, kl_weight=kl, reduction="none", scale="paper")
    y = target if target.is_floating_point() else one_hot(target, K)
    theirs = textbook(DIST.alpha, y, fisher, kl)
    torch.testing.assert_close(ours, theirs.float(), rtol=2e-5, atol=1e-6)


def test_uce_is_expected_cross_entropy_minus_entropy():
    entropy = torch.distributions.Dirichlet(DIST.alpha.double()).entropy().float()
    expected = losses.expected_cross_entropy(DIST, LABELS) - 0.1 * entropy
    ours = uce(DIST, LABELS, entropy_weight=0.1, reduction="none")
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


def test_module_equals_function():
    assert IEDLLoss(0.1, 0.7)(LOGITS, LABELS) == iedl(
        DIST, LABELS, fisher_weight=0.1, kl_weight=0.7
    )
    for likelihood in losses.EDL_TERMS:
        ours = EDLLoss(likelihood, 0.7)(LOGITS, LABELS)
        assert ours == edl(DIST, LABELS, likelihood=likelihood, kl_weight=0.7)


def test_logits_and_alpha_give_the_same_loss():
    torch.testing.assert_close(iedl(Dirichlet(DIST.alpha), LABELS), iedl(DIST, LABELS))


def test_loss_is_the_weighted_sum_of_its_terms():
    terms = {"bias": losses.mse_bias, "nll": losses.marginal_nll}
    weights = torch.tensor([0.5, 2.0])
    loss, sums = losses.weighted_sums(terms, DIST, LABELS, weights)
    expected = torch.stack([term(DIST, LABELS).sum() for term in terms.values()])
    torch.testing.assert_close(sums, expected)
    torch.testing.assert_close(loss, (weights * sums).sum())
    assert not sums.requires_grad


def test_terms_without_a_closed_form_take_the_same_options():
    def own_bias(dist: Dirichlet, target: Tensor) -> Tensor:
        return (one_hot(target, K) - dist.probs).square().sum(-1)

    labels, weights = torch.where(torch.arange(N) % 3 == 0, -100, LABELS), torch.tensor([1.0, 0.5])
    for reduction in ("mean", "sum", "none"):
        generic, fused = (
            losses.weighted_sums(
                {"bias": bias, "kl": losses.label_removed_kl}, DIST, labels, weights,
                class_weight=WEIGHT, reduction=reduction, per_class=True,
            )
            for bias in (own_bias, losses.mse_bias)
        )  # fmt: skip
        torch.testing.assert_close(generic, fused)


def test_per_class_scale_equals_the_papers_at_ten_classes():
    for classes, factor in ((10, 1.0), (100, 0.1)):
        dist, labels = Dirichlet(1 + torch.rand(4, classes)), torch.arange(4)
        expected = losses.fisher_bias(dist, labels) + losses.fisher_variance(dist, labels)
        grows = losses.fisher_penalty(dist, labels) + losses.label_removed_kl(dist, labels)
        ours = iedl(dist, labels, fisher_weight=1.0, reduction="none")
        torch.testing.assert_close(ours, expected + factor * grows)


@pytest.mark.parametrize("loss", [iedl, edl, uce])
def test_one_hot_targets_equal_labels(loss):
    soft = one_hot(LABELS, K).float()
    torch.testing.assert_close(loss(DIST, soft), loss(DIST, LABELS))
    torch.testing.assert_close(loss(DIST, soft.bfloat16()), loss(DIST, LABELS))


def test_class_axis_and_leading_axes():
    labels = LABELS.reshape(2, 2, 4)
    expected = iedl(DIST, LABELS, reduction="none").reshape(2, 2, 4)
    images = LOGITS.reshape(2, 2, 4, K).movedim(-1, 1)
    dense = Dirichlet.from_logits(images, class_dim=1)
    torch.testing.assert_close(iedl(dense, labels, reduction="none"), expected)
    criterion = IEDLLoss(class_dim=1, reduction="none")
    torch.testing.assert_close(criterion(images, labels), expected)
    soft = one_hot(labels, K).float().movedim(-1, 1)
    torch.testing.assert_close(criterion(images, soft), expected)


def test_reductions():
    each = iedl(DIST, LABELS, reduction="none")
    torch.testing.assert_close(iedl(DIST, LABELS), each.mean())
    torch.testing.assert_close(iedl(DIST, LABELS, reduction="sum"), each.sum())


def test_ignored_samples_do_not_count():
    labels = LABELS.clone()
    labels[::2] = -100
    logits = LOGITS.clone().requires_grad_()
    loss = IEDLLoss()(logits, labels)
    torch.testing.assert_close(loss, iedl(DIST[1::2], LABELS[1::2]))
    loss.backward()
    assert (logits.grad[::2] == 0).all()
    assert (logits.grad[1::2] != 0).any()
    assert iedl(DIST, torch.full_like(labels, 7), ignore_index=7) == 0


@pytest.mark.parametrize("target", [LABELS, SOFT], ids=["labels", "soft"])
def test_class_weights_weigh_samples(target):
    each = iedl(DIST, target, reduction="none")
    by_sample = target @ WEIGHT if target.is_floating_point() else WEIGHT[target]
    expected = (by_sample * each).sum() / by_sample.sum()
    torch.testing.assert_close(iedl(DIST, target, weight=WEIGHT), expected)


def test_mean_of_a_batch_without_weight_is_zero():
    logits = LOGITS.clone().requires_grad_()
    loss = IEDLLoss(weight=WEIGHT)(logits, torch.ones_like(LABELS))
    loss.backward()
    assert loss == 0
    assert (logits.grad == 0).all()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("target", [LABELS, SOFT], ids=["labels", "soft"])
def test_cross_entropy_is_torchs(target, smoothing):
    ours = losses.cross_entropy(Categorical(LOGITS), target, smoothing=smoothing)
    theirs = nn.functional.cross_entropy(
        LOGITS, target, label_smoothing=smoothing, reduction="none"
    )
    torch.testing.assert_close(ours, theirs)


def test_cross_entropy_of_an_impossible_class_is_finite():
    dist = Categorical.from_probs(torch.tensor([[0.5, 0.5, 0.0]]))
    torch.testing.assert_close(
        losses.cross_entropy(dist, torch.tensor([0])).exp(), 2 * torch.ones(1)
    )


@pytest.mark.parametrize("beta", [1.0, 50.0])
def test_divergences_from_the_target_dirichlet(beta):
    target = torch.distributions.Dirichlet(1 + (beta - 1) * one_hot(LABELS, K).double())
    own = torch.distributions.Dirichlet(DIST.alpha.double())
    kl = torch.distributions.kl_divergence
    reverse, forward = losses.reverse_kl(beta)(DIST, LABELS), losses.forward_kl(beta)(DIST, LABELS)
    torch.testing.assert_close(reverse, kl(own, target).float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(forward, kl(target, own).float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"a": losses.reverse_kl(2.0), "b": losses.forward_kl(3.0)}, r"one beta, not \[2.0, 3.0\]"),
        ({"a": losses.mse_bias, "b": losses.mse_bias}, "different closed forms"),
        ({}, "needs terms"),
    ],
)
def test_inconsistent_terms(terms, message):
    with pytest.raises(ValueError, match=message):
        losses.weighted_sums(terms, DIST, LABELS, torch.ones(len(terms)))


# --- schedules ---


def test_kl_weight_rises_with_the_epoch():
    criterion = IEDLLoss(kl_weight=0.8, kl_ramp=4)
    kl_weights = []
    for epoch in (0, 1, 2, 4, 9):
        criterion.set_epoch(epoch)
        kl_weights.append(criterion.weights[-1].item())
    assert kl_weights == pytest.approx([0, 0.2, 0.4, 0.8, 0.8])
    assert criterion.state_dict() == {}  # the weights of a loss are not part of a model


@pytest.mark.parametrize("kind", [IEDLLoss, EDLLoss])
def test_a_ramp_without_set_epoch_raises(kind):
    with pytest.raises(RuntimeError, match=r"label_removed_kl=1\) needs the epoch: call set_epoch"):
        kind(kl_ramp=10)(LOGITS, LABELS)


def test_a_constant_weight_needs_no_epoch():
    criterion = IEDLLoss(kl_weight=0.3)
    before = criterion(LOGITS, LABELS)
    criterion.set_epoch(5)
    assert criterion(LOGITS, LABELS) == before


@compiles
def test_a_new_kl_weight_needs_no_new_graph():
    criterion = IEDLLoss(kl_ramp=10)
    torch._dynamo.reset()
    counter = CompileCounter()
    step = torch.compile(criterion, backend=counter, fullgraph=True)
    values = []
    for epoch in (3, 5, 7):
        criterion.set_epoch(epoch)
        values.append(step(LOGITS, LABELS).item())
        assert values[-1] == pytest.approx(criterion(LOGITS, LABELS).item(), rel=1e-5)
    assert len(set(values)) == 3
    assert counter.frame_count == 1


@compiles
def test_compiled_gradients_are_the_eager_ones():
    criterion, logits = IEDLLoss(), LOGITS.clone().requires_grad_()
    (eager,) = torch.autograd.grad(criterion(logits, LABELS), logits)
    torch._dynamo.reset()
    compiled = torch.compile(criterion, backend="aot_eager", fullgraph=True)
    (ours,) = torch.autograd.grad(compiled(logits, LABELS), logits)
    torch.testing.assert_close(ours, eager)


# --- numbers ---


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype):
    logits = LOGITS.to(dtype).requires_grad_()
    loss = IEDLLoss()(logits, LABELS)
    assert loss.dtype == torch.float32
    exact = logits.detach().float().requires_grad_()
    torch.testing.assert_close(loss, IEDLLoss()(exact, LABELS))
    loss.backward()
    torch.testing.assert_close(
        logits.grad, torch.autograd.grad(IEDLLoss()(exact, LABELS), exact)[0].to(dtype)
    )


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_labels_of_any_integer_type(dtype):
    assert IEDLLoss()(LOGITS, LABELS.to(dtype)) == IEDLLoss()(LOGITS, LABELS)


def test_weights_made_in_inference_mode_serve_training_too():
    with torch.inference_mode():
        iedl(Dirichlet.from_logits(LOGITS), LABELS, fisher_weight=0.0625)
    logits = LOGITS.clone().requires_grad_()
    iedl(Dirichlet.from_logits(logits), LABELS, fisher_weight=0.0625).backward()


@pytest.mark.parametrize("kind", [IEDLLoss, EDLLoss])
def test_default_weights_train_many_classes(kind):
    assert trained_accuracy(kind(kl_ramp=10)) > 0.6


def test_the_papers_scale_does_not_train_many_classes():
    assert trained_accuracy(IEDLLoss(0.05, kl_ramp=10, scale="paper")) < 0.5


def trained_accuracy(criterion: IEDLLoss | EDLLoss, classes: int = 300) -> float:
    """Training accuracy of a small network on noisy samples around K centers."""
    torch.manual_seed(0)
    centers = torch.randn(classes, 32)
    labels = torch.arange(classes).repeat(3)
    x = centers[labels] + 0.2 * torch.randn(len(labels), 32)
    network = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, classes))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    for epoch in range(12):
        criterion.set_epoch(epoch)
        for batch in torch.randperm(len(x)).split(100):
            optimizer.zero_grad()
            criterion(network(x[batch]), labels[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        return (network(x).argmax(-1) == labels).double().mean().item()


# --- errors ---

ALPHA, OK = torch.full((4, 3), 2.0), torch.tensor([0, 1, 2, 0])
OF_ALPHA: dict[str, Callable[[Tensor], object]] = {
    "iedl": lambda alpha: iedl(Dirichlet(alpha), OK),
    "edl": lambda alpha: edl(Dirichlet(alpha), OK),
    "uce": lambda alpha: uce(Dirichlet(alpha), OK),
}
OF_LOGITS: dict[str, Callable[[Tensor], object]] = {
    "IEDLLoss": lambda logits: IEDLLoss()(logits, OK),
    "EDLLoss": lambda logits: EDLLoss()(logits, OK),
}
OF_TARGET: dict[str, Callable[[Tensor], object]] = {
    "iedl": lambda target: iedl(Dirichlet(ALPHA), target),
    "edl": lambda target: edl(Dirichlet(ALPHA), target),
    "uce": lambda target: uce(Dirichlet(ALPHA), target),
    "IEDLLoss": lambda target: IEDLLoss()(ALPHA, target),
}
EACH_ALPHA = pytest.mark.parametrize("call", OF_ALPHA.values(), ids=OF_ALPHA)
EACH_TARGET = pytest.mark.parametrize("call", OF_TARGET.values(), ids=OF_TARGET)


@EACH_ALPHA
@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_alpha_must_be_positive_and_finite(call, bad):
    alpha = ALPHA.clone()
    alpha[2, 1] = bad
    with pytest.raises(ValueError, match=r"alpha must be > 0 and finite.*\[2, 1\]"):
        call(alpha)


@EACH_ALPHA
def test_alpha_of_a_wrong_type_or_shape(call):
    with pytest.raises(TypeError, match=r"must be floating point, not torch.int64"):
        call(torch.full((4, 3), 2))
    with pytest.raises(ValueError, match=r"shape \(4, 1\): expected \(\.\.\., K\), K >= 2"):
        call(torch.full((4, 1), 2.0))
    with pytest.raises(TypeError, match=r"must be a torch\.Tensor, not list"):
        call([2.0, 3.0])


@pytest.mark.parametrize("call", OF_LOGITS.values(), ids=OF_LOGITS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_logits_must_be_finite(call, bad):
    logits = torch.zeros(4, 3)
    logits[3, 0] = bad
    with pytest.raises(
        ValueError, match=r"logits must be finite.*\(1 bad, the first at \[3, 0\]\)"
    ):
        call(logits)


@EACH_TARGET
def test_wrong_labels(call):
    with pytest.raises(ValueError, match=r"labels from 0 to 2.*but has \[3, 7\]"):
        call(torch.tensor([0, 7, 3, 7]))
    with pytest.raises(TypeError, match=r"torch.float32 of shape \(4,\): labels must be integers"):
        call(OK.float())
    with pytest.raises(TypeError, match=r"not torch\.bool"):
        call(OK > 0)
    with pytest.raises(ValueError, match=r"target has shape \(3,\).*shape \(4,\)"):
        call(OK[:3])
    with pytest.raises(TypeError, match=r"target must be a torch\.Tensor, not list"):
        call([0, 1, 2, 0])


@EACH_TARGET
def test_wrong_soft_targets(call):
    with pytest.raises(ValueError, match=r"sum to 1 over the classes.*off by 0.5"):
        call(torch.full((4, 3), 0.5))
    with pytest.raises(ValueError, match=r">= 0.*the least is -1"):
        call(torch.tensor([[-1.0, 1.0, 1.0]]).repeat(4, 1))
    with pytest.raises(ValueError, match=r"target requires grad"):
        call(torch.full((4, 3), 1 / 3, requires_grad=True))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_empty_batch(reduction):
    with pytest.raises(ValueError, match=r"the batch is empty: predictions of shape \(0, 3\)"):
        IEDLLoss(reduction=reduction)(torch.ones(0, 3), torch.zeros(0, dtype=torch.long))


NAN, MINUS = float("nan"), torch.tensor(-1.0)
WRONG: dict[str, tuple[type[Exception], str, Callable[[], object]]] = {
    "fisher_weight": (ValueError, "fisher_weight must be", lambda: IEDLLoss(-0.1)),
    "fisher_nan": (ValueError, "fisher_weight must", lambda: iedl(DIST, LABELS, fisher_weight=NAN)),
    "fisher_text": (TypeError, "fisher_weight must be a number", lambda: IEDLLoss("0.1")),
    "kl_weight": (ValueError, "kl_weight must be", lambda: EDLLoss(kl_weight=-1.0)),
    "kl_tensor": (ValueError, "kl_weight must be", lambda: edl(DIST, LABELS, kl_weight=MINUS)),
    "kl_none": (TypeError, "kl_weight must be a", lambda: edl(DIST, LABELS, kl_weight=None)),
    "kl_ramp": (ValueError, "kl_ramp must be", lambda: IEDLLoss(kl_ramp=-1)),
    "entropy": (ValueError, "entropy_weight must", lambda: uce(DIST, LABELS, entropy_weight=-1)),
    "beta": (ValueError, "beta must be", lambda: losses.reverse_kl(0.0)),
    "weight": (ValueError, "weight must be >= 0", lambda: iedl(DIST, LABELS, weight=-WEIGHT)),
    "weight_shape": (ValueError, r"weight has shape \(2,\).*\(5,\)",
                     lambda: iedl(DIST, LABELS, weight=WEIGHT[:2])),
    "ignore_index": (TypeError, "ignore_index must be a whole", lambda: IEDLLoss(ignore_index=1.5)),
    "class_dim": (TypeError, "class_dim must be a whole", lambda: EDLLoss(class_dim=True)),
    "class_axis": (ValueError, "class_dim=2 is not", lambda: IEDLLoss(class_dim=2)(LOGITS, LABELS)),
    "evidence": (ValueError, "known: 'softplus', 'relu', 'exp'", lambda: IEDLLoss(evidence="tanh")),
    "reduction": (ValueError, "known: 'mean', 'sum', 'none'", lambda: IEDLLoss(reduction="max")),
    "scale": (ValueError, "known: 'per_class', 'paper'", lambda: iedl(DIST, LABELS, scale="big")),
    "likelihood": (ValueError, "known: 'mse', 'marginal', 'cross_entropy'", lambda: EDLLoss("l1")),
}  # fmt: skip


@pytest.mark.parametrize(("error", "message", "call"), WRONG.values(), ids=WRONG)
def test_wrong_arguments_are_named(error, message, call):
    with pytest.raises(error, match=message):
        call()


def test_repr_shows_the_weights():
    assert repr(IEDLLoss(0.05, kl_ramp=10)) == (
        "IEDLLoss(fisher_bias=1, fisher_variance=1, fisher_penalty=0.05, label_removed_kl=1)"
    )


def test_a_mixture_of_one_member_has_its_loss():
    dist = Dirichlet.from_logits(LOGITS[:, None, None]).mixture().mixture()
    terms = {"bias": losses.mse_bias}
    for reduction in ("mean", "sum", "none"):
        ours, theirs = (
            losses.weighted_sums(terms, d, LABELS, torch.ones(1), reduction=reduction)
            for d in (dist, DIST)
        )
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("reduce", [torch.mean, lambda values: values.unsqueeze(-1)])
def test_terms_return_one_value_per_sample(reduce: Callable[[Tensor], Tensor]):
    def bias(dist: Dirichlet, target: Tensor) -> Tensor:
        return reduce((one_hot(target, 3) - dist.probs).square().sum(-1))

    dist, target = Dirichlet(torch.ones(2, 3)), torch.tensor([0, 1])
    message = r"the loss term 'mine' returned shape .*; a term returns one value per"
    with pytest.raises(ValueError, match=message):  # by its key: a partial function has no name
        losses.weighted_sums({"mine": partial(bias)}, dist, target, torch.ones(1))


def test_terms_of_a_dirichlet_reject_other_distributions():
    with pytest.raises(TypeError, match=r"mse_bias is a term of a Dirichlet, not of Categorical"):
        losses.mse_bias(Categorical(LOGITS), LABELS)
