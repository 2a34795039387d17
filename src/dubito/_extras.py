"""Import optional dependencies."""

from importlib import import_module
from typing import Any

from dubito.errors import DubitoError


class MissingExtra(DubitoError, ImportError):
    """A package that an extra brings is not installed."""


def need(module: str, extra: str, otherwise: str = "") -> Any:
    """Import a module of an extra.

    Args:
        module: Dotted name of the module.
        extra: Extra that installs it.
        otherwise: What else helps, for the end of the message.
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        if (error.name or "").split(".")[0] != package:
            raise  # installed, but broken
        raise MissingExtra(
            f"{package} is not installed: pip install 'dubito[{extra}]'{otherwise}"
        ) from error
