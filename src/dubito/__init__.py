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
    from dubito.api import calibrate, evaluate, export, load, predict, train
    from dubito.distributions import (
        Categorical,
        Dirichlet,
        FlexibleDirichlet,
        NormalInverseGamma,
    )
    from dubito.losses import EDLLoss, IEDLLoss, edl, iedl, uce
    from dubito.model import Model
    from dubito.sklearn import EvidentialClassifier

__version__ = "0.2.0.dev0"

__all__ = [
    "Categorical",
    "Dirichlet",
    "EDLLoss",
    "EvidentialClassifier",
    "FlexibleDirichlet",
    "IEDLLoss",
    "Model",
    "NormalInverseGamma",
    "calibrate",
    "calibration",
    "distributions",
    "edl",
    "evaluate",
    "evaluation",
    "export",
    "iedl",
    "load",
    "losses",
    "methods",
    "metrics",
    "policy",
    "predict",
    "special",
    "tasks",
    "train",
    "uce",
]

#: module of each exported object; other names of `__all__` are modules
_MODULES = {
    **dict.fromkeys(
        ("Categorical", "Dirichlet", "FlexibleDirichlet", "NormalInverseGamma"), "distributions"
    ),
    **dict.fromkeys(("EDLLoss", "IEDLLoss", "edl", "iedl", "uce"), "losses"),
    "EvidentialClassifier": "sklearn",
    "Model": "model",
    **dict.fromkeys(("calibrate", "evaluate", "export", "load", "predict", "train"), "api"),
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
