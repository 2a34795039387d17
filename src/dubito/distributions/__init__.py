"""Distributions: predictions of a network with their uncertainty.

| class | over | uncertainty in |
| --- | --- | --- |
| `Categorical` | class probabilities, without uncertainty about them | nats |
| `Dirichlet` | class probabilities | nats |
| `FlexibleDirichlet` | class probabilities | variance of the probabilities |
| `Normal` | a number, without uncertainty about mean and variance | variance |
| `NormalInverseGamma` | mean and variance of a number | variance |
| `NormalInverseWishart` | mean and covariance of several numbers | variance |
| `Quantiles` | a number, without uncertainty about its quantiles | variance |

`dist.mixture()` mixes members of an ensemble or samples of MC Dropout, of any of these.
"""

from dubito.distributions.base import Distribution, confidence_score, uncertainty_score
from dubito.distributions.categorical import Categorical
from dubito.distributions.classification import ClassDistribution
from dubito.distributions.dirichlet import Dirichlet
from dubito.distributions.flexible_dirichlet import FlexibleDirichlet
from dubito.distributions.normal_inverse_gamma import NormalInverseGamma
from dubito.distributions.normal_inverse_wishart import NormalInverseWishart
from dubito.distributions.regression import RealDistribution

__all__ = [
    "Categorical",
    "ClassDistribution",
    "Dirichlet",
    "Distribution",
    "FlexibleDirichlet",
    "NormalInverseGamma",
    "NormalInverseWishart",
    "RealDistribution",
    "confidence_score",
    "uncertainty_score",
]
