r"""Evidential losses: named per-sample terms, and the weighted sums made of them.

Terms take `alpha` (..., K) and give (...). Losses add terms up and reduce; their modules take
logits.
A `target` is labels (...) or probabilities (..., K), the latter constant.

The -log det and KL terms grow with K. `scale="per_class"` multiplies both by 10/K, so that a
weight tuned
for ten classes (where both scales agree) carries over to a thousand; `scale="paper"` is as
published.
"""

from dubito.losses.functions import (
    EDL_LIKELIHOODS,
    LossOptions,
    Reduction,
    cross_entropy,
    edl,
    iedl,
    uce,
    weighted,
)
from dubito.losses.modules import EDLLoss, IEDLLoss
from dubito.losses.terms import (
    expected_cross_entropy,
    fisher_bias,
    fisher_penalty,
    fisher_variance,
    forward_kl,
    label_dirichlet,
    label_removed_kl,
    marginal_nll,
    mse_bias,
    mse_variance,
    reverse_kl,
    terms,
)

__all__ = [
    "EDL_LIKELIHOODS",
    "EDLLoss",
    "IEDLLoss",
    "LossOptions",
    "Reduction",
    "cross_entropy",
    "edl",
    "expected_cross_entropy",
    "fisher_bias",
    "fisher_penalty",
    "fisher_variance",
    "forward_kl",
    "iedl",
    "label_dirichlet",
    "label_removed_kl",
    "marginal_nll",
    "mse_bias",
    "mse_variance",
    "reverse_kl",
    "terms",
    "uce",
    "weighted",
]
