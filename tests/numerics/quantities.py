"""Closed forms with their exact values and the scales their errors are relative to."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from dubito.distributions import Dirichlet
from dubito.numerics import functions
from tests import reference_dirichlet, reference_losses
from tests.accuracy import Quantity
from tests.reference import Point, Truth, truth

#: scales of value and gradient, see tests/reference.py: of sums of positive parts whose slopes
#: change sign, or are zero where two distributions agree
USUAL = ("plain", "terms")
#: the scales of others
SCALES = {
    # Sums of logarithms of either sign; their slopes have one sign.
    "fisher_logdet": ("inputs", "plain"),
    "fisher_penalty": ("inputs", "plain"),
    # Zero where the mean meets a soft target.
    "mse_bias": ("inputs", "terms"),
    "fisher_bias": ("inputs", "terms"),
    # Products, quotients and sums of positive parts.
    "mean": ("plain", "plain"),
    "log_mean": ("plain", "plain"),
    "fisher_information": ("plain", "plain"),
}


def to_uniform(x: Point) -> Truth:
    return reference_dirichlet.towards(x, 0 * x.alpha + 1)


def away_from_uniform(x: Point) -> Truth:
    return reference_dirichlet.away_from(x, 0 * x.alpha + 1)


def log_mean(x: Point) -> Truth:
    """ln p_k. Gradient (others_k/alpha0)/alpha_k at k and -1/alpha0 elsewhere: plain scale."""
    k = x["row"]
    value = reference_dirichlet.log(x.probs)
    slope = k * x.others / (x.alpha0 * x.alpha) - (1 - k) / x.alpha0
    return truth(x, x.value_at("row", value), slope)


def _form(name: str, **options: float) -> Callable[..., Tensor]:
    def call(alpha: Tensor, target: Tensor | None = None) -> Tensor:
        y = target
        if target is not None and not target.is_floating_point():
            y = torch.nn.functional.one_hot(target, alpha.shape[-1]).to(alpha.dtype)
        return functions.evaluate((name,), alpha, y, **options)[0]

    return call


def _second(alpha: Tensor, beta: Tensor) -> Tensor:
    return functions.kl_divergence(beta, alpha)


def _fisher_logdet(alpha: Tensor) -> Tensor:
    return Dirichlet(alpha).fisher_logdet


def _dissonance(alpha: Tensor) -> Tensor:
    return functions.dissonance((alpha - 1) / alpha.sum(-1, keepdim=True))


Call = tuple[Callable[..., Tensor], Callable[[Point], Truth], str, int]
_OF_ALPHA = ("entropy_of_mean", "expected_entropy", "mutual_information", "differential_entropy")
_TERMS_OF_ALPHA = ("mse_variance", "fisher_variance", "fisher_penalty")
_TERMS_OF_TARGET = (
    "mse_bias",
    "fisher_bias",
    "label_removed_kl",
    "marginal_nll",
    "expected_cross_entropy",
)

#: name -> (the function, its exact value, what it takes besides alpha, the most classes)
CALLS: dict[str, Call] = {
    **{n: (_form(n), getattr(reference_dirichlet, n), "alpha", 10000) for n in _OF_ALPHA},
    **{n: (_form(n), getattr(reference_losses, n), "alpha", 10000) for n in _TERMS_OF_ALPHA},
    **{n: (_form(n), getattr(reference_losses, n), "target", 10000) for n in _TERMS_OF_TARGET},
    "fisher_logdet": (_fisher_logdet, reference_dirichlet.fisher_logdet, "alpha", 10000),
    "kl_from_uniform": (_form("kl_from_uniform"), away_from_uniform, "alpha", 10000),
    "kl_to_uniform": (_form("kl_to_uniform"), to_uniform, "alpha", 10000),
    "kl_divergence": (functions.kl_divergence, reference_dirichlet.kl_from, "beta", 10000),
    "kl_divergence, second": (_second, reference_dirichlet.kl_into, "beta", 10000),
    "mean": (functions.mean, reference_dirichlet.mean, "entry", 10000),
    "log_mean": (functions.log_mean, log_mean, "entry", 10000),
    "variance": (functions.variance, reference_dirichlet.variance, "entry", 10000),
    "fisher_information": (
        functions.fisher_information,
        reference_dirichlet.fisher_information,
        "entries",
        100,
    ),
    "dissonance": (_dissonance, reference_dirichlet.dissonance, "alpha", 1000),
}

QUANTITIES = {
    name: Quantity(name, call, exact, takes, *SCALES.get(name, USUAL), most)  # type: ignore[arg-type]
    for name, (call, exact, takes, most) in CALLS.items()
}


def removed(base: float) -> Quantity:
    """`label_removed_kl` with the prior `base`."""
    call, exact = _form("label_removed_kl", prior=base), reference_losses.label_removed_kl
    return replace(QUANTITIES["label_removed_kl"], call=call, truth=partial(exact, base=base))


def targeted(name: str, call: Callable[..., Tensor], beta: float) -> Quantity:
    """A divergence between alpha and the Dirichlet of a label, whose concentration is `beta`."""
    exact = {"reverse_kl": reference_dirichlet.towards, "forward_kl": reference_dirichlet.away_from}
    return Quantity(
        name, call, lambda x: exact[name](x, 1 + (beta - 1) * x["target"]),
        "label", "plain", "terms",
    )  # fmt: skip
