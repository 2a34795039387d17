"""The specification of a fused loss: its terms and their constants."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

__all__ = ["EVIDENCE", "EXP_BOUND", "FORMS", "REDUCTIONS", "LossSpec", "Terms", "loss_spec"]


class Terms(NamedTuple):
    """One entry per closed form: columns, weights or values."""

    mse_bias: Any
    mse_variance: Any
    fisher_bias: Any
    fisher_variance: Any
    fisher_penalty: Any
    label_removed_kl: Any
    marginal_nll: Any
    expected_cross_entropy: Any
    differential_entropy: Any
    kl_to_uniform: Any
    kl_from_uniform: Any
    reverse_kl: Any
    forward_kl: Any


#: closed forms a loss may use
FORMS = Terms._fields
#: evidence functions
EVIDENCE = ("softplus", "relu", "exp")
REDUCTIONS = ("mean", "sum", "none")
#: logits above this give no more evidence under "exp"
EXP_BOUND = 60.0


class LossSpec(NamedTuple):
    """A weighted sum of closed forms of a Dirichlet; build it with `loss_spec`, which validates."""

    forms: tuple[str, ...]  # Names of `FORMS`, in the order of the weights.
    # Evidence function of the logits; None: the input is alpha itself.
    evidence: str | None = "softplus"
    prior: float = 1.0  # The constant in alpha = evidence + prior; 0: alpha has no prior.
    beta: float = 1.0  # Concentration of the label in `reverse_kl` and `forward_kl`.
    per_class: bool = False  # Multiply `fisher_penalty` and `label_removed_kl` by 10/K.
    ignore_index: int = -100  # Label of rows that do not count.
    reduction: str = "mean"


def loss_spec(
    forms: tuple[str, ...],
    evidence: str | None = "softplus",
    prior: float = 1.0,
    beta: float = 1.0,
    per_class: bool = False,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> LossSpec:
    """Validate the constants of a loss.

    Args:
        forms: Names of `FORMS`, each at most once.
        evidence: One of `EVIDENCE`, or None if the input is alpha.
        prior: Constant in alpha = evidence + prior, at least 0.
        beta: Concentration of the label in `reverse_kl` and `forward_kl`, positive.
        per_class: Whether to multiply the terms that grow with the number of classes K by 10/K.
        ignore_index: Label of rows that do not count.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Returns:
        The specification.

    Raises:
        ValueError: If a name is unknown or a number out of range.

    >>> loss_spec(("mse_bias", "label_removed_kl"), prior=0.1).prior
    0.1
    """
    if not forms:
        raise ValueError("forms is empty; expected at least one closed form")
    for name in forms:
        if name not in FORMS:
            raise ValueError(f"unknown form {name!r}; known: {', '.join(map(repr, FORMS))}")
    if len(set(forms)) < len(forms):
        raise ValueError(f"forms must differ, got {forms}")
    if evidence is not None and evidence not in EVIDENCE:
        raise ValueError(f"unknown evidence {evidence!r}; known: 'softplus', 'relu', 'exp', None")
    if not 0 <= prior < math.inf:
        raise ValueError(f"prior must be at least 0 and finite, got {prior}")
    if evidence == "relu" and prior == 0:
        raise ValueError("evidence 'relu' without a prior gives alpha = 0; use prior > 0")
    if not 0 < beta < math.inf:
        raise ValueError(f"beta must be positive and finite, got {beta}")
    if reduction not in REDUCTIONS:
        raise ValueError(f"unknown reduction {reduction!r}; known: 'mean', 'sum', 'none'")
    return LossSpec(
        tuple(forms), evidence, float(prior), float(beta), bool(per_class), int(ignore_index),
        reduction,
    )  # fmt: skip
