r"""Loss functions for predicted distributions.

A loss is a weighted sum of named terms. A term is a function of (distribution, target) that returns
one value per sample, (...). Terms with a closed form of the Dirichlet (`ClosedForm`) have exact
gradients and fused kernels. `weighted_sums` chooses between the fused kernel, the closed form and
autograd. All losses go through it.

Targets are class indices (...), class probabilities (..., K), or numbers (..., T) for T regression
targets. The weights of a `Target` multiply the terms of each sample, besides those of the classes.
Where single numbers may be missing, a term returns one value for each of them, (..., T).

The log-determinant and the KL term grow with the number of classes. `scale="per_class"` multiplies
both by 10/K, so that a weight tuned for ten classes carries over; `scale="paper"` leaves them
unscaled.

Notation: alpha0 is the sum of alpha, p = alpha/alpha0, y the one-hot target, psi the digamma and
psi_1 the trigamma function.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, TypedDict, Unpack

import torch
from torch import Tensor, nn

from dubito import _checks, kernels
from dubito.distributions import Categorical, Dirichlet, Distribution, NormalInverseGamma
from dubito.distributions.normal import LEAST_OUTPUT
from dubito.distributions.regression import RealDistribution
from dubito.errors import DubitoError
from dubito.numerics import torch_backend
from dubito.numerics.spec import REDUCTIONS, LossSpec
from dubito.numerics.tracing import constant, eager_cache
from dubito.targets import Target, values_and_weight

__all__ = [
    "DERLoss", "EDLLoss", "IDERLoss", "IEDLLoss", "Term", "cross_entropy", "differential_entropy",
    "edl", "expected_cross_entropy", "fisher_bias", "fisher_penalty", "fisher_variance",
    "forward_kl", "iedl", "label_removed_kl", "marginal_nll", "mse_bias", "mse_variance",
    "reverse_kl", "uce",
]  # fmt: skip

Reduction = Literal["mean", "sum", "none"]
#: function (distribution, target) -> (...); for numbers also (..., T), which is summed. A censored
#: target is passed as a `Target` to those with a true attribute `takes_bounds`.
Term = Callable[[Any, Any], Tensor]
Weight = float | Tensor
LAST_EPOCH = 10**6  # of any training

# --- terms ---


@dataclass(frozen=True, eq=False)  # eq=False: hashed by identity, so that cache lookups are fast
class ClosedForm:
    """Term of a Dirichlet with an exact gradient and a fused kernel.

    Attributes:
        form: Name of the closed form.
        beta: Prior concentration of the labeled class, for `reverse_kl` and `forward_kl`.
    """

    form: str
    beta: float = 1.0

    def __call__(self, dist: Dirichlet, target: Tensor) -> Tensor:
        """Compute the term of each sample: (...)."""
        return _value(self.form, self, dist, target, per_class=False)


mse_bias = ClosedForm("mse_bias")
r"""Squared error of the expected probabilities, sum_j (y_j - p_j)^2."""

mse_variance = ClosedForm("mse_variance")
r"""Variance of the probabilities, sum_j p_j (1 - p_j)/(alpha0 + 1)."""

fisher_bias = ClosedForm("fisher_bias")
r"""Squared error weighted by the Fisher information, sum_j (y_j - p_j)^2 psi_1(alpha_j)."""

fisher_variance = ClosedForm("fisher_variance")
r"""Variance weighted by the Fisher information, sum_j p_j (1 - p_j) psi_1(alpha_j)/(alpha0 + 1)."""

fisher_penalty = ClosedForm("fisher_penalty")
r"""-ln|I(alpha)|, the negative log-determinant of the Fisher information.

Penalizes large evidence.
"""

label_removed_kl = ClosedForm("label_removed_kl")
r"""KL divergence of the evidence for wrong classes, KL(Dir(alpha (1 - y) + prior y) || Dir(prior)).

The prior is that of the distribution, or 1 if it has none.
"""

marginal_nll = ClosedForm("marginal_nll")
r"""Negative log of the expected probability of the target, ln alpha0 - ln alpha_y."""

expected_cross_entropy = ClosedForm("expected_cross_entropy")
r"""Expected cross entropy, psi(alpha0) - psi(alpha_y)."""

differential_entropy = ClosedForm("differential_entropy")
r"""Differential entropy of Dir(alpha); independent of the target."""


@eager_cache
def reverse_kl(beta: float) -> ClosedForm:
    """Create the term KL(Dir(alpha) || Dir(1 + (beta - 1) y)).

    Penalizes probability where the prior has none (mode seeking).

    Args:
        beta: Prior concentration of the labeled class; with 1 the prior is uniform, and the term
            does not depend on the target.
    """
    if beta == 1:
        return ClosedForm("kl_to_uniform")
    return ClosedForm("reverse_kl", _checks.positive(beta, "beta"))


@eager_cache
def forward_kl(beta: float) -> ClosedForm:
    """Create the term KL(Dir(1 + (beta - 1) y) || Dir(alpha)).

    Penalizes missing probability where the prior has some (mass covering).

    Args:
        beta: Prior concentration of the labeled class; with 1 the prior is uniform, and the term
            does not depend on the target.
    """
    if beta == 1:
        return ClosedForm("kl_from_uniform")
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
        target_logs = (target * logs).sum(-1)
    else:
        target_logs = logs.gather(-1, target.long().unsqueeze(-1)).squeeze(-1)
    if smoothing == 0:
        return -target_logs
    return -(1 - smoothing) * target_logs - smoothing * logs.mean(-1)


@dataclass(frozen=True)
class Weighted:
    """A term of numbers times scale^(2 exponent) of the predictive, of which there is no gradient.

    Attributes:
        term: Term of a distribution about numbers, which reads bounds.
        exponent: Exponent of the squared scale.
    """

    term: Term
    exponent: float
    takes_bounds: ClassVar[bool] = True

    def __call__(self, dist: RealDistribution, target: Tensor | Target) -> Tensor:
        """Compute the weighted term: (..., T)."""
        with torch.no_grad():
            scale: Tensor = dist.predictive.scale.detach()  # may be a tensor of the distribution
        return scale ** (2 * self.exponent) * self.term(dist, target)


# --- weighted sums of terms ---


def weighted_sums(
    terms: Mapping[str, Term],
    dist: Distribution,
    target: Tensor | Target,
    weights: Tensor,
    *,
    class_weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "sum",
    per_class: bool = False,
) -> tuple[Tensor, Tensor]:
    """Compute a weighted sum of terms over a batch, with a fused kernel if one supports the terms.

    The loss of a mixture is the mean of its members' losses.

    Args:
        terms: Terms by name.
        dist: Predicted distribution, batch shape (...).
        target: Targets of the batch. Their values are not checked.
        weights: Weight of each term, (M,), on the device of the distribution.
        class_weight: Weight of each class, (K,): each sample is multiplied by the weight of its
            class.
        ignore_index: Samples with this label do not count.
        reduction: "mean" divides by the sum of the sample weights; that of a sample with T numbers
            is the mean of their weights.
        per_class: Multiply the terms that grow with the number of classes by 10/K.

    Returns:
        Loss, a scalar or (...) without reduction; and the sum of each term over the samples, (M,),
        detached.
    """
    values, weight = values_and_weight(target)
    components, each, members = dist.for_loss(values)
    if components is not dist:  # A mixture: average the losses of its members.
        own: Tensor | Target = each
        if isinstance(target, Target):
            own = target.map(lambda part: dist.for_loss(part)[1])
        loss, sums = weighted_sums(
            terms, components, own, weights,
            class_weight=class_weight, ignore_index=ignore_index,
            reduction=reduction, per_class=per_class,
        )  # fmt: skip
        if reduction == "none":
            loss = loss.mean(-1)
        return loss / members if reduction == "sum" else loss, sums / members
    functions = tuple(terms.values())
    closed = _closed_form(functions, dist, per_class, ignore_index, reduction)
    if closed is not None and not isinstance(target, Target):
        return _evaluate(*closed, target, weights, class_weight)
    # Evaluate the terms one by one, with autograd.
    counted: Tensor | Target = values
    if isinstance(target, Target) and target.is_censored:
        counted = target
    elif not values.is_floating_point():
        labels = values.long()
        counted = labels.masked_fill(labels == ignore_index, 0)
    parts = [_value(name, t, dist, counted, per_class, weight) for name, t in terms.items()]
    each = torch.stack(parts, -1)
    _, row_weight = torch_backend.row_weights(values, class_weight, ignore_index, each)
    if weight is None:
        counts = row_weight
    elif weight.ndim < each.ndim:
        own = weight.unsqueeze(-1).to(each)
        counts = row_weight = own if row_weight is None else own * row_weight
    else:  # The weights of single numbers are in the terms.
        counts = weight.to(each).mean(-1, keepdim=True)
    weights = torch_backend.mean_weights(weights, counts, reduction, each)
    return torch_backend.reduced(each, row_weight, weights, reduction)


def value_and_gradient(
    terms: Mapping[str, Term],
    to_distribution: Callable[[Tensor], Distribution],
    outputs: Tensor,
    target: Tensor,
    weights: Sequence[Tensor],
    *,
    per_class: bool = False,
) -> tuple[Tensor, Tensor]:
    """Compute the loss of each sample and its gradient in the outputs, by closed forms if possible.

    Computed in float64, because float32 rounding would mislead a line search.

    Args:
        terms: Terms by name.
        to_distribution: Function from outputs to a distribution, such as `Method.distribution`.
        outputs: Outputs of a network, (N, M).
        target: Class indices, (N,).
        weights: Weight of each term, float64: a scalar or a weight of each sample, (N, 1).
        per_class: Multiply the terms that grow with the number of classes by 10/K.

    Returns:
        Loss (N,) and gradient (N, M), both detached.
    """
    functions = tuple(terms.values())
    closed = _closed_form(functions, to_distribution(outputs), per_class, -100, "none")
    if closed is not None:
        return torch_backend.value_and_gradient(*closed, target, weights)
    with torch.enable_grad():
        leaf = outputs.detach().double().requires_grad_()
        dist = to_distribution(leaf)
        parts = [
            weight * _value(name, term, dist, target, per_class).unsqueeze(-1)
            for (name, term), weight in zip(terms.items(), weights, strict=True)
        ]
        loss = sum(parts[1:], parts[0]).squeeze(-1)
        (gradient,) = torch.autograd.grad(loss.sum(), leaf)
    return loss.detach(), gradient.to(outputs.dtype)


def _evaluate(
    spec: LossSpec, values: Tensor, target: Tensor, weights: Tensor, class_weight: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute a loss of closed forms and the sum of each, by a kernel if one applies."""
    fused = kernels.fused_loss(spec, values, target, weights, class_weight)
    if fused is not None:
        return fused
    return torch_backend.loss_and_sums(spec, values, target, weights, class_weight)


def _closed_form(
    terms: tuple[Term, ...], dist: Distribution, per_class: bool, ignore_index: int, reduction: str
) -> tuple[LossSpec, Tensor] | None:
    """Return the specification of the loss and the values that it reads, if all terms have one."""
    kernel_input = dist.kernel_input()
    forms = tuple(term for term in terms if isinstance(term, ClosedForm))
    if kernel_input is None or len(forms) < len(terms):
        return None
    values, evidence, prior = kernel_input
    return _spec(forms, evidence, prior, per_class, ignore_index, reduction), values


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
        raise DubitoError(f"terms of one loss must have one beta, not {sorted(betas)}")
    forms, beta = tuple(term.form for term in terms), float(betas.pop() if betas else 1)
    if not forms or len(set(forms)) < len(forms):
        raise DubitoError(f"a loss needs terms with different closed forms, not {forms}")
    return LossSpec(forms, evidence, prior, beta, per_class, int(ignore_index), reduction)


def _value(
    name: str,
    term: Term,
    dist: Distribution,
    target: Tensor | Target,
    per_class: bool,
    weight: Tensor | None = None,
) -> Tensor:
    """Evaluate one term: (...). Weights of single numbers, (..., T), multiply them."""
    if isinstance(target, Target) and not getattr(term, "takes_bounds", False):
        raise DubitoError(f"the loss term {name!r} does not take censored targets")
    if isinstance(term, ClosedForm):
        assert isinstance(target, Tensor)
        closed = _closed_form((term,), dist, per_class, -100, "none")
        if closed is None:
            raise TypeError(f"{term.form} is a term of a Dirichlet, not of {dist!r}")
        one = constant((1.0,), dist.device, torch.float32)
        value = _evaluate(*closed, target, one, None)[0]
    else:
        value = term(dist, target)
    if isinstance(dist, RealDistribution) and value.shape == dist.mean.shape:
        if weight is not None and weight.shape == value.shape:
            value = torch.where(weight == 0, 0, value * weight)
        return value.sum(-1)
    if value.shape != dist.batch_shape:
        raise DubitoError(
            f"the loss term {name!r} returned shape {tuple(value.shape)}; a term returns one value "
            f"per sample, {tuple(dist.batch_shape)}, without a mean or sum"
        )
    if weight is not None and weight.ndim > value.ndim:
        raise DubitoError(
            f"the loss term {name!r} returns one value per sample: it takes no weights of single "
            "numbers, and none may be missing"
        )
    return value


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
        weight: Weight of each class, (K,), as in `nn.CrossEntropyLoss`.
        ignore_index: Samples with this label do not count.
        reduction: "mean", "sum" or "none".
        scale: "per_class" or "paper"; see `dubito.losses`.

    Returns:
        Scalar, or (...) without reduction.

    >>> iedl(Dirichlet(torch.tensor([[5.0, 1.0]])), torch.tensor([0]), fisher_weight=0.01)
    tensor(0.2720)
    """
    fisher = _checks.non_negative(fisher_weight, "fisher_weight")
    weights = (1.0, 1.0, fisher, _checks.non_negative(kl_weight, "kl_weight"))
    return _loss(_IEDL, weights, dist, target, weight, ignore_index, reduction, _per_class(scale))


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
        weight: Weight of each class, (K,), as in `nn.CrossEntropyLoss`.
        ignore_index: Samples with this label do not count.
        reduction: "mean", "sum" or "none".
        scale: "per_class" or "paper"; see `dubito.losses`.

    Returns:
        Scalar, or (...) without reduction.

    >>> edl(Dirichlet(torch.tensor([[5.0, 1.0]])), torch.tensor([0]))
    tensor(0.0952)
    """
    terms = _checks.entry(EDL_TERMS, likelihood, "likelihood")
    weights = (*[1.0] * (len(terms) - 1), _checks.non_negative(kl_weight, "kl_weight"))
    return _loss(terms, weights, dist, target, weight, ignore_index, reduction, _per_class(scale))


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
        weight: Weight of each class, (K,), as in `nn.CrossEntropyLoss`.
        ignore_index: Samples with this label do not count.
        reduction: "mean", "sum" or "none".

    Returns:
        Scalar, or (...) without reduction.

    >>> uce(Dirichlet(torch.tensor([[5.0, 1.0]])), torch.tensor([0]))
    tensor(0.2000)
    """
    weights = (1.0, -_checks.non_negative(entropy_weight, "entropy_weight"))
    return _loss(_UCE, weights, dist, target, weight, ignore_index, reduction, per_class=False)


def named(*terms: ClosedForm) -> dict[str, Term]:
    """Return terms by the names of their forms."""
    return {term.form: term for term in terms}


_IEDL = named(fisher_bias, fisher_variance, fisher_penalty, label_removed_kl)
#: terms of EDL by likelihood
EDL_TERMS: Mapping[str, Mapping[str, Term]] = {
    "mse": named(mse_bias, mse_variance, label_removed_kl),
    "marginal": named(marginal_nll, label_removed_kl),
    "cross_entropy": named(expected_cross_entropy, label_removed_kl),
}
_UCE = named(expected_cross_entropy, differential_entropy)


def der_terms(beta: float) -> dict[str, Term]:
    """Return the terms of deep evidential regression.

    Args:
        beta: Exponent of the squared scale in the weight of a sample.
    """
    return _weighted(beta, NormalInverseGamma.nll, NormalInverseGamma.evidence_penalty)


def ider_terms(beta: float) -> dict[str, Term]:
    """Return the terms of evidential regression by Fisher information.

    Args:
        beta: Exponent of the squared scale in the weight of a sample.
    """
    return _weighted(beta, NormalInverseGamma.expected_nll, NormalInverseGamma.fisher_penalty)


def _weighted(beta: float, *terms: Any) -> dict[str, Term]:
    return {term.__name__: Weighted(term, beta) if beta else term for term in terms}


#: reads outputs (..., 4T), of which weighted terms stay finite
bounded_distribution = partial(NormalInverseGamma.from_outputs, least=LEAST_OUTPUT)


def _loss(
    terms: Mapping[str, Term],
    weights: Tensor | tuple[Weight, ...],
    dist: Distribution,
    target: Tensor | Target,
    class_weight: Tensor | None,
    ignore_index: int,
    reduction: Reduction,
    per_class: bool,
) -> Tensor:
    """Validate the inputs and compute a loss."""
    _check_options(reduction, ignore_index)
    dist.validate()
    kernel_input = dist.kernel_input()
    if kernel_input is not None:
        values, _, _ = kernel_input
        _checks.targets(values_and_weight(target)[0], values, ignore_index)
        if class_weight is not None:
            class_weight = _checks.class_weight(class_weight, values)
    return weighted_sums(
        terms, dist, target, _weight_tensor(weights, dist), class_weight=class_weight,
        ignore_index=ignore_index, reduction=reduction, per_class=per_class,
    )[0]  # fmt: skip


def _weight_tensor(weights: Tensor | tuple[Weight, ...], dist: Distribution) -> Tensor:
    if isinstance(weights, Tensor):
        return weights
    numbers = tuple(weight for weight in weights if not isinstance(weight, Tensor))
    if len(numbers) == len(weights):
        return constant(numbers, dist.device, torch.float32)
    parts = [torch.as_tensor(w, dtype=torch.float32, device=dist.device) for w in weights]
    return torch.stack(parts).detach()


def _check_options(reduction: str, ignore_index: int) -> None:
    _checks.one_of(REDUCTIONS, reduction, "reduction")
    _checks.whole_number(ignore_index, "ignore_index")


def _per_class(scale: str) -> bool:
    _checks.one_of(("per_class", "paper"), scale, "scale")
    return scale == "per_class"


# --- modules ---


class LossOptions(TypedDict, total=False):
    """Options of all losses as modules; see `LossModule`."""

    weight: Tensor | None
    ignore_index: int
    reduction: Reduction
    class_dim: int


class LossModule(nn.Module):
    """Loss of the outputs of a network, in place of `nn.CrossEntropyLoss`.

    Args:
        terms: Terms by name.
        weights_at: Function from an epoch to the weight of each term, (M,).
        distribution: Function from outputs (..., M) to a distribution.
        per_class: Multiply the terms that grow with the number of classes by 10/K.
        weight: Weight of each class, (K,), as in `nn.CrossEntropyLoss`.
        ignore_index: Samples with this label do not count.
        reduction: "mean", "sum" or "none".
        class_dim: Axis of the outputs; 1 for images (N, K, H, W).
    """

    weights: Tensor
    weight: Tensor | None

    def __init__(
        self,
        terms: Mapping[str, Term],
        weights_at: Callable[[int], Tensor],
        distribution: Callable[[Tensor], Distribution],
        per_class: bool,
        *,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        class_dim: int = -1,
    ) -> None:
        super().__init__()
        _check_options(reduction, ignore_index)
        _checks.whole_number(class_dim, "class_dim")
        self.terms, self.weights_at, self.distribution = terms, weights_at, distribution
        self.per_class, self.class_dim = per_class, class_dim
        self.ignore_index, self.reduction = ignore_index, reduction
        # A buffer, so that a new KL weight needs no recompilation and reaches captured CUDA graphs.
        self.register_buffer("weights", weights_at(0), persistent=False)
        self.register_buffer("weight", weight, persistent=False)
        # A flag, not the epoch: torch.compile would recompile for every value.
        self.epoch_is_set = torch.equal(self.weights, weights_at(LAST_EPOCH))

    def set_epoch(self, epoch: int) -> None:
        """Set the weights of an epoch; call it at the start of each epoch if they depend on it.

        Args:
            epoch: Number of the epoch, from 0.
        """
        if epoch < 0:
            raise DubitoError(f"epoch must be at least 0, not {epoch!r}")
        self.epoch_is_set = True
        self.weights.copy_(self.weights_at(epoch))

    def forward(self, outputs: Tensor, target: Tensor | Target) -> Tensor:
        """Compute the loss.

        Args:
            outputs: Outputs of a network, (..., M) or with the outputs at `class_dim`.
            target: Targets; class probabilities have the shape of the outputs. A `Target` needs the
                outputs in the last axis.
        """
        if not self.epoch_is_set:
            raise RuntimeError(
                f"{self} needs the epoch: call set_epoch(epoch) at the start of each epoch"
            )
        if self.class_dim != -1:
            target = _checks.tensor(target, "target")
            if target.ndim == outputs.ndim:
                target = target.movedim(self.class_dim, -1)
            outputs = _checks.classes_last(outputs, self.class_dim, "outputs")
        return _loss(
            self.terms, self.weights, self.distribution(outputs), target, self.weight,
            self.ignore_index, self.reduction, self.per_class,
        )  # fmt: skip

    def extra_repr(self) -> str:
        """Return the final weight of each term."""
        weights = zip(self.terms, self.weights_at(LAST_EPOCH).tolist(), strict=True)
        return ", ".join(f"{name}={weight:g}" for name, weight in weights)


def _evidential(
    weights: tuple[Weight, ...], kl_ramp: int, evidence: str, scale: str
) -> tuple[Callable[[int], Tensor], Callable[[Tensor], Distribution], bool]:
    """Return the arguments of `LossModule` after the terms, of which the last one is the KL."""
    if kl_ramp < 0:
        raise DubitoError(f"kl_ramp must be a number of epochs >= 0, not {kl_ramp!r}")
    read = partial(Dirichlet.from_logits, evidence=evidence)
    read(torch.zeros(2))  # Raises for an unknown evidence function.
    return partial(_ramped, tuple(map(float, weights)), kl_ramp), read, _per_class(scale)


def _ramped(weights: tuple[float, ...], kl_ramp: int, epoch: int) -> Tensor:
    *fixed, kl = weights
    return torch.tensor([*fixed, ramp(kl, kl_ramp, epoch)])


def ramp(weight: float, rise: int, epoch: int) -> float:
    """Raise a weight linearly from 0.

    Args:
        weight: Final weight.
        rise: Epochs until it is reached; 0 for none.
        epoch: Number of the epoch, from 0.

    >>> ramp(1.0, 10, epoch=5), ramp(1.0, 0, epoch=5)
    (0.5, 1.0)
    """
    return weight * min(1.0, epoch / rise) if rise else weight


class IEDLLoss(LossModule):
    """I-EDL loss of logits, in place of `nn.CrossEntropyLoss`; see `iedl`.

    Args:
        fisher_weight: Weight of the log-determinant.
        kl_weight: Final weight of the KL term.
        kl_ramp: Epochs over which the KL weight rises from 0; 0 keeps it constant. With a ramp,
            call `set_epoch` at the start of each epoch.
        evidence: Evidence function of the logits; see `Dirichlet.from_logits`.
        scale: "per_class" or "paper"; see `dubito.losses`.
        **options: weight, ignore_index, reduction and class_dim; see `LossModule`.

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
        scale: str = "per_class",
        **options: Unpack[LossOptions],
    ) -> None:
        fisher = _checks.non_negative(fisher_weight, "fisher_weight")
        weights = (1.0, 1.0, fisher, _checks.non_negative(kl_weight, "kl_weight"))
        super().__init__(_IEDL, *_evidential(weights, kl_ramp, evidence, scale), **options)


class EDLLoss(LossModule):
    """EDL loss of logits, in place of `nn.CrossEntropyLoss`; see `edl`.

    Args:
        likelihood: "mse", "marginal" or "cross_entropy".
        kl_weight: Final weight of the KL term.
        kl_ramp: Epochs over which the KL weight rises from 0; 0 keeps it constant. With a ramp,
            call `set_epoch` at the start of each epoch.
        evidence: Evidence function of the logits; see `Dirichlet.from_logits`.
        scale: "per_class" or "paper"; see `dubito.losses`.
        **options: weight, ignore_index, reduction and class_dim; see `LossModule`.

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
        scale: str = "per_class",
        **options: Unpack[LossOptions],
    ) -> None:
        terms = _checks.entry(EDL_TERMS, likelihood, "likelihood")
        weights = (*[1.0] * (len(terms) - 1), _checks.non_negative(kl_weight, "kl_weight"))
        super().__init__(terms, *_evidential(weights, kl_ramp, evidence, scale), **options)


class DERLoss(LossModule):
    """Loss of deep evidential regression (Amini et al., NeurIPS 2020) of outputs (..., 4T).

    `NormalInverseGamma.from_outputs` reads the outputs. Targets are (..., T), or a `Target` with
    weights, missing or censored values.

    Args:
        evidence_weight: Weight of the penalty on evidence for wrong predictions.
        beta: Exponent of the squared scale in the weight of a sample; 0 as published.
        **options: reduction and class_dim; see `LossModule`.

    >>> DERLoss()(torch.zeros(8, 4), torch.ones(8, 1))
    tensor(1.5901)
    """

    def __init__(
        self, evidence_weight: float = 0.01, beta: float = 0.5, **options: Unpack[LossOptions]
    ) -> None:
        weights = (1.0, _checks.non_negative(evidence_weight, "evidence_weight"))
        read = bounded_distribution
        super().__init__(der_terms(beta), _constant(weights), read, False, **options)


class IDERLoss(LossModule):
    """Loss of the method `ider` of outputs (..., 4T), with the arguments of `DERLoss`.

    Args:
        fisher_weight: Weight of the log-determinant, less than 1/8.
        beta: Exponent of the squared scale in the weight of a sample.
        **options: reduction and class_dim; see `LossModule`.

    >>> IDERLoss()(torch.zeros(8, 4), torch.ones(8, 1))
    tensor(2.6076)
    """

    def __init__(
        self, fisher_weight: float = 0.02, beta: float = 0.5, **options: Unpack[LossOptions]
    ) -> None:
        weights = (1.0, _checks.non_negative(fisher_weight, "fisher_weight"))
        read = bounded_distribution
        super().__init__(ider_terms(beta), _constant(weights), read, False, **options)


def _constant(weights: tuple[Weight, ...]) -> Callable[[int], Tensor]:
    return lambda epoch: torch.tensor(weights)
