"""The methods, by name: what is trained, with which loss, and what it says of an input.

| name | method | prediction |
| --- | --- | --- |
| iedl | I-EDL (Deng et al. 2023) | Dirichlet |
| edl | EDL (Sensoy et al. 2018), its three losses | Dirichlet |
| redl | R-EDL (Chen et al. 2024) | Dirichlet |
| kl_pn | Prior Network, forward KL (Malinin and Gales 2018) | Dirichlet |
| rkl_pn | Prior Network, reverse KL (Malinin and Gales 2019) | Dirichlet |
| posterior_network | Posterior Network (Charpentier et al. 2020) | Dirichlet |
| mc_dropout | MC Dropout (Gal and Ghahramani 2016) | samples |
| softmax | softmax cross entropy | probabilities |
| label_smoothing | the same with smoothed labels (Szegedy et al. 2016) | probabilities |
| ensemble | deep ensemble (Lakshminarayanan et al. 2017) of any of these | samples |

A new method is one file like its neighbours and one line in `METHODS`.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from dubito import _checks
from dubito.methods.base import Method
from dubito.methods.edl import EDL
from dubito.methods.ensemble import Ensemble
from dubito.methods.iedl import IEDL
from dubito.methods.label_smoothing import LabelSmoothing
from dubito.methods.mc_dropout import MCDropout
from dubito.methods.posterior_network import PosteriorNetwork
from dubito.methods.prior_networks import KLPriorNetwork, ReverseKLPriorNetwork
from dubito.methods.redl import REDL
from dubito.methods.softmax import Softmax

__all__ = [
    "EDL",
    "IEDL",
    "METHODS",
    "REDL",
    "Ensemble",
    "KLPriorNetwork",
    "LabelSmoothing",
    "MCDropout",
    "Method",
    "PosteriorNetwork",
    "ReverseKLPriorNetwork",
    "Softmax",
    "method",
    "name_of",
]

#: name -> method
METHODS: dict[str, type[Method]] = {
    "iedl": IEDL,
    "edl": EDL,
    "redl": REDL,
    "kl_pn": KLPriorNetwork,
    "rkl_pn": ReverseKLPriorNetwork,
    "posterior_network": PosteriorNetwork,
    "mc_dropout": MCDropout,
    "softmax": Softmax,
    "label_smoothing": LabelSmoothing,
    "ensemble": Ensemble,
}


def method(name: str, **hyperparameters: Any) -> Method:
    """The named method.

    >>> method("edl", likelihood="marginal", kl_ramp=0)
    EDL(likelihood='marginal', kl_weight=1.0, kl_ramp=0, fisher_weight=0.0, evidence=..., scale=...)
    """
    chosen = _checks.entry(METHODS, name, "method")
    known = [field.name for field in fields(chosen) if field.init]
    for hyperparameter in hyperparameters:
        _checks.one_of(known, hyperparameter, f"hyperparameter of the method {name!r}:")
    return chosen(**hyperparameters)


def name_of(method: Method) -> str | None:
    """The name of a method in the table; None where it is none of these.

    >>> name_of(EDL())
    'edl'
    """
    return next((name for name, kind in METHODS.items() if type(method) is kind), None)
