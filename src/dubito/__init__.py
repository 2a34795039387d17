"""dubito: evidential deep learning for PyTorch, classifiers that know when they don't know.

Names are imported when they are first used: `import dubito` takes no time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dubito import (
        calibration,
        distributions,
        evaluation,
        losses,
        methods,
        metrics,
        policy,
        special,
        tasks,
    )
    from dubito.distributions import (
        Categorical,
        Dirichlet,
        FlexibleDirichlet,
        NormalInverseGamma,
    )
    from dubito.estimator import EvidentialClassifier
    from dubito.losses import EDLLoss, IEDLLoss, edl, iedl, uce

__version__ = "0.2.0.dev0"

__all__ = [
    "Categorical",
    "Dirichlet",
    "EDLLoss",
    "EvidentialClassifier",
    "FlexibleDirichlet",
    "IEDLLoss",
    "NormalInverseGamma",
    "calibration",
    "distributions",
    "edl",
    "evaluation",
    "iedl",
    "losses",
    "methods",
    "metrics",
    "policy",
    "special",
    "tasks",
    "uce",
]

#: module of each exported object; other names of `__all__` are modules
_MODULES = {
    **dict.fromkeys(
        ("Categorical", "Dirichlet", "FlexibleDirichlet", "NormalInverseGamma"), "distributions"
    ),
    **dict.fromkeys(("EDLLoss", "IEDLLoss", "edl", "iedl", "uce"), "losses"),
    "EvidentialClassifier": "estimator",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_MODULES.get(name, name)}")
    value = getattr(module, name) if name in _MODULES else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
