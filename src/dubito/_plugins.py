"""Load third-party methods, distributions, scores, backbones and datasets.

A plug-in is a module that registers its entries when it is imported. Packages announce theirs in
the entry-point group `dubito`; the command line also takes `--import MODULE`. A saved model never
names code to import.
"""

import functools
import sys
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from dubito.errors import DubitoError


@functools.cache
def load_plugins() -> None:
    """Import all installed plug-ins, once."""
    for entry in entry_points(group="dubito"):
        entry.load()


def import_plugin(name: str) -> ModuleType:
    """Import a plug-in, and return its module.

    Args:
        name: Dotted name of a module, or path of a .py file.
    """
    path, module = Path(name), name
    if path.suffix == ".py":
        if not path.is_file():
            raise DubitoError(f"there is no plug-in {name}")
        sys.path.insert(0, str(path.resolve().parent))
        module = path.stem
    try:
        return import_module(module)
    except DubitoError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise DubitoError(f"cannot import the plug-in {name}: {reason}") from error
