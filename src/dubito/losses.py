r"""Losses of a distribution and a target.

A loss is a weighted sum of named terms. A term is a function of (distribution, target) that returns
one value per sample, (...). Terms with a closed form of the Dirichlet (`ClosedForm`) have exact
gradients and fused kernels; `weighted_sums` alone decides which path computes them, for functions,
modules and trainers.

Targets are class indices (...), class probabilities (..., K) or numbers (..., T).

The log-determinant and the KL term grow with the number of classes. `scale="per_class"` multiplies
both by 10/K, so that a weight tuned for ten classes carries over; `scale="paper"` leaves them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dubito import _checks, kernels
from dubito._eager import eager_cache
from dubito.distributions import Categorical, Dirichlet, Distribution, _closed_forms
from dubito.kernels.spec import LossSpec, loss_spec

__all__ = [
    "ClosedForm", "EDLLoss", "IEDLLoss", "Reduction", "Term", "cross_entropy",
    "differential_entropy", "edl", "expected_cross_entropy", "fisher_bias", "fisher_penalty",
    "fisher_variance", "forward_kl", "iedl", "kl_from_uniform", "kl_to_uniform",
    "label_removed_kl", "marginal_nll", "mse_bias", "mse_variance", "reverse_kl", "uce",
    "weighted_sums",
]  # fmt: skip

Reduction = Literal["mean", "sum", "none"]
#: function (distribution, target) -> (...)
Term = Callable[[Any, Tensor], Tensor]
Weight = float | Tensor

# --- terms ---


@dataclass(frozen=True, eq=False)  # compared by identity: fast keys of caches
class ClosedForm:
    """Term of a Dirichlet with an exact gradient and a fused kernel.

    Attributes:
        form: Name of the closed form.
        beta: Concentration of the target's class, for `reverse_kl` and `forward_kl`.
    """

    form: str
    beta: float = 1.0

    def __call__(self, dist: Dirichlet, target: Tensor) -> Tensor:
        """Compute the term of each sample: (...)."""
        return _value(self, dist, target, per_class=False)


mse_bias = ClosedForm("mse_bias")
r"""Squared error of the expected probabilities, sum_j (y_j - p_j)^2."""

mse_variance = ClosedForm("mse_variance")
r"""Variance of the probabilities, sum_j p_j (1 - p_j)/(alpha0 + 1)."""

fisher_bias = ClosedForm("fisher_bias")
r"""Squared error weighted by the Fisher information, sum_j (y_j - p_j)^2 psi_1(alpha_j)."""

fisher_variance = ClosedForm("fisher_variance")
r"""Variance weighted by the Fisher information, sum_j p_j (1 - p_j) psi_1(alpha_j)/(alpha0 + 1)."""

fisher_penalty = ClosedForm("fisher_penalty")
r"""Negative log-determinant of the Fisher information; penalizes large evidence."""

label_removed_kl = ClosedForm("label_removed_kl")
r"""KL divergence of the evidence for wrong classes, KL(Dir(alpha (1 - y) + b y) || Dir(b)).

b is the prior of the distribution, or 1 if it has none.
"""

marginal_nll = ClosedForm("marginal_nll")
r"""Negative log of the expected probability of the target, ln alpha0 - ln alpha_y."""

expected_cross_entropy = ClosedForm("expected_cross_entropy")
r"""Expected cross entropy, psi(alpha0) - psi(alpha_y)."""

differential_entropy = ClosedForm("differential_entropy")
r"""Differential entropy of Dir(alpha); independent of the target."""

kl_to_uniform = ClosedForm("kl_to_uniform")
r"""KL(Dir(alpha) || Dir(1)); independent of the target."""

kl_from_uniform = ClosedForm("kl_from_uniform")
r"""KL(Dir(1) || Dir(alpha)); independent of the target."""


@eager_cache
def reverse_kl(beta: float) -> ClosedForm:
    """Create the term KL(Dir(alpha) || Dir(1 + (beta - 1) y)): mode seeking.

    Args:
        beta: Concentration of the target's class.
    """
    return ClosedForm("reverse_kl", _checks.positive(beta, "beta"))


@eager_cache
def forward_kl(beta: float) -> ClosedForm:
    """Create the term KL(Dir(1 + (beta - 1) y) || Dir(alpha)): mass covering.

    Args:
        beta: Concentration of the target's class.
    """
    return ClosedForm("forward_kl", _checks.positive(beta, "beta"))


def cross_entropy(dist: Categorical, target: Tensor, *, smoothing: float = 0.0) -> Tensor:
    """Cross entropy of a softmax: (...).

    Args:
        dist: Predicted class probabilities, batch shape (...).
        target: Class indices (...) or probabilities (..., K).
        smoothing: Share of the target that is spread evenly over all classes.
    """
    logs = dist.log_probs
    if target.is_floating_point():
        chosen = (target * logs).sum(-1)
    else:
        chosen = logs.gather(-1, target.long().unsqueeze(-1)).squeeze(-1)
    if smoothing == 0:
        return -chosen
    return -(1 - smoothing) * chosen - smoothing * logs.mean(-1)


# --- weighted sums of terms ---


def weighted_sums(
    terms: Mapping[str, Term],
    dist: Distribution,
    target: Tensor,
    weights: Tensor,
    *,
    class_weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "sum",
    per_class: bool = False,
) -> tuple[Tensor, Tensor]:
    """Compute the weighted sum of terms over a batch, by a fused kernel if there is one.

    The loss of a mixture is the mean of its members' losses.

    Args:
        terms: Term of each name.
        dist: Predicted distribution, batch shape (...).
        target: Targets of the batch. Their values are not checked.
        weights: Weight of each term, (T,), on the device of the distribution.
        class_weight: Weight of each class, (K,): a sample counts as the weight of its class.
        ignore_index: Samples with this label do not count.
        reduction: "mean" divides by the sum of the sample weights.
        per_class: Multiply the terms that grow with the number of classes by 10/K.

    Returns:
        Loss, a scalar or (...) without reduction; and the sum of each term over the samples, (T,),
        detached.
    """
    parts, target, members = dist.for_loss(target)
    if parts is not dist:
        loss, sums = weighted_sums(
            terms, parts, target, weights,
            class_weight=class_weight, ignore_index=ignore_index,
            reduction=reduction, per_class=per_class,
        )  # fmt: skip
        if reduction == "none":
            loss = loss.mean(-1)
        return loss / members if reduction == "sum" else loss, sums / members
    kernel_input, functions = dist.kernel_input(), tuple(terms.values())
    if kernel_input is not None and all(isinstance(term, ClosedForm) for term in functions):
        values, evidence, prior = kernel_input
        spec = _spec(functions, evidence, prior, per_class, ignore_index, reduction)  # type: ignore[arg-type]
        fused = kernels.weighted_sums(spec, values, target, weights, class_weight)
        if fused is not None:
            return fused
        return _closed_forms.weighted_sums(spec, values, target, weights, class_weight)
    return _generic_sums(
        functions, dist, target, weights, class_weight, ignore_index, reduction, per_class
    )


@eager_cache
def _spec(
    terms: tuple[ClosedForm, ...],
    evidence: str | None,
    prior: float,
    per_class: bool,
    ignore_index: int,
    reduction: str,
) -> LossSpec:
    betas = {term.beta for term in terms if term.form in ("reverse_kl", "forward_kl")}
    if len(betas) > 1:
        raise ValueError(f"terms of one loss must have one beta, not {sorted(betas)}")
    forms, beta = tuple(term.form for term in terms), betas.pop() if betas else 1.0
    return loss_spec(forms, evidence, prior, beta, per_class, ignore_index, reduction)


def _generic_sums(
    terms: tuple[Term, ...],
    dist: Distribution,
    target: Tensor,
    weights: Tensor,
    class_weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    per_class: bool,
) -> tuple[Tensor, Tensor]:
    """Evaluate terms one by one, with autograd."""
    soft = target.is_floating_point()
    ignored = None if soft else target.long() == ignore_index
    if ignored is not None:
        target = torch.where(ignored, 0, target.long())
    values = torch.stack([_value(term, dist, target, per_class) for term in terms], -1)
    sample_weight = torch.ones_like(values[..., 0])
    if class_weight is not None:
        by_class = class_weight.to(values)
        sample_weight = (target * by_class).sum(-1) if soft else by_class[target]
    if ignored is not None:
        sample_weight = torch.where(ignored, 0, sample_weight)
    counted = (sample_weight != 0).unsqueeze(-1)  # an ignored sample may be NaN
    values = torch.where(counted, sample_weight.unsqueeze(-1) * values, 0)
    losses = (values * weights.to(values)).sum(-1)
    sums = values.detach().flatten(0, -2).sum(0) if values.ndim > 1 else values.detach()
    if reduction == "none":
        return losses, sums
    total = losses.sum()
    if reduction == "mean":
        count = sample_weight.sum()
        total = total / torch.where(count == 0, torch.inf, count)
    return total, sums


def _value(term: Term, dist: Distribution, target: Tensor, per_class: bool) -> Tensor:
    if not isinstance(term, ClosedForm):
        return term(dist, target)
    if dist.kernel_input() is None:
        raise TypeError(f"{term.form} is a term of a Dirichlet, not of {dist!r}")
    one = _constant((1.0,), dist.device)
    return weighted_sums(
        {term.form: term}, dist, target, one, reduction="none", per_class=per_class
    )[0]


@eager_cache
def _constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    if torch.compiler.is_compiling():
        return torch.tensor(values, device=device)
    with torch.inference_mode(False):  # the next caller may need gradients
        return torch.tensor(values, device=device)


# --- functions ---


def iedl(
    dist: Dirichlet,
    target: Tensor,
    *,
    fisher_weight: Weight = 0.005,
    kl_weight: Weight = 1.0,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    scale: str = "per_class",
) -> Tensor:
    r"""Compute the I-EDL loss (Deng et al., ICML 2023).

    .. math:: L = L_\text{I-MSE} - \lambda_1 \log|I(\alpha)| + \lambda_2 L_\text{KL}

    Args:
        dist: Predicted Dirichlet, batch shape (...).
        target: Class indices (...) or probabilities (..., K).
        fisher_weight: Weight of the log-determinant.
        kl_weight: Weight of the KL term; usually raised from 0 to 1 over the first epochs.
        weight: Weight of each class, (K,).
        ignore_index: Samples with this label do not count.
        reduction: "mean", "sum" or "none".
        scale: "per_class" or "paper"; see the module.

    Returns:
        Scalar, or (...) without reduction.

    >>> iedl(Dirichlet(torch.tensor([[5.0, 1.0]])), torch.tensor([0]), fisher_weight=0.01)
    tensor(0.2720)
    """
    weights = (1.0, 1.0, fisher_weight, kl_weight)
    return _loss(_IEDL, weights, dist, target, weight, ignore_index, reduction, scale)


def edl(
    dist: Dirichlet,
    target: Tensor,
    *,
    likelihood: str = "mse",
    kl_weight: Weight = 1.0,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    scale: str = "per_class",
) -> Tensor:
    r"""Compute the EDL loss (Sensoy et al., NeurIPS 2018): a likelihood plus the KL term.

    Args:
        dist: Predicted Dirichlet, batch shape (...).
        target: Class indices (...) or probabilities (..., K).
        likelihood: "mse", the expected squared error; "marginal", type II maximum likelihood; or
            "cross_entropy", the expected cross entropy.
        kl_weight: Weight of the KL term; usually raised from 0 to 1 over the first epochs.
        weight: Weight of each class, (K,).
        ignore_index: Samples with this label do not count.
        reduction: "mean", "sum" or "none".
        scale: "per_class" or "paper"; see the module.

    Returns:
        Scalar, or (...) without reduction.

    >>> edl(Dirichlet(torch.tensor([[5.0, 1.0]])), torch.tensor([0]))
    tensor(0.0952)
    """
    terms = _checks.entry(EDL_TERMS, likelihood, "likelihood")
    weights = (*(1.0,) * (len(terms) - 1), kl_weight)
    return _loss(terms, weights, dist, target, weight, ignore_index, reduction, scale)


def uce(
    dist: Dirichlet,
    target: Tensor,
    *,
    entropy_weight: Weight = 1e-5,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Compute the loss of Posterior Networks: expected cross entropy minus weighted entropy.

    Args:
        dist: Predicted Dirichlet, batch shape (...).
        target: Class indices (...) or probabilities (..., K).
        entropy_weight: Weight of the differential entropy.
        weight: Weight of each class, (K,).
        ignore_index: Samples with this label do not count.
        reduction: "mean", "sum" or "none".

    Returns:
        Scalar, or (...) without reduction.

    >>> uce(Dirichlet(torch.tensor([[5.0, 1.0]])), torch.tensor([0]))
    tensor(0.2000)
    """
    weights = (1.0, -_checks.non_negative(entropy_weight, "entropy_weight"))
    return _loss(_UCE, weights, dist, target, weight, ignore_index, reduction, "paper")


_IEDL: Mapping[str, Term] = {
    "fisher_bias": fisher_bias,
    "fisher_variance": fisher_variance,
    "fisher_penalty": fisher_penalty,
    "label_removed_kl": label_removed_kl,
}
#: terms of EDL by likelihood
EDL_TERMS: Mapping[str, Mapping[str, Term]] = {
    "mse": {
        "mse_bias": mse_bias,
        "mse_variance": mse_variance,
        "label_removed_kl": label_removed_kl,
    },
    "marginal": {"marginal_nll": marginal_nll, "label_removed_kl": label_removed_kl},
    "cross_entropy": {
        "expected_cross_entropy": expected_cross_entropy,
        "label_removed_kl": label_removed_kl,
    },
}
_UCE: Mapping[str, Term] = {
    "expected_cross_entropy": expected_cross_entropy,
    "differential_entropy": differential_entropy,
}


def _loss(
    terms: Mapping[str, Term],
    weights: tuple[Weight, ...] | Tensor,
    dist: Dirichlet,
    target: Tensor,
    class_weight: Tensor | None,
    ignore_index: int,
    reduction: Reduction,
    scale: str,
) -> Tensor:
    """Validate the arguments of a public loss and compute it."""
    _options(reduction, scale, ignore_index)
    dist.validate()
    values = dist.kernel_input().values
    _checks.targets(target, values, ignore_index)
    if class_weight is not None:
        class_weight = _checks.class_weight(class_weight, values)
    loss, _ = weighted_sums(
        terms, dist, target, _weights(terms, weights, values.device),
        class_weight=class_weight, ignore_index=ignore_index,
        reduction=reduction, per_class=scale == "per_class",
    )  # fmt: skip
    return loss


@eager_cache
def _options(reduction: str, scale: str, ignore_index: int) -> None:
    _checks.one_of(("mean", "sum", "none"), reduction, "reduction")
    _checks.one_of(("per_class", "paper"), scale, "scale")
    _checks.whole_number(ignore_index, "ignore_index")


def _weights(
    terms: Mapping[str, Term], weights: tuple[Weight, ...] | Tensor, device: torch.device
) -> Tensor:
    if isinstance(weights, Tensor):
        return weights
    if not any(isinstance(weight, Tensor) for weight in weights):
        return _constant(_numbers(tuple(terms), weights), device)  # type: ignore[arg-type]
    for name, weight in zip(terms, weights, strict=True):
        _checks.non_negative(weight, _ARGUMENTS.get(name, name))
    parts = [torch.as_tensor(w, dtype=torch.float32, device=device).detach() for w in weights]
    return torch.stack(parts)


#: argument that is the weight of a term
_ARGUMENTS = {"fisher_penalty": "fisher_weight", "label_removed_kl": "kl_weight"}


@eager_cache
def _numbers(names: tuple[str, ...], weights: tuple[float, ...]) -> tuple[float, ...]:
    for name, weight in zip(names, weights, strict=True):
        if name != "differential_entropy":  # rewarded, and validated with its own sign
            _checks.non_negative(weight, _ARGUMENTS.get(name, name))
    return tuple(map(float, weights))


# --- modules ---


class _EvidentialLoss(nn.Module):
    """Loss of logits, in place of `nn.CrossEntropyLoss`."""

    weights: Tensor
    weight: Tensor | None

    def __init__(
        self,
        terms: Mapping[str, Term],
        weights: tuple[float, ...],
        kl_ramp: int,
        evidence: str,
        weight: Tensor | None,
        ignore_index: int,
        reduction: Reduction,
        scale: str,
        class_dim: int,
    ) -> None:
        super().__init__()
        _options(reduction, scale, ignore_index)
        _checks.whole_number(class_dim, "class_dim")
        if kl_ramp < 0:
            raise ValueError(f"kl_ramp must be a number of epochs >= 0, not {kl_ramp!r}")
        Dirichlet.from_logits(torch.zeros(2), evidence)
        self.terms, self.evidence, self.kl_ramp = terms, evidence, kl_ramp
        self.ignore_index, self.reduction, self.scale = ignore_index, reduction, scale
        self.class_dim = class_dim
        self.final = _numbers(tuple(terms), weights)
        # A flag and not the epoch, whose every value would be a new graph of torch.compile.
        self.epoch_is_set = kl_ramp == 0
        # A buffer: a new KL weight neither recompiles a step nor breaks a captured one.
        self.register_buffer("weights", torch.tensor(self.final), persistent=False)
        self.register_buffer("weight", weight, persistent=False)

    def set_epoch(self, epoch: int) -> None:
        """Set the KL weight of an epoch.

        Call it at the start of each epoch if `kl_ramp` is set.

        Args:
            epoch: Number of the epoch, from 0.
        """
        if epoch < 0:
            raise ValueError(f"epoch must be at least 0, not {epoch!r}")
        self.epoch_is_set = True
        rise = min(1.0, epoch / self.kl_ramp) if self.kl_ramp else 1.0
        self.weights[-1] = self.final[-1] * rise

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Compute the loss.

        Args:
            logits: Outputs of a network, (..., K) or with the classes at `class_dim`.
            target: Class indices, or class probabilities of the shape of the logits.
        """
        if not self.epoch_is_set:
            raise RuntimeError(
                f"kl_ramp={self.kl_ramp} raises the KL weight by epochs: call "
                "set_epoch(epoch) at the start of each epoch"
            )
        if self.class_dim != -1 and target.ndim == logits.ndim:
            target = target.movedim(self.class_dim, -1)
        dist = Dirichlet.from_logits(logits, self.evidence, class_dim=self.class_dim)
        return _loss(
            self.terms, self.weights, dist, target, self.weight,
            self.ignore_index, self.reduction, self.scale,
        )  # fmt: skip

    def extra_repr(self) -> str:
        """Return the terms with their final weights."""
        weights = ", ".join(f"{n}={w:g}" for n, w in zip(self.terms, self.final, strict=True))
        return f"{weights}, kl_ramp={self.kl_ramp}, scale={self.scale!r}"


class IEDLLoss(_EvidentialLoss):
    """I-EDL loss of logits, in place of `nn.CrossEntropyLoss`; see `iedl`.

    Args:
        fisher_weight: Weight of the log-determinant.
        kl_weight: Final weight of the KL term.
        kl_ramp: Epochs over which the KL weight rises from 0; 0 keeps it constant. With a ramp,
            call `set_epoch` at the start of each epoch.
        evidence: Evidence function of the logits; see `Dirichlet.from_logits`.
        weight: Weight of each class, (K,).
        ignore_index: Samples with this label do not count.
        reduction: "mean", "sum" or "none".
        scale: "per_class" or "paper"; see the module.
        class_dim: Axis of the classes; 1 for images (N, K, H, W).

    >>> criterion = IEDLLoss(kl_ramp=10)
    >>> criterion.set_epoch(0)
    >>> criterion(torch.zeros(2, 3), torch.tensor([0, 1]))
    tensor(0.6588)
    """

    def __init__(
        self,
        fisher_weight: float = 0.005,
        kl_weight: float = 1.0,
        *,
        kl_ramp: int = 0,
        evidence: str = "softplus",
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        scale: str = "per_class",
        class_dim: int = -1,
    ) -> None:
        super().__init__(
            _IEDL, (1.0, 1.0, fisher_weight, kl_weight), kl_ramp, evidence, weight,
            ignore_index, reduction, scale, class_dim,
        )  # fmt: skip


class EDLLoss(_EvidentialLoss):
    """EDL loss of logits, in place of `nn.CrossEntropyLoss`; see `edl`.

    Args:
        likelihood: "mse", "marginal" or "cross_entropy".
        kl_weight: Final weight of the KL term.
        kl_ramp: Epochs over which the KL weight rises from 0; 0 keeps it constant. With a ramp,
            call `set_epoch` at the start of each epoch.
        evidence: Evidence function of the logits; see `Dirichlet.from_logits`.
        weight: Weight of each class, (K,).
        ignore_index: Samples with this label do not count.
        reduction: "mean", "sum" or "none".
        scale: "per_class" or "paper"; see the module.
        class_dim: Axis of the classes; 1 for images (N, K, H, W).

    >>> EDLLoss(likelihood="marginal")(torch.zeros(2, 10), torch.tensor([0, 1]))
    tensor(3.0026)
    """

    def __init__(
        self,
        likelihood: str = "mse",
        kl_weight: float = 1.0,
        *,
        kl_ramp: int = 0,
        evidence: str = "softplus",
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        scale: str = "per_class",
        class_dim: int = -1,
    ) -> None:
        terms = _checks.entry(EDL_TERMS, likelihood, "likelihood")
        super().__init__(
            terms, (*(1.0,) * (len(terms) - 1), kl_weight), kl_ramp, evidence, weight,
            ignore_index, reduction, scale, class_dim,
        )  # fmt: skip
