"""Every public quantity with its truth and the scales its errors are relative to."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from dubito import dirichlet, losses
from tests import reference_dirichlet, reference_losses
from tests.accuracy import Quantity
from tests.reference import Point, Truth

#: quantity -> (scale of its value, scale of its gradient); reference.py says what these are
SCALES = {
    # Products, quotients and sums of positive parts: held to the plain scale throughout.
    "mean": ("plain", "plain"),
    "belief": ("plain", "plain"),
    "vacuity": ("plain", "plain"),
    "fisher_information": ("plain", "plain"),
    # The value is a sum of positive parts, but each slope changes sign somewhere: a variance peaks,
    # an entropy falls as the likely class gains and rises as an unlikely one does.
    "variance": ("plain", "terms"),
    "covariance": ("plain", "terms"),
    "entropy_of_mean": ("plain", "terms"),
    "expected_entropy": ("plain", "terms"),
    "mutual_information": ("plain", "terms"),
    "dissonance": ("plain", "terms"),
    "mse_variance": ("plain", "terms"),
    "fisher_variance": ("plain", "terms"),
    # Zero at the uniform Dirichlet or where both arguments agree, and so is the slope.
    "kl_to_uniform": ("plain", "terms"),
    "differential_entropy": ("plain", "terms"),
    "label_removed_kl": ("plain", "terms"),
    "kl_divergence": ("plain", "terms"),
    "kl_divergence, second": ("plain", "terms"),
    "reverse_kl": ("plain", "terms"),
    "forward_kl": ("plain", "terms"),
    # A sum of logarithms of either sign; its slopes are of one sign.
    "fisher_logdet": ("inputs", "plain"),
    "fisher_penalty": ("inputs", "plain"),
    # Zero where the mean meets a soft target; with a one-hot one this scale is a small multiple of
    # the plain one.
    "mse_bias": ("inputs", "terms"),
    "fisher_bias": ("inputs", "terms"),
    # Positive; the slope of a soft target changes sign.
    "marginal_nll": ("plain", "terms"),
    "expected_cross_entropy": ("plain", "terms"),
}


def _second(alpha: Tensor, beta: Tensor) -> Tensor:
    return dirichlet.kl_divergence(beta, alpha)


#: name -> (the function, its truth, what it takes besides alpha[, the most classes])
CALLS: dict[str, tuple[Callable[..., Tensor], Callable[[Point], Truth], str, int]] = {
    "mean": (dirichlet.mean, reference_dirichlet.mean, "entry", 10000),
    "variance": (dirichlet.variance, reference_dirichlet.variance, "entry", 10000),
    "covariance": (dirichlet.covariance, reference_dirichlet.covariance, "entries", 100),
    "fisher_information": (
        dirichlet.fisher_information,
        reference_dirichlet.fisher_information,
        "entries",
        100,
    ),
    "belief": (dirichlet.belief, reference_dirichlet.belief, "entry", 10000),
    "kl_divergence": (dirichlet.kl_divergence, reference_dirichlet.kl_from, "beta", 10000),
    "kl_divergence, second": (_second, reference_dirichlet.kl_into, "beta", 10000),
    "reverse_kl": (losses.reverse_kl, reference_dirichlet.kl_from, "beta", 10000),
    "forward_kl": (losses.forward_kl, reference_dirichlet.kl_into, "beta", 10000),
    "dissonance": (dirichlet.dissonance, reference_dirichlet.dissonance, "alpha", 1000),
    **{
        name: (getattr(dirichlet, name), getattr(reference_dirichlet, name), "alpha", 10000)
        for name in (
            "entropy_of_mean",
            "expected_entropy",
            "mutual_information",
            "differential_entropy",
            "kl_to_uniform",
            "fisher_logdet",
            "vacuity",
        )
    },
    **{
        name: (getattr(losses, name), getattr(reference_losses, name), "alpha", 10000)
        for name in ("mse_variance", "fisher_variance", "fisher_penalty")
    },
    **{
        name: (getattr(losses, name), getattr(reference_losses, name), "target", 10000)
        for name in (
            "mse_bias",
            "fisher_bias",
            "label_removed_kl",
            "marginal_nll",
            "expected_cross_entropy",
        )
    },
}

QUANTITIES = {
    name: Quantity(name, call, truth, takes, *SCALES[name], most)  # type: ignore[arg-type]
    for name, (call, truth, takes, most) in CALLS.items()
}
