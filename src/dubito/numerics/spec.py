"""Specification of a loss: its closed forms and their constants."""

from collections import namedtuple
from typing import NamedTuple

__all__: list[str] = []

#: one entry per closed form: columns, weights or values
PerForm = namedtuple(
    "PerForm",
    [
        "mse_bias",
        "mse_variance",
        "fisher_bias",
        "fisher_variance",
        "fisher_penalty",
        "label_removed_kl",
        "marginal_nll",
        "expected_cross_entropy",
        "differential_entropy",
        "kl_to_uniform",
        "kl_from_uniform",
        "reverse_kl",
        "forward_kl",
    ],
)
#: closed forms a loss may use
LOSS_FORMS = PerForm._fields
#: forms that grow with the number of classes, which `per_class` multiplies by 10/K
PER_CLASS = ("fisher_penalty", "label_removed_kl", "kl_to_uniform", "reverse_kl")
REDUCTIONS = ("mean", "sum", "none")
#: logits above this give no more evidence under "exp"
EXP_BOUND = 60.0


class LossSpec(NamedTuple):
    """Weighted sum of closed forms of a Dirichlet."""

    forms: tuple[str, ...]  # Names of `LOSS_FORMS`, each at most once, in the order of the weights.
    evidence: str | None = "softplus"  # Evidence function of the logits; None: the input is alpha.
    prior: float = 1.0  # The constant in alpha = evidence + prior; 0: alpha has no prior.
    beta: float = 1.0  # Concentration of the label in `reverse_kl` and `forward_kl`.
    per_class: bool = False  # Multiply the forms of `PER_CLASS` by 10/K.
    ignore_index: int = -100  # Label of rows that do not count.
    reduction: str = "mean"  # One of `REDUCTIONS`.


def form_factors(spec: LossSpec, num_classes: int) -> tuple[float, ...]:
    """Return the factor of each form, which is not 1 only with `per_class`."""
    growth = 10 / num_classes if spec.per_class else 1.0
    return tuple(growth if form in PER_CLASS else 1.0 for form in spec.forms)
