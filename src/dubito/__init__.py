"""dubito: evidential deep learning for PyTorch, models that know when they don't know.

Names are imported when they are first used: `import dubito` takes no time.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dubito.api import calibrate, evaluate, export, load, predict, train, wrap
    from dubito.distributions import (
        Categorical,
        Dirichlet,
        FlexibleDirichlet,
        NormalInverseGamma,
        NormalInverseWishart,
    )
    from dubito.errors import DubitoError
    from dubito.losses import DERLoss, EDLLoss, IDERLoss, IEDLLoss, edl, iedl, uce
    from dubito.model import Model
    from dubito.sklearn import EvidentialClassifier, EvidentialRegressor

__version__ = "0.3.0.dev0"

__all__ = [
    "Categorical", "DERLoss", "Dirichlet", "DubitoError", "EDLLoss", "EvidentialClassifier",
    "EvidentialRegressor", "FlexibleDirichlet", "IDERLoss", "IEDLLoss", "Model",
    "NormalInverseGamma", "NormalInverseWishart", "calibrate", "edl", "evaluate", "export", "iedl",
    "load", "predict", "train", "uce", "wrap",
]  # fmt: skip

#: modules that these names come from; each imports those before it
_PROVIDERS = ("errors", "distributions", "losses", "model", "api", "sklearn")


def __getattr__(name: str) -> Any:
    if name in _modules():
        return import_module(f"{__name__}.{name}")
    for provider in _PROVIDERS if name in __all__ else ():
        module = import_module(f"{__name__}.{provider}")
        if name in module.__all__:
            globals()[name] = value = getattr(module, name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_modules()})


def _modules() -> set[str]:
    """Return the names of public modules, which are attributes without having been imported."""
    names = {module.name for module in iter_modules(__path__)}
    return {name for name in names if not name.startswith("_")}
