"""Methods: how a network is built, read and trained, by name.

| name | method | distribution |
| --- | --- | --- |
| iedl | I-EDL (Deng et al. 2023) | Dirichlet |
| edl | EDL (Sensoy et al. 2018), its three losses | Dirichlet |
| redl | R-EDL (Chen et al. 2024) | Dirichlet |
| re_edl | Re-EDL (Chen et al. 2025), R-EDL without its KL term | Dirichlet |
| red | RED (Pandey and Yu 2023) | Dirichlet |
| dappr | DAPPr (Ni et al. 2026) | Dirichlet |
| daedl | DAEDL (Yoon and Kim 2024) | Dirichlet |
| fedl | F-EDL (NeurIPS 2025) | flexible Dirichlet |
| modex | MoDEX (ICML 2026) | mixture of Dirichlets |
| kl_pn | Prior Network, forward KL (Malinin and Gales 2018) | Dirichlet |
| rkl_pn | Prior Network, reverse KL (Malinin and Gales 2019) | Dirichlet |
| posterior_network | Posterior Network (Charpentier et al. 2020) | Dirichlet |
| softmax | softmax cross entropy | categorical |
| label_smoothing | the same with smoothed labels (Szegedy et al. 2016) | categorical |
| logit_norm | LogitNorm (Wei et al. 2022) of any method | that of the method |
| t2f_norm | T2FNorm (Regmi et al. 2024) of any method | that of the method |
| mc_dropout | MC Dropout (Gal and Ghahramani 2016) of any method | mixture |
| ensemble | deep ensemble (Lakshminarayanan et al. 2017) of any method | mixture |
| distill | ensemble distribution distillation (Malinin et al. 2020) | (flexible) Dirichlet |
| gaussian | mean and variance, beta-NLL (Seitzer et al. 2022) as an option | normal |
| quantile | quantile regression (Koenker and Bassett 1978) | quantiles |
| der | deep evidential regression (Amini et al. 2020) | normal-inverse-gamma |
| sder | the same, simplified (Meinert et al. 2023) | normal-inverse-gamma |
| ider | I-EDL carried over to numbers | normal-inverse-gamma |
| niw | several correlated numbers (Meinert and Lavin 2021) | normal-inverse-Wishart |

A new method is one file like its neighbors, and its name in `METHODS.declare`.
"""

from typing import TYPE_CHECKING, Any

from dubito.methods.base import METHODS, Method, MethodLoss, NonNegative, TaskLike

if TYPE_CHECKING:
    from dubito.methods.der import DER
    from dubito.methods.edl import EDL
    from dubito.methods.ensemble import Ensemble
    from dubito.methods.ider import IDER
    from dubito.methods.iedl import IEDL
    from dubito.methods.mc_dropout import MCDropout
    from dubito.methods.posterior_network import PosteriorNetwork
    from dubito.methods.softmax import Softmax

__all__ = [
    "DER", "EDL", "IDER", "IEDL", "METHODS", "Ensemble", "MCDropout", "Method", "MethodLoss",
    "NonNegative", "PosteriorNetwork", "Softmax", "TaskLike",
]  # fmt: skip

METHODS.declare(
    __name__, "daedl", "dappr", "der", "distill", "edl", "ensemble", "fedl", "gaussian", "ider",
    "iedl", "logit_norm", "mc_dropout", "modex", "niw", "posterior_network", "quantile", "re_edl",
    "red", "redl", "sder", "softmax", "t2f_norm",
    kl_pn="prior_networks", label_smoothing="softmax", rkl_pn="prior_networks",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    for kind in METHODS.values() if name in __all__ else ():
        if kind.__name__ == name and kind.__module__.startswith(f"{__name__}."):
            return kind
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
